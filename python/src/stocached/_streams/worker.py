"""A worker process of a stream. It reads the files of its rows into their places of shared batches,
as far ahead as it may (docs/spec/stream-rows.md, Workers)."""

from __future__ import annotations

import contextlib
import heapq
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _native
from .._memory import mapping
from .._memory.batch_pool import BatchPool
from .._memory.shared_file import SharedFile
from .._workers.errors import RemoteError
from .._workers.task_queue import TaskQueue
from .items import Array, Items
from .open_files import Assignment, Failure, FileFailed, OpenFiles
from .reader import Reader
from .snapshots import Snapshot

# Kinds of tasks: begin an epoch, and read the first item of a row; read a step into a buffer; read more rows of a step;
# end the epoch. A worker answers when its rows have nothing left to read, neither for the task's step nor for those
# that it has answered.
BEGIN, STEP, ROUND, END = range(4)
NOTHING, REPORT, BROKEN = range(3)  # results: a Report is in the overflow, or a RemoteError
_PAGE = 4096  # bytes of Job.words
MOST_WORKERS = _PAGE // 16
_NAP = 0.25  # seconds that a worker without work sleeps at a time


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
    """items: what they are made of, if it is known. ahead: how many steps may be granted at a time. every: steps between
    two snapshots of a row."""

    items: Items | None
    rows: int  # of a batch
    ahead: int
    skip: bool
    every: int


@dataclass(frozen=True)
class Message:
    """What a task comes with. items: what all are made of, for a worker that waits for it."""

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


class _EpochEndedError(BaseException):
    """Passes through code that catches exceptions of the user."""


class _ClosedError(BaseException):
    """The same: the parent has closed the stream."""


def run_worker(number: int, job: Job, task_queue: TaskQueue, batch_pool: BatchPool) -> None:
    """Runs in the worker process, until the task queue is stopped."""
    batch_pool.enter_worker()
    mapping.keep_freed()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # as in torch's own workers: they share the cores
    worker = _Worker(number, job, task_queue, batch_pool)
    with contextlib.suppress(_ClosedError), contextlib.closing(worker):
        try:
            job.reader.enter_worker(number)
            if job.init is not None:
                job.init(number)
            worker.run()
        except Exception as error:
            worker.fail(RemoteError.of(error, f"in worker {number}"))
            worker.run()


