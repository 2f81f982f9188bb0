"""A worker, a process or a thread: it takes tasks from the task queue, and answers (docs/spec/workers.md)."""

from __future__ import annotations

import ctypes
from typing import Any

from .. import _native
from .._memory import mapping
from .._memory.batch_pool import BatchPool
from .inherited_files import InheritedFiles
from .task_queue import TaskQueue
from .tasks import ROW

NAP = 0.25  # seconds that a worker without work sleeps at a time
MOST = 32  # the most tasks to take at a time


def answer(task: _native.Task, place: tuple[int, int], result: int = ROW) -> None:
    """place: of the answer in the overflow, its offset and bytes."""
    (task.overflow_offset, task.overflow_bytes), task.result = place, result


class Worker:
    """What all workers do. A subclass says how a worker starts, and what it does for a task."""

    def __init__(self, number: int, job: Any, task_queue: TaskQueue, batch_pool: BatchPool) -> None:
        self._number, self._job, self._task_queue, self._batch_pool = number, job, task_queue, batch_pool
        self._inherited: InheritedFiles | None = None
        if job.process:
            batch_pool.enter_worker()
            mapping.keep_freed()
            if job.workers > 1:
                self._inherited = InheritedFiles()
        self._most = 1  # tasks to take at a time
        # An error of the user's init function or of its iterator's start: the answer to every task.
        self._broken: Any = None

    def run(self) -> None:
        """Does tasks until the task queue is stopped."""
        tasks = (_native.Task * MOST)()
        try:
            self._start()
        except BaseException as error:
            self._broken = self._sent(error)
            self._task_queue.spoil()
        self._task_queue.started[self._number : self._number + 1] = 1
        while (count := self._take(tasks)) is not None:
            if count:
                self._do(tasks, count)
                if self._inherited is not None and (moved := self._inherited.moved()):
                    self._task_queue.moved = moved

    def _start(self) -> None:
        """Before the first task. What it raises is the answer to every task."""
        raise NotImplementedError

    def _sent(self, error: BaseException) -> Any:
        """An error as an answer has it. Raises one that ends the worker."""
        raise NotImplementedError

    def _take(self, tasks: ctypes.Array[_native.Task]) -> int | None:
        """Waits a moment for the next tasks. None: the task queue was stopped."""
        return self._task_queue.take(self._number, tasks, self._most, NAP)

    def _do(self, tasks: ctypes.Array[_native.Task], count: int) -> None:
        """Does the first `count` of these tasks. The worker answers them then or later."""
        raise NotImplementedError
