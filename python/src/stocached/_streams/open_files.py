"""The files that some rows of a stream are reading: what a worker has, and without workers the
loader itself."""

from __future__ import annotations

import contextlib
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .._common.errors import StateError, StreamError
from .._workers.errors import RemoteError
from .._workers.stateful import is_stateful, state_of
from .assignment import NONE, Ints
from .items import Array, Items
from .reader import Reader
from .snapshots import Snapshot

_END = object()


@dataclass(frozen=True)
class Assignment:
    """A row reads a file. number: of the file. item: the first to read. length: how many items the
    file has, None if it is not known. step: of its first item. snapshot: to continue from."""

    row: int
    place: int
    number: int
    epoch: int
    item: int
    length: int | None
    step: int
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Failure:
    """A file that could not be read to its end. item: the first that is missing. ends: the
    iteration ends there."""

    assignment: Assignment
    item: int
    error: RemoteError
    ends: bool

    @property
    def step(self) -> int:
        """Of the item that is missing."""
        return self.assignment.step + self.item - self.assignment.item


class FileFailed(Exception):
    """A file failed, and the iteration ends. The cause is what the user's code raised. The row has
    nothing more to read."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class _Reading:
    """One assignment, as far as it has come."""

    __slots__ = ("assignment", "due", "early", "ended", "failed", "item", "items", "length", "values")

    def __init__(self, assignment: Assignment) -> None:
        self.assignment, self.item, self.length, self.failed = assignment, assignment.item, assignment.length, False
        self.values: Any = None  # what the reader returned
        self.items: Iterator[Any] | None = None
        self.due = NONE  # the item whose snapshot is next
        self.early: Any = _END  # an item that was read, and has no place yet
        self.ended = False  # its end was met

    def open(self, reader: Reader, files: Sequence[Any]) -> None:
        one = self.assignment
        self.values, self.items = reader.open(files[one.number], one.number, one.epoch, self.item, one.snapshot)

    @property
    def step(self) -> int:
        """Of the item that is next."""
        return self.assignment.step + self.item - self.assignment.item

    @property
    def stateful(self) -> bool:
        return is_stateful(self.values) or is_stateful(self.items)

    def snapshot(self, item: int) -> Iterator[Snapshot]:
        """The snapshot of this moment, or none if the reader has no state now. item: the next one after it."""
        states = None if self.values is self.items else state_of(self.values), state_of(self.items)
        if any(state is not None for state in states):
            data = pickle.dumps(states, pickle.HIGHEST_PROTOCOL)
            yield Snapshot(self.assignment.row, self.assignment.place, item, self.step, data)

    def next(self) -> Any:
        """The item that is next, or _END. Of an open file."""
        if self.early is not _END or self.ended:
            value, self.early = self.early, _END
            return value
        value = next(self.items, _END)  # type: ignore[arg-type]
        if self.length is not None and (value is _END) != (self.item >= self.length):
            what = f"ends after {self.item} items" if value is _END else f"has more than {self.item} items"
            raise ValueError(f"the file {what}, and lengths= says {self.length}")
        return value

    def close(self) -> None:
        """Closes the file. A generator's `finally` runs here."""
        items, self.values, self.items = self.items, None, None
        if items is not None and hasattr(items, "close"):
            with contextlib.suppress(Exception):  # the stream has all that it wants of it
                items.close()


class Batch(Protocol):
    """Where items are put."""

    items: Items | None
    arrays: Sequence[Array]  # arrays of each field, with a place for every row; if `items` are known

    def learn(self, row: int, value: Any) -> bool:
        """Sets both, or returns False: they are set later. The value is the first item of that row, and the first of
        all that is known."""


