"""What tests of native workers share: folders, pipelines, batches as bytes, and the samples that came to Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import encoded, picture

from stocached import image
from stocached._loader.worker import Worker

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CONTROL = 4_200_000  # bytes of a segment besides its slots, about


def usual(side: int = 32) -> image.Compose:
    """What trainings do."""
    return image.Compose(
        [
            image.RandomResizedCrop(side),
            image.RandomHorizontalFlip(),
            image.ColorJitter(0.3, 0.3, 0.3, 0.1),
            image.ToDtype("float32", scale=True),
            image.Normalize(MEAN, STD),
        ]
    )


def folder_of_small(root: Path, files: int = 40) -> Path:
    """Two classes of JPEG files of several sizes."""
    for k in range(files):
        path = root / f"c{k % 2}" / f"{k:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(60 + k % 7, 50 + k % 5, seed=k)))
    return root


def taken(batch: Any) -> tuple[Any, ...]:
    """A batch of pictures and labels that can be compared and outlives its buffer."""
    pictures, labels = (np.asarray(part) for part in batch)
    return pictures.shape, str(pictures.dtype), pictures.tobytes(), labels.tolist()


def read(loader: Any, epochs: int = 1) -> list[tuple[Any, ...]]:
    return [taken(batch) for _ in range(epochs) for batch in loader]


def labels_of(batches: list[tuple[Any, ...]]) -> list[int]:
    return [label for batch in batches for label in batch[3]]


@pytest.fixture
def by_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples that worker threads of this process loaded in Python."""
    came: list[int] = []
    load = Worker._load_samples

    def noted(self: Worker, tasks: list[Any]) -> None:
        came.extend(task.index for task in tasks)
        load(self, tasks)

    monkeypatch.setattr(Worker, "_load_samples", noted)
    return came
