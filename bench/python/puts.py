"""Measures put, checksum included, against a bare pwrite of the same bytes at the same offsets of a
tmpfs file of the same size. Every run has a new cache and file: a page is new only once, and a
reserved page is unwritten only once."""

from __future__ import annotations

import os

from measure import Bench, Subject
from sizes import Size

import stocached

_STEP = 64 << 20  # bytes that are reserved at a time, as a cache does


def measure(bench: Bench, size: Size, folder: str) -> None:
    for reserve in (False, True):
        ours, bare = _Ours(size, folder, reserve), _Bare(size, folder, reserve)
        bench.alternate(
            "python/put-reserved" if reserve else "python/put-new",
            size.name,
            Subject("put", size.sets, ours.run, ours.setup, ours.clean),
            Subject("os.pwrite", size.sets, bare.run, bare.setup, bare.clean),
        )


class _Ours:
    def __init__(self, size: Size, folder: str, reserve: bool) -> None:
        self.size, self.folder, self.reserve = size, folder, reserve
        data = size.data()
        self.samples = [data[k % len(data)] for k in range(size.sets)]

    def setup(self) -> None:
        size = self.size
        self.cache = stocached.Cache.create(
            "store",
            samples=size.samples,
            slots=size.sets,
            shape=size.shape,
            dtype="uint8",
            dir=self.folder,
            reserve=self.reserve,
        )

    def run(self) -> None:
        put = self.cache.put
        for i, sample in enumerate(self.samples):
            put(i, sample)

    def clean(self) -> None:
        stored = self.cache.stats().stored
        self.cache.unlink()
        self.cache.close()
        if stored != len(self.samples):
            raise RuntimeError(f"{stored} of {len(self.samples)} samples were stored")


class _Bare:
    def __init__(self, size: Size, folder: str, reserve: bool) -> None:
        self.size, self.folder, self.reserve = size, folder, reserve
        data = size.data()
        self.samples = [data[k % len(data)] for k in range(size.sets)]

    def setup(self) -> None:
        self.fd = os.open(self.folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        total = self.size.sets * self.size.bytes
        os.ftruncate(self.fd, total)
        for at in range(0, total if self.reserve else 0, _STEP):
            os.posix_fallocate(self.fd, at, min(_STEP, total - at))

    def run(self) -> None:
        fd, size, pwrite = self.fd, self.size.bytes, os.pwrite
        for i, sample in enumerate(self.samples):
            pwrite(fd, sample, i * size)

    def clean(self) -> None:
        os.close(self.fd)
