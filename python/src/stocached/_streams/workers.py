"""The parent of a stream's workers. It settles steps as the workers answer, and tells them what to
read (docs/spec/stream-rows.md, Workers).

A task names its worker, as that has the iterators of its rows. Without lengths a thread settles
steps, because how far workers may read depends on what the others have answered."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _native
from .._common.background import Background
from .._common.errors import StreamError, WorkerLostError
from .._memory.batch_pool import BatchPool, Lease
from .._workers.pool import Pool
from .._workers.task_queue import TASK, TaskQueue, place_of
from .items import Array, Items
from .open_files import Assignment, Failure, FileFailed, first_item
from .scheduler import Step, StepScheduler
from .settings import StreamSettings
from .worker import BEGIN, BROKEN, END, REPORT, ROUND, STEP, Begin, Job, Message, Report, run_worker

_SLICE = 0.02  # seconds of a wait between two checks of the workers, which may be killed, and of forks
_FEW = 8  # batches of tasks, besides those of steps ahead

Batch = tuple[int, list[int]]
"""The tasks of some workers: the position of the first one, and the workers."""


class Team:
    """Worker processes of streams, and what they share with their parent. A loader may keep it."""

    def __init__(self, streams: StreamSettings, batch_pool: BatchPool) -> None:
        self.batch_pool, self._pid = batch_pool, os.getpid()
        workers = min(streams.num_workers, streams.batch_size)
        first = streams.rank * streams.batch_size
        self.job = Job(workers, first, streams.reader, streams.files, streams.worker_init_fn)
        self._task_queue = TaskQueue(2 * workers * (streams.prefetch_batches + _FEW))
        self.pool = Pool(
            self.job,
            run_worker,
            streams.multiprocessing_context,
            self._task_queue,
            batch_pool,
            restart=False,
            sent="the reader, the files and worker_init_fn",
        )
        self._posted: dict[int, list[int]] = {}
        self._early: dict[int, list[Report]] = {}  # of batches that were heard to make room for others
        self._leases: Any = None  # of an iteration that has ended. Workers may write into them
        self.read: Callable[[int, Any], None] = lambda step, answers: None  # gets answers about steps

    @property
    def usable(self) -> bool:
        return self.ours and not self.pool._closed and self.pool.lost is None

    @property
    def ours(self) -> bool:
        return self._pid == os.getpid()

    def post(
        self, kind: int, step: int, messages: dict[int, Message] | None = None, buffer: int = 0, *, some: bool = False
    ) -> Batch:
        """messages: by worker. some: only these get the task."""
        messages = messages or {}
        workers = sorted(messages) if some else list(range(self.job.workers))
        tasks = np.zeros(len(workers), TASK)
        tasks["kind"], tasks["index"], tasks["buffer"], tasks["only"] = kind, step, buffer, np.add(workers, 1)
        for k, worker in enumerate(workers):
            if worker in messages:
                tasks["argument"][k], tasks["row"][k] = self._task_queue.put_object(messages[worker])
        first = self._task_queue.push(tasks)
        while first is None:  # rows took many files without an item in one step
            oldest = min(set(self._posted) - set(self._early))
            while not self.wait((oldest, self._posted[oldest])):
                pass
            self._early[oldest] = self._collected(oldest)
            first = self._task_queue.push(tasks)
        self._posted[first] = workers
        return first, workers

    def wait(self, batch: Batch) -> bool:
        """Waits a moment for all answers. StreamError if a worker has died."""
        if batch[0] in self._early:
            return True
        native = _native.Batch(batch[0], len(batch[1])), 1
        if self._task_queue.wait(native, 0) is None and self._task_queue.wait(native, _SLICE) is None:
            try:
                self.pool.check()
            except WorkerLostError as error:
                dead = next((k for k, worker in enumerate(self.pool._workers) if not worker.alive), None)
                _, file, number = (None,) * 3 if dead is None else self.job.reads(dead)
                raise StreamError(str(error), file, number) from None
            return False
        self.pool.worked()
        return True

    @property
    def rests(self) -> bool:
        """Whether all that was posted is answered."""
        first, workers = next(reversed(self._posted.items()), (0, []))
        return self._task_queue.are_done(first, len(workers))

    def heard(self, batch: Batch) -> list[Report]:
        """What workers have answered, who all have. StreamError."""
        early = self._early.pop(batch[0], None)
        reports = self._collected(batch[0]) if early is None else early
        del self._posted[batch[0]]
        return reports

    def _collected(self, first: int) -> list[Report]:
        workers, asked, reports, broken = self._posted[first], self._task_queue.asked(first), [], None
        answers = self._task_queue.answers(first, len(workers)).copy()
        if asked["kind"] in (BEGIN, STEP):
            self.read(int(asked["index"]), answers)
        if answers["result"].any():
            for worker, answer in zip(workers, answers):
                if answer["result"] == REPORT:
                    reports.append(self._task_queue.take_object(*place_of(answer)))
                elif answer["result"] == BROKEN:
                    broken = worker, self._task_queue.take_object(*place_of(answer))
        self._task_queue.release(first, len(workers))
        if broken is not None:
            raise StreamError(f"worker {broken[0]} broke down: {broken[1].summary}") from broken[1].rebuilt()
        return reports

    def late(self, batch: Batch | None) -> str:
        """What the workers do that have not answered yet."""
        if batch is None:
            return "no worker is late"
        late = [worker for k, worker in enumerate(batch[1]) if not self._task_queue.is_done(batch[0] + k)]
        return ", ".join(f"worker {worker} reads {self.job.reads(worker)[0]}" for worker in late) or "no worker is late"

    def leave(self, leases: Any) -> None:
        """The iteration ends. Workers close its files, and may still write an item into its buffers before."""
        self.post(END, 0)
        self._leases = leases

    def begin(self) -> None:
        """Waits until the workers have left the last iteration."""
        for first in sorted(self._posted):
            batch = first, self._posted[first]
            while not self.wait(batch):
                pass
            self.heard(batch)
        self._leases = None

    def close(self) -> None:
        self.pool.close()
        self._leases = None  # no process writes into these buffers any more


class StreamWorkers:
    """One iteration. The thread has a reference to this object, so its user must close it; the
    garbage collector does not."""

    def __init__(
        self,
        streams: StreamSettings,
        scheduler: StepScheduler,
        team: Team,
        read: Callable[[int, Any], None],
        *,
        keep: bool,
    ) -> None:
        """read: as `Progress._read`. keep: the workers, at the end."""
        self._streams, self._scheduler, self._team, self._keep = streams, scheduler, team, keep
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
        self._granted: dict[int, tuple[Lease, Batch]] = {}
        self._known_steps: deque[Step] = deque()
        self._awaited: Batch | None = None  # what the next step waits for
        self._ready: deque[Step] = deque()  # their items are there
        self._over = False  # nothing is left to settle
        self._stopped = False  # at the failure
        self._error: BaseException | None = None
        self._closed = False
        self._background = Background()  # settles steps, if lengths are not known
        self._leading = False  # it does
        try:
            team.begin()
            team.read = read
            with self._lock:
                self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return self._team.pool.pids

    # ------------------------------------------------------------------- the training loop's thread

    def next(self) -> tuple[Step, Items, list[Array]] | None:
        """The next step with the arrays that it lies in; None: the epoch is over. FileFailed,
        StreamError. For one thread at a time."""
        timeout = self._streams.timeout
        end = time.monotonic() + timeout if timeout else None
        with self._lock:
            while not self._ready:
                if self._closed:
                    raise StreamError("this iteration was closed")
                if self._error is not None:
                    raise self._error
                if self._failed is not None and self._stopped:
                    raise FileFailed(self._failed)
                if self._over and self._awaited is None:
                    return None
                if end is not None and time.monotonic() >= end:
                    raise StreamError(f"no batch in timeout={timeout} s; {self._team.late(self._awaited)}")
                if self._known:
                    self._lead()
                else:
                    self._changed.wait(None if end is None else max(0.0, end - time.monotonic()))
            return self._give()

    def failures(self) -> list[Failure]:
        """With errors="skip": those since the last call."""
        with self._lock:
            taken, self._failures = self._failures, []
            return taken

    def _give(self) -> tuple[Step, Items, list[Array]]:
        step, items, rows = self._ready.popleft(), self._streams.items, self._streams.batch_size
        assert items is not None
        lease, _ = self._granted.pop(step.number)
        batch_pool = self._team.batch_pool
        fresh = None if self._over else batch_pool.take()
        if self._over or fresh is not None:
            arrays = items.arrays(lease.array(), rows)
        else:  # the user keeps batches: this one is copied, and its buffer used for the next
            arrays = [array.copy() for array in items.arrays(batch_pool.buffer(lease.number), rows)]
            fresh = lease
        if fresh is not None:
            self._fresh.append(fresh)
        # Workers that rest are woken for several steps at a time.
        if len(self._granted) <= self._streams.prefetch_batches // 2 or not self._team.rests:
            while self._fresh and not self._over:
                self._grant(self._fresh.popleft())
        return self._scheduler.give(step), items, arrays

    # --------------------------------------------------------------------------- the leading thread

    def _lead(self) -> None:
        """Waits a moment for what the next step needs, and goes on if it is there."""
        batch = self._awaited
        if batch is None or not self._team.wait(batch):
            return
        with self._lock:
            if not self._closed:
                self._act(self._team.heard(batch))
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

    def _await(self, batch: Batch) -> None:
        """The next step needs these answers."""
        self._awaited = batch
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
            self._await(self._team.post(ROUND, step, self._messages(assignments), some=True))
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
        else:
            self._idle = dict.fromkeys(range(streams.batch_size), self._first)
            for assignment in assignments:
                del self._idle[assignment.row]
        self._tell = streams.items is None
        skip, every = streams.errors == "skip", streams.snapshot_every_n_steps
        begin = Begin(streams.items, streams.batch_size, streams.prefetch_batches, skip, every)
        self._await(self._team.post(BEGIN, self._first, self._messages(assignments, begin=begin)))

    def _messages(self, assignments: Sequence[Assignment], **to_all: Any) -> dict[int, Message]:
        workers = self._team.job.workers
        mine: dict[int, list[Assignment]] = {worker: [] for worker in (range(workers) if to_all else ())}
        for assignment in assignments:
            mine.setdefault(assignment.row % workers, []).append(assignment)
        return {worker: Message(some, **to_all) for worker, some in mine.items()}

    def _lay_out(self, items: Items) -> None:
        self._streams.items = items
        batch_pool = self._team.batch_pool
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
        told, self._tell = {"items": self._streams.items} if self._tell else {}, False
        self._horizon += 1
        messages = self._messages(assignments, **told) if assignments or told else None
        self._granted[step] = lease, self._team.post(STEP, step, messages, lease.number)
        if self._awaited is None and not (self._over or self._stopped):
            self._await_step()

    def _await_step(self) -> None:
        """The next step is awaited, if it is granted."""
        step = self._scheduler.step
        if self._known:
            step = self._known_steps[0].number if self._known_steps else -1
        if step in self._granted:
            self._await(self._granted[step][1])

    def close(self, *, harshly: bool = False) -> None:
        """harshly: also ends workers that are kept."""
        if self._closed or not self._team.ours:
            return
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._background.close()
        if self._keep and not harshly and self._team.usable:
            self._team.leave(self._granted)
        else:
            self._team.close()
        self._granted = {}


def _order(failure: Failure) -> tuple[int, int]:
    return failure.step, failure.assignment.row
