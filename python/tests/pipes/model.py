"""docs/spec/pipes.md written again in Python, word for word, slow and without the package. The package
must do what the document says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from order_document import Mix, chain, draws, permutation

SEQUENTIAL, STOPS = 0, ("first", "all", "length")


class Visit(NamedTuple):
    """inner: the visits of the sides of zip; the side and its visit of + and mix."""

    element: int
    draw: int
    epoch: int
    inner: Any = None


def generator(seed: int) -> np.random.Generator:
    made = np.random.Generator(np.random.PCG64())
    state = {"state": seed * 0xDA942042E4DD58B5 + 1, "inc": seed << 1 | 1}
    made.bit_generator.state = {"bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0}
    made.integers(2**63)
    return made


def seed_of(seed: int, visit: Visit, stage: int, ordinal: int) -> int:
    key = chain(seed, visit.epoch, 0)
    more = () if stage == ordinal == visit.draw == 0 else (stage, ordinal, visit.draw)
    return chain(key, 0, visit.element, *more)


def of_draw(visit: Visit, draw: int) -> Visit:
    inner = tuple(of_draw(each, draw) if isinstance(each, Visit) else each for each in visit.inner or ())
    return visit._replace(draw=draw, inner=inner)


class Pipe:
    """What a stage is without anything of its own. visits(E, S): of epoch E, with the seed S. items(visit, S): of one
    visit. stages: the number of random stages, its own included."""

    def __init__(self, *above: Pipe, stages: int = 0) -> None:
        self.above = above
        self.stages = stages + max((pipe.stages for pipe in above), default=0)

    def elements(self) -> int:
        return self.above[0].elements()

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        return self.above[0].visits(epoch, seed)

    def items(self, visit: Visit, seed: int) -> list[Any]:
        return self.above[0].items(visit, seed)

    def epoch(self, epoch: int, seed: int = 0) -> list[Any]:
        return [item for visit in self.visits(epoch, seed) for item in self.items(visit, seed)]


class Source(Pipe):
    def __init__(self, data: Sequence[Any]) -> None:
        super().__init__()
        self.data = data

    def elements(self) -> int:
        return len(self.data)

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        return [Visit(e, 0, epoch) for e in range(len(self.data))]

    def items(self, visit: Visit, seed: int) -> list[Any]:
        return [self.data[visit.element]]


class Map(Pipe):
    def __init__(self, above: Pipe, function: Callable[..., Any], random: bool = False) -> None:
        super().__init__(above, stages=int(random))
        self.function, self.random, self.stage = function, random, above.stages

    def items(self, visit: Visit, seed: int) -> list[Any]:
        made = self.above[0].items(visit, seed)
        if not self.random:
            return [self.function(item) for item in made]
        return [self.function(item, generator(seed_of(seed, visit, self.stage, k))) for k, item in enumerate(made)]


class Shuffle(Pipe):
    def __init__(self, above: Pipe, seed: int | None = None, weights: list[float] | None = None) -> None:
        super().__init__(above)
        self.seed, self.weights = seed, weights

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        above, own = self.above[0].visits(epoch, seed), seed if self.seed is None else self.seed
        if self.weights is None:
            order = permutation(len(above), own, epoch, 0, 0)
            return [above[order(p)] for p in range(len(above))]
        drawn = draws(self.weights, own, epoch)
        return [of_draw(above[drawn(p)], p + 1) for p in range(len(above))]


class Join(Pipe):
    """P + Q."""

    def elements(self) -> int:
        return sum(side.elements() for side in self.above)

    def raised(self, d: int, visit: Visit) -> Visit:
        return visit._replace(element=visit.element + sum(side.elements() for side in self.above[:d]), inner=(d, visit))

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        return [self.raised(d, visit) for d, side in enumerate(self.above) for visit in side.visits(epoch, seed)]

    def items(self, visit: Visit, seed: int) -> list[Any]:
        d, inside = visit.inner
        return self.above[d].items(inside, seed)


class Mixed(Join):
    def __init__(self, *sides: Pipe, weights: list[int], seed: int = 0, stop: str = "first", length: int = 0) -> None:
        super().__init__(*sides)
        self.weights, self.seed, self.stop, self.length = weights, seed, stop, length

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        sizes = [len(side.visits(0, 0)) for side in self.above]
        orders = [[SEQUENTIAL, n, 0, 0, 0] for n in sizes]
        mix = Mix(orders, self.weights, self.seed, STOPS.index(self.stop), self.length)
        made = []
        for p, (d, item) in enumerate(mix.turns):
            if self.stop == "length":
                number, position = divmod(epoch * mix.counts[d] + item, sizes[d])
            else:
                number, position = epoch + item // sizes[d] * 2**32, item % sizes[d]
            visit = self.raised(d, self.above[d].visits(number, seed)[position])
            made.append(visit._replace(draw=p + 1, epoch=epoch))
        return made


class Zip(Pipe):
    """in_order: whether the elements of both sides are in one order."""

    def __init__(self, *above: Pipe, in_order: bool) -> None:
        super().__init__(*above)
        self.in_order = in_order

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        pairs = list(zip(*(side.visits(epoch, seed) for side in self.above)))
        if self.in_order:
            return [pair[0]._replace(inner=pair) for pair in pairs]
        return [Visit(p, 0, epoch, pair) for p, pair in enumerate(pairs)]

    def items(self, visit: Visit, seed: int) -> list[Any]:
        sides = [side.items(inside, seed) for side, inside in zip(self.above, visit.inner)]
        return list(zip(*sides))


def rank_items(items: list[Any], rank: int, ranks: int) -> list[Any]:
    """Of one rank, with ends="uneven"."""
    return items[rank::ranks]


def batches(items: list[Any], n: int, drop_last: bool = False) -> list[list[Any]]:
    made = [items[at : at + n] for at in range(0, len(items), n)]
    return [batch for batch in made if len(batch) == n or not drop_last]
