"""Steps give the results that they gave: digests of many cases, on any processor."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from pictures import encoded

from stocached import image

SIZES = ((31, 40), (64, 48), (1, 7), (7, 90))
FLOATS = [image.ToDtype("float32", scale=True), image.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
CASES = {
    "crop, flip": [image.RandomResizedCrop(24), image.RandomHorizontalFlip()],
    "crop of odd boxes": [image.RandomResizedCrop((9, 30), (0.5, 3.0), (3.0, 9.0), "bicubic")],
    "usual": [
        image.RandomResizedCrop(24),
        image.RandomHorizontalFlip(),
        image.ColorJitter(0.4, 0.4, 0.4, 0.1),
        *FLOATS,
        image.RandomErasing(0.7, value="random"),
    ],
    "resize": [image.Resize(20, max_size=31), image.CenterCrop((17, 40)), image.Resize((50, 10), "bicubic")],
    "padded crop": [
        image.RandomCrop(30, (1, 2, 3, 4), pad_if_needed=True, fill=(9, 8, 7)),
        image.RandomCrop(29),
        image.RandomCrop((28, 20), -2, pad_if_needed=True),
    ],
    "crop that may be too large": [image.RandomCrop((30, 36), 1)],
    "colours": [image.ColorJitter(hue=0.5), image.ColorJitter((0, 2), 0, (0.3, 0.4)), image.ColorJitter()],
    "erase": [image.RandomErasing(0.9, value=(1, 2, 3)), image.RandomHorizontalFlip(), image.RandomErasing(0.9)],
    "erase with normal numbers": [image.RandomErasing(0.5, (0.3, 1.0), (0.1, 9.0), "random")],
    "floats": [
        *FLOATS,
        image.CenterCrop((30, 60)),
        image.RandomCrop(28, 2, fill=5),
        image.RandomHorizontalFlip(),
        image.RandomErasing(0.7, value=0.5),
        image.Normalize(0.1, 3),
        image.RandomErasing(0.7, value="random"),
    ],
    "halves": [
        image.ToDtype("float16"),
        image.Normalize(100, (3, 5, 7)),
        image.RandomErasing(0.5),
        image.Normalize((1, 2, 3), 0.3),
        image.RandomHorizontalFlip(),
    ],
    "bfloat16": [*FLOATS, image.ToDtype("bfloat16"), image.CenterCrop(60), image.RandomErasing(value="random")],
    "resize of floats": [image.CenterCrop(20), image.ToDtype("float32"), image.Resize(10)],
    "normalised bytes": [image.RandomHorizontalFlip(), image.Normalize(0, 1)],
    "nothing": [image.CenterCrop((31, 40)), image.Resize(31), image.RandomHorizontalFlip(0)],
}


def picture(height: int, width: int) -> np.ndarray:
    """Arithmetic alone: no library changes it."""
    y, x, c = np.ogrid[:height, :width, :3]
    return ((7 * x + 3 * y * y + 5 * x * y // 8 + 80 * c) % 256).astype(np.uint8)


def pictures():
    for height, width in SIZES:
        pixels = picture(height, width)
        yield pixels
        yield np.ascontiguousarray(pixels.transpose(2, 0, 1))
        yield pixels[..., :1]
        yield pixels.astype(np.float32) / 255
        yield pixels.transpose(2, 0, 1).astype(np.float16)


def made(steps, sample, generator) -> bytes:
    """What a digest is of: the pixels and the next number of the generator, or the kind of the error."""
    try:
        result = image.Compose(steps)(sample, generator)
    except Exception as error:
        return type(error).__name__.encode()
    return f"{result.shape} {result.dtype} {generator.random()}".encode() + result.tobytes()


def digest(steps, samples) -> str:
    total = hashlib.sha256()
    for sample in samples:
        for seed in range(6):
            for generator in (np.random.default_rng(seed), random.Random(seed)):
                total.update(made(steps, sample, generator))
    return total.hexdigest()[:16]


SAVED = {
    "crop, flip": "5275074609dae7a5",
    "crop of odd boxes": "b0b05dc9882b3acb",
    "usual": "c66559ae224920a6",
    "resize": "8156993c53bd21d8",
    "padded crop": "c373bf34a1d83e5e",
    "crop that may be too large": "72643a5c1ce7b216",
    "colours": "13dae0e6f1ac5482",
    "erase": "84ed4c28a725b019",
    "erase with normal numbers": "8d1ead970a87c4ba",
    "floats": "fcd29a573c7eb901",
    "halves": "2876690469416f18",
    "bfloat16": "7dd6de17cd4a02c2",
    "resize of floats": "55077a24d4dfe3c7",
    "normalised bytes": "65447dcd7eeb23cb",
    "nothing": "fd6f69f5d26552b7",
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_that_were_saved(case):
    assert digest(CASES[case], pictures()) == SAVED[case]


DECODES = {
    "16d3e15c4ac95283": image.Decode(20),
    "04078655cbce1881": image.Decode((30, 50), fit="pad", fill=(1, 2, 3), layout="chw"),
    "5a47a8577b6ae642": image.Decode((30, 9), fit="stretch", filter="bicubic"),
    "197e6b982151e077": image.Decode((9, 20), short_side=26, layout="chw"),
    "8ba581eaf682fc3d": image.Decode(short_side=25),
    "c52199c1efd632d4": image.Decode(layout="chw", max_pixels=2500),
}  # by the digest of their results


def test_results_of_files_that_pillow_decodes_are_those_that_were_saved():
    files = [encoded(picture(*size), "PNG") for size in SIZES]
    after = [image.RandomResizedCrop(12), image.RandomHorizontalFlip()]
    assert [digest([decode, *after], files) for decode in DECODES.values()] == list(DECODES)
