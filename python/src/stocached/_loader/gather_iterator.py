"""Batches put together row by row: hits gathered straight out of the cache, everything else by
whichever worker is free (docs/spec/workers.md)."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import ClosedError, SchemaError
from .._random.sample_seeds import sample_seeds
from .._samples.batch_layout import Layout
from .._workers import serialization
from .._workers.task_queue import TASK
from .epoch_context import EpochContext
from .gather import Background, Batch, Gatherer, Indices
from .iterator import BatchIterator, Delivered, array_bytes
from .sampling import listed
from .tasks import ERROR, FROM_CACHE, NO_BUFFER, SAMPLE, WHOLE
from .worker_runtime import WorkerRuntime

_MIN_OVERLAP_NS = 100_000  # a shorter training step hides no gather
_HORIZON = 16  # batches that a server is told of in advance


def _missing(batch: Batch) -> list[int]:
    """Rows that nobody has filled."""
    there = np.zeros(len(batch.wanted), np.bool_) if batch.hit is None else batch.hit.copy()
    if batch.loaded:
        there[slice(None) if batch.rows is None else batch.rows] = True
    missing: list[int] = np.flatnonzero(~there).tolist()
    return missing


class GatherIterator(BatchIterator):
    def __init__(self, context: EpochContext, runtime: WorkerRuntime, owned: bool) -> None:
        super().__init__(context)
        self._runtime, self._owned, self._workers = runtime, owned, runtime.processes
        self._pending: deque[Batch] = deque()
        self._more = True
        self._most = 0  # batches that may be on their way; 0: how large they are is not known yet
        self._layout: Layout | None = context.layout if context.layout is not None else runtime.announced
        self._gatherer: Gatherer | None = None
        self._background: Background | None = None
        self._all_hit = False  # the last batch: the next is taken to be, and what is missing is loaded here
        self._announced: deque[Indices] = deque()  # batches that come next, which a server has been told of
        if self._layout is not None:
            self._announce(self._layout if context.batch_size is not None else self._roomy(self._layout))
        if (
            context.cached is not None and context.layout is not None
        ):  # not where the layout was learnt from samples, which are no columns of the cache
            self._gatherer = Gatherer(context)
            self._background = Background(self._gatherer)
        self._fill()

    # ------------------------------------------------------------------------------------------------ what comes next

    def _roomy(self, layout: Layout) -> Layout:
        """For batches of a sampler of the user's as large as the first one is; larger ones come in
        memory of their own."""
        first = self._wanted()
        if first is None:
            return layout
        self._announced.appendleft(first)
        return layout.resized(max(len(first), layout.rows))

    def _announce(self, layout: Layout) -> None:
        runtime = self._runtime
        if not runtime.ring.buffer_bytes:
            runtime.ring.resize(layout.bytes)
            runtime.own.resize(layout.bytes)
        if runtime.announced is None:
            runtime.announced = layout
            runtime.task_queue.announce(pickle.dumps((layout, runtime.ring.buffer_bytes), 5))
        self._layout = runtime.announced

    def _fill(self) -> None:
        """Plans batches and has them begun, as far ahead as is allowed."""
        if not self._most and self._runtime.ring.buffer_bytes:
            self._most = self._runtime.ahead(self._context)
        most = self._most or self._context.ahead
        while self._more and len(self._pending) < most:
            if self._pending and self._pending[-1].left is not None:
                return  # the task queue is full
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
        """Whether something is to be gained by a gather in the background: the training loop
        computes meanwhile, or nobody knows yet."""
        return not self._returned or self._step > _MIN_OVERLAP_NS

    def _wanted(self) -> Indices | None:
        """The indices of the next batch. A server is told of those behind it, where asking the
        sampler for them changes nothing."""
        ahead = self._announced
        horizon = _HORIZON if self._gatherer is not None and self._gatherer.fetches and self._context.ordered else 0
        while len(ahead) <= horizon:
            try:
                wanted = self._drawn()
            except StopIteration:
                break
            indices = wanted if isinstance(wanted, np.ndarray) and self._context.ordered else self._indices(wanted)
            ahead.append(indices)
            if horizon and self._background is not None:
                self._background.put(indices)
        return ahead.popleft() if ahead else None

    def _indices(self, wanted: Any) -> Indices:
        """Of a sampler that is not ours; negative ones count from the end, as the dataset takes
        them."""
        indices = np.array(listed(wanted), np.int64)
        if self._context.cached is not None and indices.size and indices.min() < 0:
            indices[indices < 0] += len(self._context.cached)
        return indices

    def _begin(self, wanted: Indices) -> Batch:
        context, gatherer = self._context, self._gatherer
        batch = Batch(self._number, self._planned, wanted)
        if gatherer is not None and gatherer.fetches:
            batch.hit = np.ones(len(wanted), np.bool_)
        elif gatherer is not None:
            hit, there = self._probe(gatherer, wanted)
            if there:
                batch.hit = hit
            if there == len(wanted) and not self._hides():
                return batch  # gets the memory that is in the processor's cache when its turn comes
            batch.rows = None if there == len(wanted) else np.flatnonzero(~hit)
        self._give_room(batch)
        if batch.hit is not None and batch.rows is None:
            return batch
        if context.job.workers and len(wanted):  # a sampler of batches may give an empty one
            batch.left = np.arange(len(wanted)) if batch.rows is None else batch.rows
            self._post(batch)
        return batch

    def _probe(self, gatherer: Gatherer, wanted: Indices) -> tuple[npt.NDArray[np.bool_], int]:
        """Which samples are in the cache, and how many; or all where that is likely and harmless.
        With workers it is not: what is missing would be loaded here, and files that the dataset
        opens for it be shared by workers that are forked later."""
        if not self._all_hit or self._context.job.workers:
            with contextlib.suppress(ClosedError):  # of the cache: each batch says so when its turn comes
                return gatherer.probe(wanted)
        return np.ones(len(wanted), np.bool_), len(wanted)

    def _give_room(self, batch: Batch) -> None:
        """Memory for its columns, if anybody knows how samples look."""
        layout, n = self._layout, len(batch.wanted)
        if layout is None:
            return
        roomy = n <= layout.rows
        ring = self._runtime.ring if batch.hit is None or batch.rows is not None else self._runtime.own
        batch.lease = ring.take() if roomy else None
        if batch.lease is not None:
            batch.arrays = layout.arrays(batch.lease.array(), n)
        elif self._gatherer is not None:
            rows = layout if roomy else layout.resized(n)
            batch.arrays = rows.arrays(np.empty(max(rows.bytes, 1), np.uint8), n)

    def _post(self, batch: Batch) -> None:
        """Has workers load what is left of its rows, as many as the task queue takes at once, if it
        has room."""
        left, most = batch.left, self._runtime.task_queue.most
        assert left is not None
        rows = left[:most]
        tasks = np.zeros(len(rows), TASK)
        indices = batch.wanted[rows]
        tasks["kind"], tasks["row"], tasks["index"] = SAMPLE, rows, indices
        if self._context.job.random:
            tasks["argument"] = sample_seeds(self._context.job.key, 0, indices)
        tasks["buffer"] = NO_BUFFER if batch.lease is None else batch.lease.number
        first = self._runtime.push(tasks)
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
        self._runtime.check_workers()
        at = 0 if self._context.in_order else self._any_ready()
        batch = self._pending[at]
        if batch.hit is not None and not batch.arrays:
            self._give_room(batch)
        if self._gatherer is not None:
            self._gatherer.fill(batch)
        while batch.left is not None:
            if batch.tasks:
                self._runtime.wait([(batch.first, batch.tasks)], self._context.timeout)
                self._read_answers(batch)
            if batch.left is not None:
                self._post(batch)  # there is room: what came before is read, and nothing is begun behind it
        if batch.tasks:
            self._runtime.wait([(batch.first, batch.tasks)], self._context.timeout)
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
        """Has the next epoch begun, once. Not before somebody asks for batches of this one, which
        may itself have been begun ahead."""
        follow, pending, runtime = self._context.follow, self._pending, self._runtime
        if follow is None or (pending and (pending[-1].left is not None or len(pending) + runtime.ahead(self._context) > runtime.ring.most - 2)):
            return  # these need the task queue, or the ring
        if pending and self._all_hit and not self._hides():
            return  # its gathers would only take turns with ours
        self._context.follow = None
        follow()

    def _any_ready(self) -> int:
        waiting = []
        for k, batch in enumerate(self._pending):
            if batch.left is not None and k:
                break  # it is the last one, and needs the task queue, which those before it have
            if not batch.tasks:
                return k
            waiting.append((batch.first, batch.tasks))
        return self._runtime.wait(waiting, self._context.timeout)

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
        return Delivered(data, batch.number, n, hits, nbytes)

    def _read_answers(self, batch: Batch) -> None:
        """What became of its tasks, which have all been answered."""
        task_queue, context, rows = self._runtime.task_queue, self._context, batch.posted
        assert rows is not None
        answers = task_queue.answers(batch.first, batch.tasks).copy()
        task_queue.release(batch.first, batch.tasks)
        batch.loaded += batch.tasks
        batch.tasks = 0
        context.meter.load(int((answers["ended_ns"] - answers["began_ns"]).sum()))
        if context.trace is not None:
            context.trace.loaded(context.epoch, batch.number, answers, batch.wanted[rows])
        if not answers["result"].any():
            return
        cached = answers["result"] >= FROM_CACHE
        answers["result"][cached] -= FROM_CACHE
        batch.again += int(cached.sum())
        told = np.flatnonzero(answers["result"])  # that have more to say than that the sample is in its row
        for row, answer in zip(rows[told].tolist(), answers[told]):
            result, offset, length = int(answer["result"]), int(answer["spill_offset"]), int(answer["spill_bytes"])
            if result == ERROR:
                wrapped = task_queue.take_object(offset, length)
                batch.failed = batch.failed or wrapped  # of the first row, as if one after the other were loaded
                batch.left = None
            else:
                value, _ = serialization.receive(task_queue, offset, length)
                (batch.whole if result == WHOLE else batch.objects)[row] = value

    def _load(self, batch: Batch, row: int, objects: dict[int, list[Any]], whole: dict[int, Any]) -> int:
        """Here, in the training loop's thread. Returns 1 if it came out of the cache all the
        same."""
        start, given = time.monotonic_ns(), self._given_by_cache()
        index = int(batch.wanted[row])
        sample = self._context.job.dataset[index]
        end = time.monotonic_ns()
        self._context.meter.load(end - start)
        hit = self._given_by_cache() != given
        if self._context.trace is not None:
            self._context.trace.loaded_here(self._context.epoch, batch.number, start, end, index, hit=hit)
        try:
            if self._layout is None or not batch.arrays:
                whole[row] = sample
            else:
                objects[row] = self._layout.write(batch.arrays, row, sample)
        except SchemaError:
            whole[row] = sample
        return int(hit)

    def _from_columns(self, arrays: list[Any], objects: dict[int, list[Any]]) -> Any:
        layout, backend = self._layout, self._context.job.backend
        assert layout is not None
        leaves = layout.tree.leaves
        collated: list[Any] = [None] * len(leaves)
        for column, array in zip(layout.columns, arrays):
            collated[column.leaf] = backend.column(leaves[column.leaf], array)
        for at, k in enumerate(layout.objects):
            collated[k] = backend.collate([objects[row][at] for row in sorted(objects)])
        return layout.tree.give_batch(collated, backend.tuples)

    def _from_samples(self, batch: Batch, objects: dict[int, list[Any]], whole: dict[int, Any]) -> Any:
        """Sample by sample: of the first batches, before anybody knows how samples look, and where
        they are not alike."""
        samples = []
        for row in range(len(batch.wanted)):
            if row in whole:
                samples.append(whole[row])
            else:
                assert self._layout is not None
                samples.append(self._layout.read(batch.arrays, row, objects.get(row, [])))
        data = self._context.job.collate(samples)  # first: whatever is wrong with the samples, its error is the one that users know
        if self._layout is None:
            with contextlib.suppress(SchemaError):  # of kinds that no row takes
                self._learn(samples)
        return data

    def _learn(self, samples: list[Any]) -> None:
        layout = Layout.of(samples[0], max(len(samples), self._context.batch_size or 1), self._context.job.backend.no_columns)
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
            self._runtime.close()
        else:
            for batch in pending:
                if batch.tasks:
                    self._runtime.abandon(batch.first, batch.tasks, batch.lease)
