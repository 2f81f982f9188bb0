"""The loader of torch batches: `stocached.torch.DataLoader`."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
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
from . import data_pipes, replacement
from .base import BaseLoader
from .made_caches import begin, living
from .options import (
    NAMES,
    Options,
    check,
    checked,
    is_ordered,
    makes_as_default,
    of_pipe,
    order_sampler,
    takes,
    takes_cache,
    with_options,
)
from .sampling import OrderSampler
from .torch_backend import TorchBackend, collate_of_pipe

_Sample = TypeVar("_Sample", covariant=True)


class _OrderSampler(OrderSampler, DistributedSampler[Any]):  # type: ignore[override]
    """A DistributedSampler by isinstance, as it gives each rank its shard. Frameworks check that,
    and do not replace the sampler."""

    num_replicas = OrderSampler.world_size
    num_samples = property(len)
    total_size = property(lambda self: len(self) * self.world_size)


@dataclass(frozen=True, eq=False, repr=False)
class TorchArguments:
    """The arguments of torch's loader, in its order."""

    dataset: Any
    batch_size: int | None = 1
    shuffle: bool | None = None
    sampler: Any = None
    batch_sampler: Any = None
    num_workers: int = 0
    collate_fn: Any = None
    pin_memory: bool | Literal["copy"] = False
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    prefetch_factor: int | None = field(default=None, kw_only=True)
    persistent_workers: bool = field(default=False, kw_only=True)
    pin_memory_device: str = field(default="", kw_only=True)
    in_order: bool = field(default=True, kw_only=True)


_TORCHS = [one.name for one in fields(TorchArguments) if torch_version.in_order or one.name != "in_order"]


@dataclass(frozen=True, eq=False, repr=False)
class Arguments(Options, TorchArguments):
    """All arguments: first torch's, then ours."""


class DataLoader(BaseLoader, torch.utils.data.DataLoader[_Sample]):
    """torch's DataLoader, with the cache as its transport. It takes the same arguments, and gives
    the same batches in the same order. It is a torch DataLoader by isinstance.

    The differences: it gathers hits directly into the memory of the batch, in the background also
    with num_workers=0. If the default collate function makes the batch, any free worker loads each
    of its samples. Then the random numbers of the dataset are seeded for each sample, by the
    epoch's base seed and the index. Batches are the caller's own; their memory is reused when no
    array or tensor refers to it.

    pin_memory: with CUDA, the memory of batches is registered with the driver and not copied. It is
        reused when the current streams have done all work that they had at the first `next()` after
        the batch's end. So keep the batch until a copy on another stream is done. "copy": each
        batch is copied into memory of torch, which knows all streams.

    Raises as torch's, InvalidError (ValueError) for arguments of stocached, and as CachedDataset
    when it makes the cache.
    Concurrency: one thread at a time. Lifetime: workers end with the iteration. With
    persistent_workers=True they live until `close` or the loader's end."""

    _remedy = remedy_of("DataLoader")
    _left_out = 0  # batches that each epoch reads and does not give

    @takes(Arguments)
    def __init__(self: DataLoader[Any], *given: Any, **named: Any) -> None:  # Any: programs need not annotate loaders
        begin(self)
        arguments = of_pipe(self, Arguments(*given, **named), collate_of_pipe)
        before = frozenset(self.__dict__)
        self.settings = dict(vars(arguments))
        torchs: dict[str, Any] = {name: getattr(arguments, name) for name in _TORCHS}
        dataset, sampler, pin_memory = arguments.dataset, arguments.sampler, arguments.pin_memory
        if isinstance(pin_memory, str) and pin_memory != "copy":
            raise InvalidError(f'pin_memory={pin_memory!r}; it must be True, False, or "copy"')
        iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        shuffle, batch_sampler = bool(arguments.shuffle), arguments.batch_sampler
        if is_ordered(arguments) and sampler is not None and not iterable:
            sampler = _in_our_order(sampler, dataset, arguments)
        check(arguments, iterable, sampler)
        if is_ordered(arguments) and sampler is None and batch_sampler is None:
            sampler, torchs["shuffle"] = order_sampler(arguments, shuffle, _OrderSampler), None
        super().__init__(**torchs | {"sampler": sampler, "pin_memory": bool(pin_memory)})
        checked(arguments)  # torch's constructor takes numbers such as True
        self.in_order = arguments.in_order
        self._iterable = iterable
        vars(self).update({name: getattr(arguments, name) for name in NAMES})
        vars(self)["pin_memory"] = pin_memory  # torch's constructor has made a bool of "copy"
        pipes = None
        if data_pipes.is_pipe(dataset):
            threads = arguments.worker not in (None, "process")
            pipes = data_pipes.Pipes(dataset, self.num_workers, threads=threads, cached=takes_cache(arguments))
        backend = TorchBackend(torch_version.accelerator() if pin_memory else "", in_place=pin_memory != "copy")
        default = self.batch_sampler is not None and makes_as_default(self.collate_fn, default_collate)
        self._prepare(dataset, backend, CachedDataset, default, before, pipes)
        if next(kind for kind in type(self).__mro__ if "__init__" in vars(kind)) is DataLoader:
            # Lightning records the arguments of loaders that hooks make, and adds its own to make
            # the loader again. That fails with positional arguments. And the record lacks our
            # arguments if the hook is the first to import this module. Without a record, Lightning
            # takes the attributes.
            for name in [name for name in vars(self) if name.startswith("__pl_saved_")]:
                del vars(self)[name]
        if self._cached is not None or arguments.augment is not None:
            replacement.watch()
        if _accelerate_is_used():
            from . import accelerate  # needs the package of that name

            with contextlib.suppress(UnsupportedError):  # `prepare` raises it
                accelerate.keep(DataLoader)

    def __len__(self) -> int:
        if isinstance(self.sampler, OrderSampler) and self.batch_size is not None:
            return self._checkpoint.batches(self.sampler, self.batch_size, self.drop_last) - self._left_out
        return super().__len__()

    def __iter__(self) -> Any:
        if self.num_workers > 0:
            self.check_worker_number_rationality()
        if self.pin_memory and not torch_version.accelerator():
            warnings.warn(
                "pin_memory=True, but no accelerator is found: batches come in memory that is not pinned", stacklevel=2
            )
        iteration = self._new_iteration()
        for _ in range(self._left_out):
            next(iteration, None)
        return iteration

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


