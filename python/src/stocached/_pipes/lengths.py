"""How many items elements have, as workers count them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .visits import Window

_HERE = 0.1  # seconds of calls before workers start, which takes about as long
_TOGETHER = 256  # elements of a task, at most
loader_with_workers: Any = None  # the class, which stocached.pipes says


def item_counts(stage: Any, workers: int) -> npt.NDArray[np.int64]:
    """The number of items of each element of a stage. Raises the error of an item."""
    return np.asarray(called(stage.elements(), _Counts(stage), workers), np.int64)


class _Counts:
    def __init__(self, stage: Any) -> None:
        self._stage = stage

    def __call__(self, element: int) -> int:
        return sum(1 for _ in self._stage.items([self._stage.visit_of(element)], Window()))


def called(n: int, function: Callable[[int], Any], workers: int) -> list[Any]:
    """[function(0), ..., function(n - 1)], most of it by workers if it takes long."""
    made: list[Any] = []
    end = time.monotonic() + _HERE
    while len(made) < n and not (workers and time.monotonic() > end):
        made.append(function(len(made)))
    if len(made) < n:
        rest = _Rest(function, len(made), n)
        size = max(1, min(_TOGETHER, len(rest) // (4 * workers)))
        assert loader_with_workers is not None
        loader = loader_with_workers(rest, size, num_workers=workers, worker="process", collate_fn=list)
        with contextlib.closing(loader):
            for some in loader:
                made += some
    return made


class _Rest:
    def __init__(self, function: Callable[[int], Any], first: int, n: int) -> None:
        self._function, self._first, self._n = function, first, n

    def __len__(self) -> int:
        return self._n - self._first

    def __getitem__(self, index: int) -> Any:
        return self._function(self._first + index)
