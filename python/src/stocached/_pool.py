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
from typing import Any

from . import _worker
from ._board import Board
from ._errors import WorkerLostError
from ._ring import Ring
from ._worker import Job, Worker

_PATIENCE = 0.3  # seconds that a worker has to end by itself: it may be in the middle of a sample
_HARSH = 0.2  # and then after SIGTERM


class Pool:
    """Started when made; `close` ends it, and so does the garbage collector or the end of the interpreter. The first daemon thread comes after it.

    All methods are for the thread that iterates, of the process that made it; in a forked child they do nothing."""

    def __init__(self, job: Job, context: Any, board: Board, ring: Ring, *, restart: bool) -> None:
        self.job, self.board, self._ring, self._restart = job, board, ring, restart
        self.restarts = 0
        self._context = context or multiprocessing.get_context()
        self._pid = os.getpid()
        self._workers: list[Any] = []
        self._close = weakref.finalize(self, _close, self._pid, self._workers, board)
        self._close.atexit = False
        _pools.add(self)
        try:
            for number in range(job.workers):
                self._workers.append(self._start(number))
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> Any:
        if self.job.process:
            worker = self._context.Process(
                target=_worker.main, args=(number, self.job, self.board, self._ring), daemon=True, name=f"stocached worker {number}"
            )
            worker.start()
        else:
            worker = threading.Thread(
                target=Worker(number, self.job, self.board, self._ring).run, args=(lambda: False,), daemon=True, name=f"stocached worker {number}"
            )
            worker.start()
        return worker

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers] if self.job.process else []

    def check(self) -> None:
        """Replaces workers that have died and has what they held done again; or WorkerLostError, naming worker, signal and sample."""
        if not self.job.process or os.getpid() != self._pid:
            return
        for number, worker in enumerate(self._workers):
            if worker.is_alive():
                continue
            held = self.board.held(number)
            if not self._restart:
                raise WorkerLostError(self._obituary(number, worker, held))
            self.restarts += 1
            for position in held:
                self.board.repost(number, position)
            worker.close()
            self._workers[number] = self._start(number)

    def _obituary(self, number: int, worker: Any, held: list[int]) -> str:
        doing = f"while it loaded sample {self.board.index_of(held[0])}" if held and not self.job.iterable and self._loads_samples() else "while it had work to do"
        if not held:
            doing = "between two tasks"
        how = f"ended with status {worker.exitcode}"
        if worker.exitcode is not None and worker.exitcode < 0:
            with contextlib.suppress(ValueError):
                how = f"was killed by {signal.Signals(-worker.exitcode).name}"
        hint = {
            -signal.SIGKILL: "; is memory short (dmesg shows whether the kernel killed it)?",
            -signal.SIGSEGV: "; a library that the dataset uses has crashed",
            -signal.SIGBUS: "; a file that it has mapped has become shorter, or /dev/shm is full",
        }.get(worker.exitcode, "")
        restart = "; restart_workers=True has a new worker do it again"
        return f"worker {number} (process {worker.pid}) {how} {doing}{hint}{restart}; DataLoader worker exited unexpectedly"

    def _loads_samples(self) -> bool:
        return self.job.batched and not self.job.iterable

    def close(self) -> None:
        """Ends the workers, within a second; one that is in the middle of a sample does not finish it. May be called again."""
        self._close()


def _close(pid: int, workers: list[Any], board: Board) -> None:
    if os.getpid() != pid:
        return  # a forked child: they are not its workers
    board.stop()
    processes = [worker for worker in workers if not isinstance(worker, threading.Thread)]
    for patience, end in ((_PATIENCE, "terminate"), (_HARSH, "kill"), (_PATIENCE, "")):
        until = time.monotonic() + patience
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        processes = [process for process in processes if process.is_alive()]
        if not processes:
            break
        for process in processes:
            if end:
                getattr(process, end)()
    for worker in workers:
        if isinstance(worker, threading.Thread):
            if worker is not threading.current_thread():
                worker.join(_PATIENCE)
        else:
            with contextlib.suppress(ValueError):
                worker.close()
    workers.clear()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
