"""Subjects that read files of items in contiguous batches: row r of a batch continues where row r
of the batch before stopped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from harness import Whole
from torch.utils.data import DataLoader, IterableDataset

import stocached.torch
from stocached import source

torch.set_num_threads(1)


class Read:
    """Gives the items of a file: one of a few arrays, and the item's number. sleep: seconds
    that an item takes."""

    def __init__(self, shape: tuple[int, ...], items: int, sleep: float = 0) -> None:
        self.items, self.sleep = items, sleep
        rng = np.random.default_rng(0)
        self.data = [rng.integers(0, 256, shape, np.uint8) for _ in range(16)]

    def __call__(self, file: int) -> Iterator[Any]:
        for k in range(self.items):
            if self.sleep:
                time.sleep(self.sleep)
            yield self.data[k % 16], np.int64(file * self.items + k)


class _Streams(Whole):
    def __init__(
        self,
        rows: int,
        files: int,
        items: int,
        shape: tuple[int, ...],
        workers: int = 0,
        sleep: float = 0,
        epochs: int = 1,
    ) -> None:
        self.rows, self.files, self.workers, self.epochs = rows, files, workers, epochs
        self.read = Read(tuple(shape), items, sleep)
        self.n = files * items
        self.samples = epochs * self.n

    def check(self) -> None:
        """Checks that each item comes once, and that after an item comes the next one of its file,
        until the file ends."""
        found: list[int] = []
        last = [-1] * self.rows
        for frames, numbers in self.epoch():
            if tuple(frames.shape) != (self.rows, *self.read.data[0].shape):
                raise RuntimeError(f"a batch of {tuple(frames.shape)}")
            for row, number in enumerate(numbers.tolist()):
                begins = number % self.read.items == 0
                if begins != ((last[row] + 1) % self.read.items == 0) or (not begins and number != last[row] + 1):
                    raise RuntimeError(f"row {row} went from item {last[row]} to {number}")
                if (np.asarray(frames[row]) != self.read.data[number % self.read.items % 16]).any():
                    raise RuntimeError(f"item {number} has other bytes")
                last[row] = number
                found.append(number)
        if sorted(found) != sorted(list(range(self.n)) * self.epochs):
            raise RuntimeError("not each item once an epoch")


class Ours(_Streams):
    """The rows of a pipe, as tensors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        rows = source(range(self.files)).shuffle(seed=0).flat_map(self.read).batch(self.rows, rows=True)
        self._loader = stocached.torch.DataLoader(rows, num_workers=self.workers, multiprocessing_context="fork")

    def epoch(self) -> Iterable[Any]:
        for _ in range(self.epochs):
            for batch in self._loader:
                yield batch.items


class _Rows(IterableDataset[Any]):
    """A dataset that users write for torch's DataLoader: each row takes the next file when its own
    ends. Gives one item of each row, row after row."""

    def __init__(self, files: list[int], rows: int, read: Read) -> None:
        self.files, self.rows, self.read = files, rows, read

    def __iter__(self) -> Iterator[Any]:
        waiting = iter(self.files)
        rows = [iter(self.read(next(waiting))) for _ in range(self.rows)]
        while True:
            for row in range(self.rows):
                item = next(rows[row], None)
                if item is None:
                    file = next(waiting, None)
                    if file is None:
                        return
                    rows[row] = iter(self.read(file))
                    item = next(rows[row])
                yield item


class Torch(_Streams):
    """torch's DataLoader over that dataset; it keeps batches contiguous only with at most one
    worker."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.workers > 1:
            raise ValueError("with several workers, torch's DataLoader does not keep batches contiguous")

    def epoch(self) -> Iterable[Any]:
        for epoch in range(self.epochs):
            files = np.random.default_rng(epoch).permutation(self.files).tolist()
            yield from DataLoader(
                _Rows(files, self.rows, self.read),
                batch_size=self.rows,
                num_workers=self.workers,
                multiprocessing_context="fork" if self.workers else None,
            )


class TorchSideBySide(_Streams):
    """The known recipe to parallelize a batch: several DataLoaders with one worker each, for a part
    of the rows; their batches are joined."""

    def epoch(self) -> Iterable[Any]:
        share = self.rows // self.workers
        for epoch in range(self.epochs):
            files = np.random.default_rng(epoch).permutation(self.files).tolist()
            loaders = [
                DataLoader(
                    _Rows(files[w :: self.workers], share, self.read),
                    batch_size=share,
                    num_workers=1,
                    multiprocessing_context="fork",
                )
                for w in range(self.workers)
            ]
            for parts in zip(*loaders):
                yield [torch.cat(list(column)) for column in zip(*parts)]
