"""A disk cache without a server. TMPDIR names a folder on the disk that is measured."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import Here, Run

from stocached import Cache, Loader, _native
from stocached._cache.disk import open_behind
from stocached._common.array_addresses import address_of

BYTES = 110 * 1024


def hits(run: Run) -> None:
    """Beside bare preads and checksums of the same file."""
    samples = run.n(2000, 100)
    for cold in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            cache = Cache.create(samples=samples, sample_bytes=BYTES, slots=1)
            disk = open_behind(cache, samples * BYTES + (64 << 20), folder, "bench")
            row = np.zeros(BYTES, np.uint8)
            for i in range(samples):  # in order: sample i has slot i
                row[:] = i % 251
                assert disk.put(cache, i, row) or (disk.flush(60) and disk.put(cache, i, row))
            assert disk.flush(60)
            _hits(run, disk, row, samples, cold)
            cache.close()


def _hits(run: Run, disk: Any, row: Any, samples: int, cold: bool) -> None:
    info, fd = disk.handle.info(), os.open(disk.path, os.O_RDONLY)
    os.fsync(fd)
    address, order, length = address_of(row), np.random.default_rng(1), np.zeros(1, np.uint64)

    def forget() -> None:
        if cold:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def ours() -> None:
        for i in order.permutation(samples).tolist():
            assert _native.get(disk.handle, i, address, BYTES, length.ctypes.data) == 1

    def bare() -> None:
        for i in order.permutation(samples).tolist():
            os.preadv(fd, [row], info.payload_offset + i * info.slot_stride)
            _native.crc32c(0, address, BYTES)

    where = "the disk" if cold else "the page cache"
    run.measure(
        f"Hits of {BYTES:,} bytes from {where}",
        Here("ours", samples, ours, forget),
        Here("pread and checksum", samples, bare, forget),
    )
    os.close(fd)


class Slow:
    """A source of so many bytes a second for all workers together."""

    def __init__(self, samples: int, rate: float) -> None:
        self.samples, self.rate, self.lock, self.free = samples, rate, threading.Lock(), 0.0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.free = max(self.free, time.monotonic()) + BYTES / self.rate
            until = self.free
        time.sleep(max(until - time.monotonic(), 0))
        return np.full(BYTES, index % 251, np.uint8)


def epochs(run: Run) -> None:
    """A quarter of the dataset in memory and all of it on the disk, beside a source of 20 MB/s; and first epochs, which
    write to the disk, of a source of 400 MB/s."""
    settings: dict[str, Any] = {
        "batch_size": 16, "shuffle": True, "seed": 1, "num_workers": 4, "worker": "thread", "allow_random": True,
        "fingerprint": "bench",
    }  # fmt: skip
    for title, samples, rate, fresh in (
        ("Later epochs: a source of 20 MB/s", run.n(400, 40), 20e6, False),
        ("First epochs: a source of 400 MB/s", run.n(4000, 40), 400e6, True),
    ):
        with tempfile.TemporaryDirectory() as folder:
            size = samples // 4 * BYTES + (6 << 20)
            kept = {"size": size, "disk": samples * BYTES + (64 << 20), "disk_dir": folder}
            run.measure(
                title,
                _epoch("with a disk", samples, rate, settings | kept, fresh),
                _epoch("without", samples, rate, settings | {"size": size}, fresh),
            )


def _epoch(name: str, samples: int, rate: float, settings: dict[str, Any], fresh: bool) -> Here:
    loaders: list[Loader] = []

    def make() -> None:
        if not loaders:
            loaders.append(Loader(Slow(samples, rate), **settings))

    def work() -> None:
        if sum(len(batch) for batch in loaders[0]) != samples:
            raise RuntimeError("not each sample once")

    def clean() -> None:
        if "disk" in settings:
            assert loaders[0].cache._disk.flush(60)
        if fresh:
            loaders.pop().cache.close()
            for file in Path(settings.get("disk_dir", "/nowhere")).glob("*.tier"):
                file.unlink()

    return Here(name, samples, work, make, clean)


CASES = {"hits": hits, "epochs": epochs}
