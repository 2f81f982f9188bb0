"""Several pipes as one: one after the other, by ratio, and side by side."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.cached import cached_property
from .._common.errors import (
    InvalidError,
)
from .._common.numbers import whole
from .._datasets.tally import current
from .._order.concatenation import Concatenation
from .._order.order import MixedOrder, Order
from . import element_datasets, visits
from .stage import Item, Stage
from .visits import Visit, Visits, Window


class Join(Stage):
    """Pipes one after the other."""

    takes_all = False

    def __init__(self, *above: Stage) -> None:
        super().__init__(*above)
        self.refuse_batches()

    @cached_property
    def counts(self) -> Concatenation:
        """The elements of the sides."""
        return Concatenation(side.elements() for side in self.above)

    def elements(self) -> int:
        return len(self.counts)

    def __len__(self) -> int:
        return sum(map(len, self.above))

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.Joined([side.visits(epoch, seed) for side in self.above], self.counts)

    @cached_property
    def rows(self) -> Any:
        return element_datasets.Joined([side.rows for side in self.above], self)

    def made_of(self, lists: Any) -> Any:
        return ("+", *(side.made_of(lists) for side in self.above))

    def visit_of(self, element: int) -> Visit:
        d, local = self.counts.locate(element)
        return visits.raised(self.counts, d, self.above[d].visit_of(local))

    def item(self, visit: Visit, seed: int) -> Any:
        d, inside = visit.inner
        return self.above[d].item(inside, seed)

    @property
    def noter(self) -> Any:
        return self

    def note(self, visit: Visit) -> None:
        d, inside = visit.inner
        side = self.above[d]
        current().took(side.number)
        if side.noter is not None:
            side.noter.note(inside)

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        if self.window is None:
            return self._in_turn(some, window)
        return self._mixed(list(some), window)

    def _in_turn(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        for visit in some:
            d, inside = visit.inner
            for _, ordinal, item in self.above[d].items([inside], window):
                yield visit, ordinal, item

    def _mixed(self, some: list[Visit], window: Window) -> Iterator[Item]:
        """Sides mix the items of their visits in the window. Each visit has as many places as it has items."""
        outer = {visit.inner: visit for visit in some}
        made: list[deque[Item]] = []
        counts: Counter[Any] = Counter()
        for d, side in enumerate(self.above):
            own = deque(side.items([visit.inner[1] for visit in some if visit.inner[0] == d], window))
            counts.update((d, visit) for visit, _, _ in own)
            made.append(own)
        for visit in some:
            d = visit.inner[0]
            for _ in range(counts[visit.inner]):
                inside, ordinal, item = made[d].popleft()
                yield outer[d, inside], ordinal, item

    def lengths(self) -> npt.NDArray[np.int64] | None:
        sides = [side.lengths() for side in self.above]
        known = [side for side in sides if side is not None]
        return np.concatenate(known) if len(known) == len(sides) else None

    def measure(self, workers: int) -> None:
        for side in self.above:
            side.measure(workers)

    def source_item(self, visit: Visit) -> Any:
        d, inside = visit.inner
        return self.above[d].source_item(inside)

    @cached_property
    def in_order(self) -> bool:
        return all(side.in_order for side in self.above)

    def where(self, element: int, ordinal: int | None = None) -> str:
        d, local = self.counts.locate(element)
        return self.above[d].where(local, ordinal)

    def shown(self) -> str:
        return f"+ ({len(self.above)} pipes, one after the other)"


class Mix(Join):
    """ratios: whole numbers. stop: "first", "all", or how many items an epoch has."""

    def __init__(self, above: Sequence[Stage], ratios: list[int], seed: int, stop: str | int) -> None:
        super().__init__(*above)
        self.ratios, self.stop = ratios, stop
        if stop == "all" and not self.indexed:
            raise self.refuse('stop="all" needs pipes with an index; give stop="first", or a number of elements')
        orders, seed = [Order(len(side), "sequential") for side in above], whole("seed", seed)
        if isinstance(stop, str):
            self.order = MixedOrder(orders, ratios, seed, stop)  # type: ignore[arg-type]
        else:
            self.order = MixedOrder(orders, ratios, seed, "length", stop)
        self._length = len(self.order.epoch(0))

    def __len__(self) -> int:
        return self._length

    def visits(self, epoch: int, seed: int) -> Visits:
        side = functools.lru_cache(maxsize=4 * len(self.above))(lambda d, number: self.above[d].visits(number, seed))
        return visits.Mixed(self.order, self.counts, side, epoch)

    in_order = False
    order_key = None

    def _own_shape(self, seed: int) -> str:
        return repr(self.order)

    def shown(self) -> str:
        return f"mix({len(self.above)} pipes, weights={self.ratios}, stop={self.stop!r})"


class Zip(Stage):
    """Pipes side by side."""

    def __init__(self, above: Sequence[Stage], strict: bool) -> None:
        super().__init__(*above)
        self.refuse_batches()
        lengths = [len(side) for side in above]
        if strict and len(set(lengths)) > 1:
            raise self.refuse(
                f"its pipes have {', '.join(f'{n:,}' for n in lengths)} items; give strict=False to end with the shortest"
            )
        orders = {side.order_key for side in above}
        self.one_order = len(orders) == 1 and None not in orders and len(set(lengths)) == 1
        sources = {tuple(map(id, side.sources())) for side in above}
        if not self.indexed and (len(sources) > 1 or not self.one_order or self.window is not None):
            raise self.refuse(
                "a pipe without an index is zipped with one over the same source object, in the same order; shuffle below "
                "the zip, or give .flat_map(..., count=)"
            )

    @cached_property
    def fixed(self) -> bool:
        return self.one_order and super().fixed

    def elements(self) -> int:
        return self.above[0].elements() if self.one_order else len(self)

    def __len__(self) -> int:
        return min(map(len, self.above))

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.Zipped([side.visits(epoch, seed) for side in self.above], epoch, self.one_order)

    @cached_property
    def rows(self) -> Any:
        return element_datasets.Zipped([side.rows for side in self.above])

    def made_of(self, lists: Any) -> Any:
        return (".zip", *(side.made_of(lists) for side in self.above))

    def visit_of(self, element: int) -> Visit:
        inner = tuple(side.visit_of(element) for side in self.above)
        return inner[0]._replace(inner=inner)

    def item(self, visit: Visit, seed: int) -> Any:
        return tuple(side.item(inside, seed) for side, inside in zip(self.above, visit.inner))

    @cached_property
    def noter(self) -> Any:
        return self if any(side.noter is not None for side in self.above) else None

    def note(self, visit: Visit) -> None:
        for side, inside in zip(self.above, visit.inner):
            if side.noter is not None:
                side.noter.note(inside)

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        bad: list[str] = []

        def left_out(name: str, error: Exception) -> None:
            window.left_out(name, error)
            bad.append(name)

        known = dataclasses.replace(window, left_out=left_out)
        for visit in some:
            sides = [list(side.items([inside], known)) for side, inside in zip(self.above, visit.inner)]
            if bad:  # the others have no partner
                both = set.intersection(*({ordinal for _, ordinal, _ in side} for side in sides))
                sides = [[item for item in side if item[1] in both] for side in sides]
                bad.clear()
            if len(set(map(len, sides))) > 1:
                counts = ", ".join(f"{len(side):,}" for side in sides)
                raise self.refuse(
                    f"its pipes have {counts} items of {self.where(visit.element)}; give them equally many"
                )
            for several in zip(*sides):
                yield visit, several[0][1], tuple(item for _, _, item in several)

    @cached_property
    def in_order(self) -> bool:
        return self.one_order and self.above[0].in_order

    @property
    def order_key(self) -> Any:
        return "in order" if self.in_order else None

    def where(self, element: int, ordinal: int | None = None) -> str:
        return self.above[0].where(element, ordinal) if self.one_order else f"item {element} of {self.shown()}"

    def shown(self) -> str:
        return f".zip({len(self.above)} pipes, side by side)"


def ratios_of(weights: Sequence[float] | None, temperature: float | None, sizes: list[int]) -> list[int]:
    """The ratios of a mix. Raises InvalidError."""
    if weights is not None and temperature is not None:
        raise InvalidError("mix(): give weights= or temperature=, not both")
    if weights is None:
        t = 1.0 if temperature is None else float(temperature)
        if not t > 0:
            raise InvalidError(f"mix(): temperature={temperature!r} is not above 0")
        # Whole numbers are exact, so all items come.
        weights = sizes if t == 1 and sum(sizes) < 2**31 else [n ** (1 / t) for n in sizes]
    elif len(weights) != len(sizes):
        raise InvalidError(f"mix(): {len(sizes)} pipes and {len(weights)} weights; there is one for each pipe")
    for d, weight in enumerate(weights):
        if not (weight > 0 and math.isfinite(weight)):
            raise InvalidError(f"mix(): weights[{d}]={weight!r} is not a finite number above 0")
    if all(isinstance(weight, (int, np.integer)) for weight in weights):
        return [int(weight) for weight in weights]
    total = math.fsum(weights)
    return [max(1, round(weight / total * 10**6)) for weight in weights]
