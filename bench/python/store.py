"""Measures what store="auto" chooses, beside both fixed stores: epochs of a folder of JPEGs.

    PYTHONPATH=python/src:. STOCACHED_LIB_PATH=build python bench/python/store.py [--rounds 7] [--quick]

Sizes of the cache are parts of the decoded set. The source is rate-limited: all workers share one bucket of tokens,
and a read waits until its bytes are there. Runs of the stores alternate, each place in a round as often as the others.
Before a run, all files are read once, and as many bytes as the cache has are written to a file on its tmpfs, which is
removed. So each run finds the same page cache, and memory that the machine has touched.

A figure is the median epoch of a new loader after its second one, over a second at least, so the cache is full; "auto"
measures and chooses again in each run. The better store is the fixed one with the shorter median over all rounds. The
table has the ratio of auto to it in the same round: asked for are a median of at most 1.05 and no run above 1.15. In
each round, the store that auto chose last runs once more as a fixed one ("again"). "again / the same" is its ratio to
the other run of that store: two runs that choose nothing, so noise alone. A ratio of processor time, of the workers
too, leaves out the waits for processors that other work has."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from loaders import tree
from PIL import Image

import stocached
from stocached import image

STORES = ("decoded", "encoded", "auto")
SIZES = (0.1, 0.25, 0.5, 1.0, 2.0)
RATES = {"20 MB/s": 20e6, "150 MB/s": 150e6, "memory": 0.0}
SIDE = 224
LEAST = 1.0  # seconds that are measured: two single epochs of 0.04 s differ by more than the stores
CONTROL = 4_400_000  # bytes of a segment besides its samples, about
NORMALISED = [image.ToDtype("float32", scale=True), image.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]


class Bucket:
    """So many bytes a second, for all processes and threads."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = multiprocessing.get_context("fork").Value("d", 0.0)  # when the source has sent all earlier bytes

    def take(self, count: int) -> None:
        if not self._rate:
            return
        with self._free.get_lock():
            self._free.value = max(self._free.value, time.monotonic()) + count / self._rate
            wait = self._free.value - time.monotonic()
        time.sleep(max(wait, 0))


class Slow(image.Folder):
    """A folder whose files come through a bucket."""

    bucket: Bucket

    def read(self, index: int) -> tuple[Any, ...]:
        data, *others = super().read(index)
        self.bucket.take(len(data))
        return (data, *others)


def make(folder: Path, count: int) -> None:
    """JPEGs of about 500 x 375 pixels and 72 KB, of two classes."""
    for k in range(count):
        file = folder / f"class{k % 2}" / f"{k:05}.jpg"
        if file.exists():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(k)
        height, width = (375, 500) if k % 3 else (500, 375)
        picture = np.zeros((height, width, 3), np.float32)
        for side, weight in ((4, 0.45), (16, 0.3), (64, 0.15), (256, 0.16 * random.uniform(0.5, 1.5))):
            layer = Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8))
            picture += weight * np.asarray(layer.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        partial = file.with_suffix(".partial")
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(partial, "JPEG", quality=90)
        partial.rename(file)


def same_state(files: list[Path], directory: Path, size: int) -> None:
    """Reads all files, and touches as much memory as a cache of this size takes."""
    for file in files:
        file.read_bytes()
    block = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=directory) as touched:
        for _ in range(size >> 20):
            touched.write(block)


def epoch_of(loader: Any) -> float:
    start = time.perf_counter()
    for pictures, _ in loader:
        pictures[0, 0, 0, 0]
    return time.perf_counter() - start


class Run(NamedTuple):
    seconds: float  # of an epoch after the second one
    cpu: float  # seconds of processors, of such an epoch
    store: str
    made: float  # seconds that the constructor took


