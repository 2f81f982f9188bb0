"""Counts the hits of a dataset, thread by thread."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt


class ThreadHits(threading.local):
    """The samples that this thread got from a cache. After unpickling it is as new."""

    count = 0
    last: npt.NDArray[np.bool_] | None = None  # which samples of the last call were hits

    def add(self, hit: npt.NDArray[np.bool_]) -> None:
        self.count += int(hit.sum())
        self.last = hit

    def __reduce__(self) -> tuple[type[ThreadHits], tuple[()]]:
        return ThreadHits, ()
