"""CRC-32C of bytes and arrays, and the bytes of the parts of a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native


def crc32c(data: Any) -> int:
    """Of bytes, or of an array that is C-contiguous."""
    if type(data) is bytes:  # without the time of an array's address
        return int(_native.crc32c(0, data, len(data)))
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return int(_native.crc32c(0, array.ctypes.data if array.size else None, array.nbytes))


def as_bytes(part: bytes | npt.NDArray[Any]) -> bytes | memoryview:
    """A part of a sample, for code that joins or writes bytes."""
    if isinstance(part, bytes):
        return part
    return part.reshape(-1).view(np.uint8).data if part.size else b""
