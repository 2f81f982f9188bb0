"""What the stages of a pipe do in one worker: how many items, and of a part of them how long and how large."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt

from .._memory.shared_file import SharedFile

ITEMS, NS, SEEN, BYTES, MORE = range(5)
"""Columns: items; nanoseconds and bytes of those that were measured, and how many these are; further nanoseconds, of all
items."""
_COLUMNS = 5
_ROWS = 512  # of the training loop, and of workers, at least

_SHARE = 400  # a worker measures reading, and the last functions, in about 1/400 of its time each,
_MOST = 250_000  # ns: and at most so long at a time
_LEAST = 125_000  # ns: it begins when it may do so as long
_COST = 4_000  # ns: to measure an item of a stage, on a busy machine
_BEGIN = 10_000  # ns: to begin


class Tally:
    """Of one thread. It counts all items of a stage, and measures some. reading, last: watches of the stages that read
    items, and of the last functions."""

    def __init__(self, counters: Counters | None, row: int) -> None:
        self._counters, self._row = counters, row
        self.asked = counters is not None  # somebody asks for what it measures
        # C counts: `compress` takes one True of a stage for each item, and `length_hint` tells how many are left.
        self.left = defaultdict[int, Any](lambda: itertools.repeat(True, sys.maxsize))
        self._first = defaultdict[int, int](lambda: sys.maxsize)  # how many were left at 0 items
        stages = 0 if counters is None else counters.stages
        # The last one is of batches, if no stage makes them.
        self.ns, self.seen, self.bytes, self.more = ([0] * (stages + 1) for _ in range(_COLUMNS - 1))
        self.reading, self.last = Watch(self, _BEGIN), Watch(self, 0)

    def begin(self) -> bool:
        """Says whether the items that are read next are measured."""
        return self.reading.begin()

    def took(self, stage: int) -> None:
        """A stage has given an item, which `Watch.given` does not see."""
        next(self.left[stage])

    def gave_back(self, stage: int) -> None:
        """A stage has given an item that does not count."""
        self._first[stage] -= 1

    def items(self, stage: int) -> int:
        """How many a stage has given since the last `flush`."""
        return self._first[stage] - length_hint(self.left[stage])

    def mark(self) -> Any:
        """For `back`."""
        return {stage: length_hint(left) for stage, left in self.left.items()}

    def back(self, mark: Any) -> None:
        """Forgets the items since the mark: they are read again, or were counted before."""
        for stage, left in self.mark().items():
            self._first[stage] += left - mark.get(stage, sys.maxsize)

    def flush(self) -> None:
        """Adds all to what the loader reads."""
        if self._counters is not None:
            self._counters.table[self._row] += self.columns()
            self._first.update(self.mark())
            for column in (self.ns, self.seen, self.bytes, self.more):
                column[:] = [0] * len(column)

    def columns(self) -> list[tuple[int, ...]]:
        """The columns of each stage, since the last `flush`."""
        items = map(self.items, range(len(self.ns) - 1))
        return [*zip(items, self.ns, self.seen, self.bytes, self.more)]


class Watch:
    """Reads the clock for a part of the items of a thread, in about 1/400 of its time. So it measures all items of slow
    stages. The time of a stage is its own, without that of the stages above."""

    def __init__(self, tally: Tally, cost: int) -> None:
        """cost: ns, to begin."""
        self.on = False  # whether items are measured now
        self._tally, self._cost = tally, cost
        self._left, self._at = _MOST, time.monotonic_ns()  # ns that it may measure; it was so when
        self._inside = 0  # ns of the stages above the one that works now

    def begin(self) -> bool:
        """Says whether the next items are measured. Called before they are made."""
        if self._tally.asked:
            self.on = self._earn() >= _LEAST
            self._left -= self._cost if self.on else 0
        return self.on

    def _earn(self) -> int:
        now = time.monotonic_ns()
        left = self._left + (now - self._at) // _SHARE
        self._left, self._at = left if left < _MOST else _MOST, now
        return left

    def given(self, stage: int, make: Callable[..., Iterable[Any]], *arguments: Any) -> Iterator[Any]:
        """Counts and measures what a stage gives: the items of make(*arguments)."""
        if self.on and stage >= 0:
            return self._measured(stage, make, arguments)
        return itertools.compress(make(*arguments), self._tally.left[stage])

    def _measured(self, stage: int, make: Callable[..., Iterable[Any]], arguments: tuple[Any, ...]) -> Iterator[Any]:
        each = itertools.compress(self._timed(stage, make, arguments), self._tally.left[stage])
        while self.on:
            try:
                item = self.call(stage, next, each)
            except StopIteration:
                return
            yield item
        yield from each

    def call(self, stage: int, make: Callable[..., Any], *arguments: Any) -> Any:
        """make(*arguments), an item of a stage. It is measured, and not counted. The time of a stage without a number
        is that of the stage below."""
        if not self.on or stage < 0:
            return make(*arguments)
        item = self._timed(stage, make, arguments)
        self._tally.seen[stage] += 1
        self._tally.bytes[stage] += bytes_of(item)
        self._left -= _COST
        if self._left <= 0:
            self.on = self._earn() > 0
        return item

    def _timed(self, stage: int, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        asked, self._inside, start = self._inside, 0, time.monotonic_ns()
        try:
            return make(*arguments)
        finally:
            took = time.monotonic_ns() - start
            self._tally.ns[stage] += took - self._inside
            self._inside = asked + took


class _Current(threading.local):
    tally = Tally(None, 0)  # of readers that nobody asks


_current = _Current()


def current() -> Tally:
    """The tally of this thread."""
    return _current.tally


class Counters:
    """What the workers of a loader have counted, in memory that they share: a row for the training loop, and one for
    each worker. They count since the loader was made."""

    def __init__(self, stages: int, workers: int, batch: int = -1) -> None:
        """batch: the stage that makes batches."""
        self.stages, self.batch, self._rows = stages, batch, max(_ROWS, 1 + workers)
        self._file = SharedFile("stages", size=self._rows * stages * _COLUMNS * 8)
        self._map()

    def _map(self) -> None:
        shape = self._rows, self.stages, _COLUMNS
        self.table: npt.NDArray[np.int64] = self._file.map(0, math.prod(shape) * 8).view(np.int64).reshape(shape)
        self._here: Tally | None = None
        self._pid = os.getpid()
        self.joined_ns = 0  # the training loop made batches of parts of batches
        self.shown: dict[int, list[int]] = {}  # ns of the stages of a row that a timeline has

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("stages", "batch", "_rows", "_file")}

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

    def row_of(self, worker: int) -> int:
        return 1 + worker % (self._rows - 1)

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
