"""The schema of samples: their named fields, and the check that values fit them."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.errors import InvalidError, SchemaError
from .._common.numbers import index_of
from . import dtypes

MAX_FIELDS, MAX_DIMS, MAX_NAME = 24, 8, 39
_MOST = 2**32 - 1  # bytes of a sample, so also the most of a dimension
DEFAULT_NAME = "data"  # the field of caches that were created without names
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Field:
    """A named part of a sample. A dimension of None may differ between samples; only a
    variable-size cache allows it."""

    name: str
    shape: tuple[int | None, ...]
    code: int  # number in enum stoc_dtype
    offset: int = 0  # in a sample of fixed size

    @property
    def dtype(self) -> np.dtype[Any]:
        return dtypes.NUMPY[self.code]

    @property
    def fixed(self) -> bool:
        return None not in self.shape

    @property
    def bytes(self) -> int:
        """The bytes of a field of fixed size."""
        return self.dtype.itemsize * prod(dim for dim in self.shape if dim is not None)

    def same_as(self, other: Field) -> bool:
        return (self.name, self.shape, self.code) == (other.name, other.shape, other.code)

    def __str__(self) -> str:
        dims = "x".join("?" if dim is None else str(dim) for dim in self.shape) or "scalar"
        return f"{self.name}: {dims} {dtypes.NAMES[self.code]}"

    def admits(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.shape) and all(
            want is None or want == have for want, have in zip(self.shape, shape)
        )


def make_fields(
    *,
    shape: Any = None,
    dtype: Any = None,
    fields: Mapping[str, tuple[Any, Any]] | None = None,
    sample_bytes: int | None = None,
    variable: bool = False,
) -> tuple[Field, ...]:
    """The fields of the arguments of Cache.create. Raises InvalidError, which names the
    argument."""
    if fields is not None:
        if shape is not None or dtype is not None:
            raise InvalidError("fields= says shape and dtype of each field; leave out shape= and dtype=")
        made = tuple(_make_field(name, *_pair(name, spec), variable) for name, spec in fields.items())
        if not 1 <= len(made) <= MAX_FIELDS:
            raise InvalidError(f"fields= has {len(made)} fields; a sample has 1 to {MAX_FIELDS}")
        return made
    if shape is not None:
        return (_make_field(DEFAULT_NAME, shape, np.uint8 if dtype is None else dtype, variable),)
    if variable:
        return (_make_field(DEFAULT_NAME, (None,), "bytes" if dtype is None else dtype, variable),)
    if sample_bytes is None:
        raise InvalidError("say what a sample is: shape= and dtype=, or fields=, or sample_bytes=, or variable=True")
    item = dtypes.NUMPY[dtypes.code_of("uint8" if dtype is None else dtype)].itemsize
    if sample_bytes < 1 or sample_bytes % item:
        raise InvalidError(
            f"sample_bytes is {sample_bytes}; it must be at least 1 and a multiple of the {item} bytes of an item"
        )
    return (_make_field(DEFAULT_NAME, (sample_bytes // item,), np.uint8 if dtype is None else dtype, variable),)


def _pair(name: str, spec: Any) -> tuple[Any, Any]:
    try:
        shape, dtype = spec
    except (TypeError, ValueError):
        raise InvalidError(
            f'field {name!r} is {spec!r}; it must be (shape, dtype), such as ((3, 224, 224), "uint8")'
        ) from None
    return shape, dtype


def _make_field(name: str, shape: Any, dtype: Any, variable: bool) -> Field:
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= MAX_NAME or "\0" in name:
        raise InvalidError(f"field name {name!r}; it must be a string of 1 to {MAX_NAME} bytes")
    dims = [shape] if shape is None or hasattr(shape, "__index__") else list(shape)
    made: list[int | None] = []
    for dim in dims:
        if dim is None or (variable and dim == -1):
            if not variable:
                raise InvalidError(f"field {name!r} has shape {shape!r}; a dimension of None needs variable=True")
            made.append(None)
            continue
        try:
            size = index_of(dim)
        except TypeError:
            raise InvalidError(f"field {name!r} has shape {shape!r}; a dimension must be a whole number") from None
        if size < 0:
            raise InvalidError(f"field {name!r} has shape {shape!r}; a dimension must not be negative")
        if size > _MOST:
            raise InvalidError(f"field {name!r} has shape {shape!r}; a dimension must not be larger than {_MOST}")
        made.append(size)
    if len(made) > MAX_DIMS:
        raise InvalidError(f"field {name!r} has {len(made)} dimensions; at most {MAX_DIMS} are possible")
    return Field(name, tuple(made), dtypes.code_of(dtype))


def to_native(fields: Iterable[Field]) -> ctypes.Array[Any]:
    fields = tuple(fields)
    made: ctypes.Array[Any] = (_native.Field * len(fields))()
    for native, field in zip(made, fields):
        native.name, native.dtype, native.ndim = field.name.encode(), field.code, len(field.shape)
        for d, dim in enumerate(field.shape):
            native.dims[d] = _native.VARIABLE_DIM if dim is None else dim
    return made


def from_native(native: _native.Field) -> Field:
    dims = tuple(None if dim == _native.VARIABLE_DIM else int(dim) for dim in native.dims[: native.ndim])
    return Field(native.name.decode(), dims, int(native.dtype), int(native.offset))


# ------------------------------------------------------------ values


def as_array(value: Any) -> Array:
    """The value as a NumPy array, without a copy if it is an array or a tensor on the CPU."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return tensor_as_array(value)
    return np.asarray(value)


