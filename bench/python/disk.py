"""A disk cache without a server: python bench/python/disk.py FOLDER.

Hits beside bare preads and checksums of the same file, and epochs of a loader with a quarter of the dataset in memory
and all of it on the disk, beside a source of 20 MB/s alone. Runs alternate. Prints rows of tables."""

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
from stocached._cache.disk import open_behind
from stocached._common.addresses import address_of

SAMPLES, BYTES, RUNS = 2000, 110 * 1024, 11
SOURCE = 20e6  # bytes a second
EPOCH = 400  # samples
ROUNDS = 7


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def hits(folder: str, cold: bool) -> None:
    cache = Cache.create(samples=SAMPLES, sample_bytes=BYTES, slots=1)
    disk = open_behind(cache, SAMPLES * BYTES + (64 << 20), folder, "bench")
    row = np.zeros(BYTES, np.uint8)
    for i in range(SAMPLES):  # in order: sample i has slot i
        row[:] = i % 251
        assert disk.put(cache, i, row)
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

    def __init__(self) -> None:
        self.lock, self.free = threading.Lock(), 0.0

    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.free = max(self.free, time.monotonic()) + BYTES / SOURCE
            until = self.free
        time.sleep(max(until - time.monotonic(), 0))
        return np.full(BYTES, index % 251, np.uint8)


def epoch(loader: Loader) -> tuple[float, float]:
    wall, cpu = clocks()
    seen = sum(len(batch) for batch in loader)
    now = clocks()
    assert seen == EPOCH
    return now[0] - wall, now[1] - cpu


def epochs(folder: str) -> None:
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 1, "num_workers": 4, "worker": "thread"}
    source = Loader(Slow(), **settings)
    both = Loader(
        Slow(), size=EPOCH // 4 * BYTES + (6 << 20), fingerprint="bench", disk=EPOCH * BYTES + (8 << 20),
        disk_dir=folder, allow_random=True, **settings,
    )  # fmt: skip
    first = epoch(both)[0]
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
    for file in Path(folder).glob("*.tier"):
        file.unlink()


if __name__ == "__main__":
    hits(sys.argv[1], cold=False)
    hits(sys.argv[1], cold=True)
    epochs(sys.argv[1])
