"""The loader of NumPy batches."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .._cache.policies import Policy
from .._checks.randomness import remedy_of
from .._common.errors import InvalidError
from .._common.numbers import whole
from .._datasets.cached_samples import BadSamplesAre, CachedSamples
from .._datasets.stores import Store
from .._order.order import Order
from .affinity import AffinityNodes
from .base import BaseLoader
from .numpy_backend import NumpyBackend
from .options import LoaderOptions, Worker, check, given_options, is_ordered, order_sampler
from .sampling import Batcher, Ends, OrderSampler


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
    _global_generator = "numpy"

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: np.random.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        cache: Any = None,
        size: int | str | None = None,
        name: str | None = None,
        fingerprint: str | None = None,
        variable: bool | None = None,
        policy: Policy | None = None,
        disk: int | str | None = None,
        disk_dir: str | os.PathLike[str] | None = None,
        disk_policy: Policy | None = None,
        allow_random: bool = False,
        store: Store = "decoded",
        augment: Callable[..., Any] | None = None,
        batch_augment: Callable[[Any], Any] | None = None,
        worker: Worker | None = None,
        restart_workers: bool = False,
        bad_samples: BadSamplesAre = "error",
        seed: int | None = None,
        order: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        ends: Ends | None = None,
        affinity: AffinityNodes | None = None,
        local_world_size: int | None = None,
        prefetch_bytes: int | str = "512MiB",
        pool_bytes: int | str = "2GiB",
        gather_threads: int | None = None,
        snapshot_every_n_steps: int | None = 1,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        self.settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        before = frozenset(self.__dict__) - {"settings"}
        if isinstance(batch_size, np.integer):
            batch_size = int(batch_size)
        _check(num_workers, timeout, prefetch_factor, persistent_workers, batch_size)
        iterable = not hasattr(dataset, "__getitem__")
        if iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise InvalidError(
                "shuffle=, sampler= and batch_sampler= need a dataset with len() and [index]; this one is iterable"
            )
        if sampler is not None and shuffle:
            raise InvalidError("sampler= says the order; leave out shuffle=")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise InvalidError(
                "batch_sampler= makes the batches; leave out batch_size=, shuffle=, sampler= and drop_last="
            )
        if batch_size is None and drop_last:
            raise InvalidError("batch_size=None makes no batches, so there is no last one to drop")
        options = given_options(self.settings)
        check(options, dataset, iterable, shuffle, sampler, batch_sampler, batch_size)
        if is_ordered(options) and isinstance(sampler, OrderSampler):
            sampler = sampler.again()
        self.dataset = dataset
        self.num_workers = num_workers
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if num_workers > 0 and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.drop_last = drop_last
        self._iterable = iterable
        self._drawn = False  # whether the seed of the order is drawn
        if sampler is None and batch_sampler is None:
            sampler = _Endless() if iterable else self._own_order(dataset, shuffle, options)
        if batch_sampler is not None:
            self.batch_size = None
        else:
            self.batch_size = batch_size
            if batch_size is not None:
                batch_sampler = Batcher(sampler, batch_size, drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        backend = NumpyBackend()
        default = collate_fn is None and self._batched()
        self.collate_fn = collate_fn or (backend.collate if self._batched() else backend.convert)
        self._prepare(dataset, options, backend, CachedSamples, default, before)

    def _own_order(self, dataset: Any, shuffle: bool, options: LoaderOptions) -> OrderSampler:
        self._drawn = shuffle and options.seed is None and options.order is None
        if options.seed is None and options.order is None:
            options.seed = self._base_seed() if shuffle else 0
        return order_sampler(options, len(dataset), shuffle)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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
            self.settings = self.settings | {"seed": self.seed}  # of copies

    def __len__(self) -> int:
        """Batches of an epoch for this rank. TypeError for an iterable dataset without a length."""
        if self._iterable:
            n = len(self.dataset)
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        if isinstance(self.sampler, OrderSampler) and self.batch_size is not None:
            return self.sampler.shard(0).batches(self.batch_size, self.drop_last)
        return len(self.batch_sampler if self._batched() else self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._new_iteration()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._restore(Loader.__init__, state)

    def _base_seed(self) -> int:
        draw = np.random.randint if self.generator is None else self.generator.integers
        return int(draw(0, 2**63 - 1, dtype=np.int64))

    def _generator_state(self) -> Any:
        return np.random.get_state(legacy=False) if self.generator is None else self.generator.bit_generator.state

    def _put_generator_state(self, state: Any) -> None:
        if self.generator is None:
            np.random.set_state(state)
        else:
            self.generator.bit_generator.state = state


class _Endless:
    """The sampler of an iterable dataset, which needs no indices, only their number."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


def _check(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool, batch_size: int | None
) -> None:
    whole("num_workers", num_workers)
    if prefetch_factor is not None:
        whole("prefetch_factor", prefetch_factor)
    if not isinstance(timeout, (int, float, np.integer, np.floating)) or not timeout >= 0:
        raise InvalidError(f"timeout={timeout!r}; it must be seconds, 0 (none) or more")
    if persistent_workers and num_workers == 0:
        raise InvalidError("persistent_workers=True needs num_workers of 1 or more")
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise InvalidError(f"batch_size={batch_size!r}; it must be a whole number of 1 or more, or None")


Loader.__module__ = "stocached"
__all__ = ["Loader"]
