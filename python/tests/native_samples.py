"""What tests of native workers share: files and shards, pipelines, and batches as bytes. Programs import it too."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from stocached import image

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
    from pictures import encoded, picture

    for k in range(files):
        path = root / f"c{k % 2}" / f"{k:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(60 + k % 7, 50 + k % 5, seed=k)))
    return root


def tar_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def shards_of_small(root: Path, files: int = 40) -> Path:
    """The samples of folder_of_small, in their order, in three shards. A label comes before its picture, or after it,
    or far from it."""
    from pictures import encoded, picture

    ordered = [k for label in (0, 1) for k in range(files) if k % 2 == label]
    n = -(-files // 3)
    root.mkdir(parents=True, exist_ok=True)
    for shard in range(3):
        members: dict[str, bytes] = {}
        for number, k in list(enumerate(ordered))[n * shard : n * (shard + 1)]:
            data, label = encoded(picture(60 + k % 7, 50 + k % 5, seed=k)), f"{k % 2}\n".encode()
            parts = {f"{number:03}.jpg": data, f"{number:03}.cls": label}
            if number % 4 == 0:
                parts = {f"{number:03}.cls": label, f"{number:03}.jpg": data}
            elif number % 4 == 1:
                parts = {f"{number:03}.jpg": data, f"{number:03}.txt": bytes(20_000), f"{number:03}.cls": label}
            members |= parts
        tar_of(root / f"train-{shard}.tar", members)
    return root


def dataset_of(root: Path, **settings: Any) -> image.Folder | image.Shards:
    """The folder, or the shards in it."""
    shards = sorted(Path(root).glob("*.tar"))
    return image.Shards(shards, **settings) if shards else image.Folder(root, **settings)


def taken(batch: Any) -> tuple[Any, ...]:
    """A batch of pictures, with labels or alone, that can be compared and outlives its buffer."""
    pictures, labels = (np.asarray(part) for part in (batch if isinstance(batch, (tuple, list)) else (batch, ())))
    return pictures.shape, str(pictures.dtype), pictures.tobytes(), labels.tolist()


def read(loader: Any, epochs: int = 1) -> list[tuple[Any, ...]]:
    return [taken(batch) for _ in range(epochs) for batch in loader]


def labels_of(batches: list[tuple[Any, ...]]) -> list[int]:
    return [label for batch in batches for label in batch[3]]
