"""Measures views, copies and batches, and compares with stocaching, torch, NumPy and a bare C loop
over the same bytes in the same order."""

from __future__ import annotations

import ctypes
import itertools
import os
import warnings
from typing import Any

import numpy as np
from measure import Bench, Subject
from sizes import Size, Walk

import stocached

_TURNED_AWAY = "needs torch and stocaching (--peers)"


def measure(bench: Bench, size: Size, folder: str, loops: str, peers: bool) -> None:
    case = WithPeers(bench, size, loops) if peers else Case(bench, size, loops)
    case.open(folder)
    try:
        case.views()
        case.copies()
        case.collate()
        case.gather()
    finally:
        case.close()


class Case:
    """Compares with NumPy and C only."""

    def __init__(self, bench: Bench, size: Size, loops: str) -> None:
        self.bench, self.size = bench, size
        library = ctypes.CDLL(loops)
        for function in (library.loop_gather, library.loop_gather_2):
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
            function.restype = None
        self.loop, self.loop2 = library.loop_gather, library.loop_gather_2

    def open(self, folder: str) -> None:
        self.cache = stocached.Cache.create(
            f"bench-{os.getpid()}", samples=self.size.samples, shape=self.size.shape, dtype="uint8", dir=folder
        )
        self._fill()

    def _fill(self) -> None:
        data, put = self.size.data(), self.cache.put
        for i in range(self.size.samples):
            if not put(i, data[i % len(data)]):
                raise RuntimeError(f"sample {i} of {self.size.samples} was not stored")
        # All samples as one array for the bare loop: the same bytes in the same pages. Sample i is
        # in slot i.
        first = self.cache.get(0)
        self.rows = np.lib.stride_tricks.as_strided(
            first, (self.size.samples, *self.size.shape), (self.size.bytes, *first.strides), writeable=False
        )
        if self.rows[-1].ctypes.data != self.cache.get(self.size.samples - 1).ctypes.data:
            raise RuntimeError("samples do not lie in the order of their indices")
        self.rows[:, 0].max()  # maps pages

    def close(self) -> None:
        self.cache.unlink()
        self.cache.close()
        del self.rows

    def _numbers(self) -> list[int]:
        """Indices of a run of a view case."""
        return list(itertools.islice(itertools.cycle(self.size.order()[: self.size.views].tolist()), self.size.views))

    def views(self) -> None:
        get, order = self.cache.get, self._numbers()

        def run() -> None:
            for i in order:
                get(i)

        self.bench.alternate(
            "python/view", self.size.name, Subject("Cache.get", len(order), run), *self._view_peers(order)
        )

    def _view_peers(self, order: list[int]) -> list[Subject]:
        # Then two of the requirements have no base. A missing subject would be an error of the
        # benchmark.
        return []

    def copies(self) -> None:
        self.bench.missing("python/copy", self.size.name, _TURNED_AWAY)

    def collate(self) -> None:
        self.bench.missing("python/collate", self.size.name, _TURNED_AWAY)

    def gather(self) -> None:
        size, rows, cache = self.size, self.rows, self.cache
        walk = Walk(size.order(), size.reads)
        out = np.ones((size.batch, *size.shape), np.uint8)

        def ours(threads: int) -> None:
            for batch in walk.batches(size.batch):
                cache.gather(batch, out=out, threads=threads)

        def take() -> None:
            for batch in walk.batches(size.batch):
                np.take(rows, batch, axis=0, out=out, mode="clip")  # the mode that does not buffer: NumPy's fastest

        def loop(function: Any) -> None:
            for batch in walk.batches(size.batch):
                function(out.ctypes.data, rows.ctypes.data, batch.ctypes.data, len(batch), size.bytes)

        self.bench.alternate(
            "python/gather",
            size.name,
            Subject("gather", size.reads, lambda: ours(1), walk.step),
            Subject("gather 2 threads", size.reads, lambda: ours(2), walk.step),
            Subject("numpy.take", size.reads, take, walk.step),
            Subject("C memcpy loop", size.reads, lambda: loop(self.loop), walk.step),
            Subject("C memcpy loop 2 threads", size.reads, lambda: loop(self.loop2), walk.step),
            *self._gather_peers(walk),
        )

    def _gather_peers(self, walk: Walk) -> list[Subject]:
        return []


