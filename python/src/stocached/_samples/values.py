"""Converts values to bytes of the cache and back: one class for samples of fixed size, one for
samples of any size (docs/spec/segment.md, Fields)."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import CorruptError, SchemaError
from . import dtypes
from .schema import Field, checked

Array = npt.NDArray[Any]
Raw = npt.NDArray[np.uint8]
Part = Array | bytes  # C-contiguous memory; parts make a sample, one after the other

_ALIGN = 64  # bytes: extent header and fields begin at multiples of it
_EXTENT = struct.Struct("<Q8I")
_ZEROS = bytes(4096)


def shown(field: Field, array: Array, copy: bool) -> Any:
    """What the user gets: the array. For a field of dtype bytes: bytes, or a memoryview without
    `copy`."""
    if field.code != dtypes.BYTES:
        return array
    return array.tobytes() if copy else array.data


def _by_name(fields: tuple[Field, ...], value: Any) -> list[Any]:
    """The values in the order of the fields: the value itself for one field, else the entries of a
    mapping with exactly the fields' names."""
    if len(fields) == 1:
        return [value]
    names = [field.name for field in fields]
    if not isinstance(value, Mapping):
        raise SchemaError(f"a sample of this cache is a mapping with {names}, not {type(value).__name__}")
    if value.keys() != set(names):
        raise SchemaError(f"a sample of this cache has the fields {names}, not {list(value)}")
    return [value[name] for name in names]


class _Values:
    fields: tuple[Field, ...]

    def encoded(self, value: Any) -> list[tuple[str, Array]]:
        """Copies of the values that would be stored, each with its name in messages. SchemaError if
        the sample does not fit."""
        pairs = zip(self.fields, _by_name(self.fields, value))
        return [
            (f"its field {field.name!r}" if field.name else "it", checked(field, item).copy()) for field, item in pairs
        ]


class FixedValues(_Values):
    """Samples of fixed size: the fields one after the other, each aligned to its items, with zeros
    between."""

    def __init__(self, fields: tuple[Field, ...], sample_bytes: int) -> None:
        self.fields, self.sample_bytes = fields, sample_bytes
        self._places = [(_exact(field), field.dtype, field.offset, _strides(field)) for field in fields if field.fixed]

    def parts(self, value: Any) -> list[Part]:
        parts: list[Part] = []
        end = 0
        for field, item in zip(self.fields, _by_name(self.fields, value)):
            if field.offset > end:
                parts.append(_ZEROS[: field.offset - end])
            parts.append(checked(field, item))
            end = field.offset + field.bytes
        if end < self.sample_bytes:
            parts.append(_ZEROS[: self.sample_bytes - end])
        return parts

    def arrays(self, base: Raw, rows: int, stride: int) -> list[Array]:
        """One array (rows, *shape) for each field, over memory that holds a sample every `stride`
        bytes."""
        return [
            np.ndarray((rows, *shape), dtype, base, offset, (stride, *strides))
            for shape, dtype, offset, strides in self._places
        ]

    def decode(self, raw: Raw, copy: bool) -> Any:
        """The value over the bytes of one sample. copy: the bytes are the caller's own copy."""
        arrays: list[Array] = [np.ndarray(shape, dtype, raw, offset) for shape, dtype, offset, _ in self._places]
        if len(arrays) == 1:
            return shown(self.fields[0], arrays[0], copy)
        return {field.name: shown(field, array, copy) for field, array in zip(self.fields, arrays)}


def _exact(field: Field) -> tuple[int, ...]:
    return tuple(dim for dim in field.shape if dim is not None)


def _strides(field: Field) -> tuple[int, ...]:
    strides, step = [], field.dtype.itemsize
    for dim in reversed(_exact(field)):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


class VariableValues(_Values):
    """Samples of any size. One field of one dimension is stored bare; all others follow an extent
    header."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self.bare = len(fields) == 1 and len(fields[0].shape) == 1
        self.header_bytes = _padded(_EXTENT.size * len(fields))
        self._extents = [_extent_of(field) if field.fixed else None for field in fields]

    def parts(self, value: Any) -> list[Part]:
        arrays = [checked(field, item) for field, item in zip(self.fields, _by_name(self.fields, value))]
        if self.bare:
            return [arrays[0]]
        try:
            header = b"".join(_EXTENT.pack(array.nbytes, *array.shape, *[0] * (8 - array.ndim)) for array in arrays)
        except struct.error:
            raise SchemaError(
                f"shapes {[array.shape for array in arrays]} do not fit; a dimension must be below 2**32"
            ) from None
        parts: list[Part] = [header.ljust(self.header_bytes, b"\0")]
        for array in arrays:
            parts.append(array)
            if array.nbytes % _ALIGN:
                parts.append(_ZEROS[: _ALIGN - array.nbytes % _ALIGN])
        return parts

    def decode(self, raw: Raw, copy: bool) -> Any:
        """As FixedValues.decode. CorruptError if the header is impossible, as it may be while
        another client overwrites the sample."""
        if self.bare:
            field = self.fields[0]
            if raw.size % field.dtype.itemsize or not field.admits((raw.size // field.dtype.itemsize,)):
                raise CorruptError(f"{field}: a sample of {raw.size} bytes is impossible")
            return shown(field, raw.view(field.dtype), copy)
        offset = self.header_bytes
        if raw.size < offset:
            raise CorruptError(f"a sample of {raw.size} bytes is shorter than its extent header of {offset}")
        values = {}
        header, at = raw[:offset].tobytes(), 0
        for field, extent in zip(self.fields, self._extents):
            dtype = field.dtype
            shape: tuple[int, ...]
            if extent is not None and header.startswith(extent[0], at):  # the usual case, in a tenth of the time
                _, nbytes, shape = extent
                fits = True
            else:
                nbytes, *dims = _EXTENT.unpack_from(header, at)
                shape = tuple(dims[: len(field.shape)])
                fits = nbytes == math.prod(shape) * dtype.itemsize and field.admits(shape)
            if not fits or offset + nbytes > raw.size:
                raise CorruptError(
                    f"{field}: an extent of {nbytes} bytes and shape {shape} at {offset} of {raw.size} bytes is impossible"
                )
            values[field.name] = shown(field, np.ndarray(shape, dtype, raw, offset), copy)
            offset += _padded(nbytes)
            at += _EXTENT.size
        return values if len(values) > 1 else values[self.fields[0].name]

    def read(self, address: int, length: int) -> Any:
        """A copy of the value in memory of the library."""
        if self.bare and self.fields[0].code == dtypes.BYTES and self.fields[0].shape == (None,):
            return ctypes.string_at(address, length)
        raw = np.empty(length, np.uint8)
        ctypes.memmove(raw.ctypes.data, address, length)
        return self.decode(raw, True)


def _extent_of(field: Field) -> tuple[bytes, int, tuple[int, ...]]:
    """The header entry of a field of fixed shape, its bytes, and its shape."""
    shape = _exact(field)
    return _EXTENT.pack(field.bytes, *shape, *[0] * (8 - len(shape))), field.bytes, shape


def _padded(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN
