"""Parameters that several steps have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._native import _image_header as native
from .plan import DTYPES

_FILTERS = {"bilinear": native.BILINEAR, "bicubic": native.BICUBIC, 2: native.BILINEAR, 3: native.BICUBIC}


def pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) of them, or of one number for both."""
    sides = (value,) if isinstance(value, int) else tuple(value)
    if len(sides) not in (1, 2) or not all(isinstance(side, int) and side > 0 for side in sides):
        raise InvalidError(f"{name}={value!r} is neither a number of pixels nor (height, width)")
    return sides[0], sides[-1]


def filter_number(interpolation: Any, antialias: bool | None = True) -> int:
    """interpolation: "bilinear" or "bicubic", or torchvision's or Pillow's constant for it."""
    value = getattr(interpolation, "value", interpolation)
    if value not in _FILTERS:
        raise InvalidError(f"interpolation={interpolation!r}: only bilinear and bicubic exist here")
    if antialias is False:
        raise InvalidError("antialias=False: resizing is always antialiased here")
    return _FILTERS[value]


def dtype_number(dtype: Any) -> int:
    name = str(dtype).removeprefix("torch.")
    name = name if name in DTYPES else np.dtype(dtype).name
    if name not in DTYPES:
        raise InvalidError(f"dtype={dtype!r}: pictures are {', '.join(DTYPES)}")
    return DTYPES[name]


def short_and_long(height: int, width: int, short: int, longest: int | None = None) -> tuple[int, int]:
    """The height and width if the short side becomes so long, rounded down as torchvision's Resize. longest: of the
    long side; then the short side is shorter."""
    long = max(int(short * max(height, width) / min(height, width)), 1)
    if longest is not None and long > longest:
        short, long = max(int(longest * short / long), 1), longest
    return (long, short) if width <= height else (short, long)
