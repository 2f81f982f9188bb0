"""The workers of a loader, and the memory that they share with it."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common import threads
from .._common.background import TIMEOUT, Background
from .._memory.batch_pool import BatchPool, Lease
from .._memory.batch_reserve import reserve_of
from .._samples.batch_layout import Layout
from .._workers import serialization
from .._workers.pool import Pool
from .._workers.task_queue import CANCELLED, DONE, TAKEN, TASK, TaskQueue, place_of
from .epoch_context import EpochContext
from .tasks import BEGIN, ERROR, NO_BUFFER, SAMPLE, TELL
from .worker import run_worker

_SLICE = 0.05  # seconds of a wait between two checks of the workers, which may be killed
_CHECK_INTERVAL = 0.25  # the same if workers are threads; between two checks without a wait


@dataclass
class Asked:
    """A task with a request."""

    position: int
    request: tuple[int, int]  # in the overflow


@dataclass
class _Abandoned:
    """Tasks whose answers are not needed any more, and the buffer that they write into."""

    first: int
    tasks: int
    lease: Lease | None
    done: Callable[[], None] | None


class WorkerRuntime:
    """Workers and the memory that they share with the loader. It belongs to a loader that keeps its
    workers, or to one iteration."""

    def __init__(self, context: EpochContext, method: Any, tasks: int, *, restart: bool) -> None:
        """method: for `start_context`. tasks: the size of the task queue. restart: of the pool."""
        device, shared = context.job.backend.device(), context.job.workers > 0 and context.job.process
        # A device must not read private memory: after a fork, a store moves its pages, and the
        # device reads the old ones.
        self.batch_pool = self.own = BatchPool(context.pool_bytes, shared=shared or device is not None, device=device)
        if shared and device is None:
            # For batches without a part of a worker.
            self.own = BatchPool(context.pool_bytes, shared=False)
            self.batch_pool.share_limit(self.own)
        self.batch_pool.reserve = self.own.reserve = reserve_of(context)
        self.task_queue = TaskQueue(tasks)
        self._job = context.job
        self.background = Background()  # gathers hits
        self.announced: Layout | None = None  # which workers know
        layout = context.layout or context.row_layout
        if layout is not None and context.batch_size is not None:
            self.announce(layout)  # before workers start: they do no task without it
        self.pool: Pool | None = None
        if context.job.workers:
            self.pool = Pool(context.job, run_worker, method, self.task_queue, self.batch_pool, restart=restart)
        self.batch_bytes = 0  # bytes of a whole batch; 0: not known yet
        self.epochs = 0  # epochs of whole batches that workers have begun
        self.closed = False
        self.pid = os.getpid()
        self._abandoned: list[_Abandoned] = []
        self._checked_at = time.monotonic()

    @property
    def usable(self) -> bool:
        """Whether it is not closed, not inherited by a forked child, and has lost no worker."""
        return not self.closed and self.pid == os.getpid() and (self.pool is None or self.pool.lost is None)

    @property
    def processes(self) -> list[Any]:
        """The workers, also after their end. Tools find them in the attribute `_workers` of an
        iterator, as in torch."""
        return self.pool.processes if self.pool is not None else []

    def announce(self, layout: Layout) -> Layout:
        """Tells workers the layout of rows, once. Returns the one that they know."""
        if not self.batch_pool.buffer_bytes:
            self.batch_pool.resize(layout.bytes)
            self.own.resize(layout.bytes)
        if self.announced is None:
            self.announced = layout
            self.task_queue.announce(pickle.dumps((layout, self.batch_pool.buffer_bytes), 5))
        return self.announced

    def leave(self, filling: list[threads.Latch]) -> None:
        """An iteration ends. filling: of batches that the background may be filling now. If it waits for a server, it
        keeps its job, and others get another thread."""
        until = time.monotonic() + TIMEOUT
        if not all(latch.wait(max(until - time.monotonic(), 0)) for latch in filling):
            self.background.leave()
            self.background = Background()

    def close(self) -> None:
        self.closed = True
        self.background.close()
        self._abandoned.clear()
        if self.pool is not None:
            self.pool.close()
        if self.pid == os.getpid():  # a forked child does not know what its parent has lent since
            self.task_queue.free_spare()
        # Else a batch that the training loop keeps would keep all memory of its batch pool.
        for batch_pool in (self.batch_pool, self.own):
            batch_pool.free_idle()

    def begin(self, context: EpochContext) -> list[Asked]:
        """Tells workers that make whole batches to begin an epoch. `heard` gives their answers."""
        assert self.pool is not None
        job, restored = context.job, context.begun.restored
        self._job.base_seed, self._job.key = job.base_seed, job.key  # for workers that start later
        begun = []
        for worker in range(job.workers):
            snapshot = restored.workers[worker] if restored is not None and restored.workers else None
            # New workers know the pipes from their job.
            pipes, finished = job.pipes if self.epochs else None, restored is not None and restored.finished
            what = job.base_seed, job.key, pipes, snapshot, finished
            begun.append(self.ask(worker, BEGIN, what))
        self.epochs += 1
        return begun

    def tell(self) -> list[Any]:
        """Requests a snapshot of each worker; None: nothing has changed."""
        asked = [self.ask(worker, TELL, None) for worker in range(self._job.workers)]
        return [self.heard(one) for one in asked]

    def ask(self, worker: int | None, kind: int, what: Any, buffer: int = NO_BUFFER) -> Asked:
        """Posts a task for one worker; None: for any. what: it finds this in the overflow."""
        task = np.zeros(1, TASK)
        request = self.task_queue.put_object(what)
        only = 0 if worker is None else worker + 1
        task["kind"], task["only"], task["buffer"], task["argument"], task["index"] = kind, only, buffer, *request
        first = self.push(self.task_queue.push, task)
        assert first is not None, "the task queue holds a task of each batch ahead, and one of each worker"
        return Asked(first, request)

    def is_ready(self, asked: Asked) -> bool:
        """Whether the answer has come."""
        return self.task_queue.is_done(asked.position)

    def answer(self, asked: Asked) -> Any:
        """The answer to a task, which has come. Releases the task."""
        answer = self.task_queue.answers(asked.position, 1)[0].copy()
        self.task_queue.release(asked.position, 1)
        self.task_queue.drop(*asked.request)
        return answer

    def received(self, offset: int, length: int, lease: Lease | None) -> tuple[Any, int]:
        """A batch that a worker has made, and its bytes. The first one says how large buffers are."""
        data, nbytes = serialization.receive(self.task_queue, offset, length, lease)
        if not self.batch_bytes and nbytes:
            self.batch_pool.resize(nbytes + nbytes // 4 + 4096)
            self.batch_bytes = self.batch_pool.buffer_bytes
        return data, nbytes

    def heard(self, asked: Asked) -> Any:
        """Waits for a worker's answer. Raises the exception that it answers with."""
        self.wait([(asked.position, 1)], 0)
        answer = self.answer(asked)
        value = self.task_queue.take_object(*place_of(answer))
        if answer["result"] == ERROR:
            value.reraise()
        return value

    def ahead(self, context: EpochContext) -> int:
        """The most batches that may be begun. The batch pool also holds the batch that the training loop
        has and the one that it gets."""
        if not self.batch_pool.buffer_bytes:
            return context.ahead
        return min(
            context.ahead,
            max(context.ahead_bytes // self.batch_pool.buffer_bytes, 1),
            max(self.batch_pool.max_buffers - 2, 1),
        )

    def push(self, post: Callable[..., int | None], *tasks: Any) -> int | None:
        """Posts the tasks of a batch by `post(*tasks)`. None: the task queue is full until earlier tasks are
        released."""
        if self._abandoned:
            self._reap()
        first = post(*tasks)
        while first is None and self._abandoned:
            abandoned = self._abandoned[0]
            taken = np.flatnonzero(self.task_queue.states(abandoned.first, abandoned.tasks) == TAKEN)
            if taken.size:
                self.wait([(abandoned.first + int(taken[0]), 1)], 0)
            self._reap()
            first = post(*tasks)
        return first

    def wait(self, batches: list[tuple[int, int]], timeout: float, check: Callable[[], None] = lambda: None) -> int:
        """Waits until one of some batches has all its answers; returns which. Calls check between its looks. Raises
        what that raises, WorkerLostError, and RuntimeError after `timeout` seconds; 0: no timeout."""
        assert self.pool is not None
        end = time.monotonic() + timeout if timeout else None
        slice_ = _SLICE if self.pool.job.process else _CHECK_INTERVAL
        native = self.task_queue.batches(batches)
        found = self.task_queue.wait(native, 0)
        while found is None:
            found = self.task_queue.wait(native, min(slice_, timeout or slice_))
            if found is None:
                check()
                self.pool.check()
                self._checked_at = time.monotonic()
                if end is not None and self._checked_at > end:
                    raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
        self.pool.worked()
        return found

    def check_workers(self) -> None:
        """Raises WorkerLostError if a worker is lost, without a wait."""
        if self.pool is not None and time.monotonic() - self._checked_at > _CHECK_INTERVAL:
            self.pool.check()
            self._checked_at = time.monotonic()

    def abandon(self, first: int, tasks: int, lease: Lease | None, done: Callable[[], None] | None = None) -> None:
        """Cancels the tasks that are not begun. The others continue, and their buffer is not reused
        before they end. Their answers are dropped later. done: called when none is worked on."""
        self.task_queue.cancel(first, tasks)
        self._abandoned.append(_Abandoned(first, tasks, lease, done))

    def _reap(self) -> None:
        self._abandoned = [abandoned for abandoned in self._abandoned if not self._reaped(abandoned)]

    def _reaped(self, abandoned: _Abandoned) -> bool:
        task_queue = self.task_queue
        states = task_queue.states(abandoned.first, abandoned.tasks)
        for position in (abandoned.first + np.flatnonzero(states == DONE)).tolist():
            asked, answer = task_queue.asked(position), task_queue.answers(position, 1)[0]
            if asked["kind"] != SAMPLE:
                task_queue.drop(int(asked["argument"]), int(asked["index"]))
            if answer["result"] != CANCELLED and answer["overflow_bytes"]:
                task_queue.drop(*place_of(answer))
            task_queue.release(position, 1)
        ended = not (states == TAKEN).any()
        if ended and abandoned.done is not None:
            abandoned.done()
        return ended
