"""Item types of fields: the numbers of enum stoc_dtype, their names, and their NumPy dtypes."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from .._common.errors import InvalidError

try:  # ml_dtypes gives NumPy a bfloat16; without it, bfloat16 items are the uint16 of their bits
    from ml_dtypes import bfloat16 as _bfloat16  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError:
    _bfloat16 = np.uint16

BYTES, BOOL, UINT8, BFLOAT16 = 0, 1, 2, 11

NAMES = (
    "bytes", "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip

CODES = {name: code for code, name in enumerate(NAMES)}

# By number. Items of `bytes` fields are uint8 here; the user gets bytes.
NUMPY = tuple(
    np.dtype(np.uint8) if code == BYTES else np.dtype(_bfloat16) if code == BFLOAT16 else np.dtype(name)
    for code, name in enumerate(NAMES)
)


def code_of(dtype: Any) -> int:
    """The number of a dtype given as a name, a NumPy dtype or scalar type, a torch.dtype, or bool,
    int, float, complex, bytes."""
    if dtype is bytes:
        return BYTES
    name = str(dtype).removeprefix("torch.")
    if name in CODES:
        return CODES[name]
    with contextlib.suppress(TypeError):
        name = np.dtype(dtype).name if np.dtype(dtype).isnative else str(np.dtype(dtype))
    if name not in CODES:
        raise InvalidError(f"dtype {dtype!r} cannot be cached; these can: {', '.join(NAMES)}")
    return CODES[name]
