"""What is tried out on a dataset before its samples are cached: are they the same each time, and the same as those in the cache?"""

from __future__ import annotations

import operator
import pickle
import random
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._errors import FingerprintError, NondeterministicDatasetError, SchemaError
from ._identity import is_library
from ._tree import Tree, UnfitError, same
from .cache import Cache

PROBES = 3  # samples


@contextmanager
def random_state_kept() -> Iterator[Callable[[], bool]]:
    """Puts the random number generators of Python, NumPy and torch (if somebody uses it) back afterwards, so that probing changes no seeded run.

    Gives a function that says whether something was drawn from them, or seeded, meanwhile."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()

    def drawn() -> bool:
        if random.getstate() != states[0] or pickle.dumps(np.random.get_state()) != pickle.dumps(states[1]):
            return True
        return torch is not None and not torch.equal(torch.get_rng_state(), states[2])

    try:
        yield drawn
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(states[2])


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


def difference(tree: Tree, a: Any, b: Any) -> str | None:
    """Where two samples differ, None if nowhere, or if the first one cannot be cached."""
    try:
        taken = tree.take(a)
    except UnfitError:  # it is put together in another way than most
        try:
            tree = Tree(a)
        except SchemaError:
            return None
        taken = tree.take(a)
    try:
        pairs = list(zip(tree.leaves, taken, tree.take(b)))
    except UnfitError as error:
        return str(error)
    for leaf, x, y in pairs:
        if not same(x, y):
            return f"its {leaf.called} ({leaf.described}) differs" if leaf.path else f"it ({leaf.described}) differs"
    return None


def check_repeatable(tree: Tree, load: Callable[[int], Any], first: dict[int, Any]) -> None:
    """Loads samples a second time. NondeterministicDatasetError if one comes out differently."""
    for index, sample in first.items():
        where = difference(tree, sample, load(index))
        if where is not None:
            raise NondeterministicDatasetError(
                f"sample {index} of the dataset was loaded twice and {where}: a cache would freeze the first result for ever. "
                "Move the random part of the transform to augment=, which is applied to every sample after it comes from the cache; "
                "CachedDataset(dataset, allow_random=True) caches it as it is"
            )


def check_fresh(tree: Tree, load: Callable[[int], Any], cached: Callable[[int], Any], cache: Cache) -> None:
    """Compares samples of a filled cache with what the dataset gives now. FingerprintError if the cache holds something else."""
    ready = cached_now(cache)
    for k in spread(ready.size) if ready.size else []:
        check_sample(tree, load, cached, cache, int(ready[k]))


def cached_now(cache: Cache) -> npt.NDArray[np.int64]:
    """The indices of all samples in the cache."""
    return np.flatnonzero(cache.states() == _native.STATE_READY)


def check_sample(tree: Tree, load: Callable[[int], Any], cached: Callable[[int], Any], cache: Cache, index: int) -> None:
    """The same for one sample."""
    old, new = cached(index), load(index)
    where = None if old is None else difference(tree, new, old)
    if where is not None:
        check_repeatable(tree, load, {index: new})
        raise FingerprintError(
            f"cache {cache.name!r} holds other data than this dataset gives: sample {index} was compared, and {where}. The dataset or its transform "
            f"has changed since the cache was filled; use another name, or remove it{removal(cache)}"
        )


def removal(cache: Cache) -> str:
    """How a cache that has a name is removed."""
    return f" (stocached rm {cache.name})" if cache.name else ""
