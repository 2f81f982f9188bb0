"""A worker of a stream. It reads the files of its rows into their places of shared batches, as far
ahead as it may (docs/spec/stream-rows.md, Workers)."""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _native
from .._memory.batch_pool import BatchPool
from .._memory.shared_file import SharedFile
from .._workers.errors import RemoteError
from .._workers.task_queue import TaskQueue
from .._workers.tasks import END, ERROR, MADE, OPEN, ROW, STEP
from .._workers.worker import NAP, Worker, answer
from .items import Array, Items
from .open_files import Assignment, Failure, FileFailed, OpenFiles
from .reader import Reader
from .snapshots import Snapshot

_PAGE = 4096  # bytes of Job.words
MOST_WORKERS = _PAGE // 16


@dataclass(frozen=True)
class Job:
    """What workers are given when they start, as a `Job` of a pool. Can be pickled if the user's files and functions can.

    words: two for each worker, the row that it is reading + 1, or 0, and the number of the file. They are for the
    message if the worker is killed."""

    workers: int  # processes
    first: int  # number of the first row of this rank
    reader: Reader
    files: Sequence[Any]
    init: Callable[[int], None] | None
    words: SharedFile = field(default_factory=lambda: SharedFile("streams", size=_PAGE))
    process = True
    iterable = True  # what a worker has read is lost with it

    def words_of(self, worker: int) -> memoryview:
        return self.words.map(0, _PAGE).data.cast("q")[2 * worker : 2 * worker + 2]

    def reads(self, worker: int) -> tuple[str, Any, int | None]:
        """What a worker reads, in words; the file, and its number, or None twice."""
        row, number = self.words_of(worker)
        if row == 0:
            return "no file", None, None
        return f"file {number} ({self.files[number]!r}) for row {self.first + row - 1}", self.files[number], number

    def doing(self, task_queue: TaskQueue, position: int) -> str:
        what, _, number = self.reads(task_queue.holder(position))
        return "between two items" if number is None else f"while it read {what}"


@dataclass(frozen=True)
class Begin:
    """ahead: how many steps may be granted at a time. every: steps between two snapshots of a row."""

    rows: int  # rows of a batch
    ahead: int
    skip: bool
    every: int


@dataclass(frozen=True)
class Message:
    """What a task comes with. items: what all are made of, when it is known."""

    assignments: list[Assignment]
    begin: Begin | None = None
    items: Items | None = None


@dataclass(frozen=True)
class Report:
    """Since the last one. idle: rows without a file, and since which step. failures: with errors="raise", their rows do
    not continue. first: the first item of the first row that has one, and that row; the worker waits for the answer."""

    idle: list[tuple[int, int]]
    failures: list[Failure]
    snapshots: list[Snapshot]
    first: tuple[int, Items] | None = None


