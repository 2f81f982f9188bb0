"""Gathers the hits of a batch from the cache into its rows."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._cache.gathering import gather_error
from .._cache.served import announce
from .._common import threads
from .._common.array_addresses import address_of
from .._common.errors import FetchError, StocachedError
from .._memory.batch_pool import Lease
from .._order.nodes import Deal
from .bad_samples import BadSample
from .epoch_context import EpochContext

Indices = npt.NDArray[np.int64]
_FEW = 2048  # samples that are probed with the GIL held


class Batch:
    """One batch that is begun."""

    def __init__(self, number: int, before: int, wanted: Indices) -> None:
        self.number, self.before, self.wanted = number, before, wanted  # before: samples of the batches before
        self.lease: Lease | None = None
        self.shared = False  # workers see the memory of the lease
        self.arrays: list[Any] = []  # columns; empty until the layout is known
        self.hit: npt.NDArray[np.bool_] | None = None  # rows to gather, then rows gathered; None: no gather
        self.rows: npt.NDArray[Any] | None = None  # rows that workers load; None: every row
        self.first, self.tasks = -1, 0  # in the task queue
        self.lent = 0  # the place of these tasks
        self.posted: npt.NDArray[Any] | None = None  # the rows of these tasks
        self.left: npt.NDArray[Any] | None = None  # rows for workers that the full task queue did not take yet
        self.loaded = 0  # rows that workers have loaded
        self.again = 0  # loaded rows that came from the cache after all
        self.objects: dict[int, list[Any]] = {}  # values without a column, by row
        self.whole: dict[int, Any] = {}  # samples that are not in their rows
        self.failed: Any = None  # a worker's error
        self.bad: dict[int, BadSample] = {}  # by row: nothing is there
        self.known: list[BadSample] = []  # samples without a row, as the loader knows them
        self.found = 0  # rows that the gather has found
        self.fetched = 0  # found rows that a server has filled
        self.filled: threads.Latch | None = None  # set when another thread has gathered
        self.error: BaseException | None = None
        self._claim = threading.Lock()

    def drop(self) -> None:
        """Drops what it has of the batch: the queue of the background may still refer to this object."""
        self.arrays, self.lease, self.objects, self.whole = [], None, {}, {}

    def claim(self) -> bool:
        """True for the first caller, which gathers; false for all others."""
        return self._claim.acquire(blocking=False)


class Gatherer:
    """Fills rows from the cache. Any thread may call `fill`; only the first call works."""

    def __init__(self, context: EpochContext) -> None:
        self._cached, self._in_cache = context.cached, context.cached.in_cache
        self._threads = context.threads
        self._skips_bad = context.job.skips_bad
        self.fetches = context.cached.served
        self._meter, self._trace, self._epoch = context.meter, context.trace, context.epoch
        shard = context.begun.shard if self.fetches else None
        self._shard = shard if context.cached.indices is None else None  # the server knows the order of its samples
        self._planned = False  # the server reads ahead by itself
        # In the first epoch, the server of a node also reads what the node owns and others read: the next epochs
        # find it.
        first = context.begun.first_dealt
        self._owns = shard if first and isinstance(shard, Deal) else None
        self._asked = 0  # batches
        self.ended = False  # the iteration

    @property
    def _cache(self) -> Any:
        """The dataset may attach to another one in the middle of the epoch."""
        return self._cached.cache

    def probe(self, wanted: Indices) -> tuple[npt.NDArray[np.bool_], int]:
        """Which samples are in the cache now, and how many. Counts nothing."""
        lengths = np.empty(wanted.size, np.uint64)
        handle = self._cache._handle
        # Handing the GIL over takes longer than a few probes.
        lengths_of = _native.lengths_held if wanted.size <= _FEW else _native.lengths
        found = lengths_of(handle, address_of(wanted), wanted.size, address_of(lengths))
        if found < 0:
            raise gather_error(self._cache, handle, found, wanted)
        return np.ones(wanted.size, np.bool_) if found == wanted.size else lengths != _native.NO_LENGTH, found

    def fill(self, batch: Batch) -> None:
        if batch.hit is None or not batch.claim():
            return
        start = time.monotonic_ns()
        try:
            batch.found = self._fetch(batch) if self.fetches else self._gather(batch, batch.hit)
        except BaseException as error:
            batch.error = error
        finally:
            end = time.monotonic_ns()
            self._meter.add(gather=end - start)
            if self._trace is not None:
                self._trace.gathered(self._epoch, batch.number, start, end, batch.found, self.fetches)
            if batch.filled is not None:
                batch.filled.set()

    def _fetch(self, batch: Batch) -> int:
        if self._shard is not None and batch.number == 0:
            # Now, and not when the epoch began: the reads of the epoch before are counted by now.
            with contextlib.suppress(StocachedError):
                self._planned = announce(self._cache, self._shard, max(len(batch.wanted), 1))
        names = [field.name for field in self._cache.fields]
        out = batch.arrays[0] if len(names) == 1 else dict(zip(names, batch.arrays))
        try:
            _, hit = self._cached.fetch(self._in_cache(batch.wanted), out)
            batch.fetched = len(hit) - int(hit.sum())
        except FetchError as error:
            if not (self._skips_bad and error.bad):
                raise
            batch.bad = {
                failure.position: BadSample(int(batch.wanted[failure.position]), None, failure.message)
                for failure in error.failures
            }
            # As rows that workers have loaded: there is nothing left to do for them.
            batch.rows, batch.loaded = np.array(sorted(batch.bad)), len(batch.bad)
        return len(batch.wanted) - len(batch.bad)

    def prefetch(self, wanted: Indices) -> None:
        """Asks the server to read samples when it has time. An error of the server shows in the
        fetch."""
        if self._planned:
            return
        wanted = wanted[:0] if self.ended else wanted
        if self._owns is not None:  # the next epoch needs these too
            wanted = np.concatenate((wanted, self._owns.read_elsewhere(self._asked)))
            self._asked += 1
        if wanted.size:
            with contextlib.suppress(StocachedError):
                self._cache.prefetch(self._in_cache(wanted), 1.0)

    def _gather(self, batch: Batch, hit: npt.NDArray[np.bool_]) -> int:
        """Gathers each run of hits. Workers write the rows between the runs."""
        if batch.rows is None:
            return self._gather_run(batch, 0, len(hit), hit)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], hit, [False]))))
        return sum(
            self._gather_run(batch, first, end, hit) for first, end in zip(edges[::2].tolist(), edges[1::2].tolist())
        )

    def _gather_run(self, batch: Batch, first: int, end: int, hit: npt.NDArray[np.bool_]) -> int:
        cache, arrays, n = self._cache, batch.arrays, end - first
        handle = cache._handle
        indices, hits = address_of(batch.wanted) + 8 * first, address_of(hit) + first
        if len(arrays) == 1 and arrays[0].strides[0] == cache.sample_bytes:
            stride = arrays[0].strides[0]
            got = _native.gather(
                handle, indices, n, -1, address_of(arrays[0]) + first * stride, stride, hits, self._threads
            )
        else:
            count = len(arrays)
            addresses = (ctypes.c_void_p * count)(*(address_of(array) + first * array.strides[0] for array in arrays))
            strides = (ctypes.c_size_t * count)(*(array.strides[0] for array in arrays))
            got = _native.gather_fields(handle, indices, n, addresses, strides, hits, self._threads)
        if got < 0:
            raise gather_error(cache, handle, got, batch.wanted)
        return int(got)
