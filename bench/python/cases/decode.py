"""What a picture costs on one thread, beside other libraries: the decode of a file of 500 x 375 to 224 x 224, and the
random crop, flip and normalisation of a cached picture of 256 x 256."""

from __future__ import annotations

import ctypes
import io
import itertools
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import torch
import torchvision.transforms.v2.functional as functional
from harness import Here, Run
from PIL import Image
from subjects.pictures import CACHED, MEAN, SIDE, STD, compiled
from torchvision.io import decode_image
from torchvision.transforms import RandomResizedCrop

from stocached._native import _image_header as native

CALLS = 100  # in a run
FORMATS: dict[str, dict[str, Any]] = {
    "JPEG": {"format": "JPEG", "quality": 89},
    "PNG": {"format": "PNG"},
    "WebP, lossy": {"format": "WEBP", "quality": 80},
    "WebP, lossless": {"format": "WEBP", "lossless": True},
}


def noise(height: int, width: int, detail: int) -> np.ndarray[Any, Any]:
    """A smooth random picture."""
    random = np.random.default_rng(0)
    picture = cv2.GaussianBlur(random.integers(0, 256, (height, width, 3), dtype=np.uint8), (detail, detail), 0)
    return np.asarray(cv2.normalize(picture, np.empty_like(picture), 0, 255, cv2.NORM_MINMAX))


def files() -> dict[str, bytes]:
    """A picture of 500 x 375 in each format."""
    made = {}
    for name, options in FORMATS.items():
        Image.fromarray(noise(375, 500, 7)).save(file := io.BytesIO(), **options)
        made[name] = file.getvalue()
    return made


def decoders(name: str, file: bytes) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    """With a resize, and of the whole picture."""
    tensor, worker, size = torch.frombuffer(bytearray(file), dtype=torch.uint8), native.worker_new(), (SIDE, SIDE)

    def ours(width: int, height: int, layout: int) -> Callable[[], Any]:
        how = native.Decode(width=width, height=height, layout=layout)
        made = np.empty((height, width, 3), np.uint8)

        def run() -> None:
            assert native.decode(worker, file, len(file), how, made.ctypes.data, made.nbytes) == 0

        return run

    library = compiled("decode", "-ljpeg", "-lpng", "-lwebp")
    bare, pixels = getattr(library, f"bare_{FORMATS[name]['format'].lower()}"), np.empty((375, 500, 3), np.uint8)
    to = pixels.ctypes.data_as(ctypes.c_void_p), ctypes.c_ulong(pixels.nbytes)
    resized = {
        "ours, CHW": ours(SIDE, SIDE, native.CHW),
        "ours, HWC": ours(SIDE, SIDE, native.HWC),
        "Pillow": lambda: np.asarray(
            Image.open(io.BytesIO(file)).convert("RGB").resize(size, Image.Resampling.BILINEAR)
        ),
        "torchvision.io + Resize": lambda: functional.resize(decode_image(tensor), list(size), antialias=True),
        "OpenCV, not antialiased": lambda: cv2.resize(cv2.imdecode(np.frombuffer(file, np.uint8), 1), size),
    }
    return resized, {
        "ours": ours(500, 375, native.HWC),
        "the bare library": lambda: bare(file, ctypes.c_ulong(len(file)), *to),
        "torchvision.io": lambda: decode_image(tensor),
    }


def augmenters() -> dict[str, Callable[[], Any]]:
    rows = noise(CACHED, CACHED, 5)
    planes = np.ascontiguousarray(rows.transpose(2, 0, 1))
    tensor, worker = torch.from_numpy(planes), native.worker_new()
    boxes = [RandomResizedCrop.get_params(tensor, [0.08, 1], [3 / 4, 4 / 3]) for _ in range(CALLS)]
    scale = np.float32(1) / (np.array(STD, np.float32) * 255)
    shift = -np.array(MEAN, np.float32) / np.array(STD, np.float32)

    def cycled(one: Callable[..., Any]) -> Callable[[], Any]:
        turns = itertools.cycle(boxes)
        return lambda: one(*next(turns))

    def ours(pixels: np.ndarray[Any, Any], layout: int, dtype: int, items: Any) -> Callable[[], Any]:
        made = np.empty((3, SIDE, SIDE), items)
        picture = native.Picture(pixels.ctypes.data, CACHED, CACHED, 3, layout)
        how = native.Augment(resized_width=SIDE, resized_height=SIDE, width=SIDE, height=SIDE, flip=1, dtype=dtype)
        how.divisor, how.mean[:], how.std[:] = 255, MEAN, STD

        def one(y: int, x: int, height: int, width: int) -> None:
            how.box_x, how.box_y, how.box_width, how.box_height = x, y, width, height
            code = native.augment(worker, ctypes.byref(picture), ctypes.byref(how), made.ctypes.data, made.nbytes)
            assert code == 0

        return cycled(one)

    def v2_bytes(*box: int) -> Any:
        return functional.horizontal_flip(functional.resized_crop(tensor, *box, size=[SIDE, SIDE], antialias=True))

    def v2(*box: int) -> Any:
        return functional.normalize(functional.to_dtype(v2_bytes(*box), torch.float32, scale=True), MEAN, STD)

    def resize(y: int, x: int, height: int, width: int) -> Any:
        return cv2.resize(rows[y : y + height, x : x + width], (SIDE, SIDE))

    out = np.empty((3, SIDE, SIDE), np.float32)

    def opencv(*box: int) -> Any:
        for c, plane in enumerate(cv2.split(cv2.flip(resize(*box), 1))):
            np.multiply(plane, scale[c], out=out[c])
            out[c] += shift[c]
        return out

    return {
        "ours, float32 of CHW": ours(planes, native.CHW, native.FLOAT32, np.float32),
        "ours, float32 of HWC": ours(rows, native.HWC, native.FLOAT32, np.float32),
        "ours, uint8": ours(planes, native.CHW, native.UINT8, np.uint8),
        "ours, float16": ours(planes, native.CHW, native.FLOAT16, np.float16),
        "torchvision v2, float32": cycled(v2),
        "torchvision v2, uint8": cycled(v2_bytes),
        "OpenCV + NumPy, float32": cycled(opencv),
        "OpenCV's resize alone": cycled(resize),
    }


def in_turn(run: Run, title: str, ways: dict[str, Callable[[], Any]]) -> None:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    calls = run.n(CALLS, 3)

    def repeated(way: Callable[[], Any]) -> Callable[[], None]:
        def work() -> None:
            for _ in range(calls):
                way()

        return work

    run.measure(title, *(Here(name, calls, repeated(way)) for name, way in ways.items()))


def decode(run: Run) -> None:
    for name, file in files().items():
        resized, whole = decoders(name, file)
        in_turn(run, f"{name}, decode and resize", resized)
        in_turn(run, f"{name}, the whole picture", whole)


def augment(run: Run) -> None:
    in_turn(run, "Augment", augmenters())


CASES = {"decode": decode, "augment": augment}
