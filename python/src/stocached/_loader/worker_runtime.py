"""The workers of a loader, and the memory that they share with it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._memory.batch_reserve import reserve_of
from .._memory.ring import Lease, Ring
from .._workers.pool import Pool
from .._workers.task_queue import CANCELLED, DONE, TAKEN, TASK, TaskQueue
from .epoch_context import EpochContext
from .tasks import BEGIN, ERROR, SAMPLE, TELL
from .worker import run_worker

_SLICE = 0.05  # seconds of waiting between two checks of the workers, and of signals
# Seconds between two checks of the workers while there is nothing to wait for.
_CHECK_INTERVAL = 0.25


@dataclass
class Asked:
    """A task that is no batch."""

    position: int
    request: tuple[int, int]  # in the overflow


@dataclass
class _Given:
    """Tasks whose answers are not wanted any more, and the buffer that they write into."""

    first: int
    tasks: int
    lease: Lease | None


class WorkerRuntime:
    """Workers and the memory they share with us. Belongs to a loader that keeps its workers, or to
    one iteration."""

    def __init__(self, context: EpochContext, processes: Any, tasks: int, *, restart: bool) -> None:
        device, shared = context.job.backend.device(), context.job.workers > 0 and context.job.process
        # A device must not read private memory: the kernel copies it when the program forks.
        self.ring = self.own = Ring(context.ring_bytes, shared=shared or device is not None, device=device)
        if shared and device is None:
            # For batches that no worker has a part in.
            self.own = Ring(context.ring_bytes, shared=False)
            self.ring.share_limit(self.own)
        self.ring.hold = self.own.hold = reserve_of(context)
        self.task_queue = TaskQueue(tasks)
        self._job = context.job
        self.pool: Pool | None = None
        if context.job.workers:
            self.pool = Pool(context.job, run_worker, processes, self.task_queue, self.ring, restart=restart)
        self.room = 0  # bytes of a batch, when some have been seen
        self.announced: Any = None  # the layout that workers know
        self.epochs = 0  # that workers which make whole batches have begun
        self.closed = False
        self.pid = os.getpid()
        self._abandoned: list[_Given] = []
        self._checked_at = time.monotonic()

    @property
    def usable(self) -> bool:
        """Not closed, not inherited by a forked child, and no worker of it was lost."""
        return not self.closed and self.pid == os.getpid() and (self.pool is None or self.pool.lost is None)

    @property
    def processes(self) -> list[Any]:
        """The workers, also after their end. Tools look for them in the attribute `_workers` of an
        iterator, where torch has them."""
        return self.pool.processes if self.pool is not None else []

    def close(self) -> None:
        self.closed = True
        self._abandoned.clear()
        if self.pool is not None:
            self.pool.close()
        # A batch that the training loop still has keeps all of its ring otherwise.
        for ring in (self.ring, self.own):
            ring.rest()

    def begin(self, context: EpochContext) -> list[Asked]:
        """Has workers that make whole batches begin an epoch. `heard` gives their answers."""
        assert self.pool is not None
        job, restored = context.job, context.restored
        # Workers that are started later have them as well.
        self._job.base_seed, self._job.key = job.base_seed, job.key
        begun = []
        for worker in range(job.workers):
            snapshot = restored.workers[worker] if restored is not None and restored.workers else None
            # New workers know the pipes from their job.
            pipes, finished = job.pipes if self.epochs else None, restored is not None and restored.finished
            what = job.base_seed, job.key, pipes, snapshot, finished
            begun.append(self._ask(worker, BEGIN, what))
        self.epochs += 1
        return begun

    def tell(self) -> list[Any]:
        """Asks each worker for a snapshot; None: nothing has changed."""
        asked = [self._ask(worker, TELL, None) for worker in range(self._job.workers)]
        return [self.heard(one) for one in asked]

    def _ask(self, worker: int, kind: int, what: Any) -> Asked:
        task = np.zeros(1, TASK)
        request = self.task_queue.put_object(what)
        task["kind"], task["only"], task["argument"], task["index"] = kind, worker + 1, *request
        return Asked(self.push_one(task), request)

    def heard(self, asked: Asked) -> Any:
        """Waits for a worker's answer. Raises the exception that it answers with."""
        self.wait([(asked.position, 1)], 0)
        answer = self.task_queue.answers(asked.position, 1)[0].copy()
        self.task_queue.release(asked.position, 1)
        self.task_queue.drop(*asked.request)
        value = self.task_queue.take_object(int(answer["spill_offset"]), int(answer["spill_bytes"]))
        if answer["result"] == ERROR:
            value.reraise()
        return value

    def ahead(self, context: EpochContext) -> int:
        """How many batches may be on their way: the ring needs room for that which the training
        loop has and that which it gets, too."""
        if not self.ring.buffer_bytes:
            return context.ahead
        return min(context.ahead, max(context.ahead_bytes // self.ring.buffer_bytes, 1), max(self.ring.most - 2, 1))

    def push(self, tasks: Any) -> int | None:
        """Posts the tasks of a batch. None: no room before those of others are released that are on
        their way."""
        if self._abandoned:
            self._reap()
        first = self.task_queue.push(tasks)
        while first is None and self._abandoned:
            given = self._abandoned[0]
            taken = np.flatnonzero(self.task_queue.states(given.first, given.tasks) == TAKEN)
            if taken.size:
                self.wait([(given.first + int(taken[0]), 1)], 0)
            self._reap()
            first = self.task_queue.push(tasks)
        return first

    def push_one(self, task: Any) -> int:
        first = self.push(task)
        assert first is not None, "the task queue has room for a task of each batch ahead, and one of each worker"
        return first

    def wait(self, batches: list[tuple[int, int]], timeout: float) -> int:
        """Which of some batches has all its answers. Raises WorkerLostError, and RuntimeError after
        `timeout` seconds, 0: none."""
        assert self.pool is not None
        end = time.monotonic() + timeout if timeout else None
        found = self.task_queue.wait(batches, 0)
        while found is None:
            found = self.task_queue.wait(batches, _SLICE)
            if found is None:
                self.pool.check()
                self._checked_at = time.monotonic()
                if end is not None and time.monotonic() > end:
                    raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
        self.pool.worked()
        return found

    def check_workers(self) -> None:
        """Raises WorkerLostError also where there is nothing to wait for."""
        if self.pool is not None and time.monotonic() - self._checked_at > _CHECK_INTERVAL:
            self.pool.check()
            self._checked_at = time.monotonic()

    def abandon(self, first: int, tasks: int, lease: Lease | None) -> None:
        """Takes back what is not begun. Workers finish the rest, into a buffer that is not reused
        before; the answers are discarded when there is time."""
        self.task_queue.cancel(first, tasks)
        self._abandoned.append(_Given(first, tasks, lease))

    def _reap(self) -> None:
        self._abandoned = [given for given in self._abandoned if not self._reaped(given)]

    def _reaped(self, given: _Given) -> bool:
        task_queue = self.task_queue
        states = task_queue.states(given.first, given.tasks)
        for position in (given.first + np.flatnonzero(states == DONE)).tolist():
            asked, answer = task_queue.asked(position), task_queue.answers(position, 1)[0]
            if asked["kind"] != SAMPLE:
                task_queue.drop(int(asked["argument"]), int(asked["index"]))
            if answer["result"] != CANCELLED and answer["spill_bytes"]:
                task_queue.drop(int(answer["spill_offset"]), int(answer["spill_bytes"]))
            task_queue.release(position, 1)
        return not (states == TAKEN).any()
