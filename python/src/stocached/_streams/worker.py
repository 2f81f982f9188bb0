"""A worker process of a stream. It reads the files of its rows into their places of shared batches,
as far ahead as it may (docs/spec/stream-rows.md, Workers)."""

from __future__ import annotations

import contextlib
import heapq
import select
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from .._memory.batch_pool import BatchPool
from .._memory.shared_file import SharedFile
from .._workers.errors import RemoteError
from .items import Array, Items
from .open_files import Failure, FileFailed, OpenFiles
from .reader import Reader
from .snapshots import Snapshot

PAGE = 4096  # bytes of Job.doing
MOST_WORKERS = PAGE // 16


@dataclass(frozen=True)
class Job:
    """What a worker is given when it starts. Can be pickled if the user's files and functions can.

    doing: two words for each worker, the row that it is reading + 1, or 0, and the number of the
    file. They are for the message if the worker is killed."""

    number: int
    rows: int  # rows of a batch
    step: int  # the first
    ahead: int  # how many steps may be granted at a time
    reader: Reader
    files: Sequence[Any]
    skip: bool
    every: int  # steps between two snapshots of a row
    init: Callable[[int], None] | None
    batch_pool: BatchPool
    doing: SharedFile


# Messages of the parent: a list of Assignment, Grant, Layout. Messages of a worker: Layout, Report,
# and a RemoteError if the worker ends for a reason that is no file's fault.


@dataclass(frozen=True)
class Grant:
    """The batch of this step may be written into this buffer."""

    step: int
    buffer: int


@dataclass(frozen=True)
class Layout:
    """What an item is made of. A worker sends the first item of its first row that has one, and
    waits. The parent answers what all items are made of."""

    row: int
    items: Items


@dataclass(frozen=True)
class Report:
    """low: all items of the steps below it are read. assigned: how many lists of assignments the worker had received.
    idle: rows without a file, and since which step. failures: with errors="raise", their rows do not continue.
    snapshots: of the items that were read since the last report."""

    low: int
    assigned: int
    idle: list[tuple[int, int]]
    failures: list[Failure]
    snapshots: list[Snapshot]


class _ClosedError(BaseException):
    """The parent has closed the stream. Passes through code that catches exceptions of the user."""


def run_worker(pipe: Connection, job: Job) -> None:
    """Runs in the worker process, until the parent closes the pipe."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # as in torch's own workers: they share the cores
    with contextlib.suppress(_ClosedError):
        worker = _Worker(pipe, job)
        with contextlib.closing(worker.open_files):
            try:
                job.reader.enter_worker(job.number)
                if job.init is not None:
                    job.init(job.number)
                worker.run()
            except Exception as error:
                worker.send(RemoteError.of(error, f"in worker {job.number}"))
            finally:
                job.reader.tell(ends=True)


class _Worker:
    def __init__(self, pipe: Connection, job: Job) -> None:
        self._pipe, self._job = pipe, job
        self._poll = select.poll()  # faster than Connection.poll; called for each item
        self._poll.register(pipe, select.POLLIN)
        self._doing = job.doing.map(0, PAGE).data.cast("q")[2 * job.number : 2 * job.number + 2]
        self.open_files = OpenFiles(job.reader, job.files, job.skip, job.every, self._doing)
        self._heap: list[tuple[int, int]] = []  # next step and row, of rows that have files
        # Steps below it may be read. The first one may be read at once: its first item says how
        # large a buffer is.
        self._horizon = job.step + 1
        self._buffers: dict[int, int] = {}  # buffers of steps that may be read
        self._arrays: dict[int, list[Array]] = {}  # by buffer
        self._assigned = 0
        self._idle: list[tuple[int, int]] = []
        self._told = (job.step, 0)
        self._step = -1  # step of `arrays`
        self.items: Items | None = None  # this is a Batch
        self.arrays: Sequence[Array] = ()

    def run(self) -> None:
        while True:
            while not self._may_read() or self._poll.poll(0):
                self._receive()
            self._read(*self._heap[0])
            self._report()

    def _may_read(self) -> bool:
        """There is an item to read, and memory for it if it is known what items are made of."""
        if not self._heap or self._heap[0][0] >= self._horizon:
            return False
        return self.items is None or self._heap[0][0] in self._buffers

    def send(self, message: Any) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise _ClosedError from None

    def _receive(self) -> None:
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):
            raise _ClosedError from None
        if isinstance(message, list):
            self._assigned += 1
            for assignment in message:
                if self.open_files.current(assignment.row) is None:
                    heapq.heappush(self._heap, (assignment.step, assignment.row))
                self.open_files.add(assignment)
        elif isinstance(message, Layout):
            self.items = message.items
            self._job.batch_pool.resize(self.items.nbytes(self._job.rows))
        elif isinstance(message, Grant):
            self._buffers[message.step] = message.buffer
            self._buffers.pop(message.step - 2 * self._job.ahead, None)
            self._horizon = max(self._horizon, message.step + 1)
            self._report()

    def _read(self, step: int, row: int) -> None:
        if self.items is not None and step != self._step:
            self._begin_step(step)
        try:
            more = self.open_files.put(row, self)
        except FileFailed as failed:
            self.open_files.failures.append(failed.failure)
            heapq.heappop(self._heap)
        else:
            if more:
                heapq.heapreplace(self._heap, (step + 1, row))
            else:
                heapq.heappop(self._heap)
                self._idle.append((row, step))
        self._doing[0] = 0

    def _begin_step(self, step: int) -> None:
        """The arrays are those of this step's batch."""
        assert self.items is not None
        self._step = step
        buffer = self._buffers[step]
        if buffer not in self._arrays:
            self._arrays[buffer] = self.items.arrays(self._job.batch_pool.buffer(buffer), self._job.rows)
        self.arrays = self._arrays[buffer]

    def learn(self, row: int, value: Any) -> None:
        """As Batch.learn. The parent decides."""
        self.send(Layout(row, Items(value)))
        step = self._heap[0][0]
        while self.items is None or step not in self._buffers:
            self._receive()
        self._begin_step(step)

    def _report(self) -> None:
        low = self._heap[0][0] if self._heap else self._horizon
        if (low, self._assigned) != self._told:
            self._told = low, self._assigned
            files = self.open_files
            self._job.reader.tell()
            self.send(Report(low, self._assigned, self._idle, files.failures, files.snapshots))
            self._idle = []
            files.failures.clear()
            files.snapshots.clear()
