"""Which file each row of a stream reads, and when: docs/spec/stream-rows.md. No files are opened
here, and nothing waits."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._order.order import Epoch, Order

Ints = npt.NDArray[np.int64]
NONE = -1  # no place, no file


class NothingError(Exception):
    """A row takes one file after the other without end, and none has an item."""


@dataclass(frozen=True)
class Groups:
    """How rows are put together into groups that take files from one queue. All counts are over all
    ranks.

    rows: a multiple of count."""

    rows: int
    count: int

    @property
    def size(self) -> int:
        return self.rows // self.count


class Places:
    """The files in the order in which they are taken: those of one epoch, or without end."""

    def __init__(self, files: int, seed: int, shuffle: bool, epoch: int, endless: bool) -> None:
        self.files, self.epoch, self.endless = files, epoch, endless
        self._order = Order(files, "shuffled" if shuffle else "sequential", seed)
        self._epochs: dict[int, Epoch] = {}

    def there(self, place: int) -> bool:
        return self.endless or place < self.files

    def epoch_of(self, place: int) -> int:
        return self.epoch + place // self.files

    def file(self, place: int) -> int:
        number = self.epoch_of(place)
        if number not in self._epochs:
            if len(self._epochs) > 2:
                # All rows are past them, or nearly: rows are seldom more than one epoch apart.
                self._epochs.clear()
            self._epochs[number] = self._order.epoch(number)
        return self._epochs[number].at(place % self.files)


class Rows:
    """The rows first..first+count-1, whole groups: of each its place, the number of its next item,
    and whether it has finished."""

    def __init__(self, places: Places, groups: Groups, first: int, count: int) -> None:
        self.places, self.groups, self.first, self.count = places, groups, first, count
        self.place: Ints = np.full(count, NONE, np.int64)
        self.file: Ints = np.full(count, NONE, np.int64)
        self.item: Ints = np.zeros(count, np.int64)
        self.next = list(range(first // groups.size, (first + count) // groups.size))

    def restore(self, place: Sequence[int], item: Sequence[int], following: Sequence[int]) -> None:
        self.place[:], self.item[:] = place, item
        self.next[:] = following
        self.file[:] = [NONE if q == NONE else self.places.file(q) for q in place]

    def take(self, row: int) -> bool:
        """Gives a row (counted from `first`) its group's next place. False: none is left, and the
        row has finished."""
        group = row // self.groups.size
        place = self.next[group]
        self.item[row] = 0
        if not self.places.there(place):
            self.place[row] = self.file[row] = NONE
            return False
        self.next[group] = place + self.groups.count
        self.place[row], self.file[row] = place, self.places.file(place)
        return True

    def most_rounds(self) -> int:
        """A limit for the rounds of one step. If a file has an item, one group never needs so many, and several groups
        only with a chance of exp(-64)."""
        return 64 * self.places.files + self.count

    def advance(self) -> None:
        """Every row that has a file has given an item."""
        self.item += self.place != NONE


def settle(rows: Rows, lengths: Ints) -> list[int]:
    """Settles one step by the lengths of all files: each waiting row takes files until it has an item or has finished.
    Returns the rows that took one, in rising order. Raises NothingError."""
    waiting = np.flatnonzero((rows.place == NONE) | (rows.item >= lengths[rows.file])).tolist()
    took: set[int] = set()
    rounds = 0
    while waiting:
        rounds += 1
        if rounds > rows.most_rounds() and rows.places.endless:
            raise NothingError
        got = [row for row in waiting if rows.take(row)]
        took.update(got)
        waiting = [row for row in got if lengths[rows.file[row]] == 0]
    return sorted(row for row in took if rows.place[row] != NONE)


def steps(rows: Rows, lengths: Ints, drop: bool) -> int:
    """How many steps there are from here to the end of the epoch. Changes the rows. The time grows with the number of
    files, not of items."""
    left = np.where(rows.file == NONE, 0, np.maximum(0, lengths[rows.file] - rows.item))
    ends: list[tuple[int, int, int]] = [(count, 0, row) for row, count in enumerate(left.tolist())]
    heapq.heapify(ends)
    last = 0
    while ends:
        step, round_, row = heapq.heappop(ends)  # round_: the round of that step
        last = step if drop else max(last, step)
        if rows.take(row):
            length = int(lengths[rows.file[row]])
            heapq.heappush(ends, (step + length, round_ + 1 if length == 0 else 0, row))
        elif drop:
            return step
    return last
