"""The workers of a loader or of streams, processes or threads: they take tasks from a task queue, and are
replaced when they die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from .._common import threads
from .._common.errors import WorkerLostError
from .._memory.batch_pool import BatchPool
from .processes import Owner, Start, WorkerProcess, end, start_context
from .task_queue import TaskQueue

_GRACE = 0.3  # seconds that a thread has to end: it may be in the middle of a sample
_ATTEMPTS = 5  # workers that one task, or starting one, may cost


class Job(Protocol):
    """What workers are started for."""

    @property
    def workers(self) -> int: ...
    @property
    def process(self) -> bool:
        """Workers are processes, else threads."""

    @property
    def iterable(self) -> bool: ...

    def doing(self, task_queue: TaskQueue, position: int) -> str:
        """What a worker does that has taken the task at this position, such as "while it loaded
        sample 7"."""


class _WorkerThread(threading.Thread):
    """A thread as worker, with what the pool asks of a process."""

    alive = property(threading.Thread.is_alive)

    def death(self, doing: str, *, begun: bool) -> str:
        return f"{self.name.removeprefix('stocached ')} has ended {doing}"


class Pool(Owner):
    """Workers of a loader, which start when it is made. The first daemon thread comes after it.

    run: a function of the worker's number, the job, the task queue and the batch pool, which runs in the
    worker until the task queue is stopped. method: for `start_context`. All methods of the pool are for the
    thread that iterates, of the process that made it."""

    def __init__(
        self,
        job: Job,
        run: Callable[..., None],
        method: Any,
        task_queue: TaskQueue,
        batch_pool: BatchPool,
        *,
        restart: bool,
        sent: str = "the dataset, collate_fn, augment and worker_init_fn",
    ) -> None:
        """sent: what the job is made of, for messages."""
        self.job, self._run, self._restart = job, run, restart
        self.task_queue, self._batch_pool = task_queue, batch_pool
        self._process_start = Start(start_context(method), run, sent, piped=False)
        self.restarts = 0
        self.lost: str | None = None  # why no worker does anything any more
        self._worked = False  # any of them, ever
        # Workers that tasks have cost, by position; -1: that died between two tasks.
        self._cost: Counter[int] = Counter()
        self.processes: list[Any] = []  # processes of the workers; they stay here when they have ended
        super().__init__(partial(_finish, task_queue))
        self._start_all(self._start(number) for number in range(job.workers))
        self._list_processes()

    def _start(self, number: int) -> WorkerProcess | _WorkerThread:
        arguments = number, self.job, self.task_queue, self._batch_pool
        if self.job.process:
            return WorkerProcess(self._process_start, number, *arguments)
        thread = _WorkerThread(target=self._run, args=arguments, daemon=True, name=f"stocached worker thread {number}")
        threads.start(thread)
        return thread

    def _list_processes(self) -> None:
        self.processes[:] = [worker.process for worker in self._workers] if self.job.process else []

    def check(self) -> None:
        """Replaces workers that have died and has what they held done again; or WorkerLostError,
        naming worker, signal and sample, now and from now on."""
        if os.getpid() != self._pid:
            return
        if self.lost is not None:
            raise WorkerLostError(self.lost)
        for number, worker in enumerate(self._workers):
            if worker.alive:
                continue
            held = self.task_queue.held(number)
            at = held[0] if held else -1
            self._cost[at] += 1
            attempts = self._cost[at]
            if not self._restart or attempts >= (_ATTEMPTS if held else _ATTEMPTS * self.job.workers):
                self.lost = self._death(worker, held, attempts)
                raise WorkerLostError(self.lost)
            self.restarts += 1
            for position in held:
                self.task_queue.repost(number, position)
            self._workers[number] = self._start(number)
            self._list_processes()

    def worked(self) -> None:
        """Something has been done since the last call: workers do not die of being started."""
        self._worked = True
        self._cost.pop(-1, None)

    def _death(self, worker: Any, held: list[int], attempts: int) -> str:
        begun = bool(held) or self._worked
        doing = "between two tasks" if begun else "before its first task"
        if held:
            doing = self.job.doing(self.task_queue, held[0])
        advice = ""
        if self._restart:
            advice = f"; it is number {attempts} that this has happened to, so no other is started"
        elif begun and not self.job.iterable:
            advice = "; restart_workers=True has a new worker do it again"
        torch_words = "DataLoader worker exited unexpectedly"  # programs look for torch's words in logs
        code = worker.process.exitcode if self.job.process else None
        if code is not None and code < 0:
            torch_words = f"DataLoader worker (pid {worker.process.pid}) is killed by signal: {signal.strsignal(-code)}"
        return f"{worker.death(doing, begun=begun)}{advice}; {torch_words}"


def _finish(task_queue: TaskQueue, workers: list[Any]) -> None:
    task_queue.stop()
    until = time.monotonic() + _GRACE
    for worker in workers:
        if isinstance(worker, _WorkerThread) and worker is not threading.current_thread():
            # One in the middle of a sample ends after it.
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                threads.abandon(worker)
    end(workers)
