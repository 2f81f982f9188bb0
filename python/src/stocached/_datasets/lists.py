"""What a dataset of lists is. Its elements have any number of items each, so no item has an index. Windows of elements
are read one after the other: window w of an epoch by rank w mod the number of ranks (docs/spec/pipes.md)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .._common.errors import InvalidError, StateError
from .._common.numbers import number_in, same
from .._order.walk import Walk


def no_seed(visit: Any) -> None:
    """The generators of the program stay as they are."""


def not_left_out(name: str, error: Exception) -> None:
    raise error


@dataclass(frozen=True)
class Reading:
    """How the windows of an epoch are read. begin: called with each visit of an element before it is read. left_out:
    called with the name of an item and the error that it made; it returns if the item is to be left out, and raises the
    error if not."""

    epoch: int
    world_size: int
    begin: Callable[[Any], None] = no_seed
    left_out: Callable[[str, Exception], None] = not_left_out


Entry = tuple[Any, int, Any]
"""An item with its visit, None if its last functions were called, and its ordinal."""


class WithoutIndex:
    """What a loader has in place of a dataset, of a pipe without an index. finishes: whether workers call functions for
    items that were read."""

    finishes = False

    def __getitem__(self, index: int) -> NoReturn:
        raise TypeError("the items of this pipe have no index")

    def __len__(self) -> int:
        raise TypeError(WITHOUT_LENGTH)


class PackedLists(ABC):
    """A dataset of the lists of elements, for a cache. A list is an array of bytes, and takes long to read, so looks and
    checks read as few as they can."""

    @abstractmethod
    def encoded(self, packed: Any) -> list[tuple[str, Any]]:
        """As `Structure.encode`. Bytes of equal lists may differ."""


@dataclass
class WindowWalk(Walk):
    """The windows of an epoch that a rank reads, and its place in them.

    windows: of an epoch. span: elements of a window. window, skip: the next item is number `skip` of those from this
    window on. given: items before it, of this rank.

    items: how many the rank gives, if the program asks for equal ends; None: all of its windows. Then it may read its
    windows again, `passes` times in all: window w + t is w once more, t being `turn`. in_epochs: gives the items of
    this rank in each epoch. It raises TypeError if that is unknown, or epochs differ."""

    epoch: int
    rank: int
    world_size: int
    windows: int
    span: int
    given: int = 0
    items: int | None = None
    passes: int = 1
    in_epochs: Callable[[], int] = lambda: 0
    window: int = field(init=False)
    skip: int = field(init=False)

    def __post_init__(self) -> None:
        self.window, self.skip = self.rank, self.given

    def rest(self) -> range:
        """The windows that are left."""
        end = (self.passes - 1) * turn(self.windows, self.world_size) + self.windows
        return range(self.window, end, self.world_size)

    def left(self, batch_size: int, drop_last: bool) -> float:
        """The items of the batches that are left, at most."""
        if self.items is None:
            return math.inf
        items = self.items - self.given
        return items - items % batch_size if drop_last else items

    def reach(self, window: int, skip: int, given: int) -> None:
        self.window, self.skip, self.given = window, skip, given

    def state(self, between: dict[str, Any], ended: bool) -> dict[str, Any]:
        if ended:
            return between
        place = {"epoch": self.epoch, "position": self.given, "window": self.window, "skip": self.skip}
        return between | place | {"span": self.span, "ranks": [self.rank, self.world_size]}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continues from a state. With that of another rank, it counts the items from the first window on."""
        if not self.given:
            return
        if self.items is not None and self.given > self.items:
            raise StateError(f"the state's position is {self.given}, and this rank has {self.items} items in an epoch")
        ranks = state.get("ranks")
        if not (isinstance(ranks, (list, tuple)) and len(ranks) == 2 and all(type(number) is int for number in ranks)):
            raise StateError(
                f"the state's ranks={ranks!r:.100} are not the rank and the number of ranks, such as [0, 2]"
            )
        rank, world_size = ranks
        if world_size != self.world_size:
            raise StateError(
                f"the state is in the middle of an epoch of world_size={world_size}, and this job has {self.world_size}; ranks "
                "share the windows of this pipe, so continue with as many, or from a state between two epochs"
            )
        if not same(state.get("span"), self.span):
            raise StateError(
                f"the state is of windows of {state.get('span')!r:.100} elements, this pipe has windows of {self.span}"
            )
        if rank == self.rank:
            window, skip = (number_in(state, name) for name in ("window", "skip"))
            end = self.rest().stop + self.world_size
            if window >= end or window % self.world_size != self.rank:
                raise StateError(
                    f"the state's window={window} is none of rank {self.rank} of {self.world_size}, whose windows are below {end}"
                )
            self.reach(window, skip, self.given)

    def __len__(self) -> int:
        return self.in_epochs()

    def batches(self, batch_size: int, drop_last: bool) -> int:
        return len(self) // batch_size if drop_last else -(-len(self) // batch_size)


def turn(windows: int, world_size: int) -> int:
    """How much further on a rank reads its windows again."""
    return -(-windows // world_size) * world_size


WITHOUT_LENGTH = (
    "this pipe has no length: .filter, .flat_map without count=, source(parts=), .pack or batches by size= give a number of items "
    "that only an epoch shows; give .flat_map(..., count=), or call measure() of the pipe (not with .pack or size=)"
)


def without_index(what: str) -> InvalidError:
    return InvalidError(f"{what} needs an index, and this pipe has none: {WITHOUT_LENGTH.split(': ', 1)[1]}")
