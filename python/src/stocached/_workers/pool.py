"""The workers of a loader or of a stream, processes or threads: their parent posts tasks, waits for the answers, and
replaces workers that have died (docs/spec/workers.md)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from .._common import threads
from .._common.errors import WorkerLostError
from .._common.warning import warn_user
from .._memory.batch_pool import BatchPool
from .processes import Owner, Start, WorkerProcess, end, start_context
from .task_queue import CANCELLED, DONE, POSTED, TAKEN, TASK, TaskQueue, place_of
from .tasks import ERROR, NO_BUFFER, REQUESTS

_SLICE = 0.05  # seconds of a wait between two checks of the workers, which may be killed
_CHECK_INTERVAL = 0.25  # the same if workers are threads; between two checks without a wait
_GRACE = 0.3  # seconds that a thread has to end: it may be in the middle of a sample
_STARTS = 5.0, 30.0  # seconds after which a worker that has not started is told: at least, and without timeout=
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
    @property
    def init(self) -> Callable[[int], Any] | None: ...  # worker_init_fn

    def doing(self, task_queue: TaskQueue, position: int) -> str:
        """What a worker does that has taken the task at this position, such as "while it loaded
        sample 7"."""


class _WorkerThread(threading.Thread):
    """A thread as worker, with what the pool asks of a process."""

    alive = property(threading.Thread.is_alive)

    def death(self, doing: str, *, begun: bool) -> str:
        return f"{self.name.removeprefix('stocached ')} has ended {doing}"


@dataclass
class Asked:
    """A task with a request."""

    position: int
    request: tuple[int, int]  # in the overflow
    lent: int  # the place for the answer


@dataclass
class _Abandoned:
    """Tasks whose answers are not needed any more, and the buffer that they write into."""

    first: int
    tasks: int
    lease: Any
    lent: int
    done: Callable[[], None] | None


