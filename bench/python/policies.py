"""Measures what the policy cost saves: `make bench-policies`.

Cases, each with real files, worker processes and the cache (make demo runs the same epochs):
    demo     896 pictures of the demo
    library  a random 1,000 of all pictures of the demo's package, up to 80 megapixels
    photos   3,000 JPEGs whose areas are lognormal with sigma 0.6, as those of photo collections
    equal    samples of equal cost beside busy processes: loads and evictions are counted, not timed

Runs of the policies alternate. A ratio is the time of an epoch to that of a cold epoch (without a
cache) of the same round: of epoch 2 with first-come, of epoch 3 with cost. The table has medians, of
seconds and of processor time."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from demo import images, loading, processes
from PIL import Image

import stocached
from stocached.loader import Loader

WORKERS = min(4, os.cpu_count() or 1)
BATCH = 32
CONTROL = 4_300_000  # bytes of a segment besides its slots, about
PHOTOS, MEDIAN_PIXELS, SIGMA = 3000, 1_000_000, 0.6


def photos(folder: Path) -> list[Path]:
    """JPEGs made from 64 parts of pictures, with lognormal areas. Keeps files that exist."""
    images.make_jpegs(folder / "parts", 64)
    areas = np.exp(np.random.default_rng(0).normal(np.log(MEDIAN_PIXELS), SIGMA, PHOTOS))
    files = [folder / f"{k:05d}.jpg" for k in range(PHOTOS)]
    for k, file in enumerate(files):
        if not file.exists():
            width = round((areas[k] * 4 / 3) ** 0.5)
            with Image.open(folder / "parts" / f"{k % 64:05d}.jpg") as part:
                partial = file.with_suffix(".partial")
                part.resize((width, round(areas[k] / width)), Image.Resampling.BICUBIC).save(
                    partial, "JPEG", quality=90
                )
                partial.rename(file)
    return files


def files_of(case: str, out: Path) -> list[Path]:
    source = images.choose(None, out, 1)
    if case == "photos":
        return photos(out / "photos")
    if case == "demo":
        return images.pick(source, 896)
    return images.pick(images.Source(source.folder, "", ""), 1000)


def best_ratios(files: Sequence[Path], load: Callable[[Path], Any], fractions: Sequence[float]) -> dict[float, float]:
    """What a cache of the costliest samples leaves of a cold epoch, from processor times of loads."""

    def cost(file: Path) -> float:
        start = time.process_time()
        load(file)
        return time.process_time() - start

    costs = sorted(min(cost(file) for _ in range(2)) for file in files)
    return {c: sum(costs[: len(costs) - round(c * len(costs))]) / sum(costs) for c in fractions}


class Pictures:
    """Decoded and resized files."""

    def __init__(self, files: Sequence[Path], load: Callable[[Path], Any]) -> None:
        self.files, self.load = files, load

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.load(self.files[index])


def epoch(loader: Loader) -> tuple[float, float]:
    """Seconds of one epoch, and of all processors."""
    cpu, start = processes.cpu_seconds(os.getpid()), time.perf_counter()
    for batch in loader:
        loading.checksum(batch)
    return time.perf_counter() - start, processes.cpu_seconds(os.getpid()) - cpu


def epochs(dataset: Pictures, seed: int, count: int, **settings: Any) -> tuple[float, float]:
    """The last of some epochs with a new loader."""
    loader = Loader(dataset, BATCH, shuffle=True, seed=seed, num_workers=WORKERS, persistent_workers=True, **settings)
    for _ in range(count - 1):
        epoch(loader)
    last = epoch(loader)
    loader.close()
    return last


def measure_pictures(case: str, rounds: int, fractions: Sequence[float], out: Path) -> list[str]:
    files = files_of(case, out)
    load = whole if case == "photos" else loading.load
    best = best_ratios(files, load, fractions)
    dataset = Pictures(files, load)
    seconds: dict[tuple[float, str], list[float]] = {}
    cpu: dict[tuple[float, str], list[float]] = {}
    for number in range(rounds):
        cold = epochs(dataset, number, 1)
        for c in fractions:
            size = CONTROL + round(c * len(files)) * loading.SAMPLE_BYTES
            for policy, count in (("first-come", 2), ("cost", 3)):
                run = epochs(dataset, number, count, size=size, policy=policy)
                seconds.setdefault((c, policy), []).append(run[0] / cold[0])
                cpu.setdefault((c, policy), []).append(run[1] / cold[1])
        print(f"{case}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    lines = [
        f"{len(files)} pictures, {WORKERS} workers, {rounds} rounds.",
        "",
        "| c | policy | to cold, seconds | processor time | best set | straight line |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for (c, policy), ratios in seconds.items():
        lines.append(f"| {c} | {policy} | {spread(ratios)} | {spread(cpu[c, policy])} | {best[c]:.2f} | {1 - c:.2f} |")
    return lines


def whole(file: Path) -> Any:
    """Decodes all pixels and resizes them, as torchvision's ImageFolder with Resize does."""
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB").resize((loading.SIDE, loading.SIDE), Image.Resampling.BILINEAR))


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


