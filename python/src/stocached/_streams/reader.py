"""Reading one file of a stream: opening it at an item, and taking items out of it one after the
other."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._workers.stateful import give_back
from .snapshots import Snapshot


def read_itself(file: Any) -> Any:
    """The reader of files that are iterables, sequences, or functions that return one."""
    if callable(file):
        return file()
    if iter(file) is file:
        raise InvalidError(f"{file!r} can be read only once: list the function that makes it, not what it returned")
    return file


def _skip(items: Iterator[Any], count: int) -> None:
    for _ in range(count):
        if next(items, items) is items:
            return  # shorter than it was: the reader finds the end


class Reader:
    """A user's function read(file), which returns an iterable of items, and what it can do: with a
    parameter `start` it begins at that item, with a parameter `rng` it is given a generator of
    random numbers. What it returns, and the iterator over that, may be Stateful."""

    def __init__(self, read: Callable[..., Iterable[Any]], seed: int) -> None:
        if not callable(read):
            raise InvalidError(f"read={read!r} is no function of a file")
        self.read, self._seed = read, seed
        try:
            names = inspect.signature(read).parameters
        except (TypeError, ValueError):  # a function of C, without a signature
            names = {}  # type: ignore[assignment]
        self._seeks, self._random = "start" in names, "rng" in names

    def open(
        self, file: Any, number: int, epoch: int, start: int, snapshot: Snapshot | None = None
    ) -> tuple[Any, Iterator[Any]]:
        """What the user's function returned, and an iterator over its items from `start` on. The
        random numbers are those of (seed, epoch, number of the file), in any worker. snapshot: of
        an item at or before `start`; the items between them are discarded. StateError."""
        extra: dict[str, Any] = {}
        if self._random:
            extra["rng"] = np.random.default_rng((self._seed, epoch, number))
        begin = start if snapshot is None else snapshot.item
        if self._seeks:
            extra["start"] = begin
        values = self.read(file, **extra)
        if snapshot is not None:
            of_values, of_items = pickle.loads(snapshot.data)
            give_back(values, of_values, f"file {number}")
            items = iter(values)
            give_back(items, of_items, f"the iterator of file {number}")
        else:
            items = iter(values)
            if not self._seeks:
                if isinstance(values, (Sequence, np.ndarray)):  # can be asked for any item
                    return values, (values[k] for k in range(start, len(values)))
                begin = 0
        _skip(items, start - begin)
        return values, items
