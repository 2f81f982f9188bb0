"""Whether two results of the table of test_dataloader_parity.py are equal: types, dtypes, shapes,
values, order of keys."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch_helpers import torch


@dataclass(frozen=True)
class Raised:
    """An exception as a part of a result: its type, and which of the expected texts its message
    has."""

    type: str
    holds: tuple[bool, ...]


def raised(error: BaseException, *texts: str) -> Raised:
    """Also breaks the cycle of an exception and its frames that torch leaves. If the garbage
    collector ends its iterator in a cycle, each worker takes 5 s to end."""
    traceback.clear_frames(error.__traceback__)
    return Raised(type(error).__name__, tuple(text in str(error) for text in texts))


def outcome(function: Callable[[], Any], *texts: str) -> Any:
    """What a call returns or raises."""
    try:
        return function()
    except Exception as error:
        return raised(error, *texts)


@contextlib.contextmanager
def warned(kind: type[Warning] = UserWarning, text: str = "") -> Any:
    """A list that gets one entry for each warning of the kind whose message has the text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found: list[str] = []
        yield found
        found += [w.category.__name__ for w in caught if issubclass(w.category, kind) and text in str(w.message)]


def difference(a: Any, b: Any, path: str = "outcome") -> str | None:
    """Where and how b differs from a; None if they are equal."""
    if type(a) is not type(b):
        return f"{path}: {type(a).__name__} {a!r:.300}, ours {type(b).__name__} {b!r:.300}"
    if isinstance(a, torch.Tensor):
        return _tensors(a, b, path)
    if isinstance(a, np.ndarray):
        same = (
            a.dtype == b.dtype
            and a.shape == b.shape
            and (a.tolist() == b.tolist() if a.dtype.hasobject else a.tobytes() == b.tobytes())
        )
        return None if same else f"{path}: {a.dtype} {a!r:.300}, ours {b.dtype} {b!r:.300}"
    if isinstance(a, Mapping):
        if list(a) != list(b):
            return f"{path}: keys {list(a)!r:.300}, ours {list(b)!r:.300}"
        return _first(difference(a[key], b[key], f"{path}[{key!r}]") for key in a)
    if isinstance(a, (list, tuple)) or type(a).__name__ in ("deque", "UserList"):
        found = _first(difference(x, y, f"{path}[{k}]") for k, (x, y) in enumerate(zip(a, b)))
        return found or (
            None if len(a) == len(b) else f"{path}: {len(a)} items, ours {len(b)}: {a!r:.300} and {b!r:.300}"
        )
    if a == b or (a != a and b != b):
        return None
    return f"{path}: {a!r:.300}, ours {b!r:.300}"


def _first(found: Any) -> str | None:
    return next((one for one in found if one is not None), None)


def _tensors(a: Any, b: Any, path: str) -> str | None:
    if a.is_nested or b.is_nested:
        return difference([a.is_nested, *a.unbind()], [b.is_nested, *b.unbind()], path)
    if (a.dtype, a.shape, a.layout, a.device) != (b.dtype, b.shape, b.layout, b.device):
        return f"{path}: {a.dtype} {tuple(a.shape)} {a.layout} {a.device}, ours {b.dtype} {tuple(b.shape)} {b.layout} {b.device}"
    if a.requires_grad != b.requires_grad or a.is_pinned() != b.is_pinned():
        return (
            f"{path}: requires_grad {a.requires_grad}, pinned {a.is_pinned()}, ours {b.requires_grad}, {b.is_pinned()}"
        )
    same = (
        torch.allclose(a.to_dense(), b.to_dense(), 0, 0, equal_nan=True)
        if a.dtype.is_floating_point or a.dtype.is_complex
        else torch.equal(a, b)
    )
    return None if same else f"{path}: {a!r:.300}, ours {b!r:.300}"