class Equal:
    """Samples whose loads take the same processor time."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.loads = multiprocessing.get_context("fork").Value("q", 0)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < self.n:
            raise IndexError(index)
        with self.loads.get_lock():
            self.loads.value += 1
        value = np.full(4096, index & 255, np.uint8)
        for _ in range(40):
            np.sort(np.random.default_rng(index).integers(0, 1 << 20, 1000))
        return value


def spin(stop: multiprocessing.synchronize.Event) -> None:
    while not stop.is_set():
        sum(range(10_000))


def measure_equal(rounds: int) -> list[str]:
    """Loads of epochs 3 to 8, and slots that change hands, beside as many busy processes as processors."""
    samples, epochs = 4000, 8
    lines = [
        f"{samples} samples, half of them cached, {WORKERS} workers beside {os.cpu_count()} busy processes, {rounds} rounds.",
        "",
        "| policy | loads of epochs 3 to 8 | beside first-come | slots that got another sample, an epoch |",
        "|---|--:|--:|--:|",
    ]
    context = multiprocessing.get_context("fork")
    loads: dict[str, list[int]] = {"first-come": [], "cost": []}
    moved: dict[str, list[float]] = {"first-come": [], "cost": []}
    for number in range(rounds):
        for policy in loads:
            dataset = Equal(samples)
            stop = context.Event()
            others = [context.Process(target=spin, args=(stop,), daemon=True) for _ in range(os.cpu_count() or 1)]
            for other in others:
                other.start()
            loader = Loader(
                dataset,
                64,
                shuffle=True,
                seed=number,
                num_workers=WORKERS,
                size=CONTROL + samples // 2 * 4096,
                policy=policy,
                persistent_workers=True,
            )
            evicted = 0
            for epoch in range(epochs):
                if epoch == 2:
                    before, evicted = dataset.loads.value, loader.cache.stats().evicted
                for _ in loader:
                    pass
            loads[policy].append(dataset.loads.value - before)
            moved[policy].append((loader.cache.stats().evicted - evicted) / (epochs - 2) / loader.cache.slots)
            loader.close()
            stop.set()
            for other in others:
                other.join()
        print(f"equal: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    for policy, counts in loads.items():
        ratios = [mine / theirs for mine, theirs in zip(counts, loads["first-come"])]
        lines.append(
            f"| {policy} | {statistics.median(counts):,.0f} | {statistics.median(ratios):.4f} (at most {max(ratios):.4f}) | "
            f"{statistics.median(moved[policy]):.2%} (at most {max(moved[policy]):.2%}) |"
        )
    return lines


CASES: dict[str, Callable[[int, Path], list[str]]] = {
    "demo": lambda rounds, out: measure_pictures("demo", rounds, (0.25, 0.5), out),
    "photos": lambda rounds, out: measure_pictures("photos", rounds, (0.25, 0.5), out),
    "library": lambda rounds, out: measure_pictures("library", rounds, (0.25,), out),
    "equal": lambda rounds, out: measure_equal(rounds),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="where pictures are kept")
    chosen = parser.parse_args()
    print(f"stocached {stocached.__version__}, {os.cpu_count()} cores")
    for case in chosen.cases or CASES:
        print("\n".join(["", f"## {case}", "", *CASES[case](chosen.rounds, chosen.out)]), flush=True)


if __name__ == "__main__":
    main()
