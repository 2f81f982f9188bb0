"""Private copies of samples. A function of the user may change what it gets, and must not change what the dataset keeps."""

from __future__ import annotations

import copy
import datetime
import pathlib
import sys
from typing import Any

import numpy as np

from .containers import container_of

_NUMPY = {np.dtype(code).type for code in np.typecodes["All"]} - {np.void, np.object_}  # a np.void is part of an array
CONSTANT = frozenset(
    (type(None), bool, int, float, complex, str, bytes, pathlib.PosixPath, datetime.date, datetime.datetime, *_NUMPY)
)


def own_copy(value: Any) -> Any:
    """A copy that shares no memory with the value, as samples of a cache share none. Tensors are contiguous and
    without a gradient. What cannot be copied stays the same object."""
    try:
        return _copied(value)
    except Exception:  # RecursionError: it contains itself. Others: its class is made of other arguments
        return _deeply(value)


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in CONSTANT:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return np.array(value, order="C")
    if kind is getattr(sys.modules.get("torch"), "Tensor", None):
        made = value.detach().clone()
        return made.contiguous() if made.layout is sys.modules["torch"].strided else made
    container = container_of(value)
    if container is None:
        return _deeply(value)
    names, values, form = container.parts(value)
    return container.make(kind, names, form, [_copied(item) for item in values])


def _deeply(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # such as an open file
        return value
