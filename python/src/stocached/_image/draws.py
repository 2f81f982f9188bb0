"""Random numbers of steps. All come from `random()` of a generator, a float64 from 0 up to 1. A step has the number of the
stage that it draws for."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._random.sample_generator import generator as seeded

Draw = Callable[[int], float]
"""The next number of a stage."""

_SEEDS = 2**53


def draw_of(generator: Any) -> Draw:
    """generator: of numpy.random or random, or torch.Generator. None: a new one, whose seed comes from the program's
    generator. That is torch's if the program uses torch, else NumPy's. Loaders seed both in each worker.

    Steps that draw nothing leave the program's generator as it is: a cache refuses samples that move it."""
    numbers: list[Callable[[], float]] = [generator.random] if hasattr(generator, "random") else []

    def draw(stage: int) -> float:
        if not numbers:
            numbers.append(_own(generator))
        return numbers[0]()

    return draw


def draw_of_seeds(seeds: Mapping[int, int]) -> Draw:
    """seeds: of the generators of stages. A stage draws all of its numbers at once."""
    last, numbers = -1, None

    def draw(stage: int) -> float:
        nonlocal last, numbers
        if stage != last or numbers is None:
            last, numbers = stage, seeded(seeds[stage]).random
        return numbers()

    return draw


def _own(generator: Any) -> Callable[[], float]:
    torch = sys.modules.get("torch")
    if generator is None and torch is None:
        return random.Random(int(np.random.randint(_SEEDS, dtype=np.int64))).random
    if torch is None or not (generator is None or isinstance(generator, torch.Generator)):
        raise InvalidError(f"generator is a {type(generator).__name__}; give one of numpy.random, random or torch")
    return random.Random(int(torch.randint(_SEEDS, (), generator=generator))).random
