"""Subjects of stocached: the loader, its gather, and a bare loop over the same bytes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import sets
from harness import Whole

import stocached


def empty(folder: str, what: str, n: int, shape: Any, slots: int) -> stocached.Cache:
    return stocached.Cache.create(
        sets.own_name(what), samples=n, slots=slots, shape=tuple(shape), dtype="uint8", dir=folder
    )


def filled(folder: str, what: str, n: int, shape: Any) -> stocached.Cache:
    """A cache that holds all images."""
    cache = empty(folder, what, n, shape, n)
    images = sets.Images(n, shape)
    for i in range(n):
        if not cache.put(i, images[i]):
            raise RuntimeError(f"sample {i} of {n} was not stored")
    return cache


class Ours(Whole):
    """stocached.torch.DataLoader. order: "ours", or "torch" for torch's sampler. dataset: "images",
    "jpeg" or "sleep". share: the fraction of the samples with a slot; None: no cache."""

    def __init__(
        self, *, folder: str, n: int, shape: Any, batch: int, workers: int, share: float | None = 1.0,
        dataset: str = "images", order: str = "ours",
        epochs: int = 1, augment: float = 0, trace: bool = False, loops: str = "", jpegs: str = "",
        sleep: float = 0, **options: Any,
    ) -> None:  # fmt: skip
        import torch

        from stocached.torch import DataLoader

        torch.set_num_threads(1)
        self.n, self.epochs, self.samples = n, epochs, n * epochs
        self._check_numbers = dataset == "images"
        source: Any = {
            "images": lambda: sets.Images(n, shape, torch.from_numpy),
            "jpeg": lambda: sets.Jpegs(jpegs, n),
            "sleep": lambda: sets.Sleeps(n, sleep),
        }[dataset]()
        if share is not None and share > 0:
            self._cache = (
                filled(folder, "ours", n, shape)
                if dataset == "images"
                else empty(folder, "ours", n, shape, int(n * share))
            )
            options["cache"] = self._cache
        if order == "ours":
            options |= {"seed": 1, "shuffle": True}
        else:
            options |= {"shuffle": True, "generator": torch.Generator().manual_seed(1)}
        if augment:
            options["augment"] = sets.Augment(loops, augment)
        if trace:
            options["trace"] = f"{folder}/{sets.own_name('trace')}.json"
        if workers:
            options |= {"persistent_workers": True, "num_workers": workers, "multiprocessing_context": "fork"}
        self.loader = DataLoader(source, batch, **options)
        self._turn = 0

    def __del__(self) -> None:
        if hasattr(self, "_cache"):
            self._cache.unlink()

    def epoch(self) -> Iterable[Any]:
        # Another epoch than the next: its first batches were made ahead while others ran, and would
        # cost nothing.
        self._turn += 1000
        self.loader.set_epoch(self._turn)
        for _ in range(self.epochs):
            yield from self.loader

    def check(self) -> None:
        if self._check_numbers:
            super().check()
        elif (n := sum(len(batch) for batch in self.epoch())) != self.samples:
            raise RuntimeError(f"{n} samples instead of {self.samples}")


class Gather(Whole):
    """Cache.gather of the same batches in a random order, into a ring of as many batches as the
    loader makes ahead."""

    def __init__(
        self, *, folder: str, n: int, shape: Any, batch: int, threads: int = 1, epochs: int = 1, loops: str = ""
    ) -> None:
        self.n, self.shape = n, tuple(shape)
        self.cache = filled(folder, "gather", n, shape)
        self.epochs, self.samples = epochs, n * epochs
        self._batch, self._threads = batch, threads
        self._ring = [np.ones((batch, *self.shape), np.uint8) for _ in range(4)]
        self._rng = np.random.default_rng(1)
        self._loops = loops

    def __del__(self) -> None:
        if hasattr(self, "cache"):
            self.cache.unlink()

    def epoch(self) -> Iterable[Any]:
        k = 0
        for _ in range(self.epochs):
            order = self._rng.permutation(self.n)
            for at in range(0, self.n, self._batch):
                wanted = order[at : at + self._batch]
                out = self._ring[k % len(self._ring)][: len(wanted)]
                k += 1
                self.copy(wanted, out)
                yield out

    def copy(self, wanted: Any, out: Any) -> None:
        if not self.cache.gather(wanted, out=out, threads=self._threads)[1].all():
            raise RuntimeError("a miss")


class Loop(Gather):
    """A memcpy for each sample, in C, from the pages of the cache: the limit of the memory."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._bytes = int(np.prod(self.shape))
        first = self.cache.get(0)
        self._rows = first.ctypes.data  # sample i is in slot i
        if self.cache.get(self.n - 1).ctypes.data != self._rows + (self.n - 1) * self._bytes:
            raise RuntimeError("samples do not lie in the order of their indices")
        ctypes.string_at(self._rows, 1)
        self._gather = sets.Loops(self._loops).gather if self._threads == 1 else sets.Loops(self._loops).gather_2

    def copy(self, wanted: Any, out: Any) -> None:
        self._gather(out.ctypes.data, self._rows, wanted.ctypes.data, len(wanted), self._bytes)


class First:
    """The time from the first sample that a worker begins to the first batch, with a new loader."""

    def __init__(self, *, workers: int, batch: int, sleep: float) -> None:
        self.samples = batch
        self._workers, self._batch = workers, batch
        self._started = sets.Started(4 * batch)
        self._dataset = sets.Sleeps(4 * batch, sleep, self._started)

    def _make(self) -> Any:
        from stocached.torch import DataLoader

        return DataLoader(self._dataset, self._batch, num_workers=self._workers, multiprocessing_context="fork")

    def run(self) -> dict[str, float]:
        self._started.clear()
        iterator = iter(self._make())
        batch = next(iterator)
        end = time.monotonic_ns()
        if len(batch) != self._batch:
            raise RuntimeError(f"a batch of {len(batch)}")
        del iterator
        return {"samples": self.samples, "seconds": (end - self._started.first()) / 1e9}

    def check(self) -> None:
        self.run()
