"""Probes of a dataset before its samples are cached: are they the same each time, and the same as
those in the cache?"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._cache.cache import Cache
from .._checks import loading
from .._checks.code_names import is_library
from .._checks.randomness import difference, encoded, watched
from .._common.errors import FingerprintError
from .._common.notes import raise_noted

PROBES = 3  # samples
_TRIES = 100  # samples that are tried instead of a bad one
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


def spread(n: int, count: int = PROBES) -> list[int]:
    """At most `count` positions of 0..n-1: the first, the last, and some between, evenly."""
    return sorted({k * (n - 1) // (count - 1) for k in range(count)})


def tried(dataset: Any, index: int) -> Any:
    """Loads a sample on trial. A note in its error says so."""
    try:
        return dataset[index]
    except Exception as error:
        note = (
            f"stocached: sample {index} was loaded on trial, to learn what samples are before the cache is made. "
            "This is an error of the dataset, for this sample."
        )
        raise_noted(error, note)


def first_samples(dataset: Any, n: int, passed_over: tuple[type[Exception], ...]) -> dict[int, tuple[Any, bool]]:
    """Some samples of a dataset by index, and whether a generator moved during their loads.

    passed_over: errors of a sample instead of which it takes the next one."""
    found: dict[int, tuple[Any, bool]] = {}
    for first in spread(n):
        for index in [(first + k) % n for k in range(min(n, _TRIES))]:
            try:
                found[index] = found.get(index) or watched(functools.partial(tried, dataset, index))
                break
            except passed_over as error:
                last = error
        else:
            raise last
    return found


def check_fresh(cached: Any) -> None:
    """Compares some samples of a filled cache with the dataset's samples now. Raises as
    check_sample."""
    ready = cached_now(cached.cache)
    for k in spread(ready.size) if ready.size else []:
        with contextlib.suppress(*cached.passed_over):
            check_sample(cached, cached.stored, cached.peek, int(ready[k]))


def cached_now(cache: Cache) -> npt.NDArray[np.int64]:
    """The indices of all samples in the cache."""
    return np.flatnonzero(cache.states() == _native.STATE_READY)


def check_sample(cached: Any, dataset: Any, read: Callable[[int], Any], index: int) -> None:
    """Compares one sample of a CachedSamples with the sample of `dataset`. read: gives it from the
    cache.

    Raises FingerprintError if they differ, NondeterministicDatasetError if the dataset gives
    another sample each time."""
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
    """The command that removes a cache with a name, for messages."""
    return f" (stocached rm {cache.name})" if cache.name else ""
