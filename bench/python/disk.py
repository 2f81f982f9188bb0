"""A disk cache without a server: python bench/python/disk.py FOLDER.

Hits beside bare preads and checksums of the same file, and epochs of a loader with a quarter of the dataset in memory
and all of it on the disk, beside a source of 20 MB/s alone. First epochs, which write to the disk, beside epochs
without a disk, and beside writes in the thread that loads. Runs alternate. Prints rows of tables."""

from __future__ import annotations

import ctypes
import os
import random
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from stocached import Cache, Loader, _native
from stocached._cache import storing
from stocached._cache.disk import Disk, open_behind
from stocached._common.addresses import address_of

SAMPLES, BYTES, RUNS = 2000, 110 * 1024, 11
SOURCE = 20e6  # bytes a second
EPOCH = 400  # samples
ROUNDS = 7
FIRST = 4000  # samples of an epoch of a faster source


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def hits(folder: str, cold: bool) -> None:
    cache = Cache.create(samples=SAMPLES, sample_bytes=BYTES, slots=1)
    disk = open_behind(cache, SAMPLES * BYTES + (64 << 20), folder, "bench")
    row = np.zeros(BYTES, np.uint8)
    for i in range(SAMPLES):  # in order: sample i has slot i
        row[:] = i % 251
        assert disk.put(cache, i, row) or (disk.flush(60) and disk.put(cache, i, row))
    assert disk.flush(60)
    info, fd = disk.handle.info(), os.open(disk.path, os.O_RDONLY)
    os.fsync(fd)
    address, length, crc = address_of(row), ctypes.addressof(ctypes.c_size_t()), _native.crc32c

    def ours(order: list[int]) -> None:
        for i in order:
            assert _native.get(disk.handle, i, address, BYTES, length) == 1

    def bare(order: list[int]) -> None:
        for i in order:
            os.preadv(fd, [row], info.payload_offset + i * info.slot_stride)
            crc(0, address, BYTES)

    took: dict[Any, list[tuple[float, float]]] = {ours: [], bare: []}
    for run in range(RUNS):
        for call in (ours, bare) if run % 2 else (bare, ours):
            order = random.sample(range(SAMPLES), SAMPLES)
            if cold:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            wall, cpu = clocks()
            call(order)
            now = clocks()
            took[call].append((now[0] - wall, now[1] - cpu))
    ratios = sorted(a[0] / b[0] for a, b in zip(took[ours], took[bare]))
    rate = {call: SAMPLES * BYTES / 1e6 / statistics.median(t[0] for t in took[call]) for call in took}
    used = {call: statistics.median(t[1] for t in took[call]) * 1e6 / SAMPLES for call in took}
    print(
        f"| Python | {'cold' if cold else 'warm'} | {RUNS} | {rate[bare]:.0f} | {rate[ours]:.0f} | {used[bare]:.1f} "
        f"| {used[ours]:.1f} | {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |"
    )
    os.close(fd)
    cache.close()
    os.unlink(disk.path)


class Slow:
    """A source of 20 MB/s for all workers together."""

    def __init__(self, samples: int = EPOCH, rate: float = SOURCE) -> None:
        self.samples, self.rate, self.lock, self.free = samples, rate, threading.Lock(), 0.0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.free = max(self.free, time.monotonic()) + BYTES / self.rate
            until = self.free
        time.sleep(max(until - time.monotonic(), 0))
        return np.full(BYTES, index % 251, np.uint8)


def epoch(loader: Loader, samples: int = EPOCH) -> tuple[float, float]:
    wall, cpu = clocks()
    seen = sum(len(batch) for batch in loader)
    now = clocks()
    assert seen == samples
    return now[0] - wall, now[1] - cpu


