"""Pictures for tests, and files of them. Needs Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="Pillow is missing")


def picture(width: int, height: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    """A picture with smooth parts, edges and some noise."""
    random = np.random.default_rng((seed, width, height))
    coarse = random.integers(0, 256, (max(height // 16, 1), max(width // 16, 1), 3), np.uint8)
    smooth = np.array(Image.fromarray(coarse).resize((width, height), Image.BICUBIC)).astype(int)
    smooth[height // 3 : height // 2, width // 4 : width // 2] = random.integers(0, 256, 3)
    made = np.clip(smooth + random.integers(-9, 10, smooth.shape), 0, 255).astype(np.uint8)
    return made if channels == 3 else made[:, :, :1]


def encoded(pixels: np.ndarray, format: str = "JPEG", mode: str = "RGB", orientation: int = 1, **options: Any) -> bytes:
    made = Image.fromarray(pixels).convert(mode)
    if orientation != 1:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    file = io.BytesIO()
    made.save(file, format, **({"quality": 90} if format == "JPEG" else {}), **options)
    return file.getvalue()


def folder_of(root: Path, classes: dict[str, int], size: tuple[int, int] = (90, 70)) -> Path:
    """A folder for each class, with so many JPEG files of several sizes."""
    for number, (name, files) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for k in range(files):
            pixels = picture(size[0] + 3 * k, size[1] + 5 * number, seed=100 * number + k)
            (root / name / f"{k:03}.jpg").write_bytes(encoded(pixels))
    return root


def difference(a: Any, b: Any) -> tuple[float, float]:
    """The largest and the mean difference."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape, (a.shape, b.shape)
    apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(apart.max()), float(apart.mean())