class Pool(Owner):
    """Workers, and the memory that they share with their parent. It belongs to a loader that keeps its workers, or to one
    iteration. All methods are for the thread that iterates, of the process that made it."""

    job: Any  # a Job

    def __init__(self, task_queue: TaskQueue, batch_pool: BatchPool) -> None:
        self.task_queue, self.batch_pool = task_queue, batch_pool
        self.restarts = 0
        self.lost: str | None = None  # why no worker does anything any more
        self._worked = False  # any of them, ever
        self._said = False  # the warning of a position that workers share
        # Workers that tasks have cost, by position; -1: that died between two tasks.
        self._cost: Counter[int] = Counter()
        # Processes of the workers; they stay here when they have ended. Tools find them in the attribute `_workers` of
        # an iterator, as in torch.
        self.processes: list[Any] = []
        self._abandoned: list[_Abandoned] = []
        self._checked_at = time.monotonic()
        super().__init__(partial(_finish, task_queue))

    def start(
        self,
        job: Job,
        run: Callable[..., None],
        method: Any,
        *,
        restart: bool,
        timeout: float = 0,
        sent: str = "the dataset, collate_fn, augment and worker_init_fn",
    ) -> None:
        """Starts the workers, before the first daemon thread. run: a function of the worker's number, the job, the task
        queue and the batch pool, which runs in the worker until the task queue is stopped. method: for
        `start_context`. timeout: seconds that a batch may take; 0: no limit. sent: what the job is made of, for messages."""
        self.job, self._run, self._restart = job, run, restart
        self._process_start = Start(start_context(method), run, sent, piped=False)
        self._start_all(self._start(number) for number in range(job.workers))
        self._list_processes()
        self._may_start = max(timeout, _STARTS[0]) if timeout else _STARTS[1]
        self._start_by = time.monotonic() + self._may_start

    @property
    def usable(self) -> bool:
        """Whether it is not closed, not inherited by a forked child, and all its workers can work."""
        return not self._closed and self.ours and self.lost is None and not self.task_queue.spoiled

    @property
    def ours(self) -> bool:
        """Whether it is not inherited by a forked child."""
        return self._pid == os.getpid()

    def close(self) -> None:
        super().close()
        self._abandoned.clear()  # no process writes into their buffers any more
        if self.ours:  # a forked child does not know what its parent has lent since
            self.task_queue.free_spare()

    def _start(self, number: int) -> WorkerProcess | _WorkerThread:
        arguments = number, self.job, self.task_queue, self.batch_pool
        if self.job.process:
            return WorkerProcess(self._process_start, number, *arguments)
        thread = _WorkerThread(target=self._run, args=arguments, daemon=True, name=f"stocached worker thread {number}")
        threads.start(thread)
        return thread

    def _list_processes(self) -> None:
        self.processes[:] = [worker.process for worker in self._workers] if self.job.process else []

    # ------------------------------------------------------------ deaths

    def check(self) -> None:
        """Replaces workers that have died and has what they held done again; or WorkerLostError,
        naming worker, signal and sample, now and from now on."""
        if not self.ours:
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
                self.lost = self._death(number, held, attempts)
                raise WorkerLostError(self.lost)
            self.restarts += 1
            for position in held:
                self.task_queue.repost(number, position)
            self.task_queue.started[number : number + 1] = 0
            self._workers[number] = self._start(number)
            self._start_by = time.monotonic() + self._may_start
            self._list_processes()

    def _death(self, number: int, held: list[int], attempts: int) -> str:
        worker, begun = self._workers[number], bool(held) or self._worked
        started = bool(held) or number not in self._unstarted()
        doing = "between two tasks" if begun and started else "before its first task"
        if not started and self.job.init is not None:
            doing += ", perhaps in worker_init_fn"
        if held:
            doing = self.job.doing(self.task_queue, held[0])
        advice = ""
        if self._restart:
            advice = f"; it is number {attempts} that this has happened to, so no other is started"
        elif begun and started and not self.job.iterable:
            advice = "; restart_workers=True has a new worker do it again"
        torch_words = "DataLoader worker exited unexpectedly"  # programs look for torch's words in logs
        code = worker.process.exitcode if self.job.process else None
        if code is not None and code < 0:
            torch_words = f"DataLoader worker (pid {worker.process.pid}) is killed by signal: {signal.strsignal(-code)}"
        return f"{worker.death(doing, begun=begun)}{advice}; {torch_words}"

    # ------------------------------------------------------------ tasks and answers

    def ask(self, worker: int | None, kind: int, what: Any, buffer: int = NO_BUFFER) -> Asked:
        """Posts a task for one worker; None: for any. what: it finds this in the overflow. Call `unlend` of the task queue
        for the place that it lends, after the answer was read."""
        task = np.zeros(1, TASK)
        request, lent = self.task_queue.put_object(what), self.task_queue.lend()
        only = 0 if worker is None else worker + 1
        task["kind"], task["only"], task["buffer"], task["argument"], task["index"] = kind, only, buffer, *request
        task["overflow_offset"] = lent
        first = self.push(self.task_queue.push, task)
        assert first is not None, "the task queue holds a task of each batch ahead, and one of each worker"
        return Asked(first, request, lent)

    def is_ready(self, asked: Asked) -> bool:
        """Whether the answer has come."""
        return self.task_queue.is_done(asked.position)

    def answer(self, asked: Asked) -> Any:
        """The answer to a task, which has come. Releases the task."""
        answer = self.task_queue.answers(asked.position, 1)[0].copy()
        self.task_queue.release(asked.position, 1)
        self.task_queue.drop(*asked.request)
        return answer

    def heard(self, asked: Asked, timeout: float = 0) -> Any:
        """Waits for a worker's answer. Raises the exception that it answers with, and as `wait`."""
        self.wait([(asked.position, 1)], timeout)
        answer = self.answer(asked)
        value = self.task_queue.take_object(*place_of(answer))
        self.task_queue.unlend(asked.lent)
        if answer["result"] == ERROR:
            value.reraise()
        return value

    def push(self, post: Callable[..., int | None], *tasks: Any) -> int | None:
        """Posts the tasks of a batch by `post(*tasks)`. None: the task queue is full until earlier tasks are
        released."""
        if self._abandoned:
            self._reap()
        first = post(*tasks)
        while first is None and self._abandoned:
            abandoned = self._abandoned[0]
            left = np.flatnonzero(_without_answer(self.task_queue.states(abandoned.first, abandoned.tasks)))
            if left.size:
                self.wait([(abandoned.first + int(left[0]), 1)], 0)
            self._reap()
            first = post(*tasks)
        return first

    def look(self, batches: list[tuple[int, int]], check: Callable[[], None], seconds: float = _SLICE) -> int | None:
        """Which of some batches has all its answers, after waiting at most so many seconds for one. None: none has, and
        `check` was called. Raises what that raises, and WorkerLostError."""
        native = self.task_queue.batches(batches)
        found = self.task_queue.wait(native, 0)
        if found is None:
            found = self.task_queue.wait(native, seconds)
        if found is None:
            check()
            self.check()
            self._checked_at = time.monotonic()
        else:
            self._worked = True  # workers do not die of being started
            if not self._said and (moved := self.task_queue.moved):
                self._warn_of_a_position(moved)
            self._cost.pop(-1, None)
        return found

    def _warn_of_a_position(self, descriptor: int) -> None:
        self._said = True
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            path = f"a file (descriptor {descriptor})"
        warn_user(
            f"{path} was opened before the workers were forked, so all processes share its position, and workers read by it: "
            "samples may have bytes of others, also in a cache. Open it anew when os.getpid() has changed, or read with "
            'os.pread, or give multiprocessing_context="spawn"; remove a named cache that has such samples'
        )

    def wait(self, batches: list[tuple[int, int]], timeout: float, check: Callable[[], None] = lambda: None) -> int:
        """Waits until one of some batches has all its answers; returns which. Calls check between its looks. Raises
        what that raises, WorkerLostError, and RuntimeError after `timeout` seconds; 0: no timeout."""
        end = time.monotonic() + timeout if timeout else None
        slice_ = _SLICE if self.job.process else _CHECK_INTERVAL
        while (found := self.look(batches, check, min(slice_, timeout or slice_))) is None:
            if end is not None and self._checked_at > end:
                self.task_queue.spoil()
                raise RuntimeError(f"DataLoader timed out after {timeout} seconds: {self._late(batches)}")
        return found

    def _late(self, batches: list[tuple[int, int]]) -> str:
        """Why no batch has come, and what to do."""
        advice, queue = "raise timeout=, or find what hangs", self.task_queue
        for first, tasks in batches:
            for at in np.flatnonzero(queue.states(first, tasks) == TAKEN).tolist():
                number = queue.holder(first + at)
                if held := queue.held(number):  # it may have answered by now
                    return f"worker {number} did not answer {self.job.doing(queue, held[0])}; {advice} there"
        unstarted = self._unstarted()
        return f"{self._not_started(unstarted) if unstarted else 'no worker has begun the batch'}; {advice}"

    def _unstarted(self) -> list[int]:
        """Workers that have not called all of worker_init_fn."""
        return np.flatnonzero(self.task_queue.started[: len(self._workers)] == 0).tolist()

    def _not_started(self, workers: list[int], after: str = "") -> str:
        hint = "" if self.job.init is None else ", perhaps because of worker_init_fn"
        names = ", ".join(f"worker {number}" for number in workers)
        return f"{names} {'has' if len(workers) == 1 else 'have'} not started{after}{hint}"

    def check_workers(self) -> None:
        """Raises WorkerLostError if a worker is lost, without a wait. Warns once of those that do not start while others do
        all the work."""
        if time.monotonic() - self._checked_at > _CHECK_INTERVAL:
            self.check()
            self._checked_at = time.monotonic()
            if self._checked_at > self._start_by and self.ours:
                self._start_by = float("inf")
                if unstarted := self._unstarted():
                    late = self._not_started(unstarted, f" after {self._may_start:g} s")
                    warn_user(f"{late}; the others do all the work. Find what hangs")

    def abandon(
        self, first: int, tasks: int, lease: Any, done: Callable[[], None] | None = None, *, cancel: bool = True
    ) -> None:
        """Cancels the tasks that are not begun. The others continue, and their buffer and place are not reused
        before they end. Their answers are dropped later. done: called when none is worked on. cancel: False if workers
        are to do them all."""
        if cancel:
            self.task_queue.cancel(first, tasks)
        lent = int(self.task_queue.asked(first)["lent"])
        self._abandoned.append(_Abandoned(first, tasks, lease, lent, done))

    def _reap(self) -> None:
        self._abandoned = [abandoned for abandoned in self._abandoned if not self._reaped(abandoned)]

    def _reaped(self, abandoned: _Abandoned) -> bool:
        task_queue = self.task_queue
        states = task_queue.states(abandoned.first, abandoned.tasks)
        for position in (abandoned.first + np.flatnonzero(states == DONE)).tolist():
            asked, answer = task_queue.asked(position), task_queue.answers(position, 1)[0]
            if asked["kind"] in REQUESTS:
                task_queue.drop(int(asked["argument"]), int(asked["index"]))
            if answer["result"] != CANCELLED and answer["overflow_bytes"]:
                task_queue.drop(*place_of(answer))
            task_queue.release(position, 1)
        ended = not _without_answer(states).any()
        if ended:
            task_queue.unlend(abandoned.lent)
            if abandoned.done is not None:
                abandoned.done()
        return ended


def _without_answer(states: Any) -> Any:
    """Which of some tasks."""
    return (states == POSTED) | (states == TAKEN)


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
