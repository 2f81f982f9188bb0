"""Whole batches made by workers."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np

from .._common.errors import WorkerLostError
from .._memory.batch_pool import Lease
from .._workers.dataset_states import Report, Snapshots
from .._workers.pool import Asked
from .._workers.task_queue import place_of
from .._workers.tasks import BATCH, ENDED, ERROR, FROM_CACHE, NO_BUFFER
from .bad_samples import BadSample
from .epoch_context import EpochContext
from .iterator import BatchIterator, Delivered, as_request, check_found
from .worker_runtime import WorkerRuntime


@dataclass
class _Made:
    """A batch that a worker makes."""

    number: int
    before: int  # samples
    worker: int
    task: Asked
    lease: Lease | None
    asked: bool  # for a snapshot
    bad: list[BadSample]  # samples that the worker does not load, as the loader knows them


class WorkerBatchIterator(BatchIterator):
    """Each worker makes whole batches, in turn. An own collate_fn, `__getitems__` and iterable
    datasets need that. With in_order=False, a worker is skipped while it has its share of the begun
    batches, as in torch's loader."""

    def __init__(self, context: EpochContext, runtime: WorkerRuntime, owned: bool) -> None:
        super().__init__(context)
        workers = context.job.workers
        self._snapshots: Snapshots | None = None
        self._begun: dict[int, Asked] = {}
        self._runtime, self._owned, self._workers = runtime, owned, runtime.processes
        self._pending: deque[_Made] = deque()
        self._alive = set(range(workers))
        self._more = True
        self._ready: Delivered | None = None  # a batch that was taken before the sampler failed
        restored = context.begun.restored
        restored = None if restored is None or restored.finished else restored
        if context.snapshot_every is not None:
            every, strict = context.snapshot_every, context.in_order
            self._snapshots = context.progress.snapshots = Snapshots(workers, every, restored, strict=strict)
            # The loader keeps the snapshots, but must not keep the iteration.
            self._snapshots.settle = weakref.WeakMethod(self._settle)
        self._next_turn = self._snapshots.next_worker if self._snapshots is not None else 0
        self._begun = dict(enumerate(runtime.begin(context)))
        if context.begun.restored is not None or runtime.epochs > 1:
            found = self._settle(raises=True)
            if restored is not None:
                check_found(restored, found)
        self._fill()

    def _settle(self, *, raises: bool = False) -> int:
        """Waits until all workers have begun. Returns how many batches before the state the dataset
        had."""
        found = 0
        for worker in list(self._begun):
            found += self._hear(worker, raises)
        return found

    def _hear(self, worker: int, raises: bool = False) -> int:
        asked = self._begun.pop(worker, None)
        if asked is None:
            return 0
        try:
            snapshot, found = self._runtime.heard(asked, self._context.timeout if raises else 0)
        except WorkerLostError:
            raise
        except Exception:
            if raises:
                raise
            return 0  # each of its batches raises the same
        if self._snapshots is not None:
            self._snapshots.begun(worker, snapshot)
        return int(found)

    def _done(self) -> tuple[int, int]:
        return (self._pending[0].before, self._pending[0].number) if self._pending else super()._done()

    def _next_worker(self, most: int) -> int | None:
        """The worker that makes the next batch; None: all have their share."""
        workers = self._context.job.workers
        share = most if self._context.in_order else max(most // len(self._alive), 1)
        for worker in itertools.chain(range(self._next_turn, workers), range(self._next_turn)):
            if worker in self._alive and sum(made.worker == worker for made in self._pending) < share:
                return worker
        return None

    def _fill(self) -> None:
        context = self._context
        most = self._runtime.ahead(context)
        while self._more and self._alive and len(self._pending) < most:
            worker = self._next_worker(most)
            if worker is None:
                return
            try:
                wanted = self._drawn()
            except StopIteration:
                self._more = False
                return
            indices, samples = as_request(wanted, context.job.batched)
            indices, bad = (indices, []) if context.bad is None else context.bad.without(indices)
            self._next_turn = (worker + 1) % context.job.workers
            lease = self._runtime.batch_pool.take() if self._runtime.batch_bytes else None
            tell = self._snapshots is not None and self._snapshots.wanted(len(self._pending))
            what = indices, self._runtime.batch_pool.buffer_bytes if lease else 0, tell
            task = self._runtime.ask(worker, BATCH, what, lease.number if lease else NO_BUFFER)
            self._pending.append(_Made(self._number, self._planned, worker, task, lease, tell, bad))
            self._number += 1
            self._planned += samples

    def _next(self) -> Delivered:
        ready, self._ready = self._ready, None
        if ready is not None:
            return ready
        while True:
            self._fill()
            if not self._pending:
                self._finish()
                raise StopIteration
            self._runtime.check_workers()
            at = 0
            if self._context.in_order:
                self._runtime.wait([(self._pending[0].task.position, 1)], self._context.timeout, self._check_ended)
            else:
                at = self._runtime.wait(
                    [(made.task.position, 1) for made in self._pending], self._context.timeout, self._check_ended
                )
            made = self._pending[at]
            del self._pending[at]
            try:
                batch = self._take(made)
            finally:
                self._runtime.task_queue.unlend(made.task.lent)
            if batch is not None:
                try:
                    self._fill()
                except Exception:
                    self._ready = batch  # keep it: the sampler's error must not lose it
                    raise
                return batch

    def _note(self, batch: Delivered, position: int) -> int:
        if self._snapshots is None or batch.report is None:
            return position
        self._snapshots.given(batch.report, position)
        return self._snapshots.position

    def _fail(self, batch: Delivered) -> None:
        if self._snapshots is not None and batch.report is not None:
            self._snapshots.failed(batch.report)

    def _finish(self) -> None:
        """Ends the epoch. Workers that continue with the next one send what has changed since their
        last snapshot."""
        if self._snapshots is not None and not (self._owned and self._context.job.process):
            self._snapshots.finish(None if self._snapshots.complete else self._runtime.tell())

    def _take(self, made: _Made) -> Delivered | None:
        """The batch that a worker has made; None: the worker's part of an iterable dataset has
        ended."""
        runtime, task_queue, snapshots = self._runtime, self._runtime.task_queue, self._snapshots
        self._hear(made.worker)
        answer = runtime.answer(made.task)
        offset, length = place_of(answer)
        busy, augment = max(int(answer["ended_ns"]) - int(answer["began_ns"]), 0), int(answer["augment_ns"])
        measured = max(busy - augment - int(answer["delayed_ns"]), 0) if answer["waited_ns"] else 0
        hit = max(busy - augment, 0) if answer["result"] >= FROM_CACHE else 0
        self._context.meter.add(load=busy, waited=int(answer["waited_ns"]), measured=measured, augment=augment, hit=hit)
        if self._context.trace is not None:
            self._context.trace.loaded(self._context.epoch, made.number, np.array([answer]), np.array([-1]))
        if answer["result"] == ENDED:
            self._alive.discard(made.worker)
            snapshot = task_queue.take_object(offset, length)
            if snapshots is not None:
                snapshots.ended(made.worker, snapshot)
            return None
        if answer["result"] == ERROR:
            if snapshots is not None:
                snapshots.failed(Report(made.worker, None, False))
            task_queue.take_object(offset, length).reraise()
        (data, samples, hits, bad, snapshot), nbytes = runtime.received(offset, length, made.lease)
        report = Report(made.worker, snapshot, made.asked)
        return Delivered(data, made.number, samples, hits, nbytes, report, [*bad, *made.bad])

    def _stop(self, harshly: bool) -> None:
        pending, self._pending = list(getattr(self, "_pending", ())), deque()
        self._more, self._ready = False, None
        if not hasattr(self, "_runtime"):
            return
        if self._snapshots is not None:
            self._snapshots.settle = None
        if self._owned or harshly:
            self._runtime.close()
        else:
            for asked in self._begun.values():
                self._runtime.abandon(asked.position, 1, None)
            for made in pending:
                self._runtime.abandon(made.task.position, 1, made.lease)
        self._begun.clear()
