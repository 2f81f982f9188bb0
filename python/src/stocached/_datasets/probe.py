"""What is tried out on a dataset before its samples are cached: are they the same each time, and the same as those in the cache?"""

from __future__ import annotations

import operator
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._cache.cache import Cache
from .._checks import loading
from .._checks.identity import is_library
from .._checks.randomness import difference, encoded
from .._common.errors import FingerprintError

PROBES = 3  # samples
_ENTRIES = 100_000  # of lists and dicts that are noted: paths and labels of a large dataset need not be


@contextmanager
def left_as_it_was(dataset: Any) -> Iterator[None]:
    """Puts back what loading samples changes in the attributes of the dataset, of datasets within it and of other objects of the program's own code that it
    holds, and in their lists and dicts. So a file that is opened for the first sample, and kept, is closed again, and each worker opens its own: forked
    ones would share its position otherwise, and read each other's samples."""
    noted = _noted(dataset)
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # nobody else can close what nobody has seen
            for there, before in noted:
                if isinstance(there, list):
                    if len(there) != len(before) or any(map(operator.is_not, there, before)):
                        there[:] = before
                elif there.keys() != before.keys() or any(there[key] is not before[key] for key in before):
                    there.clear()
                    there.update(before)


def _noted(value: Any) -> list[tuple[Any, Any]]:
    """The lists and dicts that a value is made of, each with a copy; those that lie deepest are left out if they are too many."""
    noted: dict[int, tuple[Any, Any]] = {}
    todo, room = deque([value]), _ENTRIES
    while todo:
        value = todo.popleft()
        kind = type(value)
        container = value if kind in (list, dict, tuple) else vars(value) if is_own(value) else None
        if container is None or len(container) > room or id(container) in noted:
            continue
        room -= len(container)
        if kind is not tuple:
            noted[id(container)] = container, container.copy()
        todo += container.values() if isinstance(container, dict) else container
    return list(noted.values())


def is_own(value: Any) -> bool:
    """Whether it is a dataset, or of the program's own code: arrays, models and whatever else is of a library see to themselves."""
    kind = type(value)
    if not isinstance(getattr(value, "__dict__", None), dict) or isinstance(value, (type, ModuleType, FunctionType)) or hasattr(kind, "shape"):
        return False
    if isinstance(value, threading.local) or (hasattr(kind, "__getitem__") and hasattr(kind, "__len__")):
        return True
    return not is_library(kind.__module__)


def spread(n: int, count: int = PROBES) -> list[int]:
    """At most `count` positions of 0..n-1: the first, the last, and those between."""
    return sorted({k * (n - 1) // (count - 1) for k in range(count)})


def tried(dataset: Any, index: int) -> Any:
    """A sample that is loaded on trial. Its error says so."""
    try:
        return dataset[index]
    except Exception as error:
        note = (
            f"stocached: sample {index} was loaded on trial, to see what samples are like before the cache is made. "
            "It is an error of the dataset, for this sample."
        )
        if hasattr(error, "add_note"):
            error.add_note(note)
            raise
        try:  # Python 3.10
            noted = type(error)(f"{error}\n{note}")
        except Exception:  # its constructor takes something else
            raise error from None
        raise noted from error


def check_fresh(cached: Any) -> None:
    """Compares some samples of a filled cache with what the dataset gives now. Raises as check_sample does."""
    ready = cached_now(cached.cache)
    for k in spread(ready.size) if ready.size else []:
        check_sample(cached, cached.dataset, cached.peek, int(ready[k]))


def cached_now(cache: Cache) -> npt.NDArray[np.int64]:
    """The indices of all samples in the cache."""
    return np.flatnonzero(cache.states() == _native.STATE_READY)


def check_sample(cached: Any, dataset: Any, read: Callable[[int], Any], index: int) -> None:
    """Compares one sample of a CachedSamples with what `dataset` gives. look: takes it from the cache.

    Raises FingerprintError if the cache holds something else, NondeterministicDatasetError if the dataset gives something else each time."""
    old, new = read(index), loading.item(dataset, index)
    where = None if old is None else difference(encoded(old, cached.encode), encoded(new, cached.encode))
    if where is not None:
        cached.check_repeatable(dataset, index, new)
        cache = cached.cache
        raise FingerprintError(
            f"cache {cache.name!r} holds other data than this dataset gives: sample {index} was compared, and {where}. The dataset or its transform "
            f"has changed since the cache was filled; use another name, or remove it{removal(cache)}"
        )


def removal(cache: Cache) -> str:
    """How a cache that has a name is removed."""
    return f" (stocached rm {cache.name})" if cache.name else ""
