"""A pipe without an index as a dataset of lists, and the order in which ranks walk its windows."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.cached import cached_property
from .._common.errors import InvalidError
from .._datasets.lists import WITHOUT_LENGTH, Entry, Reading, WindowWalk, WithoutIndex, without_index
from .._datasets.tally import current
from .combining import Mix
from .counting import Chain
from .functions import Map
from .stage import Stage, every
from .visits import Epochs, Window, seed_at

_MORE = 8  # passes over a rank's windows, if bad items are left out
_SHARE = 4  # windows that each rank has at least, if the window is the default
_VISIT, _ITEM = operator.itemgetter(0), operator.itemgetter(2)  # parts of an entry


def split(stage: Stage) -> tuple[Stage, list[Map]]:
    """The last stages that call a function for each item, from the first to the last, and what stands above."""
    maps: list[Map] = []
    while type(stage) is Map:
        maps.append(stage)
        stage = stage.above[0]
    return stage, maps[::-1]


class PipeLists(WithoutIndex):
    """Workers get it as the dataset of their job. mixes: whether the items of a window are mixed or joined, so that a
    window is read at once."""

    def __init__(self, stage: Stage, seed: int) -> None:
        """seed: of the loader."""
        self._stage, self._seed = stage, seed
        self._above, self._maps = split(stage)
        self.mixes, self.finishes = stage.window is not None, bool(self._maps)
        self._epochs = Epochs(stage, seed)

    def windows(self, world_size: int) -> tuple[int, int]:
        """How many windows an epoch has, and how many elements a window."""
        span = self._span(world_size)
        return -(-len(self._stage) // span), span

    def lengths(self) -> npt.NDArray[np.int64] | None:
        """As `Stage.lengths`."""
        return self._stage.lengths()

    def totals(self, epoch: int, world_size: int) -> npt.NDArray[np.int64] | None:
        """How many items each rank has in an epoch, if the lengths are known."""
        if self.lengths() is None:
            return None
        items = self._in_windows(epoch, world_size)
        return np.bincount(np.arange(len(items)) % world_size, items, world_size).astype(np.int64)

    def _in_windows(self, epoch: int, world_size: int) -> npt.NDArray[np.int64]:
        """How many items each window has. The lengths are known."""
        lengths = self.lengths()
        assert lengths is not None
        elements = self._epochs.visits(epoch).elements()
        return np.add.reduceat(lengths[elements], np.arange(0, len(elements), self._span(world_size)))

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """The items of epoch 0 up to the end of each window."""
        return np.cumsum(self._in_windows(0, 1))

    def total(self) -> int | None:
        """The items of epoch 0, if the lengths are known."""
        totals = self.totals(0, 1)
        return None if totals is None else int(totals[0])

    def alike(self, world_size: int) -> bool:
        """Whether a rank has as many items in each epoch."""
        reads_all = not any(
            isinstance(one, Mix) or getattr(one, "weighted", None) is not None for one in every(self._stage)
        )
        return self._stage.in_order or (world_size == 1 and reads_all)

    def at(self, index: int) -> Any:
        """Item `index` of epoch 0, for one rank."""
        ends = self._ends
        window = int(np.searchsorted(ends, index, side="right"))
        first = int(ends[window - 1]) if window else 0
        entry = next(itertools.islice(self.items([window], Reading(0, 1)), index - first, None), None)
        if entry is None:
            raise InvalidError("an element has fewer items than when it was measured; measure the pipe again")
        items: list[Any] = []
        self.finish([entry], items)
        return items[0]

    def _span(self, world_size: int) -> int:
        """How many visits a window has."""
        n, given = len(self._stage), self._stage.window
        if given is None:
            return 1
        span = given or self._stage.usual_window
        if not given and -(-n // span) < world_size:
            span = max(1, n // (_SHARE * world_size))
        return min(span, n)

    def items(self, windows: Iterable[int], reading: Reading) -> Iterator[Entry]:
        """The entries of some windows."""
        if self.mixes:
            return self._mixed(windows, reading)
        known = Window(self._seed, reading.epoch, 0, reading.begin, reading.left_out)
        return iter(self._above.items(map(self._epochs.visits(reading.epoch).at, windows), known))

    def ahead(self, windows: Iterable[int], epoch: int, world_size: int) -> None:
        """Tells the source which windows the loader reads next, so that one that waits for a network begins to read them."""
        tell = self._above.ahead
        if tell is None:
            return
        visits, span = self._epochs.visits(epoch), self._span(world_size)
        places = [range(number * span, min((number + 1) * span, len(visits))) for number in windows]
        tell(np.array([visits.at(place).element for some in places for place in some], np.int64))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_ends"}

    def _mixed(self, windows: Iterable[int], reading: Reading) -> Iterator[Entry]:
        visits = self._epochs.visits(reading.epoch)
        span = self._span(reading.world_size)
        for number in windows:
            known = Window(self._seed, reading.epoch, number, reading.begin, reading.left_out)
            some = range(number * span, min((number + 1) * span, len(visits)))
            yield from self._above.items(map(visits.at, some), known)

    def finish(self, entries: Sequence[Entry], into: list[Any]) -> None:
        """Adds the items of entries, after the last functions, which any worker can call. After an error, those before
        it are added."""
        if not self.finishes:
            into.extend(map(_ITEM, entries))
        elif all(map(_VISIT, entries)):
            self._call(entries, into)
        else:
            for waits, some in itertools.groupby(entries, lambda entry: entry[0] is not None):
                if waits:
                    self._call([*some], into)
                else:
                    into.extend(map(_ITEM, some))

    def _call(self, entries: Sequence[Entry], into: list[Any]) -> None:
        """`finish` of entries whose last functions were not called."""
        first, maps, tally = len(into), self._maps, current()
        items: Iterator[Any] = map(_ITEM, entries)
        tally.last.begin()
        before = [tally.items(each.number) for each in maps[:-1]]
        for each in maps:
            items = tally.last.given(each.number, each.called, items, entries, self._seed)
        try:
            into.extend(items)
            if len(into) - first < len(entries):  # iterators take StopIteration for their end
                raise StopIteration
        except Exception as error:
            done = len(into) - first  # the stages above the one that failed have given one more
            gave = zip(maps, before)
            failed = next((each for each, count in gave if tally.items(each.number) == count + done), maps[-1])
            failed.failed(error, entries[done][0][0], entries[done][1])

    def sent(self, entries: Sequence[Entry]) -> list[Entry]:
        """Entries for another process."""
        return [((visit.element, visit.draw, visit.epoch), ordinal, item) for visit, ordinal, item in entries]

    def seed(self, entry: Entry) -> int:
        """Of the global generators for `finish`."""
        return seed_at(self._seed, entry[0], 0, entry[1])

    def where(self, entry: Entry) -> str:
        """Names an item in errors."""
        return "an item" if entry[0] is None else self._above.where(entry[0][0], entry[1])

    def all(self) -> Iterator[Any]:
        """The items of epoch 0, for one rank."""
        entries = self.items(range(self.windows(1)[0]), Reading(0, 1))
        if not self.finishes:
            yield from map(_ITEM, entries)
        for entry in entries:
            items: list[Any] = []
            self.finish([entry], items)
            yield from items


@dataclass(frozen=True)
class WalkOrder:
    """samples: visits of an epoch. seed: of the loader. visits: names what determines them. ends: as the program gives
    it, else "uneven", also if the lengths are known. skips: whether bad items are left out."""

    samples: int
    seed: int
    visits: str
    lists: PipeLists
    ends: str
    skips: bool
    chain: Chain | None = field(default=None, compare=False)  # the chain for the stats

    def epoch(self, number: int) -> _WalkEpoch:
        return _WalkEpoch(self, number)

    def __repr__(self) -> str:
        return f"Pipe(visits={self.samples}, chain={self.visits}, seed={self.seed})"


@dataclass(frozen=True)
class _WalkEpoch:
    order: WalkOrder
    number: int

    def shard(self, rank: int, world_size: int, *, ends: str = "uneven", start: int = 0) -> WindowWalk:
        """start: items of this rank before. ends: what a sampler takes if the program says nothing; not looked at."""
        if not 0 <= rank < world_size:
            raise InvalidError(f"rank={rank} is not in 0..{world_size - 1}")
        lists, items, passes = self.order.lists, None, 1
        if self.order.ends != "uneven":
            totals = lists.totals(self.number, world_size)
            assert totals is not None  # `of_loader` has checked it
            items = int(totals.min() if self.order.ends == "drop" else totals.max())
            if totals.any() and not totals.all():
                raise InvalidError(
                    f'ends="{self.order.ends}": rank {int(totals.argmin())} of {world_size} has none of the '
                    f'{int(totals.sum()):,} items of epoch {self.number}; give ends="uneven", a smaller window=, or fewer '
                    "ranks"
                )
            passes = -(-items // int(totals[rank])) + (_MORE if self.order.skips else 0) if items else 1
        in_epochs = functools.partial(self._in_epochs, rank, world_size)
        return WindowWalk(self.number, rank, world_size, *lists.windows(world_size), start, items, passes, in_epochs)

    def _in_epochs(self, rank: int, world_size: int) -> int:
        totals = self.order.lists.totals(0, world_size)
        if totals is None:
            raise TypeError(WITHOUT_LENGTH)
        if not self.order.lists.alike(world_size):
            raise TypeError(
                "the loader of this pipe has no length, as epochs differ: a rank reads other elements in each, or a mix or "
                "weights= do"
            )
        return int({"uneven": totals[rank], "pad": totals.max(), "drop": totals.min()}[self.order.ends])

    def __len__(self) -> int:
        raise without_index("len()")
