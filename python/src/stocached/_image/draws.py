"""Random numbers of steps. All come from `random()` of a generator, a float64 from 0 up to 1."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .._common.errors import InvalidError

Draw = Callable[[], float]

_SEEDS = 2**53


def draw_of(generator: Any) -> Draw:
    """generator: of numpy.random or random, or torch.Generator. None: a new one, whose seed comes from the program's
    generator. That is torch's if the program uses torch, else NumPy's. Loaders seed both in each worker.

    Steps that draw nothing leave the program's generator as it is: a cache refuses samples that move it."""
    draw: Draw | None = getattr(generator, "random", None)
    if draw is not None:
        return draw
    made: list[Draw] = []

    def first() -> float:
        if not made:
            made.append(_seeded(generator))
        return made[0]()

    return first


def _seeded(generator: Any) -> Draw:
    torch = sys.modules.get("torch")
    if generator is None and torch is None:
        return random.Random(int(np.random.randint(_SEEDS, dtype=np.int64))).random
    if torch is None or not (generator is None or isinstance(generator, torch.Generator)):
        raise InvalidError(f"generator is a {type(generator).__name__}; give one of numpy.random, random or torch")
    return random.Random(int(torch.randint(_SEEDS, (), generator=generator))).random
