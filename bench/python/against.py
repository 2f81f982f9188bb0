"""Compares the speed of this checkout with that of another commit: `make bench-against BASE=COMMIT`.

Both versions are built into build/against. Their runs alternate, each in a process of its own. A
row's ratio is the median of the ratios of neighbouring runs, ours to theirs: below 1 we are faster.
The interval next to it contains the median with 95 % probability or more (order statistics)."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import ROOT, interval

BUILT = ROOT / "build/against"
GO_BENCHMARKS = {  # by package: a pattern of benchmarks. Their names are the same in older versions
    "cache": "^Benchmark(View|Get|Gather|Set|GatherSmall)$",
    "loader": "^BenchmarkAllHit$/.*/batches",
}
SIZES = {"3 KiB": ((3, 32, 32), 20_000, 256), "147 KiB": ((3, 224, 224), 1_000, 64)}  # shape, samples, batch size
# Samples of the first epoch. In a shorter one the check for random samples counts more.
FIRST = 10_000
EPOCHS = 15  # epochs of one run, the fastest of which counts
_GO_RESULT = re.compile(r"^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op", re.MULTILINE)


# ------------------------------------------------------------------------------- one run of one version


def fastest(run: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of so many runs."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


class Images:
    """A dataset of arrays that cost next to nothing to load."""

    def __init__(self, n: int, shape: tuple[int, ...], convert: Callable[[Any], Any] = lambda row: row) -> None:
        import numpy as np

        self._rows = [np.full(shape, k, np.uint8) for k in range(16)]
        self._n, self._convert = n, convert

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._n:
            raise IndexError(index)
        return self._convert(self._rows[index & 15])


class Slow(Images):
    """Each sample takes a millisecond of a core."""

    def __getitem__(self, index: int) -> Any:
        end = time.perf_counter_ns() + 1_000_000
        sample = super().__getitem__(index)
        while time.perf_counter_ns() < end:
            pass
        return sample


def measure_python() -> dict[str, float]:
    """Seconds a sample by row, of the version of stocached that is on the path."""
    import numpy as np
    import torch

    import stocached
    from stocached.torch import CachedDataset, DataLoader

    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for size, (shape, n, batch) in SIZES.items():
        data = Images(n, shape)

        def filled(n: int = n, shape: tuple[int, ...] = shape, data: Images = data) -> tuple[float, Any]:
            cache = stocached.Cache.create(None, samples=n, slots=n, shape=shape, dtype="uint8")
            start = time.perf_counter()
            for index in range(n):
                cache.put(index, data[index])
            return time.perf_counter() - start, cache

        puts = []
        for _ in range(4):
            seconds, cache = filled()
            puts.append(seconds)
        found[f"put, {size}"] = min(puts) / n

        def get_all(cache: Any = cache, n: int = n) -> None:
            for index in range(n):
                cache.get(index)

        out = np.ones((batch, *shape), np.uint8)

        def gather_all(cache: Any = cache, n: int = n, batch: int = batch, out: Any = out) -> None:
            for first in range(0, n - batch + 1, batch):
                cache.gather(np.arange(first, first + batch), out=out)

        found[f"get, {size}"] = fastest(get_all, 9) / n
        found[f"gather, {size}"] = fastest(gather_all, EPOCHS) / n
        for backend, kind, dataset in (
            ("NumPy", stocached.Loader, data),
            ("torch", DataLoader, Images(n, shape, torch.from_numpy)),
        ):
            for workers in (0, 2):
                loader = kind(
                    dataset,
                    batch,
                    shuffle=True,
                    seed=1,
                    cache=cache,
                    num_workers=workers,
                    **({"persistent_workers": True} if workers else {}),
                )

                def epoch(loader: Any = loader) -> None:
                    for _ in loader:
                        pass

                found[f"epoch of hits, {backend}, {workers} workers, {size}"] = fastest(epoch, EPOCHS) / n
                loader.close()
        cache.close()

    dataset = CachedDataset(Slow(FIRST, (3, 32, 32), torch.from_numpy), size="1GiB")
    found["first epoch, 3 KiB and 1 ms of work"] = (
        fastest(lambda: [dataset[index] for index in range(FIRST)], 1) / FIRST
    )
    return found


# ------------------------------------------------------------------------------- both versions in turn


def build(name: str, source: Path) -> None:
    """Builds the version of a source tree into build/against/<name>: the package for Python and the
    test binaries for Go."""
    into = BUILT / name
    into.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    subprocess.run([*pip, "--target", into / "python", "./python"], cwd=source, check=True)
    for package in GO_BENCHMARKS:
        go = [os.environ.get("GO", "go"), "test", "-c", "-o", into / f"{package}.test", f"./{package}"]
        subprocess.run(go, cwd=source, check=True)


def run(name: str) -> dict[str, float]:
    """One run of all rows of a version, in processes of their own."""
    found: dict[str, float] = {}
    for package, pattern in GO_BENCHMARKS.items():
        command = [BUILT / name / f"{package}.test", "-test.run=^$", f"-test.bench={pattern}", "-test.benchtime=200ms"]
        printed = subprocess.run(command, cwd=ROOT / package, check=True, stdout=subprocess.PIPE, text=True).stdout
        found |= {f"Go {package} {benchmark}": float(ns) * 1e-9 for benchmark, ns in _GO_RESULT.findall(printed)}
    environment = os.environ | {"PYTHONPATH": str(BUILT / name / "python")}
    printed = subprocess.run(
        [sys.executable, __file__, "--measure"], env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return found | json.loads(printed.splitlines()[-1])


def table(ours: list[dict[str, float]], theirs: list[dict[str, float]], base: str) -> Iterator[str]:
    runs = len(ours)
    k = interval(runs)
    yield f"| row | {base} | ours | ratio | 95 % interval | holds |"
    yield "|---|--:|--:|--:|--:|---|"
    for row in ours[0]:
        if any(row not in run for run in theirs):
            continue
        ratios = sorted(a[row] / b[row] for a, b in zip(ours, theirs, strict=True))
        median, low, high = statistics.median(ratios), ratios[k - 1], ratios[-k]
        before, now = (statistics.median(run[row] for run in runs) * 1e6 for runs in (theirs, ours))
        holds = "yes" if median <= 1.03 or low <= 1 else "no"
        yield f"| {row} | {before:,.2f} | {now:,.2f} | {median:.2f} | {low:.2f} to {high:.2f} | {holds} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="the commit to compare with")
    parser.add_argument("--runs", type=int, default=15, help="of each version (default 15)")
    parser.add_argument("--keep", action="store_true", help="use what build/against has, instead of building")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure_python()))
        return 0
    if arguments.base is None:
        parser.error("give the commit to compare with")
    if not arguments.keep:
        sys.path.append(str(ROOT / "tools"))
        from worktree import worktree

        with worktree(arguments.base) as source:
            build("base", source)
        build("ours", ROOT)
    found: dict[str, list[dict[str, float]]] = {"ours": [], "base": []}
    for k in range(arguments.runs):
        for name in ("ours", "base") if k % 2 else ("base", "ours"):  # so that neither always runs second
            found[name].append(run(name))
        print(f"run {k + 1} of {arguments.runs}", file=sys.stderr, flush=True)
    lines = list(table(found["ours"], found["base"], arguments.base))
    text = (
        f"Microseconds a call, a batch (Go) or a sample (Python): medians of {arguments.runs} alternating runs.\n\n"
        + "\n".join(lines)
    )
    (BUILT / "result.md").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
