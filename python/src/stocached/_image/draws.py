"""Random numbers of steps. All come from `random()` of a generator, a float64 from 0 up to 1."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError

Draw = Callable[[], float]

_TRIES = 10  # of torchvision, until a random box fits
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


def uniform(draw: Draw, low: float, high: float) -> float:
    return low + (high - low) * draw()


def below(draw: Draw, n: int) -> int:
    """A whole number from 0 to n - 1."""
    return int(draw() * n)


def shuffled(draw: Draw, n: int) -> list[int]:
    """0 to n - 1 in a random order (Fisher and Yates)."""
    order = list(range(n))
    for k in range(n - 1, 0, -1):
        other = below(draw, k + 1)
        order[k], order[other] = order[other], order[k]
    return order


def seed(draw: Draw) -> int:
    return int(draw() * _SEEDS)


def sides(draw: Draw, area: float, scale: Sequence[float], ratio: Sequence[float]) -> tuple[int, int]:
    """Two sides of a box: scale is its part of an area, ratio the first side by the second."""
    part = area * uniform(draw, scale[0], scale[1])
    aspect = math.exp(uniform(draw, math.log(ratio[0]), math.log(ratio[1])))
    return round(math.sqrt(part * aspect)), round(math.sqrt(part / aspect))


def resized_crop(
    draw: Draw, width: int, height: int, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int]:
    """The box x, y, width, height of torchvision's RandomResizedCrop.get_params."""
    for _ in range(_TRIES):
        w, h = sides(draw, width * height, scale, ratio)
        if 0 < w <= width and 0 < h <= height:
            y = below(draw, height - h + 1)
            return below(draw, width - w + 1), y, w, h
    w, h = width, height
    if width / height < min(ratio):
        h = round(width / min(ratio))
    elif width / height > max(ratio):
        w = round(height * max(ratio))
    return (width - w) // 2, (height - h) // 2, w, h


def erased_box(
    draw: Draw, width: int, height: int, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int] | None:
    """The box x, y, width, height of torchvision's RandomErasing.get_params. None: no box fits."""
    for _ in range(_TRIES):
        h, w = sides(draw, width * height, scale, ratio)
        if h < height and w < width:
            y = below(draw, height - h + 1)
            return below(draw, width - w + 1), y, w, h
    return None
