"""Items that are alike as columns, so that a batch of them is made of parts of other batches. `signature` says what the
items are; None: they differ, and only their batch as a whole is right."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

Signature = Any
"""The name of a type; or (type, what its arrays or NumPy's numbers are); or (type, keys, the signatures of its values)."""

_PLAIN = frozenset({int, float, bool, str, bytes})
_NUMBERS = frozenset(np.dtype(code).type for code in "?bhilBHILefd")


def signature(items: Sequence[Any]) -> Signature | None:
    kinds = set(map(type, items))
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind is int and not -(2**63) <= min(items) <= max(items) < 2**63:
        return None  # a batch of them has another type
    if kind in _PLAIN:
        return kind.__name__
    if kind in _NUMBERS:
        return "number", np.dtype(kind)
    alike: set[Any]
    if kind is np.ndarray:
        alike = {(item.dtype, item.shape) for item in items}
        return ("array", *alike) if len(alike) == 1 else None
    if kind is getattr(sys.modules.get("torch"), "Tensor", None):
        alike = {(item.dtype, item.shape, item.device.type, item.requires_grad) for item in items}
        return ("tensor", str(items[0].dtype), items[0].shape) if len(alike) == 1 and _is_plain(items[0]) else None
    keys: Any = None
    if kind is dict:
        keys = tuple(items[0])
        same = keys and set(map(type, keys)) == {str} and set(map(tuple, items)) == {keys}
        inside = [signature([item[key] for item in items]) for key in keys] if same else [None]
    elif kind in (tuple, list):
        keys = len(items[0])
        inside = list(map(signature, zip(*items))) if set(map(len, items)) == {keys} and keys else [None]
    else:
        return None
    return None if None in inside else (kind.__name__, keys, inside)


def _is_plain(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu" and not tensor.requires_grad and str(tensor.layout) == "torch.strided")


def joined(parts: Sequence[tuple[Any, int, int]], of: Signature) -> Any:
    """The batch of parts of batches: each with its first row and how many."""
    column, first, count = parts[0]
    if of[0] == "dict":
        return {key: joined([(part[key], a, n) for part, a, n in parts], one) for key, one in zip(of[1], of[2])}
    if of[0] in ("tuple", "list"):
        inside = [joined([(part[k], a, n) for part, a, n in parts], one) for k, one in enumerate(of[2])]
        return type(column)(inside)
    if len(parts) == 1:
        return column if first == 0 and count == len(column) else column[first : first + count]
    cut = [part[a : a + n] for part, a, n in parts]
    if isinstance(column, (list, tuple)):
        return type(column)(value for part in cut for value in part)
    if isinstance(column, np.ndarray):
        return np.concatenate(cut)
    return sys.modules["torch"].cat(cut)


def apart(column: Any, of: Signature, first: int, count: int) -> list[Any]:
    """The items of a part of a batch."""
    if of[0] == "dict":
        columns = [apart(column[key], one, first, count) for key, one in zip(of[1], of[2])]
        return [dict(zip(of[1], values)) for values in zip(*columns, strict=True)]
    if of[0] in ("tuple", "list"):
        kind = tuple if of[0] == "tuple" else list
        return list(map(kind, zip(*(apart(column[k], one, first, count) for k, one in enumerate(of[2])), strict=True)))
    part = column[first : first + count]
    if of in ("str", "bytes"):
        return list(part)
    if isinstance(of, str):
        return list(part.tolist())
    if of[0] == "array":
        return list(np.asarray(part))
    if of[0] == "number":
        return list(np.asarray(part).astype(of[1], copy=False))
    return list(part if not isinstance(part, np.ndarray) else map(sys.modules["torch"].from_numpy, part))
