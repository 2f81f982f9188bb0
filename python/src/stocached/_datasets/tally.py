"""What the stages of a pipe do in one worker: how many items, and of a part of them how long and how large."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from .._memory.shared_file import SharedFile

ITEMS, NS, SEEN, BYTES, MORE = range(5)
"""Columns: items; nanoseconds and bytes of those that were measured, and how many these are; further nanoseconds, of all
items."""
_COLUMNS = 5
_ROWS = 512  # of the training loop, and of workers

_SHARE = 400  # a worker measures reading, and the last functions, in about 1/400 of its time each,
_MOST = 250_000  # ns: and at most so long at a time
_LEAST = 125_000  # ns: it begins when it may do so as long
_COST = 4_000  # ns: to measure an item of a stage, on a busy machine
_BEGIN = 10_000  # ns: to begin


class _Time:
    """The time that a thread may measure. It grows with the time that passes."""

    def __init__(self) -> None:
        self.left = _MOST
        self._at = time.monotonic_ns()

    def earn(self, now: int) -> int:
        self.left = min(self.left + (now - self._at) // _SHARE, _MOST)
        self._at = now
        return self.left


class Tally:
    """Of one thread. `items` are exact. Clocks are read for a part of the items, so that they cost about 1/200 of the
    time. So all items of slow stages are measured.

    The time of a stage is its own, without that of the stages above. A stage without a number has no count."""

    def __init__(self, counters: Counters | None, row: int) -> None:
        self._counters, self._row = counters, row
        self._stages = 1 if counters is None else counters.stages + 1  # the last one is of stages without a number
        self._reset()
        self.on = False  # whether the items that are read now are measured
        self._reading, self._last = _Time(), _Time()
        self._stage, self._since = -1, 0  # the stage that works now, and since when

    def _reset(self) -> None:
        self.items = defaultdict[int, int](int)  # also if nobody asks: then there is no list of stages
        self.ns, self.seen, self.bytes, self.more = ([0] * self._stages for _ in range(_COLUMNS - 1))

    def begin(self) -> bool:
        """Says whether the next items are to be measured. Called before they are read."""
        self.on = False
        if self._counters is not None:
            self.on = self._reading.earn(time.monotonic_ns()) >= _LEAST
            if self.on:
                self._reading.left -= _BEGIN
                self._stage = -1
        return self.on

    def enter(self, stage: int) -> int:
        """A stage begins to work. Returns the stage that asked it, for `leave`."""
        now, before = time.monotonic_ns(), self._stage
        if before >= 0:
            self.ns[before] += now - self._since
        self._stage, self._since = stage, now
        return before

    def leave(self, before: int) -> None:
        """The stage that `enter` began is done."""
        now = time.monotonic_ns()
        if self.on:
            self.ns[self._stage] += now - self._since
        self._stage, self._since = before, now

    def saw(self, stage: int, item: Any) -> None:
        """A stage that was measured has given an item."""
        if not self.on:
            return
        self.seen[stage] += 1
        self.bytes[stage] += bytes_of(item)
        self._reading.left -= _COST
        if self._reading.left <= 0:
            self.on = self._reading.earn(self._since) > 0

    def charge(self, stage: int, above: int, ns: int, item: Any) -> None:
        """A stage that is measured has worked so long only as the stage above it did, which gave an item."""
        if self.on:
            self.ns[stage] -= ns
            self.ns[above] += ns
            self.saw(above, item)

    def take(self, items: int, stages: int) -> int:
        """How many of some items may be measured, each in so many stages."""
        if self._counters is None:
            return 0
        left = self._last.earn(time.monotonic_ns())
        most = left // (_COST * stages)
        most = items if most >= items else most if left >= _LEAST else 0
        self._last.left -= most * _COST * stages
        return most

    def measure(self, stage: int, ns: int, item: Any) -> None:
        """An item that `take` has allowed."""
        self.ns[stage] += ns
        self.seen[stage] += 1
        self.bytes[stage] += bytes_of(item)

    @contextmanager
    def all_of(self, stage: int) -> Iterator[None]:
        """Measures work of a stage on all of its items, or on many at once."""
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self.more[stage] += time.monotonic_ns() - start

    def mark(self) -> Any:
        """For `back`."""
        return [column.copy() for column in (self.items, self.ns, self.seen, self.bytes, self.more)]

    def back(self, mark: Any) -> None:
        """Forgets what came after the mark: it is read again, or was counted before."""
        self.items, self.ns, self.seen, self.bytes, self.more = (column.copy() for column in mark)

    def flush(self) -> None:
        """Adds all to what the loader reads."""
        if self._counters is not None:
            self._counters.table[self._row] += self.columns()
            self._reset()

    def columns(self) -> list[tuple[int, ...]]:
        """The columns of each stage, since the last `flush`."""
        items = map(self.items.__getitem__, range(self._stages - 1))
        return [*zip(items, self.ns, self.seen, self.bytes, self.more)]


class _Current(threading.local):
    tally = Tally(None, 0)  # of readers that nobody asks


_current = _Current()


def current() -> Tally:
    """The tally of this thread."""
    return _current.tally


class Counters:
    """What the workers of a loader have counted, in memory that they share: a row for the training loop, and one for
    each worker. They count since the loader was made."""

    def __init__(self, stages: int, batch: int = -1) -> None:
        """batch: the stage that makes batches."""
        self.stages, self.batch = stages, batch
        self._file = SharedFile("stages", size=_ROWS * stages * _COLUMNS * 8)
        self._map()

    def _map(self) -> None:
        size = _ROWS * self.stages * _COLUMNS * 8
        self.table: npt.NDArray[np.int64] = self._file.map(0, size).view(np.int64).reshape(_ROWS, self.stages, _COLUMNS)
        self._here: Tally | None = None
        self._pid = os.getpid()
        self.joined_ns = 0  # the training loop made batches of parts of batches
        self.shown: dict[int, list[int]] = {}  # ns of the stages of a row that a timeline has

    def __getstate__(self) -> dict[str, Any]:
        return {"stages": self.stages, "batch": self.batch, "_file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    def total(self) -> npt.NDArray[np.int64]:
        """The columns of each stage, of all workers."""
        total: npt.NDArray[np.int64] = self.table.sum(axis=0)
        if self._here is not None:
            total += self._here.columns()
        total[self.batch, MORE] += self.joined_ns if self.batch >= 0 else 0
        return total

    def enter_worker(self, number: int) -> None:
        """This thread is this worker from now on."""
        _current.tally = Tally(self, self.row_of(number))

    @staticmethod
    def row_of(worker: int) -> int:
        return 1 + worker % (_ROWS - 1)

    @contextmanager
    def here(self) -> Iterator[Tally]:
        """The training loop's thread reads items, or makes a batch."""
        if self._here is None or self._pid != os.getpid():
            self._here, self._pid = Tally(self, 0), os.getpid()
        before, _current.tally = _current.tally, self._here
        try:
            yield self._here
        finally:
            _current.tally = before


def bytes_of(item: Any) -> int:
    """The bytes of the arrays and tensors in an item. Other objects count 0."""
    if isinstance(item, (int, float, str, bytes)):
        return 0
    nbytes = getattr(item, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(item, dict):
        return sum(map(bytes_of, item.values()))
    if isinstance(item, (list, tuple)) and not (item and isinstance(item[0], (str, bytes, int, float))):
        return sum(map(bytes_of, item))
    return 0
