"""The loader of NumPy batches."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._checks.randomness import remedy_of
from .._common.errors import InvalidError
from .._common.one_line import one_line
from .._datasets.cached_samples import CachedSamples
from .._order.order import Order
from .base import BaseLoader
from .made_caches import begin
from .numpy_backend import NumpyBackend
from .options import Arguments, check, is_ordered, makes_as_default, of_pipe, order_sampler, takes, with_options
from .sampling import Batcher, OrderSampler


class Loader(BaseLoader):
    """Batches of a dataset, which workers load ahead or a cache gives.

    Arguments of torch's DataLoader mean the same here; see `stocached.torch.DataLoader`, which
    gives tensors. Batches have the dicts and tuples of a sample. In them are NumPy arrays: of
    (batch, *shape) for each array of a sample, of (batch,) for each number; strings, bytes and
    other objects are in lists. They are the caller's own, who may keep them: their memory is reused
    when no array refers to it any more.

    dataset: with len() and [index], or iterable. seed: with shuffle=True alone, it is drawn from
    `generator`, or from numpy.random.
    Concurrency: one thread at a time. Forked children may begin their own iterations. Can be
    pickled, without workers and without its place in an epoch."""

    _remedy = remedy_of("Loader")

    @takes(Arguments)
    def __init__(self, *given: Any, **named: Any) -> None:
        begin(self)
        arguments = of_pipe(self, Arguments(*given, **named), NumpyBackend().collate)
        before = frozenset(self.__dict__)
        self.settings = dict(vars(arguments))
        dataset, batch_size, num_workers = arguments.dataset, arguments.batch_size, arguments.num_workers
        if arguments.persistent_workers and num_workers == 0:
            raise InvalidError("persistent_workers=True needs num_workers of 1 or more")
        iterable = not hasattr(dataset, "__getitem__")
        if isinstance(dataset, getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())):
            raise InvalidError(
                f"{type(dataset).__name__} is an IterableDataset of torch, whose workers ask torch for their part; give it to "
                "stocached.torch.DataLoader"
            )
        if arguments.generator is not None and not hasattr(arguments.generator, "integers"):
            raise InvalidError(
                f"generator={one_line(arguments.generator)} is no generator of NumPy; give np.random.default_rng(3), or shuffle=True "
                "and seed=3"
            )
        sampler: Any = arguments.sampler
        batch_sampler: Any = arguments.batch_sampler
        if iterable and (arguments.shuffle or sampler is not None or batch_sampler is not None):
            raise InvalidError(
                "shuffle=, sampler= and batch_sampler= need a dataset with len() and [index]; this one is iterable"
            )
        if sampler is not None and arguments.shuffle:
            raise InvalidError("sampler= says the order; leave out shuffle=")
        if batch_sampler is not None and (
            batch_size != 1 or arguments.shuffle or sampler is not None or arguments.drop_last
        ):
            raise InvalidError(
                "batch_sampler= makes the batches; leave out batch_size=, shuffle=, sampler= and drop_last="
            )
        if batch_size is None and arguments.drop_last:
            raise InvalidError("batch_size=None makes no batches, so there is no last one to drop")
        check(arguments, iterable, sampler)
        if is_ordered(arguments) and isinstance(sampler, OrderSampler):
            sampler = sampler.again()
        vars(self).update({name: value for name, value in self.settings.items() if name != "shuffle"})
        if num_workers > 0 and self.prefetch_factor is None:
            self.prefetch_factor = 2
        self._iterable = iterable
        self._drawn = False  # whether the seed of the order is drawn
        backend = NumpyBackend()
        if sampler is None and batch_sampler is None:
            drawn = 0
            if not iterable and not is_ordered(arguments):
                self._drawn = arguments.shuffle
                self.seed = drawn = backend.base_seed(self.generator) if self._drawn else 0
            shuffle = arguments.shuffle
            sampler = _Endless() if iterable else order_sampler(arguments, shuffle, drawn=drawn)
        self.batch_size = batch_size if batch_sampler is None else None
        if self.batch_size is not None:
            batch_sampler = Batcher(sampler, self.batch_size, self.drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        batched = batch_sampler is not None
        default = makes_as_default(arguments.collate_fn, None) and batched
        self.collate_fn = arguments.collate_fn or (backend.batch if batched else backend.convert)
        self._prepare(dataset, backend, CachedSamples, default, before)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """The next iteration continues from the state. With shuffle=True alone, the loader takes the seed of the state.
        Otherwise without seed= and order=, the global generators of random, numpy.random and torch get their states of then,
        unless the state is of another rank.

        Raises StateError (ValueError) if the order, dataset, batch_size or version differs, or if
        the state holds a state of each worker's dataset and num_workers= differs."""
        drawn = self.sampler.order if self._drawn else None
        if drawn is not None and isinstance(state, Mapping):
            seed = re.search(r"\bseed=(\d+)", str(state.get("order")))
            if seed is not None:  # nobody has given this loader a seed: it takes that of the state
                self.sampler.order = Order(drawn.samples, "shuffled", seed=int(seed[1]) % 2**64)
        try:
            super().load_state_dict(state)
        except BaseException:
            if drawn is not None:
                self.sampler.order = drawn
            raise
        if drawn is not None:
            self.seed = self.sampler.order.seed
            self.settings = self.settings | {"seed": self.seed}  # copies get the seed too

    def __len__(self) -> int:
        """Batches of an epoch for this rank. TypeError for an iterable dataset without a length."""
        if self._iterable:
            n = len(self.dataset)
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        if isinstance(self.sampler, OrderSampler) and self.batch_size is not None:
            return self._checkpoint.batches(self.sampler, self.batch_size, self.drop_last)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._new_iteration()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._restore(Loader.__init__, state)


class _Endless:
    """The sampler of an iterable dataset, which needs no indices, only their number."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


Loader.__doc__ = with_options(Loader.__doc__)
Loader.__module__ = "stocached"
__all__ = ["Loader"]
