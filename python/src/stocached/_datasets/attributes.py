"""What loads change in a dataset: its attributes, and those of the program's own objects in it."""

from __future__ import annotations

import contextlib
import operator
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from .._checks.code_names import is_library

# The most entries of lists and dicts that are restored: paths and labels of a large dataset are
# left out.
_ENTRIES = 100_000


@contextlib.contextmanager
def left_as_it_was(dataset: Any) -> Iterator[None]:
    """Restores what loads change in the dataset: its attributes, those of datasets inside it and of
    other objects of the program's own code, and their lists and dicts.

    So a file that the dataset opens for its first sample is closed again, and each worker opens its
    own. Forked workers would share the position of one file, and read each other's samples."""
    noted = _noted(dataset)
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # a file of the probes, which no other code can close
            for there, before in noted:
                if isinstance(there, list):
                    if len(there) != len(before) or any(map(operator.is_not, there, before)):
                        there[:] = before
                elif there.keys() != before.keys() or any(there[key] is not before[key] for key in before):
                    there.clear()
                    there.update(before)


def _noted(value: Any) -> list[tuple[Any, Any]]:
    """The lists and dicts inside a value, each with a copy. If they are too many, the deepest are
    left out."""
    noted: dict[int, tuple[Any, Any]] = {}
    todo, left = deque([value]), _ENTRIES
    while todo:
        value = todo.popleft()
        kind = type(value)
        container = value if kind in (list, dict, tuple) else vars(value) if is_own(value) else None
        if container is None or len(container) > left or id(container) in noted:
            continue
        left -= len(container)
        if kind is not tuple:
            noted[id(container)] = container, container.copy()
        todo += container.values() if isinstance(container, dict) else container
    return list(noted.values())


def is_own(value: Any) -> bool:
    """Whether a value is a dataset, or an object of the program's own code. Arrays, models and
    other objects of libraries are not."""
    kind = type(value)
    if (
        not isinstance(getattr(value, "__dict__", None), dict)
        or isinstance(value, (type, ModuleType, FunctionType))
        or hasattr(kind, "shape")
    ):
        return False
    if isinstance(value, threading.local) or (hasattr(kind, "__getitem__") and hasattr(kind, "__len__")):
        return True
    return not is_library(kind.__module__)
