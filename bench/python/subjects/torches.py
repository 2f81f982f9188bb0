"""Subjects of torch's DataLoader, and the limit of every loader: the decoding alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import sets
import torch
from harness import Whole
from torch.utils.data import DataLoader

from . import ours

torch.set_num_threads(1)


class _Stocaching:
    """stocaching's cache, filled."""

    def __init__(self, n: int, shape: Any, augment: Any) -> None:
        import stocaching

        gib = -(-n * (int(torch.Size(shape).numel()) + 1) // 2**30)  # stocaching takes whole GiB
        self._cache = stocaching.SharedCache(gib, n, tuple(shape))
        images = sets.Images(n, shape)
        for i in range(n):
            self._cache.set_slot(i, torch.from_numpy(images[i]))
        self._n, self._augment = n, augment

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> Any:
        sample = self._cache.get_slot(i)
        return sample if self._augment is None else self._augment(sample)


class Torch(Whole):
    """torch.utils.data.DataLoader over stocaching's cache, JPEG files or loads that sleep. It keeps workers between
    epochs. limit: samples of a run, new ones each time, if a whole epoch takes too long."""

    def __init__(
        self, *, n: int, shape: Any, batch: int, workers: int, dataset: str = "stocaching", limit: int = 0,
        epochs: int = 1, augment: float = 0, loops: str = "", jpegs: str = "", folder: str = "",
        sleep: float = 0,
    ) -> None:  # fmt: skip
        work = sets.Augment(loops, augment) if augment else None
        self.n, self.epochs = n, epochs
        self.samples = (min(limit, n) if limit else n) * epochs
        self._check_numbers = dataset == "stocaching"
        source: Any = {
            "stocaching": lambda: _Stocaching(n, shape, work),
            "jpeg": lambda: sets.Jpegs(jpegs, n),
            "sleep": lambda: sets.Sleeps(n, sleep),
        }[dataset]()
        options: dict[str, Any] = {"sampler": sets.Some(n, limit)} if limit else {"shuffle": True}
        if workers:
            options |= {"persistent_workers": True, "num_workers": workers, "multiprocessing_context": "fork"}
        self.loader = DataLoader(source, batch, **options)

    def epoch(self) -> Iterable[Any]:
        for _ in range(self.epochs):
            yield from self.loader

    def check(self) -> None:
        if self._check_numbers:
            super().check()
        elif (n := sum(len(batch) for batch in self.epoch())) != self.samples:
            raise RuntimeError(f"{n} samples instead of {self.samples}")


class First(ours.First):
    def _make(self) -> Any:
        return DataLoader(self._dataset, self._batch, num_workers=self._workers, multiprocessing_context="fork")  # type: ignore[arg-type]


class Decode:
    """The JPEG files, decoded by some processes that share them, and that nobody collects: the least time of any
    loader."""

    def __init__(self, *, jpegs: str, n: int, processes: int) -> None:
        self.samples, self._processes = n, processes
        self._files = sets.Jpegs(jpegs, n)

    def run(self) -> dict[str, float]:
        start = time.perf_counter()
        children = []
        for k in range(self._processes):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for i in range(k, self.samples, self._processes):
                        self._files[i]
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        if any(os.waitpid(child, 0)[1] for child in children):
            raise RuntimeError("a process failed")
        return {"samples": self.samples, "seconds": time.perf_counter() - start}

    def check(self) -> None:
        self.run()
