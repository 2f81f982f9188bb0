"""Measures what the policy cost saves: `make bench-policies`.

Cases, each with real files, worker processes and the cache (make demo runs the same epochs):
    demo     896 pictures of the demo
    library  a random 1,000 of all pictures of the demo's package, up to 80 megapixels
    photos   3,000 JPEGs whose areas are lognormal with sigma 0.6, as those of photo collections
    equal    samples of equal cost beside busy processes: loads and evictions are counted, not timed
    sizes    caches for samples of different sizes: loads of equal cost, and JPEGs that are decoded

Runs of the policies alternate. A ratio is the time of an epoch to that of a cold epoch (without a
cache, the second one of its workers) of the same round: of epoch 2 with first-come, of epoch 3 with
cost. The table has medians, of seconds and of processor time."""

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
from stocached._datasets.cached_samples import CachedSamples
from stocached.loader import Loader

WORKERS = min(4, os.cpu_count() or 1)
BATCH = 32
CONTROL = 4_300_000  # bytes of a segment besides its slots, about
PHOTOS, MEDIAN_PIXELS, SIGMA = 3000, 1_000_000, 0.6


def photos(folder: Path, count: int = PHOTOS, pixels: int = MEDIAN_PIXELS) -> list[Path]:
    """JPEGs made from 64 parts of pictures, with lognormal areas. Keeps files that exist."""
    images.make_jpegs(folder / "parts", 64)
    areas = np.exp(np.random.default_rng(0).normal(np.log(pixels), SIGMA, count))
    files = [folder / f"{k:05d}.jpg" for k in range(count)]
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
        cold = epochs(dataset, number, 2)  # the first one also starts the workers, which the others keep
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


class Busy:
    """Samples of given lengths, each after the same processor time, or after one in proportion to its length."""

    def __init__(self, lengths: Sequence[int], seconds: float, proportional: bool) -> None:
        mean = sum(lengths) / len(lengths)
        self.lengths, self.loads = lengths, 0
        self.seconds = [seconds * (length / mean if proportional else 1) for length in lengths]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        self.loads += 1
        end = time.thread_time() + self.seconds[index]
        while time.thread_time() < end:
            pass
        return np.full(self.lengths[index], index & 255, np.uint8)


class Decoded:
    """Decoded files. sides: each picture is resized to this; None: it is as large as its file says."""

    def __init__(self, files: Sequence[Path], sides: Sequence[int] | None) -> None:
        self.files, self.sides, self.loads = files, sides, 0

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        self.loads += 1
        with Image.open(self.files[index]) as image:
            picture = image.convert("RGB")
            if self.sides is not None:
                picture = picture.resize((self.sides[index],) * 2, Image.Resampling.BILINEAR)
            return np.asarray(picture)


def measure_once(dataset: Any, nbytes: int, policy: str | None, seed: int) -> tuple[float, float, float]:
    """The epochs 3 and 4 in this process, half of the bytes cached: seconds and processor seconds of an
    epoch, and its loads. Without a policy: the cold epoch."""
    n, rng = len(dataset), np.random.default_rng(seed)
    read = dataset
    if policy is not None:
        size = CONTROL + 40 * n + nbytes // 2
        read = CachedSamples(dataset, size=size, variable=True, policy=policy, allow_random=True)
    for count in (2, 2) if policy is not None else (1,):
        dataset.loads, start, cpu = 0, time.perf_counter(), time.process_time()
        for _ in range(count):
            for index in rng.permutation(n):
                read[int(index)].ravel()[0].item()
        took = (time.perf_counter() - start) / count, (time.process_time() - cpu) / count, dataset.loads / count
    if policy is not None:
        read.cache.close()
    return took


def sized(out: Path) -> dict[str, tuple[Any, int]]:
    """The datasets of the case sizes, with their bytes."""
    found: dict[str, tuple[Any, int]] = {}
    rng = np.random.default_rng(1)
    for kilobytes, ms, n in ((3, 0.2, 4000), (3, 2, 800), (150, 0.2, 1000), (150, 2, 600)):
        for name, spread, proportional in (
            ("alike", 0.0, False),
            ("0.5 to 1.5 times that", 0.5, False),
            ("time and size 0.5 to 1.5 times that", 0.5, True),
        ):
            lengths = [round(kilobytes * 1000 * (1 + spread * x)) for x in rng.uniform(-1, 1, n)]
            found[f"{ms} ms, {kilobytes} KB, {name}"] = Busy(lengths, ms / 1000, proportional), sum(lengths)
    files = photos(out / "photos-small", 600, 100_000)
    areas = [Image.open(file).size for file in files]
    found["JPEGs decoded"] = Decoded(files, None), sum(3 * w * h for w, h in areas)
    sides = [round(side) for side in np.exp(rng.normal(np.log(200), SIGMA / 2, len(files)))]
    found["JPEGs decoded, resized to other sizes"] = Decoded(files, sides), sum(3 * side**2 for side in sides)
    return found


def measure_sizes(rounds: int, out: Path) -> list[str]:
    """cost beside first-come, in turn: both to the cold epoch, and cost to first-come."""
    lines = [
        f"One process reads in a shuffled order, half of the bytes cached, {rounds} rounds; medians of the epochs 3 and 4.",
        "",
        "| samples | loads, first-come | loads, cost | processor time to cold, first-come | cost | cost to first-come, processor time | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, (dataset, nbytes) in sized(out).items():
        runs: dict[str | None, list[tuple[float, float, float]]] = {None: [], "first-come": [], "cost": []}
        for number in range(rounds):
            for policy in runs if number % 2 == 0 else reversed(list(runs)):
                runs[policy].append(measure_once(dataset, nbytes, policy, number))
        wall, cpu, loads = (
            {policy: np.array([run[k] for run in taken]) for policy, taken in runs.items()} for k in range(3)
        )
        lines.append(
            f"| {name} | {np.median(loads['first-come']) / len(dataset):.3f} | {np.median(loads['cost']) / len(dataset):.3f} "
            f"| {np.median(cpu['first-come'] / cpu[None]):.3f} | {np.median(cpu['cost'] / cpu[None]):.3f} "
            f"| {three(cpu['cost'] / cpu['first-come'])} | {three(wall['cost'] / wall['first-come'])} |"
        )
        print(f"sizes: {lines[-1]}", file=sys.stderr, flush=True)
    return lines


def three(values: np.ndarray) -> str:
    return f"{np.median(values):.3f} ({values.min():.3f} to {values.max():.3f})"


CASES: dict[str, Callable[[int, Path], list[str]]] = {
    "demo": lambda rounds, out: measure_pictures("demo", rounds, (0.25, 0.5), out),
    "photos": lambda rounds, out: measure_pictures("photos", rounds, (0.25, 0.5), out),
    "library": lambda rounds, out: measure_pictures("library", rounds, (0.25,), out),
    "equal": lambda rounds, out: measure_equal(rounds),
    "sizes": measure_sizes,
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
