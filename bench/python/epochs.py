"""Measures the first epoch, which fills the cache, against no cache. A sample takes a millisecond
of work to load."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from measure import Bench, Subject
from sizes import Size

import stocached

_LOAD_NS = 1_000_000  # to load a sample
_BATCH = 64


class Images:
    """A map-style dataset whose samples take a millisecond of a core each."""

    def __init__(self, size: Size, n: int, wrap: Callable[[Any], Any]) -> None:
        self._data = [wrap(sample) for sample in size.data()]
        self._n = n
        self.sample_bytes = size.bytes

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> Any:
        end = time.perf_counter_ns() + _LOAD_NS
        sample = self._data[i % len(self._data)] | 0  # a new one, as from a decoder
        while time.perf_counter_ns() < end:
            pass
        return sample


def measure(bench: Bench, size: Size, folder: str, peers: bool, quick: bool) -> None:
    n = 64 if quick else 1024
    order = [i for i in size.order().tolist() if i < n]
    _loop(bench, size, folder, n, order)
    if peers:
        _worker(bench, size, folder, n, order)
    else:
        bench.missing("python/first-epoch", size.name, "needs torch (--peers)")


class _Fresh:
    """A new cache for each run."""

    def __init__(self, size: Size, folder: str, n: int, reserve: bool) -> None:
        self._size, self._folder, self._n, self._reserve = size, folder, n, reserve

    def setup(self) -> None:
        self.cache = stocached.Cache.create(
            f"epoch-{os.getpid()}",
            samples=self._n,
            shape=self._size.shape,
            dtype="uint8",
            dir=self._folder,
            reserve=self._reserve,
        )

    def clean(self) -> None:
        stored = self.cache.stats().stored
        self.cache.unlink()
        self.cache.close()
        if stored < self._n:
            raise RuntimeError(f"{stored} of {self._n} samples were stored")


def _loop(bench: Bench, size: Size, folder: str, n: int, order: list[int]) -> None:
    images = Images(size, n, lambda sample: sample)

    def bare() -> None:
        for i in order:
            images[i]

    def subject(name: str, reserve: bool) -> Subject:
        fresh = _Fresh(size, folder, n, reserve)

        def run() -> None:
            get_or_load, load = fresh.cache.get_or_load, images.__getitem__
            for i in order:
                get_or_load(i, load)

        return Subject(name, n, run, fresh.setup, fresh.clean)

    bench.alternate(
        "python/first-epoch-loop",
        size.name,
        Subject("no cache", n, bare),
        subject("lazily", False),
        subject("reserve=True", True),
        _bare_writes("pwrite into new pages", images, folder, order, False),
        _bare_writes("pwrite into reserved pages", images, folder, order, True),
        note="get_or_load in one process; loading a sample takes 1 ms of a core. Bare pwrites of each sample, without checksum or index, are the least "
        "that keeping it in shared memory costs on this machine",
    )


def _bare_writes(name: str, images: Images, folder: str, order: list[int], reserve: bool) -> Subject:
    size = images.sample_bytes
    opened: list[int] = []

    def setup() -> None:
        opened[:] = [os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)]
        os.ftruncate(opened[0], len(images) * size)
        if reserve:
            os.posix_fallocate(opened[0], 0, len(images) * size)

    def run() -> None:
        fd, pwrite = opened[0], os.pwrite
        for k, i in enumerate(order):
            pwrite(fd, images[i], k * size)

    return Subject(name, len(images), run, setup, lambda: os.close(opened[0]))


def _worker(bench: Bench, size: Size, folder: str, n: int, order: list[int]) -> None:
    import torch
    from torch.utils.data import DataLoader

    from stocached.torch import CachedDataset

    images = Images(size, n, torch.from_numpy)

    def epoch(dataset: Any) -> None:
        for _ in DataLoader(dataset, batch_size=_BATCH, sampler=order, num_workers=1, multiprocessing_context="fork"):
            pass

    def subject(name: str, reserve: bool) -> Subject:
        fresh = _Fresh(size, folder, n, reserve)
        wrapped: list[Any] = []

        def setup() -> None:
            fresh.setup()
            wrapped[:] = [CachedDataset(images, fresh.cache)]

        def clean() -> None:
            wrapped.clear()
            fresh.clean()

        return Subject(name, n, lambda: epoch(wrapped[0]), setup, clean)

    bench.alternate(
        "python/first-epoch",
        size.name,
        Subject("no cache", n, lambda: epoch(images)),
        subject("lazily", False),
        subject("reserve=True", True),
        note="CachedDataset in a torch DataLoader with one worker; loading a sample takes 1 ms of a core",
    )
