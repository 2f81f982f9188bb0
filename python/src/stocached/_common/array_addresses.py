"""Addresses of arrays, for calls into the C library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

addressof = ctypes.addressof
# Takes an array whose buffer is plain and writable.
first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


def address_of(array: npt.NDArray[Any]) -> int:
    """`array.ctypes.data`, in a third of its time for an array with a plain writable buffer, as
    nearly all have."""
    try:
        return addressof(first_byte(array))
    except (TypeError, ValueError, BufferError):  # read-only, empty, with gaps, or of items that buffers do not know
        address: int = array.__array_interface__["data"][0]
        return address


def interface_of(address: int, length: int, *, writable: bool = True) -> dict[str, Any]:
    """The `__array_interface__` of bytes in memory."""
    return {"version": 3, "typestr": "|u1", "shape": (length,), "data": (address, not writable)}