def run_worker(number: int, job: Job, task_queue: TaskQueue, batch_pool: BatchPool) -> None:
    """Runs in the worker process, until the task queue is stopped."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # as in torch's own workers: they share the cores
    with contextlib.closing(StreamWorker(number, job, task_queue, batch_pool)) as worker:
        worker.run()


class StreamWorker(Worker):
    """It answers a task when its rows have nothing left to read, neither for the task's step nor for those that it has
    answered. So it reads while it has tasks, and looks at each item whether there are others."""

    def __init__(self, number: int, job: Job, task_queue: TaskQueue, batch_pool: BatchPool) -> None:
        super().__init__(number, job, task_queue, batch_pool)
        self._doing = job.words_of(number)
        self._pushes, self._heard = task_queue.pushes(), -1
        self._tasks: list[tuple[int, int, Any]] = []  # a heap of those without an answer: step, position, task
        self._open_files: OpenFiles | None = None
        self._idle: list[tuple[int, int]] = []
        self._heap: list[tuple[int, int]] = []  # next step and row, of rows that have files
        self._answered = -1  # steps up to this one
        self._first: tuple[int, Items] | None = None  # the first item, until the parent has told what all are made of
        self.items: Items | None = None  # this is a Batch
        self.arrays: Sequence[Array] = ()

    def _start(self) -> None:
        self._job.reader.enter_worker(self._number)
        if self._job.init is not None:
            self._job.init(self._number)

    def _sent(self, error: BaseException) -> RemoteError:
        if not isinstance(error, Exception):
            raise error
        return RemoteError.of(error, f"in worker {self._number}")

    def _take(self, tasks: ctypes.Array[_native.Task]) -> int | None:
        try:
            # Looks at a word in place of the queue: called for each item.
            while self._pushes[0] == self._heard and self._may_read():
                self._read(*self._heap[0])
        except Exception as error:
            self._fail(error)
        heard = self._pushes[0]
        count = self._task_queue.take(self._number, tasks, self._most, 0 if self._may_read() else NAP)
        if count == 0:
            self._heard = heard
        return count

    def _may_read(self) -> bool:
        """There is an item to read, and memory for it. The first one of all comes before the memory: it says what items
        are made of."""
        return bool(self._heap) and (self._first is None if self.items is None else self._heap[0][0] in self._buffers)

    def _do(self, tasks: ctypes.Array[_native.Task], count: int) -> None:
        task = (_native.Task * 1)(tasks[0])  # it is answered later
        kind, step, message = task[0].kind, task[0].index, None
        heapq.heappush(self._tasks, (max(step, self._answered), task[0].position, task))
        try:
            if task[0].row:  # the bytes of the message
                message = self._task_queue.take_object(task[0].argument, task[0].row)
            task[0].argument = kind != STEP  # it is begun
            if self._broken is not None or kind == END:
                self._end()
                return
            if message is not None:
                self._hear(message)
            if kind == OPEN and self.items is not None:
                self._answer(heapq.heappop(self._tasks)[2])  # it is the only one
            elif kind == STEP:
                self._buffers[step] = task[0].buffer
                self._buffers.pop(step - 2 * self._settings.ahead, None)
            self._answer_all()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """An error of no file, as of the memory of batches, is the answer to all tasks from now on."""
        self._broken = self._sent(error)
        self._task_queue.spoil()
        self._end()

    def _hear(self, message: Message) -> None:
        if message.begin is not None:
            self._begin(message.begin)
        if message.items is not None:
            self.items, self._first = message.items, None
            self._batch_pool.resize(message.items.nbytes(self._settings.rows))
        for assignment in message.assignments:
            self._add(assignment)

    def _end(self) -> None:
        """Answers all tasks. The files are closed."""
        self.close()
        self._answer_all()
        self._answered = -1

    def _begin(self, begin: Begin) -> None:
        self._settings = begin
        self._open_files = OpenFiles(self._job.reader, self._job.files, begin.skip, begin.every, self._doing)
        self._buffers: dict[int, int] = {}  # buffers of steps that may be read
        self._arrays: dict[int, list[Array]] = {}  # by buffer
        self._step = -1  # step of `arrays`
        self.items, self._first = None, None

    def _add(self, assignment: Assignment) -> None:
        assert self._open_files is not None
        if self._open_files.current(assignment.row) is None:
            heapq.heappush(self._heap, (assignment.step, assignment.row))
        self._open_files.add(assignment)

    def close(self) -> None:
        """Closes the files."""
        if self._open_files is not None:
            self._open_files.close()
            self._open_files = None
            self._job.reader.tell(ends=True)
        self._heap.clear()
        self._idle = []

    def _read(self, step: int, row: int) -> None:
        assert self._open_files is not None
        if self.items is not None and step != self._step:
            self._begin_step(step)
        try:
            more = self._open_files.put(row, self)
        except FileFailed as failed:
            self._open_files.failures.append(failed.failure)
            heapq.heappop(self._heap)
        else:
            if not more:
                heapq.heappop(self._heap)
                self._idle.append((row, step))
            elif self._first is None:
                heapq.heapreplace(self._heap, (step + 1, row))
        self._doing[0] = 0
        self._answer_all()

    def _begin_step(self, step: int) -> None:
        """The arrays are those of this step's batch."""
        assert self.items is not None
        self._step = step
        buffer = self._buffers[step]
        if buffer not in self._arrays:
            self._arrays[buffer] = self.items.arrays(self._batch_pool.buffer(buffer), self._settings.rows)
        self.arrays = self._arrays[buffer]
        if self._tasks and self._tasks[0][0] == step:
            self._begun(self._tasks[0][2])

    def _begun(self, task: Any) -> None:
        if not task[0].argument:
            task[0].argument = True
            self._task_queue.begin(task[0].position, time.monotonic_ns())

    def learn(self, row: int, value: Any) -> bool:
        """As Batch.learn. The parent decides."""
        self._first = row, Items(value)
        return False

    def _answer_all(self) -> None:
        """Answers the tasks for whose steps nothing is left to read."""
        low = self._heap[0][0] if self._heap and self._first is None else math.inf
        while self._tasks and self._tasks[0][0] < low:
            self._answered, _, task = heapq.heappop(self._tasks)
            self._answer(task)

    def _answer(self, task: Any) -> None:
        files = self._open_files
        value: RemoteError | Report | None = self._broken
        self._begun(task)
        answer(task[0], (0, 0), ROW)
        if files is not None:
            self._job.reader.tell()
            if self._idle or files.failures or files.snapshots or self._first is not None:
                value = Report(self._idle, files.failures, files.snapshots, self._first)
                self._idle, files.failures, files.snapshots = [], [], []
        if value is not None:
            answer(task[0], self._task_queue.put_object(value), MADE if self._broken is None else ERROR)
        self._task_queue.done(self._number, task, 1)
