"""Chains, each as a pipe of the package and as one of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import model
import numpy as np
from numpy.random import Generator

from stocached.pipes import Pipe, mix, source

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

    def shuffle(self, seed: int | None = None) -> Both:
        return Both(self.pipe.shuffle(seed), model.Shuffle(self.plain, seed))

    def weigh(self, weights: list[float], seed: int | None = None) -> Both:
        return Both(self.pipe.shuffle(seed, weights=weights), model.Shuffle(self.plain, seed, weights))

    def zip(self, other: Both, *, in_order: bool) -> Both:
        return Both(self.pipe.zip(other.pipe), model.Zip(self.plain, other.plain, in_order=in_order))

    def __add__(self, other: Both) -> Both:
        return Both(self.pipe + other.pipe, model.Join(self.plain, other.plain))


def numbers(n: int, first: int = 0) -> Both:
    data = list(range(first, first + n))
    return Both(source(data), model.Source(data))


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


def _weights(n: int) -> list[float]:
    return [float(k % 4) for k in range(n)]


CHAINS: dict[str, Callable[[], Both]] = {
    "source": lambda: numbers(23),
    "map": lambda: numbers(23).map(double),
    "maps": lambda: numbers(23).map(double).map(negative),
    "random": lambda: numbers(23).noise(noisy),
    "random twice": lambda: numbers(23).noise(noisy).map(double).noise(noisy),
    "shuffle": lambda: numbers(23).shuffle(),
    "shuffle, seed": lambda: numbers(300).shuffle(7),
    "shuffle above": lambda: numbers(23).shuffle().map(double).noise(noisy),
    "shuffle below": lambda: numbers(23).map(double).noise(noisy).shuffle(5),
    "cache": lambda: numbers(23).map(double).cache(),
    "cache, arrays": lambda: numbers(23).map(row).cache().map(negative),
    "cache, random below": lambda: numbers(23).map(row).cache().shuffle(3).noise(noisy_row),
    "cache, random twice below": lambda: numbers(23).map(row).cache().noise(noisy_row).shuffle().noise(noisy_row),
    "shuffle above a cache": lambda: numbers(23).shuffle(2).map(row).cache().noise(noisy_row),
    "two caches": lambda: numbers(23).map(double).cache().map(row).cache().shuffle(),
    "weights": lambda: numbers(23).weigh(_weights(23), 4),
    "weights, cache": lambda: numbers(23).map(row).cache().weigh(_weights(23)),
    "weights, random below": lambda: numbers(23).map(row).cache().weigh(_weights(23)).noise(noisy_row),
    "weights, random above": lambda: numbers(23).noise(noisy).weigh(_weights(23), 2),
    "join": lambda: numbers(9) + numbers(14, 100),
    "join, maps": lambda: numbers(9).map(double) + numbers(14, 100).map(negative),
    "join, random": lambda: (numbers(9).noise(noisy) + numbers(14, 100)).noise(noisy),
    "join, shuffle below": lambda: (numbers(9).map(double) + numbers(14, 100)).shuffle(1),
    "join, shuffled sides": lambda: numbers(9).shuffle(1) + numbers(14, 100).shuffle(),
    "join of joins": lambda: (numbers(3) + numbers(4, 50)) + (numbers(5, 100) + numbers(6, 200)).shuffle(3),
    "join, cache below": lambda: (numbers(9) + numbers(14, 100)).map(row).cache().shuffle(3).noise(noisy_row),
    "join, cached sides": lambda: (numbers(9).map(row).cache() + numbers(14, 100).map(row).cache()).noise(noisy_row),
    "shuffle between joins": lambda: (numbers(9).shuffle(1) + numbers(14, 100)).map(double),
    "zip": lambda: numbers(12).zip(numbers(12, 100), in_order=True),
    "zip, fork": lambda: numbers(12).map(double).zip(numbers(12).map(negative), in_order=True).map(total),
    "zip, random fork": lambda: numbers(12).noise(noisy).zip(numbers(12).noise(noisy), in_order=True),
    "zip, one shuffle": lambda: numbers(12).shuffle(1).zip(numbers(12, 100).shuffle(1), in_order=True).noise(beside),
    "zip, two shuffles": lambda: numbers(12).shuffle(1).zip(numbers(12, 100).shuffle(2), in_order=False).map(swapped),
    "zip, random below": lambda: numbers(12).shuffle(1).zip(numbers(12, 9), in_order=False).map(total).noise(noisy),
    "zip, cached sides": lambda: numbers(12).map(row).cache().shuffle(1).zip(numbers(12), in_order=False),
    "zip, cache below": lambda: numbers(12).map(row).zip(numbers(12, 100), in_order=True).cache().shuffle(1),
    "zip, weights": lambda: numbers(12).noise(noisy).zip(numbers(12), in_order=True).weigh(_weights(12)),
    "mix, first": lambda: mixed(numbers(20), numbers(9, 100), weights=[2, 1]),
    "mix, all": lambda: mixed(numbers(20).shuffle(), numbers(3, 100).shuffle(4).noise(noisy), weights=[1, 1], stop="all"),
    "mix, length": lambda: mixed(numbers(7).shuffle(), numbers(9, 100).shuffle(), weights=[1, 2], seed=5, stop=17),
    "mix, random below": lambda: mixed(numbers(4), numbers(5, 100), weights=[1, 3], stop="all").noise(noisy),
    "mix, cached sides": lambda: mixed(numbers(20).map(row).cache().shuffle(), numbers(9).map(row).cache(), weights=[2, 1]),
    "mix, cache below": lambda: mixed(numbers(20).map(row), numbers(9).map(row), weights=[2, 1]).cache().noise(noisy_row),
    "mix of mixes": lambda: mixed(mixed(numbers(6), numbers(7, 50), weights=[1, 1]), numbers(9, 100), weights=[3, 2], stop="all"),
}  # fmt: skip