def run(dataset: Slow, store: Any, size: int, options: argparse.Namespace, seed: int) -> Run:
    augment = None
    if options.augment:
        augment = image.Compose([image.RandomResizedCrop(SIDE), image.RandomHorizontalFlip(), *NORMALISED])
    start = time.perf_counter()
    loader = stocached.Loader(
        dataset,
        32,
        shuffle=True,
        seed=seed,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        size=size,
        store=store,
        augment=augment,
    )
    made = time.perf_counter() - start
    epoch_of(loader)
    epoch_of(loader)
    cpu, seconds = tree.used(os.getpid())[0], [epoch_of(loader)]
    while sum(seconds) < LEAST:
        seconds.append(epoch_of(loader))
    cpu = (tree.used(os.getpid())[0] - cpu) / len(seconds)
    chosen = loader.stats().store
    loader.close()
    loader.cache.close()
    return Run(statistics.median(seconds), cpu, chosen, made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--augment", action="store_true", help="with crop, flip and normalisation of each sample")
    parser.add_argument("--sizes", type=float, nargs="*", default=SIZES)
    parser.add_argument("--sources", nargs="*", default=list(RATES), choices=list(RATES))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "stocached-bench-store")
    parser.add_argument("--quick", action="store_true", help="300 files and 3 rounds")
    options = parser.parse_args()
    if options.quick:
        options.files, options.rounds = 300, 3
    make(options.folder / str(options.files), options.files)
    decoded = options.files * SIDE * SIDE * 3
    total = sum(file.stat().st_size for file in (options.folder / str(options.files)).rglob("*.jpg"))
    print(
        f"{options.files} JPEGs of {total / options.files / 1e3:.0f} KB, decoded {decoded / options.files / 1e3:.0f} KB, "
        f"{options.workers} workers, {len(os.sched_getaffinity(0))} processors, {options.rounds} rounds, "
        f"{'with' if options.augment else 'without'} augment=.\n"
    )
    print(
        "| source | size | decoded, ms | encoded, ms | auto, ms | chosen | auto / better | of processor time | ", end=""
    )
    print(
        "again / the same | of processor time | each run: auto / better |\n|---|--:|--:|--:|--:|---|--:|--:|--:|--:|---|"
    )
    for source in options.sources:
        for part in options.sizes:
            row(source, part, decoded, options)


def row(source: str, part: float, decoded: int, options: argparse.Namespace) -> None:
    names = (*STORES, "again")
    runs: dict[str, list[Run]] = {name: [] for name in names}
    folder, size = options.folder / str(options.files), CONTROL + round(part * decoded)
    files = sorted(folder.rglob("*.jpg"))
    for number in range(options.rounds):
        for k in range(len(names)):
            name = names[(number + k) % len(names)]
            dataset = Slow(folder, size=SIDE, layout="chw")
            dataset.bucket = Bucket(RATES[source])
            same_state(files, Path("/dev/shm"), min(size, CONTROL + decoded))
            store = runs["auto"][-1].store if name == "again" else name
            runs[name].append(run(dataset, store, size, options, number))
        print(f"{source}, {part}: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    better = min(("decoded", "encoded"), key=lambda store: statistics.median(one.seconds for one in runs[store]))

    def beside(name: str, of: str, bases: list[Run]) -> list[float]:
        return [getattr(one, of) / getattr(other, of) for one, other in zip(runs[name], bases)]

    same = [runs[one.store][number] for number, one in enumerate(runs["again"])]
    times = " | ".join(f"{1e3 * statistics.median(one.seconds for one in runs[store]):.1f}" for store in STORES)
    picked = ", ".join(f"{store} {count}" for store, count in Counter(one.store for one in runs["auto"]).items())
    ratios = " | ".join(
        spread(beside(name, of, bases))
        for name, bases in (("auto", runs[better]), ("again", same))
        for of in ("seconds", "cpu")
    )
    each = ", ".join(f"{ratio:.2f}" for ratio in beside("auto", "seconds", runs[better]))
    print(f"| {source} | {part} | {times} | {picked} | {ratios} | {each} |", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
