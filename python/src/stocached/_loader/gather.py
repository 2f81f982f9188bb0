"""Batches put together row by row: hits gathered straight out of the cache, everything else by whichever worker is free (docs/loader.md)."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import queue
import threading
import time
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common import threads
from .._common.addresses import address_of
from .._common.errors import ClosedError, SchemaError, StocachedError
from .._memory.ring import Lease
from .._samples.batch_layout import Layout
from .._workers import serialization, task_queue
from . import worker
from .iterators import Delivered, Iteration, Plan, Transport, array_bytes
from .numpy_backend import sample_seeds
from .sampling import listed

Indices = npt.NDArray[np.int64]
_PATIENCE = 0.5  # seconds
_IDLE = 1.0  # seconds
_FEW = 2048  # samples
_SHORT = 100_000  # ns of a step that nothing is to be gained behind
_HORIZON = 16  # batches that a server is told of before they are asked for


class Batch:
    """One batch on its way."""

    def __init__(self, number: int, before: int, wanted: Indices) -> None:
        self.number, self.before, self.wanted = number, before, wanted  # before: samples of the batches before
        self.lease: Lease | None = None
        self.arrays: list[Any] = []  # columns; none as long as nobody knows how samples look
        self.hit: npt.NDArray[np.bool_] | None = None  # rows that were gathered; None: nothing is
        self.rows: npt.NDArray[Any] | None = None  # what workers load, None: every row
        self.first, self.tasks = -1, 0  # on the board
        self.posted: npt.NDArray[Any] | None = None  # rows that these are for
        self.left: npt.NDArray[Any] | None = None  # rows that workers load and the board had no room for yet
        self.loaded = 0  # rows that workers have loaded
        self.again = 0  # of these, out of the cache all the same
        self.objects: dict[int, list[Any]] = {}  # what has no column, by row
        self.whole: dict[int, Any] = {}  # samples that are not in their rows
        self.failed: Any = None  # a worker's error
        self.found = 0  # rows that the gather has found
        self.filled: threads.Latch | None = None  # where another thread may gather
        self.error: BaseException | None = None
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """Whether the caller is the one that gathers; false for all others."""
        return self._claim.acquire(blocking=False)


class Gatherer:
    """Fills the rows that are in the cache. `fill` may be called by any thread; only the first call does the work."""

    def __init__(self, plan: Plan) -> None:
        self._cache = plan.cached.cache
        self._threads = plan.threads
        self._source_timeout = getattr(plan.cached, "timeout", None)
        self.fetches = not hasattr(plan.cached, "dataset")  # a cache that a server fills
        self._meter, self._trace, self._epoch = plan.meter, plan.trace, plan.epoch

    def look(self, wanted: Indices) -> tuple[npt.NDArray[np.bool_], int]:
        """Which samples are in the cache now, and how many; not counted."""
        lengths = np.empty(wanted.size, np.uint64)
        handle = self._cache._handle
        look = _native.lengths_held if wanted.size <= _FEW else _native.lengths  # handing the GIL over takes longer than a few looks
        found = look(handle, address_of(wanted), wanted.size, address_of(lengths))
        if found < 0:
            raise self._cache._gather_error(handle, found, wanted)
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
            self._meter.gather(end - start)
            if self._trace is not None:
                self._trace.gathered(self._epoch, batch.number, start, end, batch.found, self.fetches)
            if batch.filled is not None:
                batch.filled.set()

    def _fetch(self, batch: Batch) -> int:
        names = [field.name for field in self._cache.fields]
        out = batch.arrays[0] if len(names) == 1 else dict(zip(names, batch.arrays))
        self._cache.fetch(batch.wanted, out, self._source_timeout)
        return len(batch.wanted)

    def announce(self, wanted: Indices) -> None:
        """Has the server read them when it has nothing better to do; that it cannot shows when they are asked for."""
        with contextlib.suppress(StocachedError):
            self._cache.prefetch(wanted, 1.0)

    def _gather(self, batch: Batch, hit: npt.NDArray[np.bool_]) -> int:
        """Row by row where hits and misses take turns, as the rows between belong to workers."""
        if batch.rows is None:
            return self._gather_run(batch, 0, len(hit), hit)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], hit, [False]))))
        return sum(self._gather_run(batch, first, end, hit) for first, end in zip(edges[::2].tolist(), edges[1::2].tolist()))

    def _gather_run(self, batch: Batch, first: int, end: int, hit: npt.NDArray[np.bool_]) -> int:
        cache, arrays, n = self._cache, batch.arrays, end - first
        handle = cache._handle
        indices, hits = address_of(batch.wanted) + 8 * first, address_of(hit) + first
        if len(arrays) == 1 and arrays[0].strides[0] == cache.sample_bytes:
            stride = arrays[0].strides[0]
            got = _native.gather(handle, indices, n, -1, address_of(arrays[0]) + first * stride, stride, hits, self._threads)
        else:
            count = len(arrays)
            addresses = (ctypes.c_void_p * count)(*(address_of(array) + first * array.strides[0] for array in arrays))
            strides = (ctypes.c_size_t * count)(*(array.strides[0] for array in arrays))
            got = _native.gather_fields(handle, indices, n, addresses, strides, hits, self._threads)
        if got < 0:
            raise cache._gather_error(handle, got, batch.wanted)
        return int(got)


class Background:
    """A thread that fills batches ahead, and tells a server what will be asked for. It ends when it has had nothing to do for a while, and before a fork of
    the process, and begins anew when there is something; whatever it does not come to, the training loop does."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._gatherer = gatherer
        self._jobs: queue.SimpleQueue[Batch | Indices | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        threads.keep_from_forks(self)

    def put(self, job: Batch | Indices) -> None:
        """A batch to fill, or indices that will be asked for."""
        if isinstance(job, Batch):
            job.filled = threads.Latch()
        self._jobs.put(job)
        self._begin()

    def close(self) -> None:
        self._jobs.put(None)
        self._join()

    def before_fork(self) -> None:
        if self._thread is not None:
            waiting = self._take_back()
            self._jobs.put(None)
            self._join()
            self._take_back()  # a None that nobody was there to take
            for job in waiting:
                self._jobs.put(job)

    def after_fork(self) -> None:
        if not self._jobs.empty():
            self._begin()

    def _begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=_work, args=(self._jobs, self._gatherer), daemon=True, name="stocached gather")
            threads.start(self._thread)

    def _join(self) -> None:
        if self._thread is not None:
            threads.join(self._thread, _PATIENCE)  # one that waits for a server holds its batch, and nothing else

    def _take_back(self) -> list[Batch | Indices]:
        """What has not been begun."""
        jobs = []
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    jobs.append(job)
        return jobs