class WithPeers(Case):
    """Compares with stocaching and torch too."""

    def open(self, folder: str) -> None:
        import stocaching
        import torch

        torch.set_num_threads(1)
        size = self.size
        gib = -(-size.samples * (size.bytes + 1) // 2**30)  # stocaching takes whole GiB
        name = f"bench-{os.getpid()}"
        self.copied = stocached.SharedCache(gib, size.samples, size.shape, name=name)
        self.viewed = stocached.SharedCache(gib, size.samples, size.shape, name=name, views=True)  # the same cache
        assert self.copied.cache is not None
        self.cache = self.copied.cache
        try:
            self._fill()
        except BaseException:
            self.cache.unlink()
            raise
        self.peer = stocaching.SharedCache(gib, size.samples, size.shape)
        for k, sample in enumerate(data := size.data()):
            self.peer.array[k :: len(data)] = torch.from_numpy(sample)
        self.peer.aux_array[:] = 1

    def close(self) -> None:
        super().close()
        self.copied.close()
        self.viewed.close()
        del self.peer

    def _view_peers(self, order: list[int]) -> list[Subject]:
        def run(get: Any) -> None:
            for i in order:
                get(i)

        return [
            Subject("SharedCache.get_slot views=True", len(order), lambda: run(self.viewed.get_slot)),
            Subject("stocaching get_slot", len(order), lambda: run(self.peer.get_slot)),
        ]

    def copies(self) -> None:
        walk = Walk(self.size.order(), self.size.reads)
        ours, theirs = self.copied.get_slot, self.peer.get_slot

        def copy() -> None:
            for i in walk.numbers:
                ours(i)

        def clone() -> None:
            for i in walk.numbers:
                theirs(i).clone()

        self.bench.alternate(
            "python/copy",
            self.size.name,
            Subject("SharedCache.get_slot", self.size.reads, copy, walk.step),
            Subject("stocaching get_slot.clone", self.size.reads, clone, walk.step),
        )

    def collate(self) -> None:
        size, walk = self.size, Walk(self.size.order(), self.size.reads)
        self.bench.alternate(
            "python/collate",
            size.name,
            Subject("SharedCache.get_slot", size.reads, lambda: self._collate(walk, self.copied.get_slot), walk.step),
            Subject(
                "SharedCache.get_slot views=True",
                size.reads,
                lambda: self._collate(walk, self.viewed.get_slot),
                walk.step,
            ),
            Subject("stocaching get_slot", size.reads, lambda: self._collate(walk, self.peer.get_slot), walk.step),
        )

    def _collate(self, walk: Walk, get: Any) -> None:
        from torch.utils.data import default_collate

        numbers, batch = walk.numbers, self.size.batch
        for at in range(0, len(numbers) - batch + 1, batch):
            default_collate([get(i) for i in numbers[at : at + batch]])

    def _gather_peers(self, walk: Walk) -> list[Subject]:
        import torch

        size = self.size
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of read-only memory, which is only read here
            rows = torch.from_numpy(self.rows)
        out = torch.ones((size.batch, *size.shape), dtype=torch.uint8)

        def select() -> None:
            for batch in walk.batches(size.batch):
                torch.index_select(rows, 0, torch.from_numpy(batch), out=out)

        return [
            Subject("torch.index_select", size.reads, select, walk.step),
            Subject(
                "stocaching get_slot + collate", size.reads, lambda: self._collate(walk, self.peer.get_slot), walk.step
            ),
        ]