class OpenFiles:
    """The assignments of some rows. A row may have several, which follow each other without a
    gap."""

    def __init__(
        self, reader: Reader, files: Sequence[Any], skip: bool, every: int, doing: memoryview | None = None
    ) -> None:
        """every: steps between two snapshots of a row. doing: two words in which it says which row
        it is reading, + 1, and which file."""
        self._reader, self._files, self._skip, self._every, self._doing = reader, files, skip, every, doing
        self._rows: dict[int, deque[_Reading]] = {}
        # Those that were not reported yet.
        self.failures: list[Failure] = []  # with skip
        self.snapshots: list[Snapshot] = []

    def add(self, assignment: Assignment) -> None:
        self._rows.setdefault(assignment.row, deque()).append(_Reading(assignment))

    def current(self, row: int) -> Assignment | None:
        """What a row is reading; None: it has no file."""
        readings = self._rows.get(row)
        return readings[0].assignment if readings else None

    def put(self, row: int, batch: Batch) -> bool:
        """Puts a row's next item into its place in the batch, or keeps it until `batch.items` are known. False: the row's
        files have no more; it has no file now. FileFailed."""
        readings = self._rows.get(row)
        while readings:
            reading = readings[0]
            if self._doing is not None:
                self._doing[0], self._doing[1] = row + 1, reading.assignment.number
            if not reading.failed:
                try:
                    if reading.items is None:
                        self._open(reading)
                    value = reading.next()
                    if value is not _END:
                        if batch.items is None and not batch.learn(row, value):
                            reading.early = value
                            return True
                        parts = batch.items.take(value)  # type: ignore[union-attr]
                        for array, part in zip(batch.arrays, parts, strict=True):
                            array[row] = part
                        if reading.item == reading.due:
                            self.snapshots += reading.snapshot(reading.item + 1)
                            reading.due += self._every
                        reading.item += 1
                        self._look_behind(reading)
                        return True
                except FileFailed:
                    raise
                except Exception as error:
                    self._fail(reading, error)
            if reading.failed and reading.length is not None and reading.item < reading.length:
                # The item is missing, and the row waits one step, so that the other assignments
                # stay what they were.
                reading.item += 1
                return True
            reading.close()
            readings.popleft()
        return False

    def _look_behind(self, reading: _Reading) -> None:
        """After the last item that lengths= gives a file: reads on, and fails if there is another item. Without this look a
        row would never read behind its last file. FileFailed."""
        if reading.item == reading.length:
            try:
                reading.ended = reading.next() is _END
            except Exception as error:
                self._fail(reading, error)

    def _open(self, reading: _Reading) -> None:
        reading.open(self._reader, self._files)
        if not reading.stateful:
            return
        if self._every:
            reading.due = reading.item + -(reading.step + 1) % self._every
        if reading.due != reading.item:  # else the first item's is as good
            self.snapshots += reading.snapshot(reading.item)

    def _fail(self, reading: _Reading, error: Exception) -> None:
        reading.failed = True
        where = f"in the process that read item {reading.item} of file {reading.assignment.number}"
        # A snapshot that does not fit the reader is a mistake of the program, not of one file.
        ends = not self._skip or isinstance(error, StateError)
        failure = Failure(reading.assignment, reading.item, RemoteError.of(error, where), ends)
        reading.close()
        if ends:
            raise FileFailed(failure) from error
        self.failures.append(failure)

    def close(self) -> None:
        """Closes all files."""
        for readings in self._rows.values():
            for reading in readings:
                reading.close()
        self._rows.clear()


def first_item(reader: Reader, files: Sequence[Any], lengths: Ints) -> Items:
    """What the items of a stream are made of, by the longest file. For a rank whose rows have no item."""
    number = int(lengths.argmax())
    file, reading = files[number], _Reading(Assignment(0, 0, number, 0, 0, None, 0))
    try:
        reading.open(reader, files)
        return Items(reading.next())
    except Exception as error:
        text = f"file {number} ({file!r}) does not say what items are made of: {error}"
        raise StreamError(text, file, number, 0) from error
    finally:
        reading.close()
