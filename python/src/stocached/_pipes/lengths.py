"""How many items elements have, as workers count them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._datasets import looks
from .._workers import calls, set_up
from .stage import Stage
from .visits import Window

_FIRST = 0.1  # seconds of calls before workers start, which takes about as long
_TOGETHER = 256  # elements of a task, at most


def item_counts(stage: Any, workers: int) -> npt.NDArray[np.int64]:
    """The number of items of each element of a stage. Raises the error of an item."""
    stage.make_caches()
    return np.asarray(called(stage.elements(), _Counts(stage), workers), np.int64)


class KeepsLengths(Stage):
    """A stage that keeps how many items each element has, once they were counted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counted: list[npt.NDArray[np.int64]] = []  # the lengths, or nothing; copies of the stage share the list

    def lengths(self) -> npt.NDArray[np.int64] | None:
        if self.indexed:
            return super().lengths()
        if not self._counted and (learned := self.learned()) is not None:
            self._counted.append(learned)
        return self._counted[0] if self._counted else None

    def learned(self) -> npt.NDArray[np.int64] | None:
        """The lengths, if they are known before `measure`."""
        return None

    def measure(self, workers: int) -> None:
        if self.lengths() is not None:
            return
        if self.random:
            raise self.refuse(
                "this stage, or one above, draws random numbers, so epochs may have other numbers of items; write the "
                "random part below it, as a .map()"
            )
        if not self.fixed:
            raise self.refuse("a zip above has sides in different orders, so epochs may have other numbers of items")
        self._counted.append(item_counts(self, workers))


class _Counts:
    def __init__(self, stage: Any) -> None:
        self._stage = stage

    def __call__(self, element: int) -> int:
        return sum(1 for _ in self._stage.items([self._stage.visit_of(element)], Window()))


def called(n: int, function: Callable[[int], Any], workers: int) -> list[Any]:
    """[function(0), ..., function(n - 1)], most of it by workers if it takes long.

    A look, so that this process opens no file of the program before it forks workers."""
    with looks.begin(function, function, set_up.numpy_worker, forks=None, workers=workers) as look:
        made: list[Any] = look.ask(_first, n, _FIRST if workers else math.inf)
    if len(made) < n:
        rest = _Rest(function, len(made), n)
        together = max(1, min(_TOGETHER, len(rest) // (4 * workers)))
        made += calls.samples(rest, workers, together, order="sequential")
    return made


def _first(function: Callable[[int], Any], n: int, seconds: float) -> list[Any]:
    """What it gives for 0, 1, ... until they are n, or these seconds are over."""
    made: list[Any] = []
    end = time.monotonic() + seconds
    while len(made) < n and time.monotonic() < end:
        looks.note(len(made))
        made.append(function(len(made)))
    return made


class _Rest:
    """A dataset of function(first), ..., function(stop - 1)."""

    def __init__(self, function: Callable[[int], Any], first: int, stop: int) -> None:
        self._function, self._numbers = function, range(first, stop)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, k: int) -> Any:
        return self._function(self._numbers[k])
