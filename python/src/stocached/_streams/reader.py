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


def skip(items: Iterator[Any], count: int) -> None:
    for _ in range(count):
        if next(items, items) is items:
            return  # shorter than it was: the reader finds the end


def parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Their names; none of a function of C, without a signature."""
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


class Reader:
    """Opens files. What it gets of a file, and the iterator over that, may be Stateful."""

    seeks: bool  # it can begin at any item

    def values(self, file: Any, number: int, epoch: int, start: int) -> Iterable[Any]:
        """The items of a file; if it seeks, from `start` on."""
        raise NotImplementedError

    def open(
        self, file: Any, number: int, epoch: int, start: int, snapshot: Snapshot | None = None
    ) -> tuple[Any, Iterator[Any]]:
        """The iterable of a file, and an iterator over its items from `start` on. snapshot: of an item at or before
        `start`; the items between them are discarded. StateError."""
        begin = start if snapshot is None else snapshot.item
        values = self.values(file, number, epoch, begin)
        if snapshot is not None:
            of_values, of_items = pickle.loads(snapshot.data)
            give_back(values, of_values, f"file {number}")
            items = iter(values)
            give_back(items, of_items, f"the iterator of file {number}")
        else:
            items = iter(values)
            if not self.seeks:
                if isinstance(values, (Sequence, np.ndarray)):  # can be asked for any item
                    return values, (values[k] for k in range(start, len(values)))
                begin = 0
        skip(items, start - begin)
        return values, items

    def counting(self, counters: Any) -> Reader:
        """This reader, for one iteration. counters: of the stages of a pipe."""
        return self

    def enter_worker(self, number: int) -> None:
        """This process is that worker from now on."""

    def tell(self, *, ends: bool = False) -> None:
        """Tells the parent what this worker has counted, now and then. ends: it counts no more."""


class FileReader(Reader):
    """A user's function read(file), which returns an iterable of items, and what it can do: with a
    parameter `start` it begins at that item, with a parameter `rng` it is given a generator of
    random numbers, which are those of (seed, epoch, number of the file) in any worker."""

    def __init__(self, read: Callable[..., Iterable[Any]], seed: int) -> None:
        if not callable(read):
            raise InvalidError(f"read={read!r} is no function of a file")
        self.read, self._seed = read, seed
        names = parameters(read)
        self.seeks, self._random = "start" in names, "rng" in names

    def values(self, file: Any, number: int, epoch: int, start: int) -> Iterable[Any]:
        extra: dict[str, Any] = {}
        if self._random:
            extra["rng"] = np.random.default_rng((self._seed, epoch, number))
        if self.seeks:
            extra["start"] = start
        return self.read(file, **extra)