def _accelerate_is_used() -> bool:
    return "accelerate.data_loader" in sys.modules


def _in_our_order(sampler: Any, dataset: Any, options: Options) -> Any:
    """The OrderSampler for the sampler that a framework gives to a loader with an order of
    stocached. Any other sampler is returned unchanged."""
    if isinstance(sampler, OrderSampler):
        return sampler.again()
    if type(sampler) is SequentialSampler:  # Lightning does not shuffle with overfit_batches
        seed = options.seed if options.seed is not None else getattr(options.order, "seed", 0)
        return _OrderSampler(
            Order(len(dataset), seed=seed, kind="sequential"), options.rank, options.world_size, options.ends
        )
    order = _order_of_living(dataset, options) if isinstance(sampler, DistributedSampler) else None
    if order is None:
        return sampler
    _say_replaced(sampler.rank, sampler.num_replicas)
    return _OrderSampler(order, sampler.rank, sampler.num_replicas, options.ends)


def _order_of_living(dataset: Any, options: Options) -> AnyOrder | None:
    """The order of a loader of the same dataset object with the same seed= and order=: a framework
    makes that loader again. The order includes shuffle=, which is no attribute."""
    for loader in living():
        if (
            loader._order is not None
            and loader.dataset is dataset
            and loader.seed == options.seed
            and loader.order is options.order
        ):
            order: AnyOrder = loader._order.order
            return order
    return None


@functools.cache
def _say_replaced(rank: int, world_size: int) -> None:
    warnings.warn(
        f"stocached: a DistributedSampler was given to a loader with seed= or order=, which shards the samples itself: rank {rank} of {world_size} reads "
        "its shard of that order. Leave out seed= and order= for the order of the DistributedSampler",
        stacklevel=4,
    )


DataLoader.__doc__ = with_options(DataLoader.__doc__)
DataLoader.__module__ = "stocached.torch"  # where users find it
