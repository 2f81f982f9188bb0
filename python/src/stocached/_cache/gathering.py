"""Many samples out of a cache in one call of the library: their indices and the arrays that they
fill."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.array_addresses import address_of, addressof, first_byte
from .._common.errors import InvalidError, SampleIndexError, SchemaError
from .._common.numbers import index_of, whole
from .._samples import schema
from .._samples.schema import Field
from .._samples.values import Array, VariableValues
from .attachment import Attachment
from .handle import Handle

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def sample_indices(indices: Any) -> Indices:
    """A copy of the user's indices. Raises InvalidError or SampleIndexError."""
    array = schema.as_array(indices)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim == 1 and array.dtype.kind == "i":
        # A copy: the program cannot change it between the library's check of an index and its use.
        return array.astype(np.int64, "C")
    if array.ndim == 1 and array.dtype.kind in "ufO":  # NumPy makes floats or objects of integers above 64 bits
        with contextlib.suppress(TypeError):
            numbers = [index_of(index) for index in indices]
            if all(-(2**63) <= number < 2**63 for number in numbers):
                return np.array(numbers, np.int64)
            raise SampleIndexError(f"index {max(numbers, key=abs)} is out of range")
    raise InvalidError(
        f"indices are {array.dtype} with {array.ndim} dimensions; they must be whole numbers in one dimension"
    )


def gather(cache: Attachment, wanted: Indices, out: Any, threads: int) -> tuple[int, tuple[Any, Flags]]:
    """The number of hits, and what `Cache.gather` returns."""
    n = wanted.size
    hit = np.empty(n, np.bool_)
    threads = whole("threads", threads, 0, 1024)
    if (
        type(out) is np.ndarray
        and out.dtype is cache._row_dtype
        and out.shape[1:] == cache._row_shape
        and len(out) == n > 0
    ):
        # Most likely an array that fits as it is. For small samples, all checks take a tenth of the
        # copies' time.
        try:
            address = addressof(first_byte(out))
        except (TypeError, ValueError, BufferError):  # read-only or with gaps
            pass
        else:
            handle = cache._handle
            hits = _native.gather(
                handle, address_of(wanted), n, -1, address, cache.sample_bytes, addressof(first_byte(hit)), threads
            )
            if hits < 0:
                raise gather_error(cache, handle, hits, wanted)
            return hits, (out, hit)
    if isinstance(cache._values, VariableValues):
        if out is not None:
            raise InvalidError("samples of a variable-size cache fit into no array; gather without out=")
        return _gather_packed(cache, wanted, hit, threads)
    made = out is None
    if made:
        out, arrays = new_outputs(cache, n)
    else:
        arrays = outputs(cache, out, n)
    hits = _gather_arrays(cache, wanted, arrays, hit, threads)
    if made and hits < n:
        for array in arrays:
            array[~hit] = 0
    return hits, (out, hit)


def _gather_arrays(cache: Attachment, wanted: Indices, arrays: list[Array], hit: Flags, threads: int) -> int:
    handle, n = cache._handle, wanted.size
    hits: int
    if len(arrays) == 1:
        rows = arrays[0]
        hits = _native.gather(
            handle, address_of(wanted), n, -1, address_of(rows), stride_of(rows), address_of(hit), threads
        )
    else:
        count = len(arrays)
        addresses = (ctypes.c_void_p * count)(*(address_of(array) if array.ndim else None for array in arrays))
        strides = (ctypes.c_size_t * count)(*(stride_of(array) if array.ndim else 0 for array in arrays))
        hits = _native.gather_fields(handle, address_of(wanted), n, addresses, strides, address_of(hit), threads)
    if hits < 0:
        raise gather_error(cache, handle, hits, wanted)
    return hits


