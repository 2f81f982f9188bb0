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

from .._cache.policies import Policy
from .._checks.randomness import remedy_of
from .._common import torch_version
from .._common.errors import InvalidError, UnsupportedError
from .._datasets.cached_dataset import CachedDataset
from .._datasets.cached_samples import BadSamplesAre
from .._datasets.stores import Store
from .._order.order import AnyOrder, Order
from .._random.torch_generator import tensor_of
from . import data_pipes, replacement
from .affinity import AffinityNodes
from .base import BaseLoader
from .made_caches import living
from .options import LoaderOptions, Worker, check, given_options, is_ordered, order_sampler, takes_cache
from .sampling import Ends, OrderSampler
from .torch_backend import TorchBackend

_Sample = TypeVar("_Sample", covariant=True)


class _OrderSampler(OrderSampler, DistributedSampler[Any]):  # type: ignore[override]
    """A DistributedSampler by isinstance, as it gives each rank its shard. Frameworks check that,
    and do not replace the sampler."""

    num_replicas = OrderSampler.world_size
    num_samples = property(len)
    total_size = property(lambda self: len(self) * self.world_size)


class DataLoader(BaseLoader, torch.utils.data.DataLoader[_Sample]):
    """torch's DataLoader, with the cache as its transport. It takes the same arguments, and gives
    the same batches in the same order. It is a torch DataLoader by isinstance.

    The differences: it gathers hits directly into the memory of the batch, in the background also
    with num_workers=0. If the default collate function makes the batch, any free worker loads each
    of its samples. Then the random numbers of the dataset are seeded for each sample, by the
    epoch's base seed and the index. Batches are the caller's own; their memory is reused when no
    array or tensor refers to it.

    cache: a Cache whose fields take the leaves of a sample. Or the loader makes one, with size=
        ("32GiB", or bytes) or name= (ranks and jobs that give the same name share it), and
        fingerprint= (of data and transform). The dataset's samples are cached, so they must not be
        random: NondeterministicDatasetError. augment= may be random.
    allow_random: caches the dataset's samples without that check.
    variable: True: caches samples of any shape. False: of one shape, which is faster. None: as a
        few samples need.
    policy: which samples a full cache keeps, as for CachedDataset.
    disk, disk_dir, disk_policy: a file behind the cache, on a local disk, as for CachedDataset.
    store: of pictures: "decoded", "encoded" or "auto", as for CachedDataset. stats().store says which.
    augment: a function of a sample, or of a sample and a numpy Generator. Its random numbers depend
        only on (seed, epoch, index). Worker processes seed torch, numpy and random for each sample;
        threads seed only the Generator.
    batch_augment: a function of a batch, called when the training loop gets the batch.
    worker: "process"; "thread" for datasets that release the GIL; "native" for datasets and steps of
        stocached.image, whose samples threads make in C. None: "native" where that is possible, else
        "process".
    restart_workers: replaces a worker that dies and loads its sample again, instead of
        WorkerLostError.
    bad_samples: "error" raises BadSampleError for a sample that cannot be used, such as a damaged
        picture. "skip" leaves it out of its batch, and counts and lists it in `stats()`.
    seed, order: an order of stocached instead of torch's. `seed` shuffles by that seed if
        shuffle=True. `order` is "sequential", "shuffled", or a stocached.Order, WeightedOrder or
        MixedOrder. It is the same for any number of workers and ranks, and resumes with any.
    rank, world_size: default: from torch.distributed, or RANK and WORLD_SIZE, when the loader is
        read.
    ends: if samples do not divide by ranks: "pad" (some are read twice; the default of several
        ranks), "uneven", "drop".
    affinity: "node" deals each global batch to the nodes whose caches own its samples, so that together
        the nodes need not hold more than the dataset. A list of stocached.order.Node says which nodes
        there are. It needs a cache, which the ranks of a node share. local_world_size: ranks on each
        node; default: LOCAL_WORLD_SIZE, or the ranks of one host name.
    prefetch_bytes: the most memory of batches made ahead.
    pool_bytes: the most memory of batches, those in use included. Further batches come in ordinary
        memory.
    pin_memory: with CUDA, the memory of batches is registered with the driver and not copied. It is
        reused when the current streams have done all work that they had at the first `next()` after
        the batch's end. So keep the batch until a copy on another stream is done. "copy": each
        batch is copied into memory of torch, which knows all streams.
    gather_threads: the number that copy hits. trace: the file of a timeline (docs/spec/trace.md).
    snapshot_every_n_steps: batches between two states of workers, for `state_dict()` of a dataset
        that has a state. 0 or None: only the first state.

    Raises as torch's, InvalidError (ValueError) for arguments of stocached, and as CachedDataset
    when it makes the cache.
    Concurrency: one thread at a time. Lifetime: workers end with the iteration. With
    persistent_workers=True they live until `close` or the loader's end."""

    _remedy = remedy_of("DataLoader")
    _global_generator = "torch"

    def __init__(
        self: DataLoader[Any],  # or programs would have to annotate each loader
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
        options = given_options(self.settings)
        if isinstance(pin_memory, str) and pin_memory != "copy":
            raise InvalidError(f'pin_memory={pin_memory!r}; it must be True, False, or "copy"')
        iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if is_ordered(options) and sampler is not None and not iterable:
            sampler = _in_our_order(sampler, dataset, options)
        check(options, dataset, iterable, bool(shuffle), sampler, batch_sampler, batch_size)
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
        vars(self)["pin_memory"] = pin_memory  # torch's constructor has made a bool of "copy"
        self._data_pipes: data_pipes.Pipes | None = None
        if data_pipes.is_pipe(dataset):
            threads = worker not in (None, "process")
            self._data_pipes = data_pipes.Pipes(dataset, num_workers, threads=threads, cached=takes_cache(options))
        backend = TorchBackend(torch_version.accelerator() if pin_memory else "", in_place=pin_memory != "copy")
        self._prepare(
            dataset, options, backend, CachedDataset, self._batched() and self.collate_fn is default_collate, before
        )
        if next(kind for kind in type(self).__mro__ if "__init__" in vars(kind)) is DataLoader:
            # Lightning records the arguments of loaders that hooks make, and adds its own to make
            # the loader again. That fails with positional arguments. And the record lacks our
            # arguments if the hook is the first to import this module. Without a record, Lightning
            # takes the attributes.
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
            warnings.warn(
                "pin_memory=True, but no accelerator is found: batches come in memory that is not pinned", stacklevel=2
            )
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


def _order_of_living(dataset: Any, options: LoaderOptions) -> AnyOrder | None:
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


DataLoader.__module__ = "stocached.torch"  # where users find it
