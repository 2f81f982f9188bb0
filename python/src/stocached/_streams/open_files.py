"""The files that some rows of a stream are reading: what a worker has, and without workers the
loader itself."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .._common.errors import StreamError
from .._workers.errors import RemoteError
from .items import Array, Items
from .reader import Reader
from .settings import StreamSettings

_END = object()


@dataclass(frozen=True)
class Assignment:
    """A row reads a file. number: of the file. item: the first to read. length: how many items the
    file has, None if it is not known. step: of its first item."""

    row: int
    number: int
    epoch: int
    item: int
    length: int | None
    step: int


@dataclass(frozen=True)
class Failure:
    """A file that could not be read to its end. item: the first that is missing."""

    assignment: Assignment
    item: int
    error: RemoteError

    @property
    def step(self) -> int:
        """Of the item that is missing."""
        return self.assignment.step + self.item - self.assignment.item


class FileFailed(Exception):
    """A file failed, with errors="raise". The cause is what the user's code raised. The row has
    nothing more to read."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class _Reading:
    """One assignment, as far as it has come."""

    __slots__ = ("assignment", "failed", "item", "items", "length")

    def __init__(self, assignment: Assignment) -> None:
        self.assignment, self.item, self.length, self.failed = assignment, assignment.item, assignment.length, False
        self.items: Iterator[Any] | None = None

    def next(self, reader: Reader, files: Sequence[Any]) -> Any:
        """The item that is next, or _END. Opens the file if it is not open."""
        if self.items is None:
            number, epoch = self.assignment.number, self.assignment.epoch
            self.items = reader.open(files[number], number, epoch, self.item)
        value = next(self.items, _END)
        if self.length is not None and (value is _END) != (self.item >= self.length):
            what = f"ends after {self.item} items" if value is _END else f"has more than {self.item} items"
            raise ValueError(f"the file {what}, and lengths= says {self.length}")
        return value

    def close(self) -> None:
        """Closes the file. A generator's `finally` runs here."""
        items, self.items = self.items, None
        if items is not None and hasattr(items, "close"):
            with contextlib.suppress(Exception):  # the stream has all that it wants of it
                items.close()


class Batch(Protocol):
    """Where items are put."""

    items: Items | None
    arrays: Sequence[Array]  # of each field, with a place for every row; if `items` are known

    def learn(self, row: int, value: Any) -> None:
        """Sets both. The value is the first item of that row, and the first of all that is
        known."""


class OpenFiles:
    """The assignments of some rows. A row may have several, which follow each other without a
    gap."""

    def __init__(self, reader: Reader, files: Sequence[Any], skip: bool, doing: memoryview | None = None) -> None:
        """doing: two words in which it says which row it is reading, + 1, and which file."""
        self._reader, self._files, self._skip, self._doing = reader, files, skip, doing
        self._rows: dict[int, deque[_Reading]] = {}
        self.failures: list[Failure] = []  # with skip: those that were not reported yet

    def add(self, assignment: Assignment) -> None:
        self._rows.setdefault(assignment.row, deque()).append(_Reading(assignment))

    def current(self, row: int) -> Assignment | None:
        """What a row is reading; None: it has no file."""
        readings = self._rows.get(row)
        return readings[0].assignment if readings else None

    def put(self, row: int, batch: Batch) -> bool:
        """Puts a row's next item into its place in the batch. False: the row's files have no more;
        it has no file now. FileFailed."""
        readings = self._rows.get(row)
        while readings:
            reading = readings[0]
            if self._doing is not None:
                self._doing[0], self._doing[1] = row + 1, reading.assignment.number
            if not reading.failed:
                try:
                    value = reading.next(self._reader, self._files)
                    if value is not _END:
                        if batch.items is None:
                            batch.learn(row, value)
                        parts = batch.items.take(value)  # type: ignore[union-attr]
                        for array, part in zip(batch.arrays, parts, strict=True):
                            array[row] = part
                        reading.item += 1
                        return True
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

    def _fail(self, reading: _Reading, error: Exception) -> None:
        reading.failed = True
        where = f"in the process that read item {reading.item} of file {reading.assignment.number}"
        failure = Failure(reading.assignment, reading.item, RemoteError.of(error, where))
        reading.close()
        if not self._skip:
            raise FileFailed(failure) from error
        self.failures.append(failure)

    def close(self) -> None:
        """Closes all files."""
        for readings in self._rows.values():
            for reading in readings:
                reading.close()
        self._rows.clear()


def first_item(streams: StreamSettings) -> Items:
    """What the items of a stream are made of, from the first file that has any. For a rank none of
    whose rows has one; where lengths are known."""
    assert streams.lengths is not None
    number = int(streams.lengths.argmax())
    file, reading = streams.files[number], _Reading(Assignment(0, number, 0, 0, None, 0))
    try:
        return Items(reading.next(streams.reader, streams.files))
    except Exception as error:
        text = f"file {number} ({file!r}) does not say what items are made of: {error}"
        raise StreamError(text, file, number, 0) from error
    finally:
        reading.close()
