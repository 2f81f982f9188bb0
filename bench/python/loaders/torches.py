"""Subjects of torch's DataLoader, and the limits of every loader: only the decoding, or only the
work."""

from __future__ import annotations

import functools
import gc
import os
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from . import ours, sets, subject

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


class Torch(subject.Whole):
    """torch.utils.data.DataLoader over stocaching's cache, a tensor in memory, CachedDataset, JPEG
    files or loads that sleep. It keeps workers between epochs. limit: samples of a run, new ones
    each time, if a whole epoch takes too long."""

    def __init__(
        self, *, n: int, shape: Any, batch: int, workers: int, dataset: str = "stocaching", limit: int = 0, epochs: int = 1, augment: float = 0,
        step: float = 0, loops: str = "", jpegs: str = "", folder: str = "", sleep: float = 0,
    ) -> None:  # fmt: skip
        work = sets.Augment(loops, augment) if augment else None
        self.n, self.epochs = n, epochs
        self.samples = (min(limit, n) if limit else n) * epochs
        self._check_numbers = dataset in ("stocaching", "tensor", "CachedDataset")
        source: Any
        if dataset == "stocaching":
            source = _Stocaching(n, shape, work)
        elif dataset == "tensor":
            images = sets.Images(n, shape)
            source = torch.empty((n, *shape), dtype=torch.uint8)
            for i in range(n):
                source[i] = torch.from_numpy(images[i])
        elif dataset == "CachedDataset":
            from stocached.torch import CachedDataset

            self._cache = ours.filled(folder, "cached", n, shape)
            source = CachedDataset(sets.Images(n, shape, torch.from_numpy), self._cache, augment=work)
        else:
            source = sets.Jpegs(jpegs, n) if dataset == "jpeg" else sets.Sleeps(n, sleep)
        options: dict[str, Any] = {"sampler": sets.Some(n, limit)} if limit else {"shuffle": True}
        if workers:
            options |= {"persistent_workers": True, "num_workers": workers, "multiprocessing_context": "fork"}
        self._step = functools.partial(sets.Loops(loops).busy, int(step * 1e9)) if step else None
        self.loader = DataLoader(source, batch, **options)

    def __del__(self) -> None:
        if hasattr(self, "_cache"):
            self._cache.unlink()

    def epoch(self) -> Iterable[Any]:
        step = self._step
        for _ in range(self.epochs):
            for batch in self.loader:
                if step is not None:
                    step()
                yield batch

    def check(self) -> None:
        if self._check_numbers:
            return super().check()
        n = sum(len(batch) for batch in self.epoch())
        if n != self.samples:
            raise RuntimeError(f"{n} samples instead of {self.samples}")
        return None


class First(ours.First):
    def _make(self) -> Any:
        return DataLoader(self._dataset, self._batch, num_workers=self._workers, multiprocessing_context="fork")  # type: ignore[arg-type]


class _Split:
    """Some processes share the samples of a run, and no process collects them: the least time of
    any loader."""

    samples: int

    def __init__(self, processes: int) -> None:
        self._processes = processes

    def one(self, i: int) -> None:
        raise NotImplementedError

    def seconds(self) -> float:
        start = time.perf_counter()
        children = []
        for k in range(self._processes):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for i in range(k, self.samples, self._processes):
                        self.one(i)
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        if any(os.waitpid(child, 0)[1] for child in children):
            raise RuntimeError("a process failed")
        return time.perf_counter() - start

    def check(self) -> None:
        self.seconds()


class Decode(_Split):
    """The JPEG files, decoded."""

    def __init__(self, *, jpegs: str, n: int, processes: int) -> None:
        super().__init__(processes)
        self.samples = n
        self._files = sets.Jpegs(jpegs, n)

    def one(self, i: int) -> None:
        self._files[i]


class Work(_Split):
    """Only the work of augment=. With a shape, between two copies of such a sample: from one of
    1,500 samples to a new one, and from there to its row of a batch."""

    def __init__(self, *, n: int, loops: str, augment: float, processes: int, shape: Any = None) -> None:
        super().__init__(processes)
        self.samples = n
        self._augment = sets.Augment(loops, augment)
        if shape is not None:
            rng = np.random.default_rng(1)
            self._samples, self._batch, self._own = (np.ones((rows, *shape), np.uint8) for rows in (1500, 256, 1))
            self._order = rng.permutation(1500).tolist()
        self._shape = shape

    def one(self, i: int) -> None:
        if self._shape is None:
            self._augment(None)
        else:
            np.copyto(self._own[0], self._samples[self._order[i % 1500]])
            self._augment(None)
            np.copyto(self._batch[i % 256], self._own[0])


class Bare:
    """A process that has imported torch, and idle forked children: the interpreters that a loader
    with as many workers needs at least."""

    samples = 1

    def __init__(self, *, workers: int) -> None:
        torch.zeros(3).sum()
        self._pipes = []
        for _ in range(workers):
            reader, writer = os.pipe()
            self._pipes.append(writer)
            if os.fork() == 0:
                for pipe in self._pipes:
                    os.close(pipe)
                torch.zeros(3).sum()
                gc.collect()
                os.read(reader, 1)  # until the parent ends
                os._exit(0)
            os.close(reader)

    def epoch(self) -> Iterable[Any]:
        return []

    def check(self) -> None:
        time.sleep(0.2)  # for the children
