"""Train a detector: pictures with boxes, of which each picture has another number.

A sample is a dict of a picture and its boxes, so each step moves both. The cache keeps decoded pictures with their boxes.
Flips come after it. `pad=` fills the boxes of a batch up to the most that one of its pictures has.

    pip install torch
    python detection.py annotations.json [--epochs 3] [--side 320] [--size 8GiB]

The file is in COCO's format, and its pictures lie beside it. The program prints, for 24 pictures:

    epoch 1: 24 pictures with 60 boxes, 42% of the places for boxes are padding, 0 of 24 samples from the cache
    epoch 2: 24 pictures with 60 boxes, 50% of the places for boxes are padding, 24 of 24 samples from the cache
    epoch 3: 24 pictures with 60 boxes, 50% of the places for boxes are padding, 24 of 24 samples from the cache
"""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from stocached import Pipe, image, source
from stocached.torch import DataLoader

NO_BOX = -1  # all numbers of a place without a box


def annotations(file: Path) -> list[tuple[str, Any]]:
    """The path of each picture, and its boxes: an array of rows (left, top, right, bottom, class), parts of its sides."""
    found = json.loads(file.read_text())
    boxes: dict[int, list[Any]] = {picture["id"]: [] for picture in found["images"]}
    for each in found["annotations"]:
        left, top, width, height = each["bbox"]
        boxes[each["image_id"]].append((left, top, left + width, top + height, each["category_id"]))
    samples = []
    for picture in found["images"]:
        scale = np.array([picture["width"], picture["height"]] * 2 + [1], np.float32)
        rows = np.array(boxes[picture["id"]], np.float32).reshape(-1, 5) / scale
        samples.append((str(file.parent / picture["file_name"]), rows))
    return samples


def decode(side: int, sample: tuple[str, Any]) -> dict[str, Any]:
    path, boxes = sample
    return {"image": image.decode(path, side, fit="stretch", layout="chw"), "boxes": boxes}


def flip(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Mirrors half of the pictures, with their boxes."""
    if generator.random() < 0.5:
        return sample
    boxes = sample["boxes"].copy()
    boxes[:, [0, 2]] = 1 - boxes[:, [2, 0]]
    return {"image": sample["image"][:, :, ::-1], "boxes": boxes}


def pipe_of(file: Path, side: int, size: str) -> Pipe:
    return (
        source(annotations(file))
        .map(functools.partial(decode, side))
        .cache(size)
        .shuffle(seed=1)
        .map(flip)
        .batch(8, pad={"boxes": NO_BOX})
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("annotations", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--side", type=int, default=320, help="of the pictures, in pixels")
    parser.add_argument("--size", default="8GiB", help="the most memory that the cache may take")
    options = parser.parse_args()

    loader = DataLoader(pipe_of(options.annotations, options.side, options.size), num_workers=2)
    for epoch in range(options.epochs):
        before, places, boxes = loader.stats(), 0, 0
        for batch in loader:
            there = batch["boxes"][:, :, 4] != NO_BOX
            # loss = model(batch["image"] / 255, batch["boxes"], there) ...
            places += there.numel()
            boxes += int(there.sum())
        done = loader.stats() - before
        print(
            f"epoch {epoch + 1}: {done.samples} pictures with {boxes} boxes, {(places - boxes) / max(places, 1):.0%} of the places for "
            f"boxes are padding, {done.hits} of {done.samples} samples from the cache"
        )
    loader.close()


if __name__ == "__main__":
    main()
