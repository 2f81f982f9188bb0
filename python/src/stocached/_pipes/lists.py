"""A pipe without an index as a dataset of lists, and the order in which ranks walk its windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .._common.errors import InvalidError
from .._datasets.lists import Entry, Lists, Reading, Walk, without_index
from .._datasets.stage_stats import CountsStages, StageStats
from .functions import Map
from .stage import Stage
from .stages import counted
from .visits import Epochs, Visit, Window, seed_at

WINDOW = 1024  # visits of a window, if a stage mixes or joins their items
_SHARE = 4  # windows that each rank has at least, if the window is the default


def split(stage: Stage) -> tuple[Stage, list[Map]]:
    """The last stages that call a function for each item, from the first to the last, and what stands above."""
    maps: list[Map] = []
    while type(stage) is Map:
        maps.append(stage)
        stage = stage.above[0]
    return stage, maps[::-1]


class PipeLists(Lists, CountsStages):
    """seed: of the loader."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage, self._seed = stage, seed
        self._above, self._maps = split(stage)
        self.mixes, self.finishes = stage.window is not None, bool(self._maps)
        self._random = any(each.draws for each in self._maps)
        self._epochs = Epochs(stage, seed)

    def windows(self, world_size: int) -> tuple[int, int]:
        span = self._span(world_size)
        return -(-len(self._stage) // span), span

    def _span(self, world_size: int) -> int:
        """How many visits a window has."""
        n, given = len(self._stage), self._stage.window
        if given is None:
            return 1
        span = given or WINDOW
        if not given and -(-n // span) < world_size:
            span = max(1, n // (_SHARE * world_size))
        return min(span, n)

    def items(self, windows: Iterable[int], reading: Reading) -> Iterator[Entry]:
        if self.mixes:
            return self._mixed(windows, reading)
        known = Window(self._seed, reading.epoch, 0, reading.begin, reading.left_out)
        return iter(self._above.items(map(self._epochs.visits(reading.epoch).at, windows), known))

    def _mixed(self, windows: Iterable[int], reading: Reading) -> Iterator[Entry]:
        visits = self._epochs.visits(reading.epoch)
        span = self._span(reading.world_size)
        for number in windows:
            known = Window(self._seed, reading.epoch, number, reading.begin, reading.left_out)
            some = range(number * span, min((number + 1) * span, len(visits)))
            yield from self._above.items(map(visits.at, some), known)

    def finish(self, entries: Sequence[Entry], into: list[Any]) -> None:
        before, maps = len(into), self._maps
        if not maps:
            into.extend(item for _, _, item in entries)
            return
        if self._random:
            for visit, ordinal, item in entries:
                if visit is not None:
                    at = _visit(visit)
                    for each in maps:
                        item = each.call(item, at, each.seed_of(at, ordinal, self._seed))
                into.append(item)
            return
        each = maps[0]
        try:
            if len(maps) == 1 and None not in [visit for visit, _, _ in entries]:
                into.extend(map(each.function, [item for _, _, item in entries]))
                if len(into) - before < len(entries):  # map() takes StopIteration for its end
                    raise StopIteration
                return
            for visit, _, item in entries:
                if visit is not None:
                    for each in maps:
                        item = each.function(item)
                into.append(item)
        except Exception as error:
            each.failed(error, entries[len(into) - before][0][0])

    def sent(self, entries: Sequence[Entry]) -> list[Entry]:
        return [((visit.element, visit.draw, visit.epoch), ordinal, item) for visit, ordinal, item in entries]

    def seed(self, entry: Entry) -> int:
        return seed_at(self._seed, _visit(entry[0]), 0, entry[1])

    def where(self, entry: Entry) -> str:
        return "an item" if entry[0] is None else self._above.where(entry[0][0])

    def stage_stats(self) -> tuple[StageStats, ...]:
        return counted(self._stage)

    def all(self) -> Iterator[Any]:
        """The items of epoch 0, for one rank."""
        for entry in self.items(range(self.windows(1)[0]), Reading(0, 1)):
            items: list[Any] = []
            self.finish([entry], items)
            yield from items


def _visit(visit: Any) -> Visit:
    """visit: also as `PipeLists.sent` has it."""
    return visit if isinstance(visit, Visit) else Visit(*visit)


@dataclass(frozen=True)
class WalkOrder:
    """samples: visits of an epoch. seed: of the loader. visits: names what determines them."""

    samples: int
    seed: int
    visits: str
    lists: Lists

    def epoch(self, number: int) -> _WalkEpoch:
        return _WalkEpoch(self, number)

    def __repr__(self) -> str:
        return f"Pipe(visits={self.samples}, chain={self.visits}, seed={self.seed})"


@dataclass(frozen=True)
class _WalkEpoch:
    order: WalkOrder
    number: int

    def shard(
        self, rank: int, world_size: int, *, ends: Literal["uneven", "pad", "drop"] = "uneven", start: int = 0
    ) -> Walk:
        """start: items of this rank before."""
        if not 0 <= rank < world_size:
            raise InvalidError(f"rank={rank} is not in 0..{world_size - 1}")
        return Walk(self.number, rank, world_size, *self.order.lists.windows(world_size), start)

    def __len__(self) -> int:
        raise without_index("len()")
