"""Readers of streams with states of their own, in a module that new worker processes can import."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BUFFER = 4


class Shuffled(Iterator[Any]):
    """The numbers 0..length-1 of a file in another order: each comes out of a buffer, by a random
    number. The state is made of live objects, which change with the next item. log: gets a line
    with each number that is read into the buffer, and a 1 if that is after `load_state_dict`, which
    says -1. seed: None for another order each time."""

    def __init__(self, file: int, length: int, log: Path | None, seed: int | None) -> None:
        self.file, self.length, self.log = file, length, log
        self.loaded = 0
        self.state = {"read": 0, "buffer": []}
        self.rng = np.random.default_rng(seed)

    def __next__(self) -> Any:
        state = self.state
        while state["read"] < self.length and len(state["buffer"]) < BUFFER:
            self.note(state["read"])
            state["buffer"].append(state["read"])
            state["read"] += 1
        if not state["buffer"]:
            raise StopIteration
        number = state["buffer"].pop(int(self.rng.integers(len(state["buffer"]))))
        return {"at": np.array([self.file, number]), "draw": self.rng.integers(2**60)}

    def note(self, number: int) -> None:
        if self.log is not None:
            append(self.log, f"{self.file} {number} {self.loaded}")

    def state_dict(self) -> dict[str, Any]:
        self.state["generator"] = self.rng.bit_generator.state
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.loaded = state, 1
        self.note(-1)
        self.rng.bit_generator.state = state["generator"]


class Lines:
    """As Shuffled, but the iterator is a generator, and the state is that of the object."""

    def __init__(self, *arguments: Any) -> None:
        self.shuffled = Shuffled(*arguments)

    def __iter__(self) -> Iterator[Any]:
        yield from self.shuffled

    def state_dict(self) -> Any:
        return self.shuffled.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.shuffled.load_state_dict(state)


class Around:
    """An iterable without a state; its iterator has one."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __iter__(self) -> Iterator[Any]:
        return Shuffled(*self.arguments)


class ShuffledFiles:
    """Reads file k, of lengths[k] items, as a `kind` of those above."""

    def __init__(self, lengths: list[int], log: Path | None = None, kind: Any = Shuffled, seeded: bool = True) -> None:
        self.lengths, self.log, self.kind, self.seeded = lengths, log, kind, seeded

    def __call__(self, file: int) -> Any:
        return self.kind(file, self.lengths[file], self.log, file if self.seeded else None)


class SeekingShuffled(ShuffledFiles):
    """The position is the reader's, by `start`; the state has the generator alone."""

    def __call__(self, file: int, start: int = 0) -> Any:  # type: ignore[override]
        if self.log is not None:
            append(self.log, f"{file} {start}")
        return Drawing(file, start, self.lengths[file])


class Drawing(Iterator[Any]):
    def __init__(self, file: int, start: int, length: int) -> None:
        self.file, self.at, self.length, self.rng = file, start, length, np.random.default_rng(file)

    def __next__(self) -> Any:
        if self.at >= self.length:
            raise StopIteration
        self.at += 1
        return {"at": np.array([self.file, self.at - 1]), "draw": self.rng.integers(2**60)}

    def state_dict(self) -> Any:
        return self.rng.bit_generator.state

    def load_state_dict(self, state: Any) -> None:
        self.rng.bit_generator.state = state


def append(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def logged(path: Path) -> list[tuple[int, ...]]:
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def contents(read: Any, files: int) -> list[list[Any]]:
    """Of each file what it gives when nothing stops it."""
    return [[taken(value["at"], value["draw"]) for value in read(file)] for file in range(files)]


def taken(at: Any, draw: Any) -> Any:
    return [*map(int, at), int(draw)]


def collect(batches: Any, most: int = 10**9) -> list[list[Any]]:
    """Of each batch the items of its rows, None without an item."""
    found: list[list[Any]] = []
    while len(found) < most:
        batch = next(batches, None)
        if batch is None:
            break
        rows = zip(batch.items["at"], batch.items["draw"], batch.mask)
        found.append([taken(at, draw) if real else None for at, draw, real in rows])
    return found
