"""Train on tars of JPEG files and their classes, as webdataset writes them, with a cache for a part of them.

The cache keeps the decoded pictures of whole tars, as many as there is room for. Only the others are read and decoded in
later epochs. `.shuffle(window=4)` shuffles the tars, and mixes the pictures of 4 tars. What is random stands below it.

    pip install torch
    python tars.py FOLDER [--epochs 3] [--size 8GiB]

The tars of FOLDER have members such as 000123.jpg and 000123.cls. The program prints, for 12 tars of 8 pictures, with
--size 14MiB:

    epoch 1: 96 pictures of 8 classes in batches of (32, 3, 224, 224), 0 of 12 tars from the cache
    epoch 2: 96 pictures of 8 classes in batches of (32, 3, 224, 224), 5 of 12 tars from the cache
    epoch 3: 96 pictures of 8 classes in batches of (32, 3, 224, 224), 5 of 12 tars from the cache
"""

import argparse
import itertools
import os
import tarfile
from collections.abc import Iterator
from typing import Any

from stocached import image, source
from stocached.torch import DataLoader


def members(path: str) -> Iterator[tuple[bytes, int]]:
    """The file and the class of each picture of a tar."""
    with tarfile.open(path) as tar:
        files = (member for member in tar if member.isfile())
        for name, parts in itertools.groupby(files, lambda member: os.path.splitext(member.name)[0]):
            read = {os.path.splitext(member.name)[1]: tar.extractfile(member).read() for member in parts}  # type: ignore[union-attr]
            if not {".jpg", ".cls"} <= read.keys():
                raise ValueError(f"{path}: {name} has {', '.join(read)}; it must have .jpg and .cls, side by side")
            yield read[".jpg"], int(read[".cls"])


def decode(sample: tuple[bytes, int]) -> tuple[Any, int]:
    return image.decode(sample[0], short_side=256, layout="chw"), sample[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", default="8GiB", help="the most memory that the cache may take")
    options = parser.parse_args()

    pipe = (
        source(f"{options.folder}/**/*.tar")
        .flat_map(members)
        .map(decode)
        .cache(options.size)
        .shuffle(seed=1, window=4)
        .map(image.Compose([image.RandomResizedCrop(224), image.RandomHorizontalFlip()]))
        .batch(32)
    )
    loader = DataLoader(pipe, num_workers=2, persistent_workers=True)
    for epoch in range(options.epochs):
        before, samples, classes, shape = loader.stats(), 0, set(), None
        for images, labels in loader:
            # loss = model(images / 255, labels) ...
            samples += len(labels)
            classes |= set(labels.tolist())
            shape = shape or tuple(images.shape)
        (cache,) = (stage for stage in (loader.stats() - before).stages if stage.stage.startswith(".cache"))
        print(
            f"epoch {epoch + 1}: {samples} pictures of {len(classes)} classes in batches of {shape}, "
            f"{cache.hits} of {cache.hits + cache.misses} tars from the cache"
        )
    loader.close()


if __name__ == "__main__":
    main()
