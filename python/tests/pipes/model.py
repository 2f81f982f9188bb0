"""docs/spec/pipes.md written again in Python, word for word, slow and without the package. The package
must do what the document says."""

from __future__ import annotations

from collections import Counter
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


Item = tuple[Visit, int, Any]
"""An item with its visit and its ordinal."""


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


class At(NamedTuple):
    """Where items are made: the seed and the epoch of the loader, and the number of the window."""

    seed: int
    epoch: int
    window: int = 0


class Pipe:
    """What a stage is without anything of its own. visits(E, S): of epoch E, with the seed S. items(visits, at): those of
    some visits of a window, each with its visit and its ordinal. stages: the number of random stages, its own included.
    span: the visits of a window, as a stage asks for it; 0: the default; None: no stage mixes or joins items."""

    def __init__(self, *above: Pipe, stages: int = 0, indexed: bool = True, span: int | None = None) -> None:
        self.above = above
        self.stages = stages + max((pipe.stages for pipe in above), default=0)
        self.indexed = indexed and all(pipe.indexed for pipe in above)
        self.span = max((span for span in (span, *(pipe.span for pipe in above)) if span is not None), default=None)

    def elements(self) -> int:
        return self.above[0].elements()

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        return self.above[0].visits(epoch, seed)

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        return self.above[0].items(visits, at)

    def epoch(self, epoch: int, seed: int = 0, rank: int = 0, ranks: int = 1, ends: str = "uneven") -> list[Any]:
        """Of one rank. Other ends are for a pipe without an index."""
        visits = self.visits(epoch, seed)
        if self.indexed:
            return [item for _, _, item in self.items(visits, At(seed, epoch))][rank::ranks]
        if ends != "uneven":
            several = [self.epoch(epoch, seed, each, ranks) for each in range(ranks)]
            count = (min if ends == "drop" else max)(map(len, several))
            return (several[rank] * count)[:count]
        n, span = len(visits), 1 if self.span is None else self.span or 1024
        if self.span == 0 and -(-n // span) < ranks:
            span = max(1, n // (4 * ranks))
        windows = [visits[at : at + span] for at in range(0, n, span)]
        made = []
        for w in range(rank, len(windows), ranks):
            made += [item for _, _, item in self.items(windows[w], At(seed, epoch, w))]
        return made


class Source(Pipe):
    def __init__(self, data: Sequence[Any]) -> None:
        super().__init__()
        self.data = data

    def elements(self) -> int:
        return len(self.data)

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        return [Visit(e, 0, epoch) for e in range(len(self.data))]

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        return [(visit, 0, self.data[visit.element]) for visit in visits]


class Function(Pipe):
    def __init__(self, above: Pipe, function: Callable[..., Any], random: bool = False, **more: Any) -> None:
        super().__init__(above, stages=int(random), **more)
        self.function, self.random, self.stage = function, random, above.stages

    def called(self, visit: Visit, ordinal: int, item: Any, at: At) -> Any:
        if not self.random:
            return self.function(item)
        return self.function(item, generator(seed_of(at.seed, visit, self.stage, ordinal)))


class Map(Function):
    def items(self, visits: list[Visit], at: At) -> list[Item]:
        return [(visit, o, self.called(visit, o, item, at)) for visit, o, item in self.above[0].items(visits, at)]


class Filter(Function):
    def __init__(self, above: Pipe, function: Callable[..., Any], random: bool = False) -> None:
        super().__init__(above, function, random, indexed=False)

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        made = self.above[0].items(visits, at)
        return [(visit, o, item) for visit, o, item in made if self.called(visit, o, item, at)]


class FlatMap(Function):
    def __init__(self, above: Pipe, function: Callable[..., Any], random: bool = False) -> None:
        super().__init__(above, function, random, indexed=False)

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        made: list[Item] = []
        for visit, o, item in self.above[0].items(visits, at):
            for k, one in enumerate(self.called(visit, o, item, at)):
                made.append((visit, k if self.above[0].indexed else chain(o, k), one))
        return made


class Counted(FlatMap):
    """counts: of each element."""

    def __init__(self, above: Pipe, function: Callable[..., Any], counts: list[int], random: bool = False) -> None:
        super().__init__(above, function, random)
        self.indexed, self.counts = True, counts

    def elements(self) -> int:
        return sum(self.counts)

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        return [Visit(e, 0, epoch) for e in range(sum(self.counts))]

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        names = [(e, k) for e, count in enumerate(self.counts) for k in range(count)]
        made: list[Item] = []
        for visit in visits:
            e, k = names[visit.element]
            upper = self.above[0].visits(visit.epoch, at.seed)[e]
            if visit.draw:
                upper = of_draw(upper, visit.draw)
            made.append((visit, 0, FlatMap.items(self, [upper], at)[k][2]))
        return made


class Shuffle(Pipe):
    def __init__(
        self, above: Pipe, seed: int | None = None, weights: list[float] | None = None, window: int = 0
    ) -> None:
        super().__init__(above, span=None if above.indexed else window)
        self.seed, self.weights = seed, weights

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        above, own = self.above[0].visits(epoch, seed), seed if self.seed is None else self.seed
        if self.weights is None:
            order = permutation(len(above), own, epoch, 0, 0)
            return [above[order(p)] for p in range(len(above))]
        drawn = draws(self.weights, own, epoch)
        return [of_draw(above[drawn(p)], p + 1) for p in range(len(above))]

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        made = self.above[0].items(visits, at)
        if self.indexed or not made:
            return made
        mixed = permutation(len(made), at.seed if self.seed is None else self.seed, at.epoch, 2, at.window)
        return [made[mixed(p)] for p in range(len(made))]


class Join(Pipe):
    """P + Q."""

    def elements(self) -> int:
        return sum(side.elements() for side in self.above)

    def raised(self, d: int, visit: Visit) -> Visit:
        return visit._replace(element=visit.element + sum(side.elements() for side in self.above[:d]), inner=(d, visit))

    def visits(self, epoch: int, seed: int) -> list[Visit]:
        return [self.raised(d, visit) for d, side in enumerate(self.above) for visit in side.visits(epoch, seed)]

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        sides, counts = [], Counter()
        for d, side in enumerate(self.above):
            sides.append(side.items([visit.inner[1] for visit in visits if visit.inner[0] == d], at))
            counts.update((d, visit) for visit, _, _ in sides[-1])
        outer = {visit.inner: visit for visit in visits}
        made: list[Item] = []
        for visit in visits:
            d = visit.inner[0]
            for _ in range(counts[visit.inner]):
                inside, ordinal, item = sides[d].pop(0)
                made.append((outer[d, inside], ordinal, item))
        return made


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

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        made: list[Item] = []
        for visit in visits:
            sides = [side.items([inside], at) for side, inside in zip(self.above, visit.inner)]
            made += [(visit, several[0][1], tuple(item for *_, item in several)) for several in zip(*sides)]
        return made


class Sized(Pipe):
    """.batch(n, size=len): an item is the list of the items of a batch."""

    def __init__(self, above: Pipe, n: int) -> None:
        super().__init__(above, indexed=False, span=0)
        self.n = n

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        made = sorted(self.above[0].items(visits, at), key=lambda item: -len(item[2]))
        lengths, share = [len(item) for *_, item in made], 16
        while True:
            ends = cut(lengths, self.n, share)
            spaces = [lengths[first] * (end - first) for first, end in zip([0, *ends], ends)]
            if 75 * self.n > sum(lengths) or 40 * (sum(spaces) - sum(lengths)) <= sum(spaces):
                break
            share *= 2
        batches = [made[first:end] for first, end in zip([0, *ends], ends)]
        mixed = permutation(len(batches), chain(at.seed, 3), at.epoch, 2, at.window) if batches else None
        batches = [batches[mixed(j)] for j in range(len(batches))]
        return [(*batch[0][:2], [item for *_, item in batch]) for batch in batches]


def cut(lengths: list[int], n: int, share: int) -> list[int]:
    """Where batches end: that of the last one is the number of items."""
    best: list[tuple[int, list[int]]] = [(0, [])]  # the best cuts of the first k items
    for end in range(1, len(lengths) + 1):
        firsts = [first for first in range(end) if lengths[first] * (end - first) <= n]
        cost = {first: best[first][0] + share * lengths[first] * (end - first) + n for first in firsts}
        first = min(firsts, key=cost.__getitem__)  # several may be best: the least
        best.append((cost[first], [*best[first][1], end]))
    return best[-1][1]


class Packed(Pipe):
    """.pack(length), of lists of tokens. A row is a tuple of tokens, segments and positions."""

    def __init__(self, above: Pipe, length: int) -> None:
        super().__init__(above, indexed=False, span=0)
        self.length = length

    def items(self, visits: list[Visit], at: At) -> list[Item]:
        made = [item for item in self.above[0].items(visits, at) if len(item[2])]
        rows: list[list[int]] = []
        for k in sorted(range(len(made)), key=lambda k: -len(made[k][2])):
            spaces = [self.length - sum(len(made[other][2]) for other in row) for row in rows]
            room = [row for row, space in enumerate(spaces) if space >= len(made[k][2])]
            if room:
                rows[min(room, key=spaces.__getitem__)].append(k)
            else:
                rows.append([k])
        return [self.row([made[k] for k in row]) for row in sorted(map(sorted, rows))]

    def row(self, items: list[Item]) -> Item:
        columns: Any = [], [], []
        for number, (*_, tokens) in enumerate(items, 1):
            for position, token in enumerate(tokens):
                for column, value in zip(columns, (token, number, position)):
                    column.append(value)
        return *items[0][:2], tuple(column + [0] * (self.length - len(column)) for column in columns)


def every(pipe: Pipe) -> list[Pipe]:
    return [pipe, *(each for above in pipe.above for each in every(above))]


def varies(pipe: Pipe) -> bool:
    """Whether the lists of elements have other lengths in other epochs."""
    if pipe.indexed:
        return False
    if isinstance(pipe, (Filter, FlatMap)):
        return pipe.stages > 0 or any(isinstance(each, Zip) and not each.in_order for each in every(pipe))
    return any(map(varies, pipe.above))


def batches(items: list[Any], n: int, drop_last: bool = False) -> list[list[Any]]:
    made = [items[at : at + n] for at in range(0, len(items), n)]
    return [batch for batch in made if len(batch) == n or not drop_last]
