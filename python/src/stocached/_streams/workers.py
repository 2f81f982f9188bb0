"""The parent of a stream's workers. It settles steps as the workers answer, and tells them what to
read (docs/spec/stream-rows.md, Workers).

A task names its worker, as that has the iterators of its rows. Without lengths a thread settles
steps, because how far workers may read depends on what the others have answered."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.background import Background
from .._common.errors import StreamError, WorkerLostError
from .._memory.batch_pool import BatchPool, Lease
from .._workers.pool import Pool
from .._workers.task_queue import DONE, TASK, TaskQueue, place_of
from .._workers.tasks import END, ERROR, MADE, OPEN, ROUND, STEP
from .items import Array, Items
from .open_files import Assignment, Failure, FileFailed, first_item
from .scheduler import Step, StepScheduler
from .settings import StreamSettings
from .worker import Begin, Job, Message, Report, run_worker

_FEW = 8  # batches of tasks, besides those of steps ahead


def start_pool(streams: StreamSettings, batch_pool: BatchPool) -> Pool:
    """Starts the worker processes of a stream. A loader may keep the pool for its next epochs."""
    workers, first = min(streams.num_workers, streams.batch_size), streams.rank * streams.batch_size
    pool = Pool(TaskQueue(2 * workers * (streams.prefetch_batches + _FEW)), batch_pool)
    job = Job(workers, first, streams.reader, streams.files, streams.worker_init_fn)
    sent = "the reader, the files and worker_init_fn"
    pool.start(job, run_worker, streams.multiprocessing_context, restart=False, sent=sent)
    return pool


@dataclass
class _Posted:
    """Tasks of some workers."""

    batch: tuple[int, int]  # first position, and how many
    workers: Sequence[int]
    lease: Lease | None  # the memory that they write into
    reports: list[Report] | None = None  # if they were heard to make room for others


class StreamWorkers:
    """One iteration. The thread has a reference to this object, so its user must close it; the
    garbage collector does not."""

    def __init__(
        self,
        streams: StreamSettings,
        scheduler: StepScheduler,
        pool: Pool,
        read: Callable[[int, Any], None],
        *,
        keep: bool,
    ) -> None:
        """read: as `Progress._read`. keep: the workers, at the end."""
        self._streams, self._scheduler, self._pool, self._keep = streams, scheduler, pool, keep
        self._read = read
        self._posted: dict[int, _Posted] = {}  # tasks that were not heard, by position
        self._known = streams.lengths is not None
        self._first = scheduler.step
        # Protects what follows. The garbage collector may take it again in a thread that has it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # With errors="skip": those that `failures` has not given.
        self._failures: list[Failure] = []
        self._failed: Failure | None = None  # failure that ends the iteration: the first by step and row
        self._idle: dict[int, int] = {}  # rows without a file, and since which step
        self._horizon = scheduler.step  # steps below it are granted
        self._fresh: deque[Lease] = deque()  # for the steps that are granted next
        self._granted: dict[int, _Posted] = {}
        self._known_steps: deque[Step] = deque()
        self._awaited: _Posted | None = None  # what the next step waits for
        self._ready: deque[Step] = deque()  # their items are there
        self._over = False  # nothing is left to settle
        self._stopped = False  # at the failure
        self._error: BaseException | None = None
        self._closed = False
        self._background = Background()  # settles steps, if lengths are not known
        self._leading = False  # it does
        try:
            with self._lock:
                self._begin()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------- the training loop's thread

    def next(self) -> tuple[Step, Items, list[Array]] | None:
        """The next step with the arrays that it lies in; None: the epoch is over. FileFailed,
        StreamError. For one thread at a time."""
        end = time.monotonic() + self._streams.timeout if self._streams.timeout else None
        try:
            while True:
                with self._lock:
                    if self._ready:
                        return self._give()
                    if self._has_ended(end):
                        return None
                    if not self._known:
                        self._changed.wait(None if end is None else max(0.0, end - time.monotonic()))
                if self._known:
                    self._lead()
        except WorkerLostError as error:
            dead = next((number for number, worker in enumerate(self._pool._workers) if not worker.alive), None)
            _, file, number = (None,) * 3 if dead is None else self._pool.job.reads(dead)
            raise StreamError(str(error), file, number) from None

    def _has_ended(self, end: float | None) -> bool:
        """Whether the iteration has ended. Raises its error, or StreamError after `end`, a time of time.monotonic()."""
        self._check_closed()
        if self._error is not None:
            raise self._error
        if self._failed is not None and self._stopped:
            raise FileFailed(self._failed)
        over = self._over and self._awaited is None
        if over and self._known and self._failed is not None:  # behind the last item of a row
            raise FileFailed(self._failed)
        if not over and end is not None and time.monotonic() >= end:
            self._pool.task_queue.spoil()
            raise StreamError(f"no batch in timeout={self._streams.timeout} s; {self._late()}")
        return over

    def _check_closed(self) -> None:
        if self._closed:
            raise StreamError("this iteration was closed")

    def failures(self) -> list[Failure]:
        """With errors="skip": those since the last call."""
        with self._lock:
            taken, self._failures = self._failures, []
            return taken

    def _give(self) -> tuple[Step, Items, list[Array]]:
        step, items, rows = self._ready.popleft(), self._streams.items, self._streams.batch_size
        assert items is not None
        lease, batch_pool = self._granted.pop(step.number).lease, self._pool.batch_pool
        assert lease is not None
        fresh = None if self._over else batch_pool.take()
        if self._over or fresh is not None:
            arrays = items.arrays(lease.array(), rows)
        else:  # the user keeps batches: this one is copied, and its buffer used for the next
            arrays = [array.copy() for array in items.arrays(batch_pool.buffer(lease.number), rows)]
            fresh = lease
        if fresh is not None:
            self._fresh.append(fresh)
        # Workers that rest are woken for several steps at a time.
        if len(self._granted) <= self._streams.prefetch_batches // 2 or not self._rest():
            while self._fresh and not self._over:
                self._grant(self._fresh.popleft())
        return self._scheduler.give(step), items, arrays

    # --------------------------------------------------------------------------- the leading thread

    def _lead(self) -> None:
        """Waits a moment for what the next step needs, and goes on if it is there."""
        awaited = self._awaited
        if awaited is None or not self._wait(awaited):
            return
        with self._lock:
            if not self._closed:
                self._act(self._heard(awaited))
                self._changed.notify_all()

    def _lead_on(self) -> None:
        """A job of the background: leads as long as a step waits for workers."""
        try:
            while self._leads():
                self._lead()
        except BaseException as error:  # the training loop waits, and raises it
            with self._lock:
                self._error = error
                self._changed.notify_all()

    def _leads(self) -> bool:
        with self._lock:
            self._leading = self._awaited is not None and not self._closed
            if self._leading and self._background.pauses:
                self._background.put(self._lead_on)
                return False
            return self._leading

    # -------------------------------------------------------------------------- both, with the lock

    def _await(self, posted: _Posted) -> None:
        """The next step needs these answers."""
        self._awaited = posted
        if not self._known and not self._leading:
            self._leading = True
            self._background.put(self._lead_on)

    def _act(self, reports: list[Report]) -> None:
        """What was awaited is there."""
        self._awaited = None
        for report in reports:
            self._note(report)
        if self._horizon == self._first:
            # The first item of the lowest row says what all are made of, however fast workers are.
            firsts = [report.first for report in reports if report.first is not None]
            items = self._streams.items or (min(firsts, key=lambda first: first[0])[1] if firsts else None)
            if items is not None:
                self._lay_out(items)
                return
        step = self._known_steps[0].number if self._known else self._scheduler.step
        if self._failed is not None and self._failed.step <= step:
            self._stopped = True
        elif self._known:
            self._ready.append(self._known_steps.popleft())
            self._await_step()
        else:
            self._settle(step)

    def _note(self, report: Report) -> None:
        for failure in report.failures:
            if not failure.ends:
                self._failures.append(failure)
            elif self._failed is None or _order(failure) < _order(self._failed):
                self._failed = failure
        self._scheduler.snapshots.add(report.snapshots)
        self._idle.update(report.idle)

    def _settle(self, step: int) -> None:
        """Settles a step whose rows have been read, or has more of them read, if lengths are not known."""
        waiting = [row for row, since in self._idle.items() if since <= step]
        assignments = self._scheduler.round(waiting) if waiting else []
        for row in waiting:
            del self._idle[row]  # those that got no file have finished
        if assignments:
            self._await(self._post(ROUND, step, self._messages(assignments), some=True))
            return
        settled = self._scheduler.finish()
        if settled is None:
            self._over = True
        else:
            self._ready.append(settled)
            self._await_step()

    def _begin(self) -> None:
        streams, assignments = self._streams, self._scheduler.begin()
        if self._known:
            step = self._scheduler.known()
            if step is None:
                self._over = True
                return
            self._known_steps.append(step)
            assignments += step.assignments
            if not step.mask.any() and streams.items is None:
                streams.items = first_item(streams.reader, streams.files, streams.lengths)
        elif assignments:  # rows without a file wait for those whose files may have ended
            self._idle = dict.fromkeys(range(streams.batch_size), self._first)
            for assignment in assignments:
                del self._idle[assignment.row]
        else:
            assignments = self._scheduler.round(range(streams.batch_size))
        skip, every = streams.errors == "skip", streams.snapshot_every_n_steps
        begin = Begin(streams.batch_size, streams.prefetch_batches, skip, every)
        self._await(self._post(OPEN, self._first, self._messages(assignments, begin=begin, items=streams.items)))

    def _messages(self, assignments: Sequence[Assignment], **to_all: Any) -> dict[int, Message]:
        workers = self._pool.job.workers
        mine: dict[int, list[Assignment]] = {worker: [] for worker in (range(workers) if to_all else ())}
        for assignment in assignments:
            mine.setdefault(assignment.row % workers, []).append(assignment)
        return {worker: Message(some, **to_all) for worker, some in mine.items()}

    def _lay_out(self, items: Items) -> None:
        self._streams.items = items
        batch_pool = self._pool.batch_pool
        batch_pool.resize(items.nbytes(self._streams.batch_size))
        while self._horizon < self._first + self._streams.prefetch_batches and not self._over:
            lease = batch_pool.take()
            if lease is None:
                break
            self._grant(lease)

    def _grant(self, lease: Lease) -> None:
        """The next step may be written into that buffer."""
        step, assignments = self._horizon, []
        if self._known and self._scheduler.step == step:
            settled = self._scheduler.known()
            if settled is None:
                self._over = True
                return
            self._known_steps.append(settled)
            assignments = settled.assignments
        told = {"items": self._streams.items} if step == self._first else {}
        self._horizon += 1
        messages = self._messages(assignments, **told) if assignments or told else None
        self._granted[step] = self._post(STEP, step, messages, lease)
        if self._awaited is None and not (self._over or self._stopped):
            self._await_step()

    def _await_step(self) -> None:
        """The next step is awaited, if it is granted."""
        step = self._scheduler.step
        if self._known:
            step = self._known_steps[0].number if self._known_steps else -1
        if step in self._granted:
            self._await(self._granted[step])

    # ------------------------------------------------------------------------------ tasks and answers

    def _post(
        self,
        kind: int,
        step: int,
        messages: dict[int, Message] | None = None,
        lease: Lease | None = None,
        *,
        some: bool = False,
    ) -> _Posted:
        """messages: by worker. some: only these get the task."""
        messages, task_queue = messages or {}, self._pool.task_queue
        workers = sorted(messages) if some else range(self._pool.job.workers)
        tasks = np.zeros(len(workers), TASK)
        tasks["kind"], tasks["index"], tasks["only"] = kind, step, np.add(workers, 1)
        tasks["buffer"] = 0 if lease is None else lease.number
        for k, worker in enumerate(workers):
            if worker in messages:
                tasks["argument"][k], tasks["row"][k] = task_queue.put_object(messages[worker])
        first = self._pool.push(task_queue.push, tasks)
        while first is None:  # rows took many files without an item in one step
            oldest = next(posted for posted in self._posted.values() if posted.reports is None)
            while not self._wait(oldest):
                pass
            oldest.reports = self._collected(oldest)
            first = task_queue.push(tasks)
        posted = self._posted[first] = _Posted((first, len(workers)), workers, lease)
        return posted

    def _wait(self, posted: _Posted) -> bool:
        """Waits a moment for all answers. WorkerLostError."""
        return posted.reports is not None or self._pool.look([posted.batch], self._check_closed) is not None

    def _rest(self) -> bool:
        """Whether workers have answered all that was posted."""
        posted, task_queue = next(reversed(self._posted.values()), None), self._pool.task_queue
        if posted is None or posted.reports is not None:
            return True
        return task_queue.wait(task_queue.batches([posted.batch]), 0) is not None

    def _heard(self, posted: _Posted) -> list[Report]:
        """What workers have answered, who all have. StreamError."""
        del self._posted[posted.batch[0]]
        return self._collected(posted) if posted.reports is None else posted.reports

    def _collected(self, posted: _Posted) -> list[Report]:
        task_queue, reports = self._pool.task_queue, []
        asked, answers = task_queue.asked(posted.batch[0]), task_queue.answers(*posted.batch).copy()
        if asked["kind"] in (OPEN, STEP):
            self._read(int(asked["index"]), answers)
        task_queue.release(*posted.batch)
        for worker, answer in zip(posted.workers, answers if answers["result"].any() else ()):
            if answer["result"] == MADE:
                reports.append(task_queue.take_object(*place_of(answer)))
            elif answer["result"] == ERROR:
                error = task_queue.take_object(*place_of(answer))
                raise StreamError(f"worker {worker} broke down: {error.summary}") from error.rebuilt()
        return reports

    def _late(self) -> str:
        """What the workers do that the next step waits for."""
        awaited, pool, late = self._awaited, self._pool, []
        if awaited is not None:
            there = pool.task_queue.states(*awaited.batch) == DONE
            late = [f"worker {w} reads {pool.job.reads(w)[0]}" for w, done in zip(awaited.workers, there) if not done]
        return ", ".join(late) or "no worker is late"

    def close(self, *, harshly: bool = False) -> None:
        """harshly: also ends workers that are kept. Others close their files, and may still write an item into a batch
        before."""
        pool = self._pool
        if self._closed or not pool.ours:
            return
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._background.close()
        if self._keep and not harshly and pool.usable:
            for posted in self._posted.values():
                pool.abandon(*posted.batch, None, cancel=False)
            self._posted.clear()
            with contextlib.suppress(WorkerLostError):  # a worker has died, so these are not kept
                pool.abandon(*self._post(END, 0).batch, self._granted, cancel=False)
        else:
            pool.close()
        self._granted = {}


def _order(failure: Failure) -> tuple[int, int]:
    return failure.step, failure.assignment.row
