"""The parent of a stream's workers. A thread settles steps as the workers report, and tells them
what to read (docs/spec/stream-rows.md, Workers).

There is no task queue, because not every worker can take every task: a worker has the iterators of
its rows, and how far it may read depends on what the others have reported."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from .._common import threads
from .._common.errors import StreamError
from .._memory.batch_pool import BatchPool, Lease
from .._memory.shared_file import SharedFile
from .._workers.errors import RemoteError
from .._workers.processes import Owner, Start, WorkerProcess, end, start_context
from .items import Array, Items
from .open_files import Assignment, Failure, FileFailed, first_item
from .scheduler import Step, StepScheduler
from .settings import StreamSettings
from .worker import PAGE, Grant, Job, Layout, Report, run_worker

# Seconds for the leading thread to end: it may wait for a worker that takes no message.
_BEFORE_FORK = 0.5
_FAR = 2**62  # a step that never comes


class _Worker(WorkerProcess):
    """What the parent knows of a worker."""

    def __init__(self, start: Start, job: Job, low: int) -> None:
        super().__init__(start, job.number, job)
        self.begun = False  # it has sent a message
        self.low = low  # it has read all items of the steps below
        self.assigned = 0  # lists of assignments that it was sent
        self.idle: dict[int, int] = {}  # rows without a file, and since which step


class StreamWorkers(Owner):
    """Workers of a stream, and the thread that leads them. The thread has a reference to this
    object, so its user must close it; the garbage collector does not."""

    _workers: list[_Worker]

    def __init__(self, streams: StreamSettings, scheduler: StepScheduler, batch_pool: BatchPool) -> None:
        self._streams, self._scheduler, self._batch_pool = streams, scheduler, batch_pool
        self._known = streams.lengths is not None
        self._first = scheduler.step
        # Protects what follows. The garbage collector may take it again in a thread that has it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # With errors="skip": those that `failures` has not given.
        self._failures: list[Failure] = []
        self._failed: Failure | None = None  # failure that ends the iteration: the first by step and row
        self._layouts: dict[int, Layout] = {}  # layouts of workers that wait for what all items are made of
        self._horizon = scheduler.step  # steps below it are granted
        self._leases: dict[int, Lease] = {}
        self._settled: deque[Step] = deque()
        self._over = False  # nothing is left to settle
        self._error: BaseException | None = None
        self._doing = SharedFile("streams", size=PAGE)
        self._words = self._doing.map(0, PAGE).view(np.int64)
        self._woken, self._wake = os.pipe()
        self._forking = False  # the thread is to end, and another begins after the fork
        self._thread: threading.Thread | None = None  # thread that leads
        super().__init__(self._finish)
        try:
            self._start_workers()
            with self._lock:
                self._begin()
                self._begin_thread()
            threads.keep_from_forks(self)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------- the training loop's thread

    def next(self) -> tuple[Step, Items, list[Array]] | None:
        """The next step with the arrays that it lies in; None: the epoch is over. FileFailed,
        StreamError. For one thread at a time."""
        timeout = self._streams.timeout
        end = time.monotonic() + timeout if timeout else None
        with self._lock:
            while not self._ready():
                if self._error is not None:
                    raise self._error
                if end is not None and time.monotonic() >= end:
                    raise StreamError(f"no batch in timeout={timeout} s; {self._late()}")
                self._changed.wait(None if end is None else max(0.0, end - time.monotonic()))
            failed = self._failed
            if failed is not None and (not self._settled or failed.step <= self._settled[0].number):
                raise FileFailed(failed)
            return self._give() if self._settled else None

    def failures(self) -> list[Failure]:
        """With errors="skip": those since the last call."""
        with self._lock:
            taken, self._failures = self._failures, []
            return taken

    def _ready(self) -> bool:
        """There is a step to give, or there will be none any more."""
        if self._closed:
            raise StreamError("this iteration was closed")
        if self._settled:
            return not self._known or self._low() > self._settled[0].number
        if self._failed is None or self._known:
            return self._over
        return self._over or self._failed.step <= self._scheduler.step < self._low()

    def _low(self) -> int:
        return min(worker.low for worker in self._workers)

    def _give(self) -> tuple[Step, Items, list[Array]]:
        step, items, rows = self._settled.popleft(), self._streams.items, self._streams.batch_size
        assert items is not None
        lease = self._leases.pop(step.number)
        fresh = None if self._over else self._batch_pool.take()
        if self._over or fresh is not None:
            arrays = items.arrays(lease.array(), rows)
        else:  # the user keeps batches: this one is copied, and its buffer used for the next
            arrays = [array.copy() for array in items.arrays(self._batch_pool.buffer(lease.number), rows)]
            fresh = lease
        if fresh is not None:
            self._grant(fresh)
        return self._scheduler.give(step), items, arrays

    # --------------------------------------------------------------------------- the leading thread

    def _begin_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stocached streams", daemon=True)
        threads.start(self._thread)

    def before_fork(self) -> None:
        if not self._lock.acquire(timeout=_BEFORE_FORK):
            return
        try:
            thread = self._thread
            if thread is None or self._closed or os.getpid() != self._pid:
                return
            self._forking = True
            os.write(self._wake, b"x")
        finally:
            self._lock.release()
        threads.join(thread, _BEFORE_FORK)

    def after_fork(self) -> None:
        with self._lock:
            if self._forking and not self._closed:
                self._forking = False
                os.read(self._woken, 1)
                if self._thread is None:
                    self._begin_thread()

    def _ends(self) -> bool:
        """Whether the thread that was woken is to end."""
        with self._lock:
            if self._forking:
                self._thread = None
            return self._forking or self._closed

    def _run(self) -> None:
        workers = {worker.pipe: worker for worker in self._workers}
        while not self._closed:
            try:
                ready = wait([*workers, self._woken])
            except (OSError, ValueError):
                if self._closed:  # by the garbage collector, in the middle of the wait
                    return
                raise
            for pipe in ready:
                if pipe == self._woken or self._closed:
                    if self._ends():
                        return
                    break
                if not self._hear(workers[pipe]):
                    del workers[pipe]

    def _hear(self, worker: _Worker) -> bool:
        """False: the worker has died."""
        message = worker.receive()
        with self._lock:
            try:
                self._act(worker, message)
            except BaseException as error:  # the training loop waits, and raises it
                self._error = self._error or error
            self._changed.notify_all()
        return message is not None

    def _act(self, worker: _Worker, message: Any) -> None:
        if self._closed:
            return
        if message is None:
            self._error = self._error or self._death(worker)
            return
        worker.begun = True
        if isinstance(message, RemoteError):
            error = StreamError(f"worker {worker.number} broke down: {message.summary}")
            error.__cause__ = message.rebuilt()
            self._error = self._error or error
        elif isinstance(message, Layout):
            self._layouts[worker.number] = message
            self._choose_layout()
        elif isinstance(message, Report):
            self._report(worker, message)

    def _report(self, worker: _Worker, report: Report) -> None:
        for failure in report.failures:
            if not failure.ends:
                self._failures.append(failure)
            elif self._failed is None or _order(failure) < _order(self._failed):
                self._failed = failure
        self._scheduler.snapshots.add(report.snapshots)
        if not self._known:
            worker.idle.update(report.idle)
        # Else it had not received the last assignments.
        if self._known or report.assigned == worker.assigned:
            worker.low = report.low
        self._choose_layout()
        if not self._known:
            self._settle()

    def _choose_layout(self) -> None:
        """The first item of the lowest row says what all are made of, however fast workers are."""
        if self._streams.items is not None or not self._layouts:
            return
        if all(worker.number in self._layouts or worker.low > self._first for worker in self._workers):
            self._lay_out(min(self._layouts.values(), key=lambda layout: layout.row).items)

    # -------------------------------------------------------------------------- both, with the lock

    def _begin(self) -> None:
        assignments = self._scheduler.begin()
        if self._known:
            step = self._scheduler.known()
            if step is None:
                self._over = True
                return
            self._settled.append(step)
            assignments += step.assignments
            busy = {self._worker_of(assignment.row).number for assignment in assignments}
            for worker in self._workers:
                if worker.number not in busy:
                    worker.low = _FAR  # its rows have finished, and have nothing to report
            if not step.mask.any() and self._streams.items is None:
                self._streams.items = first_item(self._streams.reader, self._streams.files, self._streams.lengths)
        else:
            for row in set(range(self._streams.batch_size)) - {assignment.row for assignment in assignments}:
                self._worker_of(row).idle[row] = self._first
        self._assign(assignments)
        if self._streams.items is not None:
            self._lay_out(self._streams.items)
        if not self._known:
            self._settle()

    def _worker_of(self, row: int) -> _Worker:
        return self._workers[row % len(self._workers)]

    def _lay_out(self, items: Items) -> None:
        self._streams.items = items
        self._batch_pool.resize(items.nbytes(self._streams.batch_size))
        self._send_all(Layout(-1, items))
        while self._horizon < self._first + self._streams.prefetch_batches and not self._over:
            lease = self._batch_pool.take()
            if lease is None:
                break
            self._grant(lease)

    def _grant(self, lease: Lease) -> None:
        """The next step may be written into that buffer."""
        step = self._horizon
        if self._known and self._scheduler.step == step:
            settled = self._scheduler.known()
            if settled is None:
                self._over = True
                return
            self._settled.append(settled)
            self._assign(settled.assignments)
        self._horizon += 1
        self._leases[step] = lease
        self._send_all(Grant(step, lease.number))

    def _assign(self, assignments: Sequence[Assignment]) -> None:
        for worker in self._workers:
            mine = [one for one in assignments if self._worker_of(one.row) is worker]
            if mine:
                worker.assigned += 1
                if not self._known:
                    worker.low = self._scheduler.step
                worker.send(mine)

    def _settle(self) -> None:
        """Settles the steps that can be settled, if lengths are not known."""
        while not self._over and self._low() > (step := self._scheduler.step):
            if self._failed is not None and self._failed.step <= step:
                return
            waiting = [row for worker in self._workers for row, since in worker.idle.items() if since <= step]
            assignments = self._scheduler.round(waiting) if waiting else []
            for row in waiting:
                del self._worker_of(row).idle[row]  # those that got no file have finished
            if assignments:
                self._assign(assignments)
                continue
            settled = self._scheduler.finish()
            if settled is None:
                self._over = True
            else:
                self._settled.append(settled)

    def _send_all(self, message: Any) -> None:
        for worker in self._workers:
            worker.send(message)

    # ------------------------------------------------------------------------------------ processes

    def _start_workers(self) -> None:
        streams = self._streams
        sent = "the reader, the files and worker_init_fn"
        start = Start(start_context(streams.multiprocessing_context), run_worker, sent)
        for number in range(min(streams.num_workers, streams.batch_size)):
            job = Job(
                number,
                streams.batch_size,
                self._first,
                streams.prefetch_batches,
                streams.reader,
                streams.files,
                streams.errors == "skip",
                streams.snapshot_every_n_steps,
                streams.worker_init_fn,
                self._batch_pool,
                self._doing,
            )
            self._workers.append(_Worker(start, job, self._first if self._known else _FAR))

    def _death(self, worker: _Worker) -> StreamError:
        what, file, number = self._reading(worker)
        idle = "between two items" if worker.begun else "before its first item"
        doing = idle if number is None else f"while it read {what}"
        return StreamError(worker.death(doing, begun=worker.begun or number is not None), file, number)

    def _reading(self, worker: _Worker) -> tuple[str, Any, int | None]:
        """What a worker reads, in words; the file, and its number, or None twice."""
        row, number = (int(word) for word in self._words[2 * worker.number : 2 * worker.number + 2])
        if row == 0:
            return "no file", None, None
        row, file = row - 1 + self._streams.rank * self._streams.batch_size, self._streams.files[number]
        return f"file {number} ({file!r}) for row {row}", file, number

    def _late(self) -> str:
        """What the workers do that the next step waits for."""
        late = [worker for worker in self._workers if worker.low <= self._scheduler.step]
        return ", ".join(f"worker {w.number} reads {self._reading(w)[0]}" for w in late) or "no worker is late"

    def _finish(self, workers: list[_Worker]) -> None:
        with self._lock:
            thread = self._thread
            self._changed.notify_all()
        os.write(self._wake, b"x")
        if thread is not None:
            threads.join(thread)
        end(workers)
        self._leases.clear()  # no process writes into these buffers any more
        os.close(self._woken)
        os.close(self._wake)


def _order(failure: Failure) -> tuple[int, int]:
    return failure.step, failure.assignment.row
