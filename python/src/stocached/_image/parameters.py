"""Parameters that several steps have."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._common.numbers import index_of, real, whole
from .._native import _image_header as native
from .passes import DTYPES

_FILTERS: dict[Any, int] = {
    "bilinear": native.BILINEAR,
    "bicubic": native.BICUBIC,
    2: native.BILINEAR,
    3: native.BICUBIC,
}

LONGEST = native.MAX_SIDE


def sides_of(size: int | Sequence[int], one: str = "a number of pixels") -> tuple[int, ...]:
    """One or two whole numbers of pixels. one: what a single number means, for the error."""
    try:
        sides = tuple(map(index_of, items(size)))
    except TypeError:
        sides = ()
    if len(sides) not in (1, 2) or not all(1 <= side <= LONGEST for side in sides):
        raise InvalidError(f"size={size!r} is neither {one} nor (height, width); sides are 1 to {LONGEST}")
    return sides


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) of a size, which may be one number for both."""
    sides = sides_of(size)
    return sides[0], sides[-1]


def items(value: Any) -> tuple[Any, ...]:
    """Those of a sequence, or the value alone, as a text is."""
    try:
        return (value,) if isinstance(value, str) else tuple(value)
    except TypeError:
        return (value,)


def fill_of(value: int | Sequence[int]) -> tuple[int, int, int]:
    """A byte for each channel."""
    values = items(value)
    if len(values) not in (1, 3):
        raise InvalidError(f"fill={value!r} must be a number, or one for each of the three channels")
    red, green, blue = (whole("fill", one, 0, 255) for one in values * (3 // len(values)))
    return red, green, blue


def numbers_of(name: str, value: float | Sequence[float]) -> list[float]:
    """A number, or one for each channel."""
    numbers, wanted = items(value), "a number, or one for each channel: 1 or 3"
    if len(numbers) not in (1, 3):
        raise InvalidError(f"{name}={value!r}; it must be {wanted}")
    return [real(name, one, wanted) for one in numbers]


def check_probability(p: Any) -> None:
    real("p", p, "a probability, 0 to 1", 0, 1)


def check_scale_and_ratio(scale: Any, ratio: Any) -> None:
    """Raises InvalidError if they are no ranges of positive numbers; the least scale may be 0."""
    _check_range("scale", scale, zero=True)
    _check_range("ratio", ratio, zero=False)


def _check_range(name: str, value: Any, *, zero: bool) -> None:
    try:
        low, high = (real(name, one, "a number") for one in value)
    except (TypeError, ValueError):
        low, high = -1.0, 0.0
    if not ((low > 0 or (zero and low == 0)) and low <= high < math.inf and high > 0):
        raise InvalidError(f"{name}={value!r} must be two numbers above 0, the smaller one first")


def filter_number(interpolation: Any, antialias: bool | None = True, name: str = "interpolation") -> int:
    """interpolation: "bilinear" or "bicubic", or torchvision's or Pillow's constant for it. name: of the argument."""
    value = getattr(interpolation, "value", interpolation)
    if value not in _FILTERS:
        raise InvalidError(f"{name}={interpolation!r}: only bilinear and bicubic exist here")
    if antialias is False:
        raise InvalidError("antialias=False: resizing is always antialiased here")
    return _FILTERS[value]


def dtype_number(dtype: Any) -> int:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        with contextlib.suppress(TypeError, ValueError):  # the value has no type of NumPy
            name = np.dtype(dtype).name
    if name not in DTYPES:
        raise InvalidError(f"dtype={dtype!r}: pictures are {', '.join(DTYPES)}")
    return DTYPES[name]
