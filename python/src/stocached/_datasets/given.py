"""Counts the hits of a dataset."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt


class Given(threading.local):
    """The samples that a thread got from a cache. After unpickling it is as new."""

    value = 0
    hit: npt.NDArray[np.bool_] | None = None  # which samples of the last call were hits

    def add(self, hit: npt.NDArray[np.bool_]) -> None:
        self.value += int(hit.sum())
        self.hit = hit

    def __reduce__(self) -> tuple[type[Given], tuple[()]]:
        return Given, ()
