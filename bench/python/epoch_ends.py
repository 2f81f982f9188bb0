"""Compares epochs of few and of many batches with those of another version: what it costs that no function
of the program runs before the program asks for its epoch.

epoch_ends.py OURS THEIRS: folders with a package `stocached`. Each run of a version is a process of its own; the
runs of both alternate."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RUNS = 7
BATCH = 16
STEP_S = 0.004  # of the training loop, for each batch
LOAD_S = 0.00025  # that a function of the program waits for each sample, as for a disk
SHAPE = (64, 64, 3)
SECONDS = 1.0  # that the epochs of a row take, about


class Images:
    def __init__(self, n: int) -> None:
        import numpy as np

        self._n, self._row = n, np.arange(SHAPE[0] * SHAPE[1] * SHAPE[2], dtype=np.uint8).reshape(SHAPE)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        time.sleep(LOAD_S)
        return self._row


def augment(sample: Any) -> Any:
    time.sleep(LOAD_S)
    return sample


def folder(root: str, n: int) -> Any:
    import numpy as np
    from PIL import Image

    from stocached import image

    pixels = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    os.makedirs(f"{root}/all")
    Image.fromarray(pixels).save(f"{root}/all/0.jpg")
    for k in range(1, n):
        os.link(f"{root}/all/0.jpg", f"{root}/all/{k}.jpg")
    return image.Folder(root, size=SHAPE[:2])


def measure() -> dict[str, float]:
    """Seconds of an epoch by row."""
    from stocached import Loader

    found: dict[str, float] = {}
    for batches in (4, 10, 100):
        n = batches * BATCH
        with tempfile.TemporaryDirectory() as root:
            rows: dict[str, Callable[[], Any]] = {
                "loads of the program": lambda n=n: Loader(Images(n), **KEPT),
                "hits": lambda n=n: Loader(Images(n), size="64MiB", allow_random=True, **KEPT),
                "hits, no workers": lambda n=n: Loader(Images(n), BATCH, seed=1, size="64MiB", allow_random=True),
                "hits, augment= of the program": lambda n=n: Loader(
                    Images(n), size="64MiB", allow_random=True, augment=augment, **KEPT
                ),
                "pictures of a Folder": lambda n=n, root=root: Loader(folder(root, n), worker="native", **KEPT),
            }
            for name, make in rows.items():
                with contextlib.closing(make()) as loader:
                    found[f"{name} | {batches}"] = epoch_of(loader, batches)
    return found


KEPT: dict[str, Any] = {"batch_size": BATCH, "seed": 1, "num_workers": 2, "persistent_workers": True}


def epoch_of(loader: Any, batches: int) -> float:
    """The median of some epochs, after two that fill caches and start workers."""
    seconds = []
    for _ in range(2 + max(3, round(SECONDS / (batches * STEP_S)))):
        start = time.perf_counter()
        for _ in loader:
            time.sleep(STEP_S)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def run(package: str) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": package, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, __file__, "--measure"]
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    made: dict[str, float] = json.loads(printed.splitlines()[-1])
    return made


def table(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> Iterator[str]:
    yield "| samples | batches | theirs, ms | ours, ms | ours / theirs |"
    yield "|---|--:|--:|--:|---|"
    for row in ours[0]:
        ratios = sorted(a[row] / b[row] for a, b in zip(ours, theirs, strict=True))
        before, now = (1000 * statistics.median(one[row] for one in runs) for runs in (theirs, ours))
        yield (
            f"| {row} | {before:.1f} | {now:.1f} | {statistics.median(ratios):.2f} ({ratios[1]:.2f} to {ratios[-2]:.2f}) |"
        )


def main() -> int:
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(measure()))
        return 0
    ours, theirs = (str(Path(argument).resolve()) for argument in sys.argv[1:])
    found: dict[str, list[dict[str, float]]] = {ours: [], theirs: []}
    for k in range(RUNS):
        for package in (ours, theirs) if k % 2 else (theirs, ours):  # so that neither always runs second
            found[package].append(run(package))
        print(f"run {k + 1} of {RUNS}", file=sys.stderr, flush=True)
    print("\n".join(table(found[ours], found[theirs])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
