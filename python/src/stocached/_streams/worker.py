"""A worker process of a stream: reads the files of its rows into their places of shared batches, as far ahead as it may (docs/spec/stream-rows.md, Workers)."""

from __future__ import annotations

import contextlib
import heapq
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from .._memory.ring import Ring
from .._memory.shared_file import SharedFile
from .._workers.errors import RemoteError
from .items import Array, Items
from .open_files import Failure, FileFailed, OpenFiles, Turn
from .reader import Reader

PAGE = 4096  # bytes of Job.doing


@dataclass(frozen=True)
class Job:
    """What a worker is given when it starts. Can be pickled if the user's files and functions can."""

    number: int
    rows: int  # of a batch
    step: int  # the first
    ahead: int  # how many steps may be granted at a time
    reader: Reader
    files: Sequence[Any]
    skip: bool
    init: Callable[[int], None] | None
    ring: Ring
    doing: SharedFile  # two words for each worker, the row that it is reading + 1, or 0, and the number of the file; for the message if it is killed


# Messages. Parent to worker: Turns, Grant, Layout. Worker to parent: Layout, Report, and a
# RemoteError if the worker ends for a reason that is no file's fault.


@dataclass(frozen=True)
class Turns:
    """Files for rows: those that wait, or, where lengths are known, those that will."""

    turns: list[Turn]


@dataclass(frozen=True)
class Grant:
    """The batch of this step may be written into this buffer."""

    step: int
    buffer: int


@dataclass(frozen=True)
class Layout:
    """What an item is made of. Of a worker: the first item of its first row that has one, for which it waits; of the parent: what all items are made of."""

    row: int
    items: Items


@dataclass(frozen=True)
class Report:
    """Nothing is left to be read of steps below `low`. turns: how many messages of Turns had been received. resting: rows without a file, and since which step.
    failures: with errors="raise", rows that do not go on."""

    low: int
    turns: int
    resting: list[tuple[int, int]]
    failures: list[Failure]


class _HungUpError(BaseException):
    """The parent has closed the stream. Passes through code that catches exceptions of the user."""


def run_worker(pipe: Connection, job: Job) -> None:
    """Runs in the worker process, until the parent closes the pipe."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # as in torch's own workers: they share the cores
    with contextlib.suppress(_HungUpError):
        worker = _Worker(pipe, job)
        with contextlib.closing(worker.open_files):
            try:
                if job.init is not None:
                    job.init(job.number)
                worker.run()
            except Exception as error:
                worker.say(RemoteError.of(error, f"in worker {job.number}"))


class _Worker:
    def __init__(self, pipe: Connection, job: Job) -> None:
        self._pipe, self._job = pipe, job
        self._doing = job.doing.map(0, PAGE).data.cast("q")[2 * job.number : 2 * job.number + 2]
        self.open_files = OpenFiles(job.reader, job.files, job.skip, self._doing)
        self._heap: list[tuple[int, int]] = []  # next step and row, of rows that have files
        self._horizon = job.step + 1  # steps below it may be read; the first one at once, as its first item says what a buffer is
        self._buffers: dict[int, int] = {}  # of steps that may be read
        self._arrays: dict[int, list[Array]] = {}  # by buffer
        self._turns = 0
        self._resting: list[tuple[int, int]] = []
        self._told = (job.step, 0)
        self._step = -1  # that `arrays` belong to
        self.items: Items | None = None  # this is a Batch
        self.arrays: Sequence[Array] = ()

    def run(self) -> None:
        while True:
            while not self._may_read() or self._pipe.poll():
                self._hear()
            self._read(*self._heap[0])
            self._report()

    def _may_read(self) -> bool:
        """There is an item to read, and if it is known what items are made of, memory for it."""
        return bool(self._heap) and self._heap[0][0] < self._horizon and (self.items is None or self._heap[0][0] in self._buffers)

    def say(self, message: Any) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise _HungUpError from None

    def _hear(self) -> None:
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):
            raise _HungUpError from None
        if isinstance(message, Turns):
            self._turns += 1
            for turn in message.turns:
                if self.open_files.current(turn.row) is None:
                    heapq.heappush(self._heap, (turn.step, turn.row))
                self.open_files.add(turn)
        elif isinstance(message, Layout):
            self.items = message.items
            self._job.ring.resize(self.items.nbytes(self._job.rows))
        elif isinstance(message, Grant):
            self._buffers[message.step] = message.buffer
            self._buffers.pop(message.step - 2 * self._job.ahead, None)
            self._horizon = max(self._horizon, message.step + 1)
            self._report()

    def _read(self, step: int, row: int) -> None:
        if self.items is not None and step != self._step:
            self._turn_to(step)
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
                self._resting.append((row, step))
        self._doing[0] = 0

    def _turn_to(self, step: int) -> None:
        """The arrays are those of this step's batch."""
        assert self.items is not None
        self._step = step
        buffer = self._buffers[step]
        if buffer not in self._arrays:
            self._arrays[buffer] = self.items.arrays(self._job.ring.buffer(buffer), self._job.rows)
        self.arrays = self._arrays[buffer]

    def learn(self, row: int, value: Any) -> None:
        """As Batch.learn. The parent decides."""
        self.say(Layout(row, Items(value)))
        step = self._heap[0][0]
        while self.items is None or step not in self._buffers:
            self._hear()
        self._turn_to(step)

    def _report(self) -> None:
        low = self._heap[0][0] if self._heap else self._horizon
        if (low, self._turns) != self._told:
            self._told = low, self._turns
            self.say(Report(low, self._turns, self._resting, list(self.open_files.failures)))
            self._resting = []
            self.open_files.failures.clear()
