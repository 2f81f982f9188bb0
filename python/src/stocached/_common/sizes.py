"""Sizes as users write them."""

from __future__ import annotations

import os
import re
from typing import SupportsIndex

from .errors import InvalidError
from .numbers import index_of

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)} | {"kB": 1000}


def parse_size(size: str | SupportsIndex, name: str = "size") -> int:
    """Bytes of a size: an integer, or a string such as "2GiB", "1.5 GiB", "500MB" (units of 1000),
    "4096".

    name: of the argument, for InvalidError."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        if not match or match[2] not in _UNITS:
            raise InvalidError(
                f'{name}={size!r} is not a size; write bytes, or a number and a unit: "512MiB", "1.5GiB", "2TiB", "500MB"'
            )
        return int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    try:
        count = index_of(size)
    except TypeError:
        raise InvalidError(f'{name}={size!r}; it must be whole bytes or a string such as "2GiB"') from None
    if not 0 <= count < 2**63:
        raise InvalidError(f"{name}={count} bytes; it must be between 0 and 2**63 - 1")
    return count


def show_size(count: float) -> str:
    """Bytes as text for users: "150,528 bytes", "1.44 GiB"."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.2f} {unit}"
    return f"{count:,.0f} bytes"


def get_shm_size() -> int:
    """Size of /dev/shm in whole GiB, rounded down. Named caches lie there. Only memory limits
    caches without a name."""
    stats = os.statvfs("/dev/shm")
    return stats.f_bsize * stats.f_blocks // 1024**3