def tensor_as_array(tensor: Any) -> Array:
    """A torch tensor as an array over its memory; of another device, over a copy. bfloat16 becomes
    NumPy's.

    SchemaError if it has no plain memory: sparse, meta."""
    array: Array
    try:
        array = tensor.numpy()
        return array
    except (TypeError, RuntimeError):  # not a plain tensor on the CPU
        if tensor.is_meta:
            raise SchemaError("a tensor on the meta device cannot be cached; it has no values") from None
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        if str(tensor.dtype) == "torch.bfloat16":
            import torch

            array = tensor.contiguous().view(torch.int16).numpy()
            return array.view(dtypes.NUMPY[dtypes.BFLOAT16])
        array = tensor.numpy()
        return array
    except (TypeError, RuntimeError) as error:
        raise SchemaError(f"a tensor of {tensor.dtype}, {tensor.layout}, cannot be cached: {error}") from None


def checked(field: Field, value: Any) -> Array:
    """The value as a C-contiguous array of the field's dtype and shape; a copy only if it must be
    one.

    Arrays and tensors must have exactly the field's dtype. Numbers and lists, which have none, must
    convert without a change of value. SchemaError says what does not fit."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _checked_bytes(field, value)
    typed = hasattr(value, "dtype") and getattr(value, "ndim", 0) > 0
    array = as_array(value)
    if array.dtype == np.float64 and isinstance(value, (list, tuple)):
        array = _unrounded(value, array)
    if array.dtype.hasobject:
        raise SchemaError(f"{field}: an array of objects ({array.dtype}) cannot be cached; convert it to numbers first")
    if array.dtype != field.dtype:
        array = _converted(field, array, typed)
    if not field.admits(array.shape):
        raise SchemaError(f"{field}: shape {array.shape} does not fit; reshape it, or give the field that shape")
    # ascontiguousarray would give a scalar one dimension.
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _converted(field: Field, array: Array, typed: bool) -> Array:
    name = dtypes.NAMES[field.code]
    if typed:
        raise SchemaError(
            f"{field}: dtype {array.dtype} does not fit; convert it first, with astype({name!r}) or .to(torch.{name})"
        )
    # No conversion from a number to a truth value, from complex to real, or from a string.
    if field.code != dtypes.BOOL and array.dtype.kind in ("biufc" if field.dtype.kind == "c" else "biuf"):
        with np.errstate(all="ignore"):
            converted = array.astype(field.dtype)
            if np.all((converted == array) | ((converted != converted) & (array != array))) and not _rounded(
                array, converted
            ):
                return converted
    raise SchemaError(
        f"{field}: {array.dtype} does not convert to it without loss; convert it first, with astype({name!r})"
    )


def _unrounded(numbers: Sequence[Any], array: Array) -> Array:
    """NumPy's array of a list, with integers restored. NumPy makes floats of a list of integers if
    only some need all 64 bits."""
    if (
        array.size
        and array.min() >= 0
        and array.max() >= 2**63
        and all(isinstance(k, (int, np.integer)) for k in np.array(numbers, object).flat)
    ):
        with contextlib.suppress(OverflowError):  # a number has more than 64 bits
            return np.array(numbers, np.uint64)
    return array


def _rounded(a: Array, b: Array) -> bool:
    """Whether floats and integers of 64 bits that are equal in NumPy differ. NumPy compares them as
    floats, Python compares exact values."""
    kinds = {("i" if array.dtype.kind in "iu" and array.dtype.itemsize == 8 else array.dtype.kind) for array in (a, b)}
    return "i" in kinds and not kinds.isdisjoint("fc") and bool(np.any(a.astype(object) != b.astype(object)))


def _checked_bytes(field: Field, value: bytes | bytearray | memoryview) -> Array:
    raw = np.frombuffer(bytes(value) if isinstance(value, memoryview) and not value.c_contiguous else value, np.uint8)
    if field.code != dtypes.BYTES and not (field.code == dtypes.UINT8 and len(field.shape) == 1):
        raise SchemaError(
            f"{field}: {raw.size} raw bytes do not fit; give an array, such as numpy.frombuffer(value, {dtypes.NAMES[field.code]!r})"
        )
    if field.fixed and raw.size != field.bytes:
        raise SchemaError(f"{field}: {raw.size} bytes do not fit, it has {field.bytes}")
    if len(field.shape) != 1:
        shape = tuple(dim for dim in field.shape if dim is not None)
        if not field.fixed:
            raise SchemaError(f"{field}: raw bytes have no shape; give an array")
        return raw.reshape(shape)
    return raw