class _Worker:
    def __init__(self, number: int, job: Job, task_queue: TaskQueue, batch_pool: BatchPool) -> None:
        self._number, self._job, self._task_queue, self._batch_pool = number, job, task_queue, batch_pool
        self._doing = job.words_of(number)
        self._broken: RemoteError | None = None  # the answer to every task
        self._pushes, self._heard = task_queue.pushes(), -1
        self._tasks: list[tuple[int, int, Any]] = []  # a heap of those without an answer: step, position, task
        self._open_files: OpenFiles | None = None
        self._idle: list[tuple[int, int]] = []
        self._heap: list[tuple[int, int]] = []  # next step and row, of rows that have files
        self._answered = -1  # steps up to this one

    def fail(self, error: RemoteError) -> None:
        self._broken = error
        with contextlib.suppress(_EpochEndedError):
            self._end()

    def _begin(self, step: int, begin: Begin) -> None:
        self.close()
        self._settings = begin
        self._open_files = OpenFiles(self._job.reader, self._job.files, begin.skip, begin.every, self._doing)
        self._heap.clear()
        self._idle = []
        # Steps below it may be read. The first one may be read at once: its first item says how
        # large a buffer is.
        self._horizon = step + 1
        self._buffers: dict[int, int] = {}  # buffers of steps that may be read
        self._arrays: dict[int, list[Array]] = {}  # by buffer
        self._step = -1  # step of `arrays`
        self.items: Items | None = None  # this is a Batch
        self.arrays: Sequence[Array] = ()
        if begin.items is not None:
            self._know(begin.items)

    def _know(self, items: Items) -> None:
        self.items = items
        self._batch_pool.resize(items.nbytes(self._settings.rows))

    def run(self) -> None:
        while True:
            try:
                while True:
                    # Looks at a word in place of the queue: called for each item.
                    if self._pushes[0] != self._heard or not self._may_read():
                        self._hear()
                    else:
                        self._read(*self._heap[0])
            except _EpochEndedError:
                pass

    def _may_read(self) -> bool:
        """There is an item to read, and memory for it if it is known what items are made of."""
        if not self._heap or self._heap[0][0] >= self._horizon:
            return False
        return self.items is None or self._heap[0][0] in self._buffers

    def _hear(self) -> None:
        """Takes all tasks that are there; if none is, waits for one."""
        nap = _NAP
        while True:
            heard, task = self._pushes[0], (_native.Task * 1)()
            got = self._task_queue.take(self._number, task, 1, nap)
            if got is None:
                raise _ClosedError
            if got == 0:
                self._heard = heard
                return
            self._take(task)
            nap = 0

    def _take(self, task: Any) -> None:
        kind, step = task[0].kind, task[0].index
        heapq.heappush(self._tasks, (max(step, self._answered), task[0].position, task))
        message: Message | None = None
        if task[0].row:  # the bytes of the message
            message = self._task_queue.take_object(task[0].argument, task[0].row)
        task[0].argument = kind != STEP  # it is begun
        if self._broken is not None or kind == END:
            self._end()
        if message is not None:
            if message.begin is not None:
                self._begin(step, message.begin)
            if message.items is not None and self.items is None:
                self._know(message.items)
            for assignment in message.assignments:
                self._add(assignment)
        if kind == BEGIN and self.items is not None:
            self._answer(heapq.heappop(self._tasks)[2])  # it is the only one
        elif kind == STEP:
            self._buffers[step] = task[0].buffer
            self._buffers.pop(step - 2 * self._settings.ahead, None)
            self._horizon = step + 1
        self._answer_all()

    def _add(self, assignment: Assignment) -> None:
        assert self._open_files is not None
        if self._open_files.current(assignment.row) is None:
            heapq.heappush(self._heap, (assignment.step, assignment.row))
        self._open_files.add(assignment)

    def _end(self) -> None:
        """Answers all tasks. The files are closed."""
        self.close()
        while self._tasks:
            self._answer(heapq.heappop(self._tasks)[2])
        self._answered = -1
        raise _EpochEndedError

    def close(self) -> None:
        if self._open_files is not None:
            self._open_files.close()
            self._open_files = None
            self._job.reader.tell(ends=True)

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
            if more:
                heapq.heapreplace(self._heap, (step + 1, row))
            else:
                heapq.heappop(self._heap)
                self._idle.append((row, step))
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

    def learn(self, row: int, value: Any) -> None:
        """As Batch.learn. The parent decides."""
        first = row, Items(value)
        while self._tasks:
            self._answer(heapq.heappop(self._tasks)[2], first)
        step = self._heap[0][0]
        while self.items is None or step not in self._buffers:
            self._hear()
        self._begin_step(step)

    def _answer_all(self) -> None:
        """Answers the tasks for whose steps nothing is left to read."""
        low = self._heap[0][0] if self._heap else self._horizon
        while self._tasks and self._tasks[0][0] < low:
            self._answered, _, task = heapq.heappop(self._tasks)
            self._answer(task)

    def _answer(self, task: Any, first: tuple[int, Items] | None = None) -> None:
        files = self._open_files
        value: RemoteError | Report | None = None
        self._begun(task)
        task[0].result = NOTHING
        if self._broken is not None:
            task[0].result, value = BROKEN, self._broken
        elif files is not None:
            self._job.reader.tell()
            if self._idle or files.failures or files.snapshots or first is not None:
                task[0].result, value = REPORT, Report(self._idle, files.failures, files.snapshots, first)
        if value is not None:
            task[0].overflow_offset, task[0].overflow_bytes = self._task_queue.put_object(value)
            if files is not None:
                self._idle, files.failures, files.snapshots = [], [], []
        self._task_queue.done(self._number, task, 1)
