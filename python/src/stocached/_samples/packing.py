"""Samples with more values than a cache has fields: the last field holds all further values, one
after the other.

Its bytes begin with the shapes of the values whose shape differs between samples: 4 bytes a
dimension, least significant byte first. Then come the items of each value, without gaps. The
dataset tells what the values are and which shapes are fixed; programs in other languages see
bytes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from . import dtypes
from .schema import MAX_FIELDS, Array, Field

NAME = "packed"


class Packing:
    """Packs the values that have no field of their own."""

    def __init__(self, values: Sequence[Field]) -> None:
        """values: a field for each value of a sample, more than a cache takes."""
        self._own, self._packed = list(values[: MAX_FIELDS - 1]), list(values[MAX_FIELDS - 1 :])
        self._dims = sum(len(field.shape) for field in self._packed if not field.fixed)

    def fields(self) -> list[Field]:
        """The fields of the cache."""
        taken = {field.name for field in self._own}
        name = next(name for name in (NAME, *(f"{NAME}{k}" for k in range(MAX_FIELDS))) if name not in taken)
        size = None if self._dims else sum(field.bytes for field in self._packed)
        return [*self._own, Field(name, (size,), dtypes.BYTES)]

    def pack(self, values: Sequence[Array]) -> list[Array]:
        """The values of the fields, from the arrays of all values."""
        packed = values[len(self._own) :]
        dims = [dim for field, array in zip(self._packed, packed) if not field.fixed for dim in array.shape]
        parts = [np.array(dims, "<u4").tobytes(), *(array.tobytes() for array in packed)]
        return [*values[: len(self._own)], np.frombuffer(b"".join(parts), np.uint8)]

    def unpack(self, values: Sequence[Any]) -> list[Any]:
        """The values of a sample, from the values of the fields. Their memory is the caller's
        own."""
        *own, raw = values
        dims = np.frombuffer(raw, "<u4", self._dims).tolist()
        at = 4 * self._dims
        for field in self._packed:
            shape: Any = field.shape
            if not field.fixed:
                shape, dims = tuple(dims[: len(shape)]), dims[len(shape) :]
            count = prod(shape)
            items = np.frombuffer(raw, field.dtype, count, at)
            own.append(items.tobytes() if field.code == dtypes.BYTES else items.reshape(shape).copy())
            at += items.nbytes
        return own
