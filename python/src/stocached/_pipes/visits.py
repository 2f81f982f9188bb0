"""The visits of a pipe in one epoch: which element is read at a position, and how often before."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .._datasets.lists import no_seed, not_left_out
from .._order.concatenation import Concatenation
from .._order.order import MixedOrder, Order, WeightedOrder
from .._random.sample_seeds import chained, sample_seed


class Visit(NamedTuple):
    """element: which one is read. draw: 0, or which draw of the epoch it is, where an element may come several times.
    inner: of a zip, the visits of its sides; of + and mix, the side and its visit."""

    element: int
    draw: int
    epoch: int
    inner: Any = None


def seed_at(seed: int, visit: tuple[Any, ...], stage: int, ordinal: int = 0) -> int:
    """The seed of the random numbers that a stage draws for an item of a visit, or of the first numbers of one."""
    element, draw, epoch = visit[:3]
    return staged(sample_seed(epoch_key(seed, epoch), 0, element), stage, draw, ordinal)


def staged(base: int, stage: int, draw: int = 0, ordinal: int = 0) -> int:
    """base: the seed of the first random stage, for the first item of the same visit without its draw."""
    return base if stage == draw == ordinal == 0 else chained(base, stage, ordinal, draw)


@functools.lru_cache(maxsize=16)
def epoch_key(seed: int, epoch: int) -> int:
    return sample_seed(seed, epoch, 0)


@dataclass(frozen=True)
class Window:
    """What the stages of a pipe without an index know when they make the items of a window.

    seed: of the loader. epoch: of the loader. begin, left_out: of `Reading`."""

    seed: int = 0
    epoch: int = 0
    number: int = 0
    begin: Callable[[Any], None] = no_seed
    left_out: Callable[[str, Exception], None] = not_left_out


class Visits(Protocol):
    """The visits of one epoch."""

    def __len__(self) -> int: ...

    def at(self, position: int) -> Visit: ...

    def elements(self) -> npt.NDArray[np.int64]:
        """Those of all visits, in order."""


class Epochs:
    """The visits of the epochs of a stage, of which it keeps the last two. seed: of the loader."""

    def __init__(self, stage: Any, seed: int) -> None:
        self._stage, self.seed = stage, seed
        self._last: OrderedDict[int, Visits] = OrderedDict()

    def visits(self, epoch: int) -> Visits:
        visits = self._last.get(epoch)
        if visits is None:
            visits = self._last[epoch] = self._stage.visits(epoch, self.seed)
            if len(self._last) > 2:
                self._last.popitem(last=False)
        return visits

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": OrderedDict()}


class InOrder:
    """Each element once, from the first to the last."""

    def __init__(self, elements: int, epoch: int) -> None:
        self._elements, self._epoch = elements, epoch

    def __len__(self) -> int:
        return self._elements

    def at(self, position: int) -> Visit:
        return Visit(position, 0, self._epoch)

    def elements(self) -> npt.NDArray[np.int64]:
        return np.arange(self._elements)


class Shuffled:
    """Those of a pipe, in a permutation, or drawn by weights."""

    def __init__(self, above: Visits, order: Order | WeightedOrder, epoch: int) -> None:
        self._above, self._drawn = above, isinstance(order, WeightedOrder)
        self._order = order.epoch(epoch)

    def __len__(self) -> int:
        return len(self._order)

    def at(self, position: int) -> Visit:
        visit = self._above.at(self._order.at(position))
        return drawn(visit, position + 1) if self._drawn else visit

    def elements(self) -> npt.NDArray[np.int64]:
        return self._above.elements()[self._order.indices(0, len(self))]


def drawn(visit: Visit, draw: int) -> Visit:
    """A visit, and the visits inside, of this draw."""
    inner = visit.inner
    if inner is not None:
        inner = tuple(drawn(each, draw) if isinstance(each, Visit) else each for each in inner)
    return visit._replace(draw=draw, inner=inner)


class Joined:
    """Those of one side after the other. elements: of each side."""

    def __init__(self, sides: Sequence[Visits], elements: Concatenation) -> None:
        self._sides, self._elements = sides, elements
        self._positions = Concatenation(map(len, sides))

    def __len__(self) -> int:
        return len(self._positions)

    def at(self, position: int) -> Visit:
        d, local = self._positions.locate(position)
        return raised(self._elements, d, self._sides[d].at(local))

    def elements(self) -> npt.NDArray[np.int64]:
        return np.concatenate([side.elements() + self._elements.index(d, 0) for d, side in enumerate(self._sides)])


def raised(elements: Concatenation, d: int, visit: Visit) -> Visit:
    """The visit of + or mix that has this visit of side d."""
    return visit._replace(element=elements.index(d, visit.element), inner=(d, visit))


class Zipped:
    """Side by side. in_order: whether the elements of all sides are in one order."""

    def __init__(self, sides: Sequence[Visits], epoch: int, in_order: bool) -> None:
        self._sides, self._epoch, self._in_order = sides, epoch, in_order
        self._length = min(map(len, sides))

    def __len__(self) -> int:
        return self._length

    def at(self, position: int) -> Visit:
        sides = tuple(side.at(position) for side in self._sides)
        return sides[0]._replace(inner=sides) if self._in_order else Visit(position, 0, self._epoch, sides)

    def elements(self) -> npt.NDArray[np.int64]:
        return self._sides[0].elements() if self._in_order else np.arange(self._length)


class Mixed:
    """Those of several sides by ratio. elements: of all sides. side: gives the visits of a side in an epoch."""

    _PASS = 2**32  # a side that begins again reads the epoch this much later

    def __init__(
        self, mix: MixedOrder, elements: Concatenation, side: Callable[[int, int], Visits], epoch: int
    ) -> None:
        self._mix, self._elements, self._side, self._epoch = mix, elements, side, epoch
        self._lengths = [order.samples for order in mix.orders]
        self._most = 2**40 // len(self._lengths)  # items of a side that the turns count
        self._length = len(mix.epoch(0))
        orders = [Order(self._most, "sequential") for _ in self._lengths]
        self._turns = MixedOrder(orders, mix.ratios, mix.seed, "length", self._length).epoch(0)

    def __len__(self) -> int:
        return self._length

    def at(self, position: int) -> Visit:
        d, item = divmod(self._turns.at(position), self._most)
        n = self._lengths[d]
        if self._mix.stop == "length":
            epoch, local = divmod(self._epoch * self._count(d) + item, n)
        else:
            epoch, local = self._epoch + item // n * self._PASS, item % n
        visit = raised(self._elements, d, self._side(d, epoch).at(local))
        return visit._replace(draw=position + 1, epoch=self._epoch)

    def elements(self) -> npt.NDArray[np.int64]:
        return np.fromiter((self.at(p).element for p in range(self._length)), np.int64, self._length)

    @functools.cache  # noqa: B019 - it lives as long as the epoch
    def _count(self, d: int) -> int:
        """The items of side d in an epoch."""
        for last in range(self._length, 0, -4096):
            first = max(0, last - 4096)
            sides, items = divmod(self._turns.indices(first, last - first), self._most)
            if (sides == d).any():
                return int(items[sides == d].max()) + 1
        return 0
