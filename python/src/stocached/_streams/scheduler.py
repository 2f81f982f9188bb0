"""Settles one step of a stream after the other: which row takes which file, what of a batch is
real, and where an epoch ends (docs/spec/stream-rows.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from .._common.errors import StreamError
from .assignment import NONE, Ints, NothingError, Rows, settle
from .open_files import Assignment
from .snapshots import Snapshot, Snapshots


@dataclass
class State:
    """Where the rows of an epoch are: what comes next is `step`."""

    epoch: int
    step: int
    first_row: int
    place: list[int]
    item: list[int]
    next: list[int]
    # Of the rows that this rank reads, which count from 0.
    snapshots: dict[int, Snapshot] = field(default_factory=dict)


@dataclass
class Step:
    """A settled step, of the rows of this rank. state: the state after it. assignments: the files that rows take in it,
    if lengths are known."""

    number: int
    files: Ints
    positions: Ints
    mask: npt.NDArray[np.bool_]
    state: State
    assignments: list[Assignment] = field(default_factory=list)


class StepScheduler:
    """Settles one step after the other. rows: that this rank assigns. own: the part of them that it reads; assignments,
    snapshots and steps count these rows from 0."""

    def __init__(
        self, rows: Rows, own: slice, lengths: Ints | None, ends: str, step: int, begun: Mapping[int, Snapshot]
    ) -> None:
        """begun: the snapshots to continue from."""
        self.rows, self.step, self.snapshots = rows, step, Snapshots(begun, own.start)
        self._own, self._lengths, self._ends, self._rounds = own, lengths, ends, 0

    def begin(self) -> list[Assignment]:
        """The files that rows are in the middle of, when an epoch continues."""
        own = range(self.rows.count)[self._own]
        assignments = [self._assignment(row) for row in own if self.rows.place[row] != NONE]
        begun = self.snapshots.begun
        assignments = [replace(one, snapshot=begun.get(one.row)) for one in assignments]
        return [one for one in assignments if one.length is None or one.item < one.length]

    def known(self) -> Step | None:
        """Settles a step by the lengths of the files. None: the epoch is over."""
        try:
            took = settle(self.rows, self._lengths)  # type: ignore[arg-type]
        except NothingError:
            raise self._nothing() from None
        own = range(self.rows.count)[self._own]
        assignments = [self._assignment(row) for row in took if row in own]
        step = self.finish()
        if step is not None:
            step.assignments = assignments
        return step

    def round(self, waiting: Sequence[int]) -> list[Assignment]:
        """Gives each waiting row a file, in rising order; rows that get none have finished. For unknown lengths."""
        self._rounds += 1
        if self._rounds > self.rows.most_rounds() and self.rows.places.endless:
            raise self._nothing()
        return [self._assignment(row) for row in sorted(waiting) if self.rows.take(row)]

    def finish(self) -> Step | None:
        """No row waits any more. None: the epoch is over."""
        rows, own = self.rows, self._own
        real = rows.place != NONE
        if not (real.any() if self._ends == "pad" else real.all()):
            return None
        mask = real[own].copy()
        files, positions = rows.file[own].copy(), np.where(mask, rows.item[own], NONE)
        rows.advance()
        self.step += 1
        self._rounds = 0
        return Step(self.step - 1, files, positions, mask, self.state())

    def give(self, step: Step) -> Step:
        """The training loop gets this step now: its state has the snapshots."""
        step.state.snapshots = self.snapshots.after(step.number, step.state.place)
        return step

    def state(self) -> State:
        rows = self.rows
        return State(rows.places.epoch, self.step, rows.first, rows.place.tolist(), rows.item.tolist(), list(rows.next))

    def _assignment(self, row: int) -> Assignment:
        rows = self.rows
        number = int(rows.file[row])
        length = None if self._lengths is None else int(self._lengths[number])
        own, place = row - self._own.start, int(rows.place[row])
        return Assignment(own, place, number, rows.places.epoch_of(place), int(rows.item[row]), length, self.step)

    def _nothing(self) -> Exception:
        return StreamError(f"a row took {self.rows.most_rounds()} files one after the other, and none had an item")
