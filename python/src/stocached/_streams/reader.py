"""Reading one file of a stream: opening it at an item, and taking items out of it one after the
other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError


def read_itself(file: Any, start: int = 0) -> Iterator[Any]:
    """The reader of files that are iterables, sequences, or functions that return one."""
    if callable(file):
        file = file()
        return _from(file, start)
    if iter(file) is file:
        raise InvalidError(f"{file!r} can be read only once: list the function that makes it, not what it returned")
    return _from(file, start)


def _from(file: Any, start: int) -> Iterator[Any]:
    if isinstance(file, (Sequence, np.ndarray)):  # can be asked for any item
        return (file[k] for k in range(start, len(file)))
    items: Iterator[Any] = iter(file)
    _skip(items, start)
    return items


def _skip(items: Iterator[Any], count: int) -> None:
    for _ in range(count):
        if next(items, items) is items:
            return  # shorter than it was: the reader finds the end


class Reader:
    """A user's function read(file), which returns an iterable of items, and what it can do: with a
    parameter `start` it begins at that item, with a parameter `rng` it is given a generator of
    random numbers."""

    def __init__(self, read: Callable[..., Iterable[Any]], seed: int) -> None:
        if not callable(read):
            raise InvalidError(f"read={read!r} is no function of a file")
        self.read, self._seed = read, seed
        try:
            names = inspect.signature(read).parameters
        except (TypeError, ValueError):  # of C, without a signature
            names = {}  # type: ignore[assignment]
        self._seeks, self._random = "start" in names, "rng" in names

    def open(self, file: Any, number: int, epoch: int, start: int) -> Iterator[Any]:
        """The items of a file from `start` on. The random numbers are those of (seed, epoch, number
        of the file), in any worker."""
        extra: dict[str, Any] = {}
        if self._random:
            extra["rng"] = np.random.default_rng((self._seed, epoch, number))
        if self._seeks:
            return iter(self.read(file, start=start, **extra))
        items = iter(self.read(file, **extra))
        _skip(items, start)
        return items
