"""The workers of a loader: starting them, noticing their deaths, ending them."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from .._common import threads
from .._common.errors import WorkerLostError
from .._memory.ring import Ring
from . import processes, spawn
from .task_queue import TaskQueue

_PATIENCE = 0.3  # seconds that a thread has to end: it may be in the middle of a sample
_ATTEMPTS = 5  # workers that one task, or starting one, may cost


class Job(Protocol):
    """What workers are started for."""

    workers: int
    process: bool  # workers are processes, else threads
    iterable: bool

    def doing(self, task_queue: TaskQueue, position: int) -> str:
        """What a worker does that has taken the task at this position, such as "while it loaded
        sample 7"."""


class Pool:
    """Started when made; `close` ends it, and so does the garbage collector or the end of the
    interpreter. The first daemon thread comes after it.

    run: a function of the worker's number, the job, the task queue and the ring, which runs in the
    worker until the task queue is stopped. All methods are for the thread that iterates, of the
    process that made it; in a forked child they do nothing."""

    def __init__(self, job: Job, run: Callable[..., None], context: Any, task_queue: TaskQueue, ring: Ring, *, restart: bool) -> None:
        self.job, self._run, self.task_queue, self._ring, self._restart = job, run, task_queue, ring, restart
        self.restarts = 0
        self.lost: str | None = None  # why it is of no use any more
        self._worked = False  # any of them, ever
        self._cost: Counter[int] = Counter()  # workers that tasks have cost, by position; those that died between two tasks at -1
        self._context = context or multiprocessing.get_context()
        self._pid = os.getpid()
        self._workers: list[Any] = []
        self.processes: list[Any] = []  # the same, and left as they are when the workers have ended
        self._close = weakref.finalize(self, _close, self._pid, self._workers, task_queue)
        self._close.atexit = False
        _pools.add(self)
        try:
            for number in range(job.workers):
                self._workers.append(self._start(number))
            self.processes += self._workers if job.process else []
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> Any:
        arguments, name = (number, self.job, self.task_queue, self._ring), f"stocached worker {number}"
        if self.job.process:
            worker = self._context.Process(target=self._run, args=arguments, daemon=True, name=name)
            with spawn.explained(self._context.get_start_method(), "the dataset, collate_fn, augment and worker_init_fn"):
                worker.start()
        else:
            worker = threading.Thread(target=self._run, args=arguments, daemon=True, name=name)
            threads.start(worker)
        return worker

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers] if self.job.process else []

    def check(self) -> None:
        """Replaces workers that have died and has what they held done again; or WorkerLostError,
        naming worker, signal and sample, now and from now on."""
        if os.getpid() != self._pid:
            return
        if self.lost is not None:
            raise WorkerLostError(self.lost)
        for number, worker in enumerate(self._workers):
            if _alive(worker):
                continue
            held = self.task_queue.held(number)
            at = held[0] if held else -1
            self._cost[at] += 1
            attempts = self._cost[at]
            if not self._restart or attempts >= (_ATTEMPTS if held else _ATTEMPTS * self.job.workers):
                self.lost = self._obituary(number, worker, held, attempts)
                raise WorkerLostError(self.lost)
            self.restarts += 1
            for position in held:
                self.task_queue.repost(number, position)
            if self.job.process:
                with contextlib.suppress(ValueError):
                    worker.close()
            self._workers[number] = self._start(number)
            self.processes[number : number + 1] = self._workers[number : number + 1] if self.job.process else []

    def worked(self) -> None:
        """Something has been done since the last call: workers do not die of being started."""
        self._worked = True
        self._cost.pop(-1, None)

    def _obituary(self, number: int, worker: Any, held: list[int], attempts: int) -> str:
        code = worker.exitcode if self.job.process else 0
        how = (
            "is gone, and another part of the program has waited for it, so its exit code is unknown"
            if code is None
            else processes.how_it_ended(code)
        )
        torchs = "DataLoader worker exited unexpectedly"  # programs look for torch's words in logs
        if code is not None and code < 0:
            torchs = f"DataLoader worker (pid {worker.pid}) is killed by signal: {signal.strsignal(-code)}"
        hint = {
            -signal.SIGKILL: "; is memory short (dmesg shows whether the kernel killed it)?",
            -signal.SIGSEGV: "; a library that the dataset uses has crashed",
            -signal.SIGBUS: "; a file that it has mapped has become shorter, or /dev/shm is full",
        }.get(code, "")
        advice = "; restart_workers=True has a new worker do it again"
        if self._restart:
            advice = f"; it is number {attempts} that this has happened to, so no other is started"
        elif self.job.iterable:
            advice = ""
        method = self._context.get_start_method() if self.job.process else "fork"
        if not held and not self._worked and code and code > 0 and method != "fork":
            hint = f"; {spawn.imported_anew(method)}"
            advice = advice if self._restart else ""
        doing = "between two tasks" if self._worked else "before its first task"
        if held:
            doing = self.job.doing(self.task_queue, held[0])
        who = f"worker {number} (process {worker.pid})" if self.job.process else f"worker thread {number}"
        return f"{who} {how} {doing}{hint}{advice}; {torchs}"

    def close(self) -> None:
        """Ends the workers, within a second; one that is in the middle of a sample does not finish
        it. May be called again."""
        self._close()


def _close(pid: int, workers: list[Any], task_queue: TaskQueue) -> None:
    if os.getpid() != pid:
        return  # a forked child: they are not its workers
    task_queue.stop()
    processes.end([worker for worker in workers if not isinstance(worker, threading.Thread)])
    until = time.monotonic() + _PATIENCE
    for worker in workers:
        if isinstance(worker, threading.Thread) and worker is not threading.current_thread():
            worker.join(max(0.0, until - time.monotonic()))  # one in the middle of a sample ends after it
    workers.clear()


def _alive(worker: Any) -> bool:
    return worker.is_alive() if isinstance(worker, threading.Thread) else processes.is_alive(worker)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _disown() -> None:
    """In a child of os.fork: multiprocessing would end the workers when it exits, as if they were
    its own."""
    for pool in list(_pools):
        for worker in pool._workers:
            getattr(multiprocessing.process, "_children", set()).discard(worker)


os.register_at_fork(after_in_child=_disown)


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
