"""The states of the files that rows are reading, if their readers are Stateful
(docs/spec/stream-rows.md, State)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Snapshot:
    """The state of a row's file. Rows count from the first one that this rank reads.

    item: that the file gives next. step: in which the snapshot was taken. data: the states of what
    the reader returned and of its iterator, pickled at that moment, as both may change them."""

    row: int
    place: int
    item: int
    step: int
    data: bytes


class Snapshots:
    """The snapshots of an iteration: of each row the newest one of the steps that the training loop
    has got, and those of later steps. Not safe for several threads."""

    def __init__(self, begun: Mapping[int, Snapshot], first: int) -> None:
        """begun: of the state from which the iteration continues. first: where the rows that this
        rank reads begin in a state."""
        self.begun, self._first = begun, first
        self._rows = {row: deque([snapshot]) for row, snapshot in begun.items()}

    def add(self, snapshots: Iterable[Snapshot]) -> None:
        """In any order: what a worker has answered to a round of a step may have later ones than its answer to the next
        step, which is heard after it."""
        for snapshot in snapshots:
            kept = self._rows.setdefault(snapshot.row, deque())
            at = len(kept)
            while at and kept[at - 1].step > snapshot.step:
                at -= 1
            kept.insert(at, snapshot)

    def after(self, step: int, place: Sequence[int]) -> dict[int, Snapshot]:
        """Those of a state after this step, which the training loop gets now. place: of each row in
        that state. Drops what no later state needs."""
        found = {}
        for row, kept in self._rows.items():
            while kept and kept[0].step <= step:
                newest = len(kept) == 1 or kept[1].step > step
                if newest and kept[0].place == place[self._first + row]:
                    found[row] = kept[0]
                    break
                kept.popleft()
        return found
