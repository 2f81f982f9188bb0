"""Makes a sample of an image file: decode, white background, resize. A cached sample saves this
work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 224
SHAPE = (SIDE, SIDE, 3)
SAMPLE_BYTES = SIDE * SIDE * 3  # 150,528

Pixels = npt.NDArray[np.uint8]


class UnreadableImageError(Exception):
    """An image whose header was fine cannot be decoded. The message names the file."""


def load(file: Path) -> Pixels:
    """The image as 224 x 224 x 3 bytes. Deterministic: random augmentation comes after the
    cache."""
    with readable(file), Image.open(file) as image:
        picture = on_white(image)
        return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0))


@contextlib.contextmanager
def readable(file: Path) -> Iterator[None]:
    """Makes errors of a file name the file and the next step."""
    try:
        yield
    except (OSError, SyntaxError, ValueError) as error:
        raise UnreadableImageError(
            f"{file} cannot be decoded ({error}): remove it, or give another folder with IMAGES=dir"
        ) from error


def on_white(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    picture = image.convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    white.alpha_composite(picture)
    return white.convert("RGB")


def checksum(batch: npt.NDArray[Any]) -> int:
    """Reads every byte of a batch, as a training step does. The sum does not depend on the order of
    samples."""
    return int(batch.sum(dtype=np.uint64))


def seconds_a_sample(files: list[Path], probes: int = 24) -> float:
    """Mean time to load one file, measured with a few files from the whole list."""
    some = files[:: max(1, len(files) // probes)][:probes]
    load(some[0])  # the first one also loads Pillow's codecs
    start = time.perf_counter()
    for file in some:
        load(file)
    return (time.perf_counter() - start) / len(some)
