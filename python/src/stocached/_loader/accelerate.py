"""Loaders of stocached in accelerate.

accelerate takes a loader apart and makes a loader of torch of the parts, without the cache and
`augment=`. It has no option for another class. So this module replaces torch's class in
accelerate's module by a function, which makes a loader of stocached of such parts. accelerate still
does the rest: devices, gradient accumulation, `even_batches`, `split_batches`, `dispatch_batches`,
`skip_first_batches`."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch.utils.data
from torch.utils.data import BatchSampler

from .._common.errors import InvalidError, UnsupportedError
from .._datasets.lists import WithoutIndex
from .made_caches import living
from .sampling import OrderSampler, order_within

_theirs: Any = importlib.import_module("accelerate.data_loader")
_state: Any = importlib.import_module("accelerate.state")

_DEEPEST = 8  # nested batch samplers


class _WholeOrder(BatchSampler):
    """The batches of all ranks in the order of a loader; accelerate distributes them to the
    processes."""

    def __init__(self, loader: Any) -> None:
        assert loader.batch_size is not None
        super().__init__(OrderSampler(loader.sampler.order, 0, 1), loader.batch_size, loader.drop_last)
        self.loader = loader


def keep(kind: type[Any]) -> None:
    """From now on accelerate keeps our loaders, which are of this kind. Raises UnsupportedError if
    this version of accelerate makes loaders in another way."""
    if _theirs.DataLoader is _make:
        return
    adapter = getattr(_theirs, "DataLoaderAdapter", None)
    if _theirs.DataLoader is torch.utils.data.DataLoader and adapter is not None:
        init = adapter.__init__
        _theirs.DataLoader, adapter.__init__ = _make, _adapting(init)
        loader = kind([0])
        if adapter(loader.dataset, batch_sampler=loader.batch_sampler).base_dataloader is loader:
            return
        _theirs.DataLoader, adapter.__init__ = torch.utils.data.DataLoader, init
    raise UnsupportedError(
        "this version of accelerate makes loaders in a way that stocached does not know: the cache and augment= would be lost. "
        "Take accelerate 1.0 or later, or give torch's DataLoader a stocached.torch.CachedDataset"
    )


def check(loader: Any) -> None:
    """Called after `keep`, before accelerate takes a loader apart. Raises InvalidError if
    accelerate would read other samples than the loader."""
    if loader.batch_sampler is None and not loader._iterable and not isinstance(loader.sampler, BatchSampler):
        raise InvalidError(
            "accelerate leaves out the sampler of a loader with batch_size=None; give it batch_size=; or if a pipe makes its batches, leave it out of prepare()"
        )
    processes = _processes()
    shares = isinstance(loader.dataset, WithoutIndex)  # the loader deals windows or rows to ranks itself
    if processes == 1 or loader._order is None or shares:
        return
    if loader.affinity is not None:
        raise InvalidError(
            "affinity=: accelerate shards the samples itself, without regard to nodes; leave out affinity="
        )
    if loader.ends is not None:
        raise InvalidError(
            f"ends={loader.ends!r}: accelerate shards the samples itself, and has even_batches= for the last ones; leave out ends="
        )
    if loader.world_size not in (None, processes):
        raise InvalidError(
            f"world_size={loader.world_size}: accelerate shards the samples among {processes} processes itself; leave out rank= and world_size="
        )
    if not loader._setup().in_our_order:
        raise InvalidError(
            "the samples of this loader are sharded already; call prepare() first and skip_first_batches() with what it gives"
        )


def _processes() -> int:
    """The number of processes of the job; 1 before accelerate knows it. Do not call PartialState()
    here: its first call decides the number."""
    return int(_state.PartialState._shared_state.get("num_processes", 1))


def _adapting(init: Any) -> Any:
    """The constructor of accelerate's wrapper, adapted to our loaders."""

    @functools.wraps(init)
    def adapt(
        self: Any, dataset: Any, use_stateful_dataloader: bool = False, batch_sampler: Any = None, **arguments: Any
    ) -> None:
        loader = _loader_of(dataset, arguments.get("sampler") if batch_sampler is None else batch_sampler)
        if loader is None:
            init(self, dataset, use_stateful_dataloader, batch_sampler, **arguments)
            return
        several = _processes() > 1
        if use_stateful_dataloader and several and isinstance(self, _theirs.DataLoaderDispatcher):
            raise UnsupportedError(
                "use_stateful_dataloader=True with dispatch_batches=True: accelerate reads batches ahead, and the state would skip them; leave out one of them"
            )
        if several and isinstance(loader.dataset, WithoutIndex):
            if isinstance(self, _theirs.DataLoaderDispatcher):
                raise UnsupportedError(
                    "dispatch_batches=True with a pipe without an index: each process reads its own windows; leave it out"
                )
        elif several and loader._setup().in_our_order:
            batch_sampler = _whole(batch_sampler, loader)
        init(self, dataset, False, batch_sampler, **arguments)
        self.use_stateful_dataloader = use_stateful_dataloader  # so save_state() saves the state of our loader

    return adapt


def _whole(batches: Any, loader: Any) -> Any:
    """The same batch samplers, with the order of all ranks inside."""
    if batches is loader.batch_sampler:
        return _WholeOrder(loader)
    batches.batch_sampler = _whole(batches.batch_sampler, loader)
    return batches


def _make(dataset: Any, **arguments: Any) -> Any:
    """Makes a loader; accelerate calls it instead of torch's class."""
    batches = arguments.get("batch_sampler")
    loader = _loader_of(dataset, arguments.get("sampler") if batches is None else batches)
    if loader is None:
        return torch.utils.data.DataLoader(dataset, **arguments)
    if batches is not None and batches is loader.batch_sampler:
        return loader
    if isinstance(loader.dataset, WithoutIndex):  # the loader does not ask a sampler for batches
        skipped = getattr(batches, "skip_batches", 0)  # skip_first_batches sets it
        if skipped:
            loader = loader._again(dataset=dataset)
            loader._left_out = skipped
        return loader
    order = order_within(batches)
    if batches is not None and order is not None:
        batches.set_epoch = order.set_epoch  # accelerate does not find it at this depth
    changes = {
        "batch_size": 1,
        "shuffle": None,
        "sampler": None,
        "batch_sampler": None,
        "drop_last": False,
        **arguments,
    }
    return loader._again(dataset=dataset, **changes)


def _loader_of(dataset: Any, batches: Any) -> Any | None:
    """The loader of stocached with this dataset, and with this batch sampler or one inside it. An
    iterable dataset has no batch sampler here: the loader with this dataset or one inside it. None:
    no such loader."""
    loaders: list[Any] = [loader for loader in living() if isinstance(loader, torch.utils.data.DataLoader)]
    for loader in loaders:
        if loader._iterable and any(there is loader.dataset for there in (dataset, getattr(dataset, "dataset", None))):
            return loader
    loaders = [loader for loader in loaders if loader.dataset is dataset]
    for _ in range(_DEEPEST):
        for loader in loaders:
            if batches is not None and (batches is loader.batch_sampler or batches is loader.sampler):
                return loader
        if isinstance(batches, _WholeOrder):
            return batches.loader
        batches = getattr(batches, "batch_sampler", None)
    return None
