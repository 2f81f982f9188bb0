"""The pictures that picture_epochs.py reads: the sizes of batches, and the random crop of a training."""

from __future__ import annotations

import math
import random

BATCH, SIDE, CACHED = 64, 224, 256
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def random_box(rows: int, columns: int) -> tuple[int, int, int, int]:
    """That of RandomResizedCrop: y, x, height and width. torchvision's function takes 50 us, and others would wait for
    it."""
    for _ in range(10):
        area, ratio = rows * columns * random.uniform(*SCALE), math.exp(random.uniform(*map(math.log, RATIO)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= columns and 0 < height <= rows:
            return random.randint(0, rows - height), random.randint(0, columns - width), height, width
    side = min(rows, columns)
    return (rows - side) // 2, (columns - side) // 2, side, side