def epochs(folder: str) -> None:
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 1, "num_workers": 4, "worker": "thread"}
    source = Loader(Slow(), **settings)
    both = Loader(
        Slow(), size=EPOCH // 4 * BYTES + (6 << 20), fingerprint="bench", disk=EPOCH * BYTES + (8 << 20),
        disk_dir=folder, allow_random=True, **settings,
    )  # fmt: skip
    first = epoch(both)[0]
    assert both.cache._disk.flush(60)
    taken: dict[Any, list[tuple[float, float]]] = {source: [], both: []}
    for run in range(ROUNDS):
        for loader in (source, both) if run % 2 else (both, source):
            taken[loader].append(epoch(loader))
    stats = both.stats()
    ratios = sorted(a[0] / b[0] for a, b in zip(taken[both], taken[source]))
    wall = {loader: statistics.median(t[0] for t in taken[loader]) for loader in taken}
    cpu = {loader: statistics.median(t[1] for t in taken[loader]) for loader in taken}
    print(
        f"| {ROUNDS} | {wall[source]:.2f} | {first:.2f} | {wall[both]:.3f} | {cpu[source]:.2f} | {cpu[both]:.2f} | "
        f"{stats.hits / stats.samples:.2f} | {statistics.median(ratios):.4f} ({ratios[0]:.4f} to {ratios[-1]:.4f}) |"
    )
    assert stats.disk_writes == EPOCH, stats
    both.cache.close()
    for file in Path(folder).glob("*.tier"):
        file.unlink()


def put_now(disk: Disk, cache: Any, i: int, value: Any) -> bool:
    """Disk.put in the thread that loads."""
    parts = cache._values.parts(value)
    return _native.setv(disk.handle, i, storing.vector_of(parts), len(parts), 0) == 0


def first_epochs(folder: str, rate: float, workers: dict[str, Any], what: str) -> None:
    """First epochs of loaders with new files. The processor's seconds include the writes after the epoch."""
    samples = FIRST if rate > SOURCE else EPOCH
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 1, "size": samples // 4 * BYTES + (6 << 20)}
    taken: dict[str, list[tuple[float, float]]] = {"none": [], "later": [], "now": []}
    dropped, later = 0, Disk.put
    for run in range(ROUNDS):
        for way in ("none", "later", "now") if run % 2 else ("now", "later", "none"):
            disk = {} if way == "none" else {"disk": samples * BYTES + (64 << 20), "disk_dir": folder}
            loader = Loader(
                Slow(samples, rate), fingerprint="bench", allow_random=True, **settings, **workers, **disk
            )  # fmt: skip
            Disk.put = put_now if way == "now" else later  # type: ignore[method-assign]
            wall, cpu = epoch(loader, samples)
            flushed = clocks()[1]
            if disk:
                assert loader.cache._disk.flush(60)
                dropped += loader.stats().disk_dropped
            taken[way].append((wall, cpu + clocks()[1] - flushed))
            loader.cache.close()
            del loader
            for file in Path(folder).glob("*.tier"):
                file.unlink()
            os.sync()
    Disk.put = later  # type: ignore[method-assign]

    def ratio(way: str) -> str:
        every = sorted(a[0] / b[0] for a, b in zip(taken[way], taken["none"]))
        return f"{statistics.median(every):.3f} ({every[0]:.3f} to {every[-1]:.3f})"

    middle = {way: [statistics.median(t[k] for t in taken[way]) for k in (0, 1)] for way in taken}
    print(
        f"| {what} | {ROUNDS} | {middle['none'][0]:.2f} | {middle['later'][0]:.2f} | {middle['now'][0]:.2f} | "
        f"{middle['none'][1]:.2f} | {middle['later'][1]:.2f} | {middle['now'][1]:.2f} | {dropped / ROUNDS:.0f} | "
        f"{ratio('later')} | {ratio('now')} |"
    )


if __name__ == "__main__":
    hits(sys.argv[1], cold=False)
    hits(sys.argv[1], cold=True)
    epochs(sys.argv[1])
    threads = {"num_workers": 4, "worker": "thread"}
    first_epochs(sys.argv[1], SOURCE, threads, "20 MB/s, 4 threads")
    first_epochs(sys.argv[1], 400e6, threads, "400 MB/s, 4 threads")
    first_epochs(sys.argv[1], 400e6, {"num_workers": 0}, "400 MB/s, no worker")
    first_epochs(sys.argv[1], 1e12, {"num_workers": 0}, "as fast as it can, no worker")
