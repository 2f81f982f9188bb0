"""What the stages of a pipe do in one worker: how many items, and of a part of them how long and how large."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt

from .._memory.shared_file import SharedFile

ITEMS, NS, SEEN, BYTES = range(4)
"""Columns: items; nanoseconds, of all of them; how many were measured, and their bytes."""
COLUMNS = 4
_ROWS = 512  # rows of the training loop and of workers, at least

_SHARE = 400  # a worker measures reading, and the last functions, in about 1/400 of its time each,
_MOST = 250_000  # ns: and at most so long at a time
_LEAST = 125_000  # ns: it begins when it may do so as long
_COST = 4_000  # ns: to measure an item of a stage, on a busy machine
_BEGIN = 10_000  # ns: to begin
_ALONE = _SHARE * _LEAST  # ns: it measures something in such a time, so an item that takes longer stands for no other


class Tally:
    """Of one thread. It counts all items of a stage, and measures some. reading, last: watches of the stages that read
    items, and of the last functions."""

    def __init__(self, counters: Counters | None, row: int) -> None:
        # Weak: a cycle would keep the pipe's caches until the garbage collector runs.
        self._counters: Callable[[], Counters | None] = (lambda: None) if counters is None else weakref.ref(counters)
        self._row = row
        self.asked = counters is not None  # somebody asks for what it measures
        # C counts: `compress` takes one True of a stage for each item, and `length_hint` tells how many are left.
        self.left = defaultdict[int, Any](lambda: itertools.repeat(True, sys.maxsize))
        self._returned = defaultdict[int, int](int)  # how many of them do not count
        self._first = defaultdict[int, int](lambda: sys.maxsize)  # how many were left at 0 items
        stages = 0 if counters is None else counters.stages
        # Since the last `close`. The last one is of batches, if no stage makes them.
        self.ns, self.seen, self.bytes, self.alone = ([0] * (stages + 1) for _ in range(4))
        self._paces = [0.0] * stages  # ns of an item, when some were measured last
        self._closed: npt.NDArray[np.int64] | None = None  # columns up to then; None: `flush` has added them
        self._samples = self._misses = 0
        self._busy = self._woke = 0  # ns that this thread worked until it woke, and when that was; 0: it does not work
        self.reading, self.last = Watch(self, _BEGIN), Watch(self, 0)

    def begin(self) -> bool:
        """Says whether the items that are read next are measured."""
        return self.reading.begin()

    def wake(self) -> None:
        """This thread works from now on."""
        self._woke = time.monotonic_ns()

    def rest(self) -> None:
        self._busy, self._woke = self._worked(), 0

    def _worked(self) -> int:
        return self._busy + (time.monotonic_ns() - self._woke if self._woke else 0)

    def took(self, stage: int) -> None:
        """A stage has given an item, which `Watch.given` does not see."""
        next(self.left[stage])

    def gave_back(self, stage: int) -> None:
        """A stage has given an item that does not count."""
        self._returned[stage] += 1

    def gave(self, samples: int, hits: int) -> None:
        """This thread gave samples of a dataset, of which a cache had some."""
        self._samples += samples
        self._misses += samples - hits

    def items(self, stage: int) -> int:
        """How many a stage has given since the last `close`."""
        return self._first[stage] - self._left_of(stage)

    def _left_of(self, stage: int) -> int:
        return length_hint(self.left[stage]) + self._returned[stage]

    def mark(self) -> Any:
        """For `back`."""
        return {stage: self._left_of(stage) for stage in self.left}

    def back(self, mark: Any) -> None:
        """Forgets the items since the mark: they are read again, or were counted before."""
        for stage, left in self.mark().items():
            self._first[stage] += left - mark.get(stage, sys.maxsize)

    def flush(self) -> None:
        """Adds all to what the loader reads."""
        counters = self._counters()
        if counters is not None:
            row = counters.table[self._row]
            self._close(row)
            if self._closed is not None:
                row += self._closed
                self._closed = None

    def close(self) -> None:
        """Ends the time in which items that are not measured take as long as those that are."""
        before = self._closed
        self._closed = np.zeros((len(self._paces), COLUMNS), np.int64) if before is None else before
        self._close(self._closed)

    def _close(self, to: npt.NDArray[np.int64]) -> None:
        columns, self._paces = self._since()
        to += columns
        self._first.update(self.mark())
        for column in (self.ns, self.seen, self.bytes, self.alone):
            column[:] = [0] * len(column)
        self._samples = self._misses = self._busy = 0
        if self._woke:
            self.wake()

    def columns(self) -> npt.NDArray[np.int64]:
        """The columns of each stage, since the last `flush`."""
        columns = np.array(self._since()[0])
        return columns if self._closed is None else columns + self._closed

    def _since(self) -> tuple[list[tuple[int, ...]], list[float]]:
        """The columns since the last `close`, and the paces. Items that were not measured took as long as those that were
        measured last, but all together no longer than this thread worked."""
        counters = self._counters()
        items = [*map(self.items, range(len(self._paces)))]
        given = items if counters is None else counters.chain.items(items, self._samples, self._misses)
        paces = [
            (ns - alone) / seen if seen else before
            for ns, alone, seen, before in zip(self.ns, self.alone, self.seen, self._paces)
        ]
        others = [pace * (n - seen) if n > seen else 0 for pace, n, seen in zip(paces, given, self.seen)]
        part = min(max(self._worked() - sum(self.ns), 0) / (sum(others) or 1), 1)
        all_ns = [ns + int(other * part) for ns, other in zip(self.ns, others)]
        return [*zip(items, all_ns, self.seen, self.bytes)], paces


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
            if self.on:
                self._left -= self._cost
                self._tally.close()
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
        tally = self._tally
        before = tally.ns[stage]
        item = self._timed(stage, make, arguments)
        if tally.ns[stage] - before > _ALONE:
            tally.alone[stage] += tally.ns[stage] - before
        tally.seen[stage] += 1
        tally.bytes[stage] += bytes_of(item)
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
    tally = Tally(None, 0)  # the tally of readers that nobody asks


_current = _Current()


def current() -> Tally:
    """The tally of this thread."""
    return _current.tally


class Counters:
    """What the workers of a loader have counted, in memory that they share: a row for the training loop, and one for
    each worker. They count since the loader was made."""

    def __init__(self, chain: Any, workers: int) -> None:
        """chain: the stages, as a `Chain` of pipes."""
        self.chain, self.stages, self._rows = chain, len(chain.lines), max(_ROWS, 1 + workers)
        self._file = SharedFile("stages", size=self._rows * self.stages * COLUMNS * 8)
        self._map()

    def _map(self) -> None:
        shape = self._rows, self.stages, COLUMNS
        self.table: npt.NDArray[np.int64] = self._file.map(0, math.prod(shape) * 8).view(np.int64).reshape(shape)
        self._here: Tally | None = None
        self._pid = os.getpid()
        self.joined_ns = 0  # the training loop made batches of parts of batches
        self.shown: dict[int, list[int]] = {}  # ns of the stages of a row that a timeline has

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("chain", "stages", "_rows", "_file")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    def total(self) -> npt.NDArray[np.int64]:
        """The columns of each stage, of all workers."""
        total: npt.NDArray[np.int64] = self.table.sum(axis=0)
        if self._here is not None:
            total += self._here.columns()
        total[self.chain.batch, NS] += self.joined_ns if self.chain.batch >= 0 else 0
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
        self._here.wake()
        try:
            yield self._here
        finally:
            self._here.rest()
            _current.tally = before


def uncounted(load: Callable[[], Any]) -> Any:
    """What a load gives whose items were counted before."""
    mark = current().mark()
    try:
        return load()
    finally:
        current().back(mark)


def bytes_of(item: Any) -> int:
    """The bytes of the arrays and tensors in an item or a batch. Other objects count 0, and so do tensors without `nbytes`,
    such as sparse ones."""
    if isinstance(item, dict):
        return sum(map(bytes_of, item.values()))
    if isinstance(item, list) and item and isinstance(item[0], (str, bytes, int, float)):
        return 0  # the others are most likely alike, and may be thousands, such as tokens
    if isinstance(item, (list, tuple)):
        return sum(map(bytes_of, item))
    try:
        nbytes = item.nbytes
    except Exception:
        return 0
    return nbytes if isinstance(nbytes, int) else 0
