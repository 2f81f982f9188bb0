"""Files for tests of streams, a reader for them, and the expected batches: computed from
docs/spec/stream-rows.md, without the tested code."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import Any, NamedTuple

import numpy as np

from stocached import Loader, Order, source
from stocached._loader.iterator import BatchIterator
from stocached.streams import Streams


class Item(NamedTuple):
    """A structure that new worker processes can import."""

    data: np.ndarray
    name: dict[str, Any]


def item(file: int, k: int) -> Item:
    return Item(
        np.random.default_rng((file, k)).integers(0, 256, (4, 3), np.uint8),
        {"file": np.int32(file), "k": (np.full(2, k), k)},
    )


class Files:
    """Reads file k, of lengths[k] items. Can be pickled. opened: a folder in which each opening of
    a file leaves a note."""

    def __init__(self, lengths: list[int], opened: Any = None, slow: float = 0) -> None:
        self.lengths, self.opened, self.slow = lengths, opened, slow

    def __call__(self, file: int) -> Any:
        if self.opened is not None:
            (self.opened / f"{file}-{os.getpid()}-{time.monotonic_ns()}").touch()
        for k in range(self.lengths[file]):
            if self.slow:
                time.sleep(self.slow)
            yield item(file, k)


class Breaking(Files):
    """File 3 fails at its item 2, and file 5 when it is opened."""

    def __call__(self, file: int) -> Any:
        if file == 5:
            raise FileNotFoundError(2, "no such file", "five")
        for k, value in enumerate(super().__call__(file)):
            if (file, k) == (3, 2):
                raise ZeroDivisionError("in the middle")
            yield value


class SeekingFiles(Files):
    """The same, but it can start at an item, and reads none before it."""

    def __call__(self, file: int, start: int = 0) -> Any:
        return (item(file, k) for k in range(start, self.lengths[file]))


def streams(lengths: list[int], batch_size: int, *, known: bool = False, read: Any = None, **settings: Any) -> Streams:
    """Streams over files of these lengths."""
    settings = {"multiprocessing_context": "fork", "timeout": 60} | settings
    told = lengths if known else None
    return Streams(range(len(lengths)), batch_size, read or Files(lengths), lengths=told, **settings)


def pipe(
    lengths: list[int], rows: int, *, read: Any = None, known: bool = False, seed: int = 0, shuffle: bool = True
) -> Any:
    """The chain of `streams(lengths, rows, ...)`."""
    files = source(range(len(lengths)))
    files = files.shuffle(seed=seed) if shuffle else files
    return files.flat_map(read or Files(lengths)).batch(rows, rows=True, lengths=lengths if known else None)


def loader(lengths: list[int], rows: int, *, uneven: bool = False, **settings: Any) -> Loader:
    """As `streams` with these settings."""
    of_pipe = {name: settings.pop(name) for name in ("read", "known", "seed", "shuffle") if name in settings}
    if "errors" in settings:
        settings["bad_samples"] = {"raise": "error", "skip": "skip"}[settings.pop("errors")]
    settings["ends"] = "uneven" if uneven else settings.get("ends")
    settings = {"multiprocessing_context": "fork", "timeout": 60} | settings
    return Loader(pipe(lengths, rows, **of_pipe), **settings)


def pids(batches: Any) -> list[int]:
    """Those of the workers of an iteration of either."""
    return (batches._runtime if isinstance(batches, BatchIterator) else batches._source._pool).pids


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it had ended
        os.kill(pid, signal.SIGKILL)


def lengths_of(seed: int, least: int = 1) -> list[int]:
    """Lengths of 1 to 20 files, some of them empty."""
    rng = random.Random(seed)
    lengths = [rng.choice([0, 0, 1, 1, 2, 5, 13]) for _ in range(rng.randint(least, 20))]
    return lengths if any(lengths) else [3, *lengths[1:]]


def expected(
    lengths: list[int],
    rows: int,
    groups: int = 1,
    *,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    ends: str = "pad",
    steps: int = 10**9,
) -> list[list[Any]]:
    """For each step, the (file, number of the item) of each row, or None if it has none. Several
    groups end together."""
    count = len(lengths)

    def file(place: int) -> int:
        return (
            Order(count, "shuffled" if shuffle else "sequential", seed).epoch(epoch + place // count).at(place % count)
        )

    following = list(range(groups))
    reading: list[Any] = [None] * rows
    result: list[list[Any]] = []
    while len(result) < steps:
        waiting = [row for row in range(rows) if reading[row] is None or reading[row][1] == lengths[reading[row][0]]]
        while waiting:
            again = []
            for row in waiting:
                group = row * groups // rows
                if following[group] >= count and ends != "cycle":
                    reading[row] = None
                    continue
                reading[row] = [file(following[group]), 0]
                following[group] += groups
                if lengths[reading[row][0]] == 0:
                    again.append(row)
            waiting = again
        there = [at is not None for at in reading]
        if not (all(there) if ends == "drop" else any(there)):
            break
        result.append([None if at is None else tuple(at) for at in reading])
        for at in reading:
            if at is not None:
                at[1] += 1
    return result


def check(batch: Any, want: list[Any]) -> None:
    """Checks that a batch has exactly these items."""
    assert batch.mask.tolist() == [at is not None for at in want]
    assert batch.files.tolist() == [-1 if at is None else at[0] for at in want]
    assert batch.positions.tolist() == [-1 if at is None else at[1] for at in want]
    assert batch.starts.tolist() == [at is not None and at[1] == 0 for at in want]
    assert type(batch.items) is Item
    for row, at in enumerate(want):
        there = (
            batch.items.data[row],
            batch.items.name["file"][row],
            batch.items.name["k"][0][row],
            batch.items.name["k"][1][row],
        )
        if at is None:
            assert not any(part.any() for part in there)
        else:
            data, name = item(*at)
            assert all((a == b).all() for a, b in zip(there, (data, name["file"], *name["k"])))


def collect(batches: Any, most: int = 10**9) -> list[list[Any]]:
    """Checks each batch, and returns its items."""
    found = []
    for batch in batches:
        found.append(
            [(int(f), int(k)) if there else None for f, k, there in zip(batch.files, batch.positions, batch.mask)]
        )
        check(batch, found[-1])
        if len(found) == most:
            break
    return found
