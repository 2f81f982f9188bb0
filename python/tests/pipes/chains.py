"""Chains, each as a pipe of the package and as one of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import model
import numpy as np
from numpy.random import Generator

from stocached import Pipe, mix, source

SIZE = "16MiB"


@dataclass(frozen=True)
class Both:
    pipe: Pipe
    plain: model.Pipe

    def map(self, function: Callable[..., Any], random: bool = False) -> Both:
        return Both(self.pipe.map(function), model.Map(self.plain, function, random))

    def noise(self, function: Callable[..., Any]) -> Both:
        return self.map(function, random=True)

    def cache(self, **options: Any) -> Both:
        return Both(self.pipe.cache(SIZE, **options), model.Pipe(self.plain))

    def filter(self, function: Callable[..., Any], random: bool = False) -> Both:
        return Both(self.pipe.filter(function), model.Filter(self.plain, function, random))

    def flat_map(self, function: Callable[..., Any], random: bool = False) -> Both:
        return Both(self.pipe.flat_map(function), model.FlatMap(self.plain, function, random))

    def counted(self, function: Callable[..., Any], count: Any, random: bool = False) -> Both:
        n = self.plain.elements()
        counts = [count] * n if isinstance(count, int) else list(map(count, range(n))) if callable(count) else count
        return Both(self.pipe.flat_map(function, count=count), model.Counted(self.plain, function, counts, random))

    def shuffle(self, seed: int | None = None, window: int | None = None) -> Both:
        return Both(self.pipe.shuffle(seed=seed, window=window), model.Shuffle(self.plain, seed, window=window or 0))

    def weigh(self, weights: list[float], seed: int | None = None) -> Both:
        return Both(self.pipe.shuffle(seed=seed, weights=weights), model.Shuffle(self.plain, seed, weights))

    def zip(self, other: Both, *, in_order: bool) -> Both:
        return Both(self.pipe.zip(other.pipe), model.Zip(self.plain, other.plain, in_order=in_order))

    def __add__(self, other: Both) -> Both:
        return Both(self.pipe + other.pipe, model.Join(self.plain, other.plain))


def numbers(n: int, first: int = 0) -> Both:
    data = list(range(first, first + n))
    return Both(source(data), model.Source(data))


def parts(function: Callable[..., Any], n: int, random: bool = False) -> Both:
    plain = model.FlatMap(model.Source(range(n)), function, random)
    return Both(source(function, parts=n), plain)


def mixed(*sides: Both, weights: list[int], seed: int = 0, stop: str | int = "first") -> Both:
    how = {"stop": stop} if isinstance(stop, str) else {"stop": "length", "length": stop}
    return Both(
        mix([side.pipe for side in sides], weights=weights, seed=seed, stop=stop),
        model.Mixed(*(side.plain for side in sides), weights=weights, seed=seed, **how),
    )


def double(x: Any) -> Any:
    return 2 * x


def negative(x: Any) -> Any:
    return -x


def swapped(pair: Any) -> Any:
    return pair[1], pair[0]


def total(pair: Any) -> Any:
    return pair[0] + pair[1]


def noisy(x: Any, generator: Generator) -> Any:
    return x + int(generator.integers(1000)) / 1024


def beside(x: Any, generator: Generator) -> Any:
    return x, int(generator.integers(99))


def row(x: int) -> Any:
    return np.full(5, x, np.float32)


def noisy_row(x: Any, generator: Generator) -> Any:
    return x + generator.random(5, np.float32)


def even(x: Any) -> bool:
    return x % 2 == 0


def odd_pair(pair: Any) -> bool:
    return pair[0] % 2 < 1


def lucky(x: Any, generator: Generator) -> bool:
    return bool(generator.random() < 0.6)


def below(x: int) -> Any:
    """The numbers below x mod 7."""
    return range(x % 7)


def tagged(x: int) -> Any:
    for k in range(x % 5):
        yield 100 * x + k


def pieces(x: int) -> Any:
    return [x, x + 1000]


def three(x: int) -> Any:
    return [10 * x, 10 * x + 1, 10 * x + 2]


def as_many(x: int) -> int:
    return x % 5


def several(x: int, generator: Generator) -> Any:
    return [int(generator.integers(1000)) for _ in range(int(generator.integers(4)))]


def odd_never(x: Any) -> bool:
    return x % 2 == 1


def any_row(x: Any) -> bool:
    return bool(x[0] % 3)


def forked(n: int) -> Both:
    """Two lists over one source."""
    data = list(range(n))
    base = Both(source(data), model.Source(data))
    left = base.flat_map(tagged).noise(noisy)
    return left.zip(base.flat_map(tagged).noise(noisy).map(negative), in_order=True)


def rows_of(x: int) -> Any:
    return [np.full(5, 10 * x + k, np.float32) for k in range(x % 3)]


def _weights(n: int) -> list[float]:
    return [float(k % 4) for k in range(n)]


INDEXED: dict[str, Callable[[], Both]] = {
    "source": lambda: numbers(23),
    "map": lambda: numbers(23).map(double),
    "maps": lambda: numbers(23).map(double).map(negative),
    "random": lambda: numbers(23).noise(noisy),
    "random twice": lambda: numbers(23).noise(noisy).map(double).noise(noisy),
    "shuffle": lambda: numbers(23).shuffle(),
    "shuffle, seed": lambda: numbers(300).shuffle(seed=7),
    "shuffle above": lambda: numbers(23).shuffle().map(double).noise(noisy),
    "shuffle below": lambda: numbers(23).map(double).noise(noisy).shuffle(seed=5),
    "cache": lambda: numbers(23).map(double).cache(),
    "cache, arrays": lambda: numbers(23).map(row).cache().map(negative),
    "cache, random below": lambda: numbers(23).map(row).cache().shuffle(seed=3).noise(noisy_row),
    "cache, random twice below": lambda: numbers(23).map(row).cache().noise(noisy_row).shuffle().noise(noisy_row),
    "shuffle above a cache": lambda: numbers(23).shuffle(seed=2).map(row).cache().noise(noisy_row),
    "two caches": lambda: numbers(23).map(double).cache().map(row).cache().shuffle(),
    "weights": lambda: numbers(23).weigh(_weights(23), 4),
    "weights, cache": lambda: numbers(23).map(row).cache().weigh(_weights(23)),
    "weights, random below": lambda: numbers(23).map(row).cache().weigh(_weights(23)).noise(noisy_row),
    "weights, random above": lambda: numbers(23).noise(noisy).weigh(_weights(23), 2),
    "join": lambda: numbers(9) + numbers(14, 100),
    "join, maps": lambda: numbers(9).map(double) + numbers(14, 100).map(negative),
    "join, random": lambda: (numbers(9).noise(noisy) + numbers(14, 100)).noise(noisy),
    "join, shuffle below": lambda: (numbers(9).map(double) + numbers(14, 100)).shuffle(seed=1),
    "join, shuffled sides": lambda: numbers(9).shuffle(seed=1) + numbers(14, 100).shuffle(),
    "join of joins": lambda: (numbers(3) + numbers(4, 50)) + (numbers(5, 100) + numbers(6, 200)).shuffle(seed=3),
    "join, cache below": lambda: (numbers(9) + numbers(14, 100)).map(row).cache().shuffle(seed=3).noise(noisy_row),
    "join, cached sides": lambda: (numbers(9).map(row).cache() + numbers(14, 100).map(row).cache()).noise(noisy_row),
    "shuffle between joins": lambda: (numbers(9).shuffle(seed=1) + numbers(14, 100)).map(double),
    "zip": lambda: numbers(12).zip(numbers(12, 100), in_order=True),
    "zip, fork": lambda: numbers(12).map(double).zip(numbers(12).map(negative), in_order=True).map(total),
    "zip, random fork": lambda: numbers(12).noise(noisy).zip(numbers(12).noise(noisy), in_order=True),
    "zip, one shuffle": lambda: numbers(12).shuffle(seed=1).zip(numbers(12, 100).shuffle(seed=1), in_order=True).noise(beside),
    "zip, two shuffles": lambda: numbers(12).shuffle(seed=1).zip(numbers(12, 100).shuffle(seed=2), in_order=False).map(swapped),
    "zip, random below": lambda: numbers(12).shuffle(seed=1).zip(numbers(12, 9), in_order=False).map(total).noise(noisy),
    "zip, cached sides": lambda: numbers(12).map(row).cache().shuffle(seed=1).zip(numbers(12), in_order=False),
    "zip, cache below": lambda: numbers(12).map(row).zip(numbers(12, 100), in_order=True).cache().shuffle(seed=1),
    "zip, weights": lambda: numbers(12).noise(noisy).zip(numbers(12), in_order=True).weigh(_weights(12)),
    "mix, first": lambda: mixed(numbers(20), numbers(9, 100), weights=[2, 1]),
    "mix, all": lambda: mixed(numbers(20).shuffle(), numbers(3, 100).shuffle(seed=4).noise(noisy), weights=[1, 1], stop="all"),
    "mix, length": lambda: mixed(numbers(7).shuffle(), numbers(9, 100).shuffle(), weights=[1, 2], seed=5, stop=17),
    "mix, random below": lambda: mixed(numbers(4), numbers(5, 100), weights=[1, 3], stop="all").noise(noisy),
    "mix, cached sides": lambda: mixed(numbers(20).map(row).cache().shuffle(), numbers(9).map(row).cache(), weights=[2, 1]),
    "mix, cache below": lambda: mixed(numbers(20).map(row), numbers(9).map(row), weights=[2, 1]).cache().noise(noisy_row),
    "mix of mixes": lambda: mixed(mixed(numbers(6), numbers(7, 50), weights=[1, 1]), numbers(9, 100), weights=[3, 2], stop="all"),
    "counted": lambda: numbers(9).counted(three, 3),
    "counted, array": lambda: numbers(11).counted(tagged, [x % 5 for x in range(11)]).map(negative),
    "counted, function": lambda: numbers(11).map(int).counted(tagged, as_many).shuffle(seed=2).noise(noisy),
    "counted, random": lambda: numbers(7).noise(beside).map(total).map(int).counted(three, 3).noise(noisy).shuffle(),
    "counted, cache": lambda: numbers(9).counted(three, 3).map(row).cache().shuffle(seed=1).noise(noisy_row),
    "counted, cache above": lambda: numbers(9).map(double).cache().map(int).counted(three, 3).shuffle(),
    "counted twice": lambda: numbers(5).counted(three, 3).counted(pieces, 2).shuffle(seed=4),
    "counted, random side": lambda: (numbers(5).noise(noisy).map(int) + numbers(6, 200)).counted(three, 3).noise(noisy),
    "counted, weights": lambda: numbers(5).noise(noisy).map(int).counted(three, 3).weigh(_weights(15)).noise(noisy),
    "counted, sides": lambda: (numbers(5).counted(three, 3) + numbers(6, 200)).shuffle(seed=4),
}  # fmt: skip

WITHOUT_INDEX: dict[str, Callable[[], Both]] = {
    "filter": lambda: numbers(23).filter(even),
    "filter all": lambda: numbers(23).map(double).map(negative).filter(odd_never),
    "filter, random": lambda: numbers(40).filter(lucky, random=True).noise(noisy),
    "filter, shuffled": lambda: numbers(40).shuffle(seed=3).filter(even).map(double),
    "flat_map": lambda: numbers(23).flat_map(below),
    "flat_map, generator": lambda: numbers(23).shuffle().flat_map(tagged).map(negative),
    "flat_map, random": lambda: numbers(23).flat_map(several, random=True),
    "flat_map, random below": lambda: numbers(23).noise(beside).map(total).flat_map(below).noise(noisy).noise(noisy),
    "flat_map twice": lambda: numbers(12).flat_map(tagged).flat_map(pieces).noise(noisy),
    "flat_map, filter": lambda: numbers(23).flat_map(tagged).filter(even).noise(noisy).map(double),
    "filter, flat_map": lambda: numbers(23).filter(even).flat_map(tagged).noise(noisy),
    "parts": lambda: parts(tagged, 17),
    "parts, shuffled": lambda: parts(tagged, 17).shuffle(seed=1, window=4).noise(noisy),
    "parts, random": lambda: parts(several, 17, random=True).noise(noisy).shuffle(seed=2, window=3),
    "parts, rows": lambda: parts(rows_of, 20).noise(noisy_row),
    "window": lambda: numbers(30).flat_map(tagged).shuffle(window=7),
    "window, default": lambda: numbers(30).flat_map(tagged).shuffle(seed=5).map(negative),
    "window, shuffled above": lambda: numbers(30).shuffle(seed=9).map(double).flat_map(tagged).map(negative),
    "window, random": lambda: numbers(30).flat_map(tagged).noise(noisy).shuffle(seed=2, window=4).noise(noisy).filter(even),
    "window, flat_map below": lambda: numbers(20).flat_map(tagged).shuffle(seed=2, window=6).flat_map(pieces).noise(noisy),
    "two windows": lambda: numbers(20).flat_map(tagged).shuffle(seed=2, window=6).flat_map(pieces).shuffle(seed=3, window=4),
    "weights of lists": lambda: numbers(23).flat_map(tagged).weigh(_weights(23), 4).noise(noisy),
    "cache of lists": lambda: numbers(23).flat_map(tagged).cache().noise(noisy),
    "cache above": lambda: numbers(23).map(double).cache().map(int).flat_map(tagged),
    "cache, window": lambda: numbers(23).flat_map(rows_of).filter(any_row).cache().shuffle(seed=1, window=5).noise(noisy_row),
    "cache of parts": lambda: parts(rows_of, 20).map(negative).cache().noise(noisy_row),
    "join of lists": lambda: numbers(9).flat_map(tagged) + numbers(14, 100),
    "join, windows": lambda: numbers(9).flat_map(tagged).shuffle(seed=1) + numbers(14, 100).flat_map(below).shuffle(seed=2, window=5),
    "join, shuffled below": lambda: (numbers(9).flat_map(tagged) + numbers(14, 100).noise(noisy).map(int)).shuffle(seed=3),
    "join of lists, random": lambda: (numbers(9).flat_map(tagged).noise(noisy) + numbers(14, 100).filter(even)).noise(noisy),
    "join, cache": lambda: (numbers(9).flat_map(tagged) + numbers(14, 100).filter(even)).cache().shuffle(seed=4).noise(noisy),
    "zip of lists": lambda: forked(12),
    "zip of lists, random": lambda: forked(12).map(total).noise(beside),
    "zip of lists, shuffled": lambda: forked(12).filter(odd_pair).shuffle(seed=1, window=5),
    "mix": lambda: mixed(numbers(20).flat_map(tagged), numbers(9, 100).flat_map(below), weights=[2, 1]),
    "mix, windows": lambda: mixed(
        numbers(20).flat_map(tagged).shuffle(window=6), numbers(9, 100).shuffle().flat_map(below), weights=[2, 1]),
    "mix of lists, length": lambda: mixed(
        numbers(7).flat_map(tagged).shuffle(window=3), numbers(9, 100).shuffle(), weights=[1, 2], seed=5, stop=17
    ).noise(noisy),
    "counted, filter": lambda: numbers(9).counted(three, 3).shuffle(seed=2).filter(even).noise(noisy),
}  # fmt: skip

CHAINS = INDEXED | WITHOUT_INDEX

# Those that tests read with workers, which take long to start, and with each rank. Each stage is there, with others below
# and above it.
WORKED = [
    "shuffle below", "cache, random twice below", "two caches", "weights, random above", "join, shuffled sides",
    "join, cache below", "zip, one shuffle", "zip, two shuffles", "zip, cached sides", "mix, all", "mix, length",
    "mix, cached sides", "counted, random", "counted, cache above", "counted, sides", "filter, random",
    "flat_map, random below", "filter, flat_map", "parts, random", "two windows", "weights of lists", "cache, window",
    "join, windows", "zip of lists, random", "mix, windows", "counted, filter",
]  # fmt: skip
assert set(WORKED) <= CHAINS.keys()