def _work(jobs: queue.SimpleQueue[Batch | Indices | None], gatherer: Gatherer) -> None:
    while True:
        try:
            job = jobs.get(timeout=_IDLE)
        except queue.Empty:
            return
        if job is None:
            return
        if isinstance(job, Batch):
            gatherer.fill(job)
        else:
            gatherer.announce(job)
        del job  # else its memory is held until the next one comes


def _missing(batch: Batch) -> list[int]:
    """Rows that nobody has filled."""
    there = np.zeros(len(batch.wanted), np.bool_) if batch.hit is None else batch.hit.copy()
    if batch.loaded:
        there[slice(None) if batch.rows is None else batch.rows] = True
    missing: list[int] = np.flatnonzero(~there).tolist()
    return missing


class RowsIteration(Iteration):
    def __init__(self, plan: Plan, transport: Transport, owned: bool) -> None:
        super().__init__(plan)
        self._transport, self._owned, self._workers = transport, owned, transport.processes
        self._pending: deque[Batch] = deque()
        self._more = True
        self._most = 0  # batches that may be on their way; 0: how large they are is not known yet
        self._layout: Layout | None = plan.layout if plan.layout is not None else transport.announced
        self._gatherer: Gatherer | None = None
        self._background: Background | None = None
        self._all_hit = False  # the last batch: the next is taken to be, and what is missing is loaded here
        self._announced: deque[Indices] = deque()  # batches that come next, which a server has been told of
        if self._layout is not None:
            self._announce(self._layout if plan.batch_size is not None else self._roomy(self._layout))
        if plan.cached is not None and plan.layout is not None:  # not where the layout was learnt from samples, which are no columns of the cache
            self._gatherer = Gatherer(plan)
            self._background = Background(self._gatherer)
        self._fill()

    # ------------------------------------------------------------------------------------------------ what comes next

    def _roomy(self, layout: Layout) -> Layout:
        """For batches of a sampler of the user's as large as the first one is; larger ones come in memory of their own."""
        first = self._wanted()
        if first is None:
            return layout
        self._announced.appendleft(first)
        return layout.resized(max(len(first), layout.rows))

    def _announce(self, layout: Layout) -> None:
        transport = self._transport
        if not transport.ring.buffer_bytes:
            transport.ring.resize(layout.bytes)
            transport.own.resize(layout.bytes)
        if transport.announced is None:
            transport.announced = layout
            transport.board.announce(pickle.dumps((layout, transport.ring.buffer_bytes), 5))
        self._layout = transport.announced

    def _fill(self) -> None:
        """Plans batches and has them begun, as far ahead as is allowed."""
        if not self._most and self._transport.ring.buffer_bytes:
            self._most = self._transport.ahead(self._plan)
        most = self._most or self._plan.ahead
        while self._more and len(self._pending) < most:
            if self._pending and self._pending[-1].left is not None:
                return  # the board is full
            wanted = self._wanted()
            if wanted is None:
                self._more = False
                return
            try:
                batch = self._begin(wanted)
            except BaseException:
                self._announced.appendleft(wanted)
                raise
            self._pending.append(batch)
            self._number += 1
            self._planned += len(wanted)
            if batch.hit is not None and batch.arrays and self._background is not None:
                self._background.put(batch)

    def _hides(self) -> bool:
        """Whether something is to be gained by a gather in the background: the training loop computes meanwhile, or nobody knows yet."""
        return not self._returned or self._step > _SHORT

    def _wanted(self) -> Indices | None:
        """The indices of the next batch. A server is told of those behind it, where asking the sampler for them changes nothing."""
        ahead = self._announced
        horizon = _HORIZON if self._gatherer is not None and self._gatherer.fetches and self._plan.ordered else 0
        while len(ahead) <= horizon:
            try:
                wanted = self._drawn()
            except StopIteration:
                break
            indices = wanted if isinstance(wanted, np.ndarray) and self._plan.ordered else self._indices(wanted)
            ahead.append(indices)
            if horizon and self._background is not None:
                self._background.put(indices)
        return ahead.popleft() if ahead else None

    def _indices(self, wanted: Any) -> Indices:
        """Of a sampler that is not ours; negative ones count from the end, as the dataset takes them."""
        indices = np.array(listed(wanted), np.int64)
        if self._plan.cached is not None and indices.size and indices.min() < 0:
            indices[indices < 0] += len(self._plan.cached)
        return indices

    def _begin(self, wanted: Indices) -> Batch:
        plan, gatherer = self._plan, self._gatherer
        batch = Batch(self._number, self._planned, wanted)
        if gatherer is not None and gatherer.fetches:
            batch.hit = np.ones(len(wanted), np.bool_)
        elif gatherer is not None:
            hit, there = self._look(gatherer, wanted)
            if there:
                batch.hit = hit
            if there == len(wanted) and not self._hides():
                return batch  # gets the memory that is in the processor's cache when its turn comes
            batch.rows = None if there == len(wanted) else np.flatnonzero(~hit)
        self._give_room(batch)
        if batch.hit is not None and batch.rows is None:
            return batch
        if plan.job.workers and len(wanted):  # a sampler of batches may give an empty one
            batch.left = np.arange(len(wanted)) if batch.rows is None else batch.rows
            self._post(batch)
        return batch

    def _look(self, gatherer: Gatherer, wanted: Indices) -> tuple[npt.NDArray[np.bool_], int]:
        """Which samples are in the cache, and how many; or all where that is likely and harmless. With workers it is not: what is missing would be loaded
        here, and files that the dataset opens for it be shared by workers that are forked later."""
        if not self._all_hit or self._plan.job.workers:
            with contextlib.suppress(ClosedError):  # of the cache: each batch says so when its turn comes
                return gatherer.look(wanted)
        return np.ones(len(wanted), np.bool_), len(wanted)

    def _give_room(self, batch: Batch) -> None:
        """Memory for its columns, if anybody knows how samples look."""
        layout, n = self._layout, len(batch.wanted)
        if layout is None:
            return
        roomy = n <= layout.rows
        ring = self._transport.ring if batch.hit is None or batch.rows is not None else self._transport.own
        batch.lease = ring.take() if roomy else None
        if batch.lease is not None:
            batch.arrays = layout.arrays(batch.lease.array(), n)
        elif self._gatherer is not None:
            rows = layout if roomy else layout.resized(n)
            batch.arrays = rows.arrays(np.empty(max(rows.bytes, 1), np.uint8), n)

    def _post(self, batch: Batch) -> None:
        """Has workers load what is left of its rows, as many as the board takes at once, if it has room."""
        left, most = batch.left, self._transport.board.most
        assert left is not None
        rows = left[:most]
        tasks = np.zeros(len(rows), task_queue.TASK)
        indices = batch.wanted[rows]
        tasks["kind"], tasks["row"], tasks["index"] = worker.SAMPLE, rows, indices
        if self._plan.job.random:
            tasks["argument"] = sample_seeds(self._plan.job.key, 0, indices)
        tasks["buffer"] = worker.NO_BUFFER if batch.lease is None else batch.lease.number
        first = self._transport.push(tasks)
        if first is not None:
            batch.first, batch.tasks, batch.posted = first, len(tasks), rows
            batch.left = left[most:] if len(left) > most else None

    # ------------------------------------------------------------------------------------------------ what is ready

    def _next(self) -> Delivered:
        self._fill()
        if not self._more:
            self._follow()
        if not self._pending:
            raise StopIteration
        self._transport.look()
        at = 0 if self._plan.in_order else self._any_ready()
        batch = self._pending[at]
        if batch.hit is not None and not batch.arrays:
            self._give_room(batch)
        if self._gatherer is not None:
            self._gatherer.fill(batch)
        while batch.left is not None:
            if batch.tasks:
                self._transport.wait([(batch.first, batch.tasks)], self._plan.timeout)
                self._read_answers(batch)
            if batch.left is not None:
                self._post(batch)  # there is room: what came before is read, and nothing is begun behind it
        if batch.tasks:
            self._transport.wait([(batch.first, batch.tasks)], self._plan.timeout)
        if batch.filled is not None:
            batch.filled.wait()
        del self._pending[at]
        try:
            self._fill()
            if not self._more:
                self._follow()
        except Exception:
            self._pending.insert(at, batch)  # a sampler's error is no reason to lose it
            raise
        return self._deliver(batch)

    def _follow(self) -> None:
        """Has the next epoch begun, once. Not before somebody asks for batches of this one, which may itself have been begun ahead."""
        follow, pending, transport = self._plan.follow, self._pending, self._transport
        if follow is None or (pending and (pending[-1].left is not None or len(pending) + transport.ahead(self._plan) > transport.ring.most - 2)):
            return  # these need the board, or the ring
        if pending and self._all_hit and not self._hides():
            return  # its gathers would only take turns with ours
        self._plan.follow = None
        follow()

    def _any_ready(self) -> int:
        waiting = []
        for k, batch in enumerate(self._pending):
            if batch.left is not None and k:
                break  # it is the last one, and needs the board, which those before it have
            if not batch.tasks:
                return k
            waiting.append((batch.first, batch.tasks))
        return self._transport.wait(waiting, self._plan.timeout)

    def _behind(self) -> tuple[int, int]:
        return (self._pending[0].before, self._pending[0].number) if self._pending else super()._behind()

    def _deliver(self, batch: Batch) -> Delivered:
        n = len(batch.wanted)
        if batch.tasks:
            self._read_answers(batch)
        if batch.failed is not None:
            batch.failed.reraise()
        if batch.error is not None:
            raise batch.error
        objects, whole, hits = batch.objects, batch.whole, batch.again + batch.found
        self._all_hit = batch.found == n
        if batch.found + batch.loaded < n:  # without workers, or gone from the cache since we looked
            hits += sum(self._load(batch, row, objects, whole) for row in _missing(batch))
        layout = self._layout
        by_columns = layout is not None and batch.arrays and not whole and n > 0
        data = self._from_columns(batch.arrays, objects) if by_columns else self._from_samples(batch, objects, whole)
        batch.arrays, batch.lease, batch.objects, batch.whole = [], None, {}, {}  # the background's queue may hold the batch for a while yet
        nbytes = n * layout.sample_bytes if by_columns and layout is not None else array_bytes(data)
        return Delivered(self._pinned(data, batch.number, n, nbytes), batch.number, n, hits, nbytes)

    def _read_answers(self, batch: Batch) -> None:
        """What became of its tasks, which have all been answered."""
        board, plan, rows = self._transport.board, self._plan, batch.posted
        assert rows is not None
        answers = board.answers(batch.first, batch.tasks).copy()
        board.release(batch.first, batch.tasks)
        batch.loaded += batch.tasks
        batch.tasks = 0
        plan.meter.load(int((answers["ended_ns"] - answers["began_ns"]).sum()))
        if plan.trace is not None:
            plan.trace.loaded(plan.epoch, batch.number, answers, batch.wanted[rows])
        if not answers["result"].any():
            return
        cached = answers["result"] >= worker.FROM_CACHE
        answers["result"][cached] -= worker.FROM_CACHE
        batch.again += int(cached.sum())
        told = np.flatnonzero(answers["result"])  # that have more to say than that the sample is in its row
        for row, answer in zip(rows[told].tolist(), answers[told]):
            result, offset, length = int(answer["result"]), int(answer["spill_offset"]), int(answer["spill_bytes"])
            if result == worker.ERROR:
                wrapped = board.take_object(offset, length)
                batch.failed = batch.failed or wrapped  # of the first row, as if one after the other were loaded
                batch.left = None
            else:
                value, _ = serialization.receive(board, offset, length)
                (batch.whole if result == worker.WHOLE else batch.objects)[row] = value

    def _load(self, batch: Batch, row: int, objects: dict[int, list[Any]], whole: dict[int, Any]) -> int:
        """Here, in the training loop's thread. Returns 1 if it came out of the cache all the same."""
        start, given = time.monotonic_ns(), getattr(self._plan.cached, "given", 0)
        index = int(batch.wanted[row])
        sample = self._plan.job.dataset[index]
        end = time.monotonic_ns()
        self._plan.meter.load(end - start)
        hit = getattr(self._plan.cached, "given", 0) != given
        if self._plan.trace is not None:
            self._plan.trace.loaded_here(self._plan.epoch, batch.number, start, end, index, hit=hit)
        try:
            if self._layout is None or not batch.arrays:
                whole[row] = sample
            else:
                objects[row] = self._layout.write(batch.arrays, row, sample)
        except SchemaError:
            whole[row] = sample
        return int(hit)

    def _from_columns(self, arrays: list[Any], objects: dict[int, list[Any]]) -> Any:
        layout, flavour = self._layout, self._plan.job.flavour
        assert layout is not None
        leaves = layout.tree.leaves
        collated: list[Any] = [None] * len(leaves)
        for column, array in zip(layout.columns, arrays):
            collated[column.leaf] = flavour.column(leaves[column.leaf], array)
        for at, k in enumerate(layout.objects):
            collated[k] = flavour.collate([objects[row][at] for row in sorted(objects)])
        return layout.tree.give_batch(collated, flavour.tuples)

    def _from_samples(self, batch: Batch, objects: dict[int, list[Any]], whole: dict[int, Any]) -> Any:
        """Sample by sample: of the first batches, before anybody knows how samples look, and where they are not alike."""
        samples = []
        for row in range(len(batch.wanted)):
            if row in whole:
                samples.append(whole[row])
            else:
                assert self._layout is not None
                samples.append(self._layout.read(batch.arrays, row, objects.get(row, [])))
        data = self._plan.job.collate(samples)  # first: whatever is wrong with the samples, its error is the one that users know
        if self._layout is None:
            with contextlib.suppress(SchemaError):  # of kinds that no row takes
                self._learn(samples)
        return data

    def _learn(self, samples: list[Any]) -> None:
        layout = Layout.of(samples[0], max(len(samples), self._plan.batch_size or 1), self._plan.job.flavour.no_columns)
        self._announce(layout)

    # ------------------------------------------------------------------------------------------------ the end

    def _stop(self, harshly: bool) -> None:
        if not hasattr(self, "_background"):
            return
        self._more = False
        pending, self._pending = list(self._pending), deque()
        if self._background is not None:
            for batch in pending:
                batch.claim()  # those that are not begun are not filled any more
            self._background.close()
            self._background = None
        if self._owned or harshly:
            self._transport.close()
        else:
            for batch in pending:
                if batch.tasks:
                    self._transport.abandon(batch.first, batch.tasks, batch.lease)
