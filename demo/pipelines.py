"""Reads the pictures as training on images does, without the training. A sample is a random part of a
picture, resized to 224 x 224, flipped or not, and normalised, in float32. Pillow and NumPy make such
batches first, then stocached.image."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from stocached import Loader, image

from demo import processes
from demo.experiment import EPOCHS, WrongSamplesError
from demo.jpegs import Jpegs
from demo.loading import SIDE

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHORT_SIDE = 256  # side of the pictures in the cache, as stocached.image.convert chooses it for crops of 224 pixels
ROOM = 16 << 20  # bytes of a cache besides its pictures; more than it needs

# (x - mean) / std of a value that was divided by 255, as one multiplication and one addition
SCALE = (1 / (255 * np.array(STD))).astype(np.float32)[:, None, None]
SHIFT = (-np.array(MEAN) / np.array(STD)).astype(np.float32)[:, None, None]


@dataclass
class Run:
    """The epochs of one pipeline."""

    worker: str  # kind of the loader's workers
    seconds: list[float] = field(default_factory=list)  # time of each epoch
    cpu_seconds: list[float] = field(default_factory=list)  # the same in processor time of all processes
    hits: list[int] = field(default_factory=list)
    misses: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Speed:
    """One epoch, for a reader."""

    name: str
    samples_a_second: float
    cpu_ms: float  # a sample


@dataclass
class Result:
    samples: int
    classes: int
    jpegs: Jpegs
    workers: int
    batch: int
    cache_bytes: int  # bytes of all pictures in the cache
    pillow: Run
    ours: Run

    def _speed(self, name: str, run: Run, epoch: int) -> Speed:
        return Speed(name, self.samples / run.seconds[epoch], run.cpu_seconds[epoch] * 1000 / self.samples)

    @property
    def shown(self) -> list[Speed]:
        """Pillow's fastest epoch, as all do the same work; our first epoch and our last one."""
        fastest = min(range(EPOCHS), key=self.pillow.seconds.__getitem__)
        return [
            self._speed("Pillow and NumPy", self.pillow, fastest),
            self._speed("stocached.image, epoch 1", self.ours, 0),
            self._speed(f"stocached.image, epoch {EPOCHS}", self.ours, EPOCHS - 1),
        ]


class PillowFolder:
    """What torchvision's ImageFolder does with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize."""

    def __init__(self, samples: Sequence[tuple[str, int]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.float32], int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            picture = file.convert("RGB")
        part = picture.crop(random_box(*picture.size)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        pixels = np.asarray(part)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1)) * SCALE
        planes += SHIFT
        return planes, label


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """The box of torchvision's RandomResizedCrop: 8 to 100 % of the area, sides of 3:4 to 4:3."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            break
    else:  # the picture is long and narrow
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        return (width - w) // 2, (height - h) // 2, (width + w) // 2, (height + h) // 2
    x, y = random.randint(0, width - w), random.randint(0, height - h)
    return x, y, x + w, y + h


def augmentation() -> image.Compose:
    """The same steps as in PillowFolder."""
    return image.Compose(
        [
            image.RandomResizedCrop(SIDE),
            image.RandomHorizontalFlip(),
            image.ToDtype("float32", scale=True),
            image.Normalize(MEAN, STD),
        ]
    )


def folder_of(root: Path) -> image.Folder:
    return image.Folder(root, short_side=SHORT_SIDE, layout="chw")


def pillow_loader(folder: image.Folder, workers: int, batch: int) -> Loader:
    return Loader(
        PillowFolder(folder.samples), batch, shuffle=True, seed=0, num_workers=workers, persistent_workers=True
    )


def our_loader(folder: image.Folder, workers: int, batch: int) -> Loader:
    """Nothing asks for C here: the loader chooses native workers for such a dataset and such steps."""
    return Loader(
        folder, batch, shuffle=True, seed=0, num_workers=workers, persistent_workers=True,
        size=bytes_of(folder) + ROOM, augment=augmentation(),
    )  # fmt: skip


def bytes_of(folder: image.Folder) -> int:
    """What the pictures take in the cache."""
    total = 0
    for path, _ in folder.samples:
        with Image.open(path) as file:
            short, long = sorted(file.size)
        total += 3 * SHORT_SIDE * math.ceil(SHORT_SIDE * long / short)
    return total


def run(loader: Loader, labels: int, progress: Callable[[int], None]) -> Run:
    """Reads all epochs, and closes the loader. labels: the sum of all of them, which each epoch must give."""
    with contextlib.closing(loader):
        result = Run(str(loader.worker))
        for _ in range(EPOCHS):
            before, seen = loader.stats(), 0
            cpu, start = processes.cpu_seconds(os.getpid()), time.perf_counter()
            for _, some in loader:
                seen += int(some.sum())
                progress(len(some))
            result.seconds.append(time.perf_counter() - start)
            result.cpu_seconds.append(processes.cpu_seconds(os.getpid()) - cpu)
            counted = loader.stats() - before
            result.hits.append(counted.hits)
            result.misses.append(counted.misses)
            if seen != labels:
                raise WrongSamplesError(f"an epoch has labels with the sum {seen}, the files have {labels}")
        return result


def measure(jpegs: Jpegs, out: Path, workers: int, batch: int, watch: Callable[[str], Callable[[int], None]]) -> Result:
    """Both pipelines. watch: as of experiment.measure."""
    with jpegs.class_folders(out) as root:
        folder = folder_of(root)
        labels = sum(folder.targets)
        pillow = run(pillow_loader(folder, workers, batch), labels, watch("Pillow"))
        ours = run(our_loader(folder, workers, batch), labels, watch("stocached.image"))
        return Result(len(folder), len(folder.classes), jpegs, workers, batch, bytes_of(folder), pillow, ours)
