"""What the policy cost saves beside first-come, on real files: an epoch with a part of the pictures cached, beside one
without a cache, which takes as long as all loads do. The cases read the pictures of the demo, and photographs: JPEGs
whose areas are lognormal with sigma 0.6, as those of photo collections."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tree
from harness import BUILT, ROOT, Figures, Run, Subject, spread
from PIL import Image

from stocached import Loader

sys.path.append(str(ROOT))
from demo import images, loading

WORKERS = min(4, os.cpu_count() or 1)
CONTROL = 4_300_000  # bytes of a segment besides its slots, about
MEDIAN_PIXELS, SIGMA = 1_000_000, 0.6


def photo_files(folder: Path, count: int) -> list[Path]:
    """JPEGs made from 64 parts of pictures. Keeps files that exist."""
    images.make_jpegs(folder / "parts", 64)
    areas = np.exp(np.random.default_rng(0).normal(np.log(MEDIAN_PIXELS), SIGMA, count))
    files = [folder / f"{k:05d}.jpg" for k in range(count)]
    for k, file in enumerate(files):
        if not file.exists():
            width = round((areas[k] * 4 / 3) ** 0.5)
            with Image.open(folder / "parts" / f"{k % 64:05d}.jpg") as part:
                sides = (width, round(areas[k] / width))
                partial = file.with_suffix(".partial")
                part.resize(sides, Image.Resampling.BICUBIC).save(partial, "JPEG", quality=90)
                partial.rename(file)
    return files


class Pictures:
    """Decoded and resized files."""

    def __init__(self, files: Sequence[Path], load: Callable[[Path], Any]) -> None:
        self.files, self.load = files, load

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.load(self.files[index])


class Epochs(Subject):
    """The last of some epochs with a new loader."""

    def __init__(self, name: str, dataset: Pictures, count: int, **settings: Any) -> None:
        super().__init__()
        self.name, self._dataset, self._count, self._settings = name, dataset, count, settings

    def run(self) -> Figures:
        loader = Loader(
            self._dataset, 32, shuffle=True, seed=len(self.runs), num_workers=WORKERS, persistent_workers=True,
            **self._settings,
        )  # fmt: skip
        for _ in range(self._count):
            cpu, start = tree.used(os.getpid()), time.perf_counter()
            for batch in loader:
                loading.checksum(batch)
            seconds, used = time.perf_counter() - start, tree.used(os.getpid()) - cpu
        loader.close()
        n = len(self._dataset)
        return {"seconds": seconds / n, "cpu": used / n}


def best(files: Sequence[Path], load: Callable[[Path], Any], c: float) -> float:
    """What a cache of the costliest samples leaves of a cold epoch, from processor times of loads."""

    def cost(file: Path) -> float:
        start = time.process_time()
        load(file)
        return time.process_time() - start

    costs = sorted(min(cost(file) for _ in range(2)) for file in files)
    return sum(costs[: len(costs) - round(c * len(costs))]) / sum(costs)


def compare(run: Run, title: str, files: list[Path], load: Callable[[Path], Any]) -> None:
    dataset = Pictures(files, load)
    cold = Epochs("no cache", dataset, 2)  # the first one also starts the workers
    cached = {
        (c, policy): Epochs(
            f"c = {c}, {policy}", dataset, count,
            size=CONTROL + round(c * len(files)) * loading.SAMPLE_BYTES, policy=policy,
        )
        for c in (0.25, 0.5)
        for policy, count in (("first-come", 2), ("cost", 3))
    }  # fmt: skip
    run.measure(f"{len(files)} {title}, {WORKERS} workers", cold, *cached.values())
    run.say(
        "\n| c | policy | to cold, seconds | processor time | best set | straight line |\n|--:|---|--:|--:|--:|--:|"
    )
    for (c, policy), one in cached.items():
        ratios = [spread(a / b for a, b in zip(one.all(what), cold.all(what))) for what in ("seconds", "cpu")]
        run.say(f"| {c} | {policy} | {ratios[0]} | {ratios[1]} | {best(files, load, c):.2f} | {1 - c:.2f} |")


def whole(file: Path) -> Any:
    """Decodes all pixels and resizes them, as torchvision's ImageFolder with Resize does."""
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB").resize((loading.SIDE, loading.SIDE), Image.Resampling.BILINEAR))


def demo(run: Run) -> None:
    source = images.choose(None, BUILT.parent / "demo", 1)
    compare(run, "pictures of the demo", images.pick(source, run.n(896, 64)), loading.load)


def photos(run: Run) -> None:
    compare(run, "photographs", photo_files(BUILT / "photos", run.n(3000, 64)), whole)


CASES = {"demo": demo, "photos": photos}
