"""A cache without a server: views, copies, batches and puts, the first epoch, and how long it takes to make a cache."""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from harness import Here, Run

import stocached


@dataclass(frozen=True)
class Size:
    name: str
    shape: tuple[int, ...]  # the shape of a sample, uint8
    samples: int  # samples of the cache
    reads: int  # samples of a run
    batch: int

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape))

    def data(self) -> list[npt.NDArray[np.uint8]]:
        """Samples to store: several, but few enough for the processor's cache."""
        rng = np.random.default_rng(2)
        return [rng.integers(0, 256, self.shape, np.uint8) for _ in range(min(16, max(1, (4 << 20) // self.bytes)))]


def sizes(run: Run) -> tuple[Size, ...]:
    return (
        Size("150,528 bytes", (3, 224, 224), run.n(4096, 128), run.n(2048, 128), 64),
        Size("3,072 bytes", (3, 32, 32), run.n(200_000, 10_000), run.n(50_000, 2000), 256),
    )


def filled(size: Size, folder: str) -> stocached.Cache:
    cache = stocached.Cache.create("bench", samples=size.samples, shape=size.shape, dtype="uint8", dir=folder)
    data = size.data()
    for i in range(size.samples):
        if not cache.put(i, data[i % len(data)]):
            raise RuntimeError(f"sample {i} of {size.samples} was not stored")
    return cache


def walk(size: Size) -> Callable[[], Any]:
    """Each call gives the next part of a random order, so that no run finds the samples of the run before in the
    processor's cache."""
    order = np.random.default_rng(1).permutation(size.samples)
    starts = itertools.cycle(range(0, size.samples - size.reads + 1, size.reads))
    return lambda: order[(at := next(starts)) : at + size.reads]


def reads(run: Run) -> None:
    for size in sizes(run):
        cache, part = filled(size, run.folder), walk(size)
        views(run, size, cache, part)
        gathers(run, size, cache, part)
        cache.unlink()
        cache.close()


def views(run: Run, size: Size, cache: stocached.Cache, part: Callable[[], Any]) -> None:
    now: list[int] = []

    def work() -> None:
        for i in now:
            cache.get(i)

    one = Here("Cache.get", size.reads, work, lambda: now.__setitem__(slice(None), part().tolist()))
    run.measure(f"A view of {size.name}", one)


def gathers(run: Run, size: Size, cache: stocached.Cache, part: Callable[[], Any]) -> None:
    library = ctypes.CDLL(run.loops)
    pointers = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    for loop in (library.loop_gather, library.loop_gather_2):
        loop.argtypes, loop.restype = pointers, None
    first = cache.get(0)
    rows = np.lib.stride_tricks.as_strided(  # the same bytes in the same pages: sample i is in slot i
        first, (size.samples, *size.shape), (size.bytes, *first.strides), writeable=False
    )
    if rows[-1].ctypes.data != cache.get(size.samples - 1).ctypes.data:
        raise RuntimeError("samples do not lie in the order of their indices")
    out = np.ones((size.batch, *size.shape), np.uint8)
    now: list[Any] = []

    def subject(name: str, copy: Callable[[Any], Any]) -> Here:
        def work() -> None:
            for at in range(0, len(now[0]) - size.batch + 1, size.batch):
                copy(now[0][at : at + size.batch])

        return Here(name, size.reads, work, lambda: now.__setitem__(slice(None), [part()]))

    def bare(loop: Any) -> Callable[[Any], None]:
        return lambda batch: loop(out.ctypes.data, rows.ctypes.data, batch.ctypes.data, len(batch), size.bytes)

    run.measure(
        f"Batches of {size.batch}, {size.name}",
        subject("Cache.gather", lambda batch: cache.gather(batch, out=out)),
        subject("Cache.gather, 2 threads", lambda batch: cache.gather(batch, out=out, threads=2)),
        subject("numpy.take", lambda batch: np.take(rows, batch, axis=0, out=out, mode="clip")),
        subject("memcpy loop", bare(library.loop_gather)),
        subject("memcpy loop, 2 threads", bare(library.loop_gather_2)),
    )


def puts(run: Run) -> None:
    """Each run has a new cache and a new file: a page is new only once."""
    for size in sizes(run):
        data, made = size.data(), []

        def create(size: Size = size, made: list[Any] = made) -> None:
            made.append(
                stocached.Cache.create("puts", samples=size.reads, shape=size.shape, dtype="uint8", dir=run.folder)
            )

        def put(size: Size = size, data: Any = data, made: list[Any] = made) -> None:
            store = made[0].put
            for i in range(size.reads):
                store(i, data[i % len(data)])

        def remove(made: list[Any] = made) -> None:
            made[0].unlink()
            made.pop().close()

        def write(size: Size = size, data: Any = data, made: list[Any] = made) -> None:
            for i in range(size.reads):
                os.pwrite(made[0], data[i % len(data)], i * size.bytes)

        run.measure(
            f"Puts of {size.name} with their checksums",
            Here("Cache.put", size.reads, put, create, remove),
            Here(
                "os.pwrite", size.reads, write,
                lambda made=made: made.append(os.open(run.folder, os.O_TMPFILE | os.O_RDWR, 0o600)),
                lambda made=made: os.close(made.pop()),
            ),
        )  # fmt: skip


def first_epoch(run: Run) -> None:
    """Samples that take a millisecond of a core each."""
    n, size = run.n(1000, 64), sizes(run)[0]
    data, made = size.data(), []

    def load(i: int) -> Any:
        end = time.perf_counter_ns() + 1_000_000
        sample = data[i % len(data)] | 0  # a new one, as from a decoder
        while time.perf_counter_ns() < end:
            pass
        return sample

    def create() -> None:
        made.append(stocached.Cache.create("epoch", samples=n, shape=size.shape, dtype="uint8", dir=run.folder))

    def remove() -> None:
        made[0].unlink()
        made.pop().close()

    run.measure(
        "A first epoch in a loop: samples of 1 ms",
        Here("get_or_load", n, lambda: [made[0].get_or_load(i, load) for i in range(n)], create, remove),
        Here("no cache", n, lambda: [load(i) for i in range(n)]),
    )


def lifecycle(run: Run) -> None:
    made: list[Any] = []
    samples = run.n(100_000_000, 100_000)
    huge = stocached.Cache.create("huge", samples=samples, slots=1, shape=(16,), dtype="uint8", dir=run.folder)

    def create() -> None:
        made.append(
            stocached.Cache.create("c", samples=7000, shape=(3, 224, 224), dtype="uint8", size="1GiB", dir=run.folder)
        )

    def remove() -> None:
        made[0].unlink()
        made.pop().close()

    def attach() -> None:
        made.append(stocached.Cache.attach(f"{run.folder}/huge"))
        made[0].get(0)  # what is left to the first use counts too

    run.measure("Make a cache of 1 GiB", Here("Cache.create", 1, create, clean=remove))
    run.measure(f"Attach to {samples:,} samples", Here("Cache.attach", 1, attach, clean=lambda: made.pop().close()))
    huge.unlink()
    huge.close()


CASES = {"reads": reads, "puts": puts, "first-epoch": first_epoch, "lifecycle": lifecycle}
