"""Private copies of samples. A function of the user may change what it gets, and must not change what the dataset keeps."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np

from .containers import container_of

CONSTANT = frozenset((type(None), bool, int, float, complex, str, bytes))


def own_copy(value: Any) -> Any:
    """A copy that shares no memory with the value, as samples of a cache share none. Tensors are contiguous and
    without a gradient. What cannot be copied stays the same object."""
    kind = type(value)
    if kind in CONSTANT:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return np.array(value, order="C")
    if kind is getattr(sys.modules.get("torch"), "Tensor", None):
        made = value.detach().clone()
        return made.contiguous() if made.layout is sys.modules["torch"].strided else made
    container = container_of(value)
    if container is not None:
        names, values, form = container.parts(value)
        return container.make(kind, names, form, [own_copy(item) for item in values])
    try:
        return copy.deepcopy(value)
    except Exception:  # such as an open file
        return value