def _gather_packed(cache: Attachment, wanted: Indices, hit: Flags, threads: int) -> tuple[int, tuple[list[Any], Flags]]:
    """Samples of any size, as values over one new piece of memory."""
    handle, n = cache._handle, wanted.size
    lengths = np.empty(n, np.uint64)
    found = _native.lengths(handle, address_of(wanted), n, address_of(lengths))
    if found < 0:
        raise gather_error(cache, handle, found, wanted)
    lengths[lengths == _native.NO_LENGTH] = 0
    sizes = (lengths + np.uint64(63)) // np.uint64(64) * np.uint64(64)  # keeps every sample aligned to any item
    ends = np.cumsum(sizes, dtype=np.uint64)
    offsets = ends - sizes
    raw = aligned(int(ends[-1]) if n else 0)
    hits = _native.gather_packed(
        handle,
        address_of(wanted),
        n,
        address_of(raw),
        address_of(offsets),
        address_of(lengths),
        address_of(hit),
        threads,
    )
    if hits < 0:
        raise gather_error(cache, handle, hits, wanted)
    values = [
        cache._values.decode(raw[start : start + length], True) if there else None
        for start, length, there in zip(offsets.tolist(), lengths.tolist(), hit.tolist())
    ]
    return hits, (values, hit)


def gather_error(cache: Attachment, handle: Handle, code: int, wanted: Indices) -> Exception:
    outside = wanted[(wanted < 0) | (wanted >= cache.samples)]
    return handle.error(code, int(outside[0]) if outside.size else 0, cache.sample_bytes)


def new_outputs(cache: Attachment, n: int) -> tuple[Any, list[Array]]:
    """What a gather without `out` returns, and its arrays."""
    arrays = [np.empty((n, *cast("tuple[int, ...]", field.shape)), field.dtype) for field in cache.fields]
    return arrays[0] if len(arrays) == 1 else dict(zip((field.name for field in cache.fields), arrays)), arrays


def outputs(cache: Attachment, out: Any, n: int) -> list[Array]:
    """The user's arrays in the order of the fields, checked. An array without dimensions stands for
    a field left out."""
    if len(cache.fields) == 1:
        return [_output(cache.fields[0], out, n)]
    names = [field.name for field in cache.fields]
    if not isinstance(out, Mapping) or not out.keys() <= set(names):
        given = list(out) if isinstance(out, Mapping) else type(out).__name__
        raise SchemaError(f"out= must be a dict of arrays for (some of) the fields {names}, not {given}")
    return [_output(field, out[field.name], n) if field.name in out else np.empty(()) for field in cache.fields]


def _output(field: Field, out: Any, n: int) -> Array:
    """The user's array or tensor for one field. Raises SchemaError."""
    if not isinstance(out, np.ndarray):
        if not hasattr(out, "data_ptr"):
            raise SchemaError(
                f"{field}: out= is of type {type(out).__name__}; it must be a NumPy array or a torch tensor"
            )
        if out.device.type != "cpu" or not out.is_contiguous():
            raise SchemaError(
                f"{field}: out= is a tensor on {out.device}, contiguous: {out.is_contiguous()}; it must be contiguous, on the CPU"
            )
        if out.is_conj() or out.is_neg():
            raise SchemaError(
                f"{field}: out= is the conjugate or negative of other memory; it must be a tensor of its own"
            )
        out = schema.tensor_as_array(out)
    array: Array = out
    shape = (n, *cast("tuple[int, ...]", field.shape))
    if array.dtype != field.dtype or array.shape != shape:
        raise SchemaError(f"{field}: out= has {array.dtype} {array.shape}; {field.dtype} {shape} is needed")
    if not array.flags.writeable:
        raise SchemaError(f"{field}: out= is read-only")
    if n and not (array[0, ...].flags.c_contiguous and (n == 1 or array.strides[0] >= field.bytes)):
        raise SchemaError(
            f"{field}: out= has strides {array.strides}; each row must be contiguous and come after the one before"
        )
    return array


def stride_of(rows: Array) -> int:
    return int(rows.strides[0]) if rows.shape[0] > 1 else rows.itemsize * prod(rows.shape[1:])


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """New memory at an address that is a multiple of 64."""
    raw = np.empty(size + 63, np.uint8)
    start = -address_of(raw) % 64
    return raw[start : start + size]
