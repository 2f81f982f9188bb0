"""The loader of torch batches: `stocached.torch.DataLoader`."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
import torch.utils.data
from torch.utils.data import DistributedSampler, SequentialSampler
from torch.utils.data._utils.collate import default_collate

from .._checks.randomness import remedy_of
from .._common import torch_version
from .._common.errors import InvalidError, UnsupportedError
from .._datasets.cached_dataset import CachedDataset
from .._order.order import AnyOrder, Order
from .._random.torch_generator import tensor_of
from . import data_pipes, replacement
from .base import BaseLoader
from .made_caches import living
from .options import LoaderOptions, check, given_options, is_ordered, order_sampler
from .sampling import Ends, OrderSampler
from .torch_backend import TorchBackend

_Sample = TypeVar("_Sample", covariant=True)


class _OrderSampler(OrderSampler, DistributedSampler[Any]):  # type: ignore[override]
    """Is a DistributedSampler by isinstance, as it gives each rank its part of the samples. Frameworks look for that, and leave the sampler alone."""

    num_replicas = OrderSampler.world_size
    num_samples = property(len)
    total_size = property(lambda self: len(self) * self.world_size)


class DataLoader(BaseLoader, torch.utils.data.DataLoader[_Sample]):
    """torch's DataLoader, with the cache as its transport. It takes the same arguments, and gives the same batches in the same order.

    What is different: hits are gathered straight into the memory of the batch, in the background also with num_workers=0; where the batch is made by
    the default collate function, its samples are loaded one by one by whichever worker is free, and random numbers in the dataset are seeded for each
    sample, by the epoch's base seed and its index. Batches are the caller's own; their memory is used again when nothing refers to it any more. It is a
    torch DataLoader by isinstance.

    cache: a Cache whose fields take the leaves of a sample; or make one here with size= ("32GiB", or bytes) or name= (ranks and jobs that give the same
    name share it), and fingerprint= (of data and transform). What the dataset gives is cached, so it must not be random: NondeterministicDatasetError says
    so. augment= is for what is random. allow_random: the dataset's samples are cached in any case, and not checked.
    variable: whether samples of any shape are cached, or of one, which is faster; None: what a few samples show.
    augment: a function of a sample, or of a sample and a numpy Generator; random numbers depend on (seed, epoch, index) alone: those of torch, numpy and
    random are seeded for each sample in worker processes, the Generator in threads too. batch_augment: a function of a batch, called when the training
    loop gets it.
    worker: "process", or "thread" for datasets that let go of the GIL. restart_workers: a worker that dies is replaced and its sample loaded again,
    instead of WorkerLostError.
    seed, order: an order of ours instead of torch's: `seed` shuffles by that seed if shuffle=True; `order` is "sequential", "shuffled", or a
    stocached.Order, WeightedOrder or MixedOrder. It is the same for any number of workers and ranks, and resumes with any.
    rank, world_size: unless given, from torch.distributed or RANK and WORLD_SIZE when the loader is read. ends: where samples do not divide by ranks: "pad"
    (some are read twice; the default of several ranks), "uneven", "drop".
    prefetch_bytes: of batches made ahead, at most. ring_bytes: of memory for batches, in use ones included; beyond it they come in memory of their own.
    pin_memory: with CUDA, the memory of batches is registered with the driver and not copied; a batch's memory is used again when what was given to the
    current streams before the `next()` behind its end is done, so a copy on another stream must be waited for while the batch is kept. "copy": each batch
    is copied into memory of torch's, which knows all streams.
    gather_threads: that copy hits. trace: the file of a timeline (docs/spec/trace.md). snapshot_every_n_steps: batches from one state of workers to
    the next, for `state_dict()` of a dataset that has a state; 0 or None: the first one alone.

    Raises what torch's does, InvalidError (ValueError) for what is ours, and what CachedDataset raises when it makes the cache.
    Concurrency: one thread at a time. Lifetime: workers end with the iteration, or are kept with persistent_workers=True until `close` or the loader's
    end."""

    _remedy = remedy_of("DataLoader")
    _global_generator = "torch"

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool | Literal["copy"] = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        cache: Any = None,
        size: int | str | None = None,
        name: str | None = None,
        fingerprint: str | None = None,
        variable: bool | None = None,
        allow_random: bool = False,
        augment: Callable[..., Any] | None = None,
        batch_augment: Callable[[Any], Any] | None = None,
        worker: Literal["process", "thread"] = "process",
        restart_workers: bool = False,
        seed: int | None = None,
        order: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        ends: Ends | None = None,
        prefetch_bytes: int | str = "512MiB",
        ring_bytes: int | str = "2GiB",
        gather_threads: int | None = None,
        snapshot_every_n_steps: int | None = 1,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        self.settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        before = frozenset(self.__dict__) - {"settings"}
        options = given_options(self.settings)
        if isinstance(pin_memory, str) and pin_memory != "copy":
            raise InvalidError(f'pin_memory={pin_memory!r}; it must be True, False, or "copy"')
        iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if is_ordered(options) and sampler is not None and not iterable:
            sampler = _in_our_order(sampler, dataset, options)
        check(options, dataset, iterable, bool(shuffle), sampler, batch_sampler)
        if is_ordered(options) and sampler is None and batch_sampler is None:
            sampler, shuffle = order_sampler(options, len(dataset), bool(shuffle), _OrderSampler), None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            bool(pin_memory),
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **({"in_order": in_order} if torch_version.in_order else {}),
        )
        self.in_order = in_order
        self._iterable = iterable
        vars(self)["pin_memory"] = pin_memory  # torch has made a bool of "copy"
        self._data_pipes: data_pipes.Pipes | None = None
        if data_pipes.is_pipe(dataset):
            cached = cache is not None or size is not None or name is not None
            self._data_pipes = data_pipes.Pipes(dataset, num_workers, threads=worker == "thread", cached=cached)
        backend = TorchBackend(torch_version.accelerator() if pin_memory else "", in_place=pin_memory != "copy")
        self._prepare(dataset, options, backend, CachedDataset, self._batched() and self.collate_fn is default_collate, before)
        if next(kind for kind in type(self).__mro__ if "__init__" in vars(kind)) is DataLoader:
            # Lightning records the arguments of loaders that hooks make, and adds its own to make the loader again. That fails with arguments by position,
            # and has none of ours if the hook is the first to import this module. Without a record, Lightning takes the attributes.
            for name in [name for name in vars(self) if name.startswith("__pl_saved_")]:
                del vars(self)[name]
        if self._cached is not None or self.augment is not None:
            replacement.watch()
        if _accelerate_is_used():
            from . import accelerate  # needs the package of that name

            with contextlib.suppress(UnsupportedError):  # `prepare` raises it
                accelerate.keep(DataLoader)

    def __len__(self) -> int:
        if isinstance(self.sampler, OrderSampler) and self.batch_size is not None:
            return self.sampler.shard(0).batches(self.batch_size, self.drop_last)
        return super().__len__()

    def __iter__(self) -> Any:
        if self.num_workers > 0:
            self.check_worker_number_rationality()
        if self.pin_memory and not torch_version.accelerator():
            warnings.warn("pin_memory=True, but no accelerator is found: batches come in memory that is not pinned", stacklevel=2)
        return self._new_iteration()

    def _get_iterator(self) -> Any:
        return self._new_iteration()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """accelerate reads this before it takes a loader apart."""
        if _accelerate_is_used():
            from . import accelerate

            accelerate.keep(DataLoader)
            accelerate.check(self)
        return False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._restore(DataLoader.__init__, state)

    def _base_seed(self) -> int:
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _is_pipe(self) -> bool:
        return self._data_pipes is not None

    def _pipes(self) -> Any:
        return None if self._data_pipes is None or self._cached is not None else self._data_pipes.epoch(self.generator)

    def _generator_state(self) -> Any:
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise TypeError(f"generator={self.generator!r}; it must be a torch.Generator")
        return torch.get_rng_state() if self.generator is None else self.generator.get_state()

    def _put_generator_state(self, state: Any) -> None:
        if isinstance(state, str):
            state = tensor_of(state)
        if self.generator is None:
            torch.set_rng_state(state)
        else:
            self.generator.set_state(state)


def _accelerate_is_used() -> bool:
    return "accelerate.data_loader" in sys.modules


def _in_our_order(sampler: Any, dataset: Any, options: LoaderOptions) -> Any:
    """The sampler that a framework gives to a loader with an order of ours, as one of ours; any other sampler unchanged."""
    if isinstance(sampler, OrderSampler):
        return sampler.again()
    if type(sampler) is SequentialSampler:  # Lightning turns off shuffling to overfit
        seed = options.seed if options.seed is not None else getattr(options.order, "seed", 0)
        return _OrderSampler(Order(len(dataset), seed=seed, kind="sequential"), options.rank, options.world_size, options.ends)
    order = _order_of_living(dataset, options) if isinstance(sampler, DistributedSampler) else None
    if order is None:
        return sampler
    _say_replaced(sampler.rank, sampler.num_replicas)
    return _OrderSampler(order, sampler.rank, sampler.num_replicas, options.ends)


def _order_of_living(dataset: Any, options: LoaderOptions) -> AnyOrder | None:
    """The order of a loader of this very dataset with the same seed= and order=, which a framework makes again. shuffle= is no attribute, but part of it."""
    for loader in living():
        if loader._order is not None and loader.dataset is dataset and loader.seed == options.seed and loader.order is options.order:
            order: AnyOrder = loader._order.order
            return order
    return None


@functools.cache
def _say_replaced(rank: int, world_size: int) -> None:
    warnings.warn(
        f"stocached: a DistributedSampler was put into a loader with seed= or order=, which shards the samples itself: rank {rank} of {world_size} reads "
        "its part of that order. Leave out seed= and order= for the order of the DistributedSampler",
        stacklevel=4,
    )


DataLoader.__module__ = "stocached.torch"  # where users find it
