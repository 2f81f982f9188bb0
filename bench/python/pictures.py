"""Measures what a picture costs on one thread, beside other libraries:

    decode   a JPEG of 500 x 375 to 224 x 224, antialiased
    augment  random resized crop, flip and normalisation of a cached 256 x 256, to 224 x 224

    PYTHONPATH=python/src STOCACHED_LIB_PATH=build python bench/python/pictures.py [decode] [augment] [--rounds 7]

It runs the libraries in turn, in one process and on one thread. The tables have the medians of the rounds, of wall time
and of processor time, and the median of the ratios within a round. Needs torch, torchvision, Pillow and OpenCV."""

from __future__ import annotations

import argparse
import ctypes
import io
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import torch
import torchvision.io
import torchvision.transforms.v2.functional as functional
from picture_bare import compiled
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from stocached._native import _image_header as native

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE, CACHED, CALLS = 224, 256, 200


def noise(height: int, width: int, detail: int) -> np.ndarray[Any, Any]:
    """A smooth random picture."""
    random = np.random.default_rng(0)
    picture = cv2.GaussianBlur(random.integers(0, 256, (height, width, 3), dtype=np.uint8), (detail, detail), 0)
    return np.asarray(cv2.normalize(picture, np.empty_like(picture), 0, 255, cv2.NORM_MINMAX))


def jpeg(size: int) -> bytes:
    """A JPEG file of 500 x 375 pixels with about so many bytes."""
    for quality in range(50, 100):
        file = io.BytesIO()
        Image.fromarray(noise(375, 500, 7)).save(file, "JPEG", quality=quality)
        if file.tell() >= size:
            break
    return file.getvalue()


def decoders() -> dict[str, Callable[[], Any]]:
    file = jpeg(72_000)
    tensor, worker = torch.frombuffer(bytearray(file), dtype=torch.uint8), native.worker_new()

    def ours(width: int, height: int, layout: int) -> Callable[[], Any]:
        how = native.Decode(width=width, height=height, layout=layout)
        made = np.empty((height, width, 3), np.uint8)

        def run() -> None:
            assert native.decode(worker, file, len(file), how, made.ctypes.data, made.nbytes) == 0

        return run

    bare, pixels = compiled("libraries/decode", "-ljpeg").bare_decode, np.empty((375, 500, 3), np.uint8)
    bare_arguments = (
        file,
        ctypes.c_ulong(len(file)),
        pixels.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_ulong(pixels.nbytes),
    )
    return {
        "ours, CHW": ours(SIDE, SIDE, native.CHW),
        "ours, HWC": ours(SIDE, SIDE, native.HWC),
        "ours, without resize": ours(500, 375, native.HWC),
        "libjpeg-turbo, bare": lambda: bare(*bare_arguments),
        "Pillow": lambda: np.asarray(
            Image.open(io.BytesIO(file)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        ),
        "torchvision.io + Resize": lambda: functional.resize(
            torchvision.io.decode_jpeg(tensor), [SIDE, SIDE], antialias=True
        ),
        "torchvision.io, without resize": lambda: torchvision.io.decode_jpeg(tensor),
        "OpenCV, not antialiased": lambda: cv2.resize(cv2.imdecode(np.frombuffer(file, np.uint8), 1), (SIDE, SIDE)),
    }


def augmenters() -> dict[str, Callable[[], Any]]:
    rows = noise(CACHED, CACHED, 5)
    planes = np.ascontiguousarray(rows.transpose(2, 0, 1))
    tensor, worker = torch.from_numpy(planes), native.worker_new()
    boxes = [RandomResizedCrop.get_params(tensor, [0.08, 1], [3 / 4, 4 / 3]) for _ in range(CALLS)]
    scale = np.float32(1) / (np.array(STD, np.float32) * 255)
    shift = -np.array(MEAN, np.float32) / np.array(STD, np.float32)

    def in_turn(one: Callable[..., Any]) -> Callable[[], Any]:
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

        return in_turn(one)

    def v2_bytes(*box: int) -> Any:
        return functional.horizontal_flip(functional.resized_crop(tensor, *box, size=[SIDE, SIDE], antialias=True))

    def v2(*box: int) -> Any:
        return functional.normalize(functional.to_dtype(v2_bytes(*box), torch.float32, scale=True), MEAN, STD)

    def resize(y: int, x: int, height: int, width: int) -> Any:
        return cv2.resize(rows[y : y + height, x : x + width], (SIDE, SIDE))

    out, bytes_ = np.empty((3, SIDE, SIDE), np.float32), np.empty((3, SIDE, SIDE), np.uint8)

    def opencv_bytes(*box: int) -> Any:
        return cv2.split(cv2.flip(resize(*box), 1), list(bytes_))

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
        "torchvision v2, float32": in_turn(v2),
        "torchvision v2, uint8": in_turn(v2_bytes),
        "OpenCV + NumPy, float32": in_turn(opencv),
        "OpenCV + NumPy, uint8": in_turn(opencv_bytes),
        "OpenCV's resize alone": in_turn(resize),
    }


def measure(
    title: str, cases: dict[str, Callable[[], Any]], rounds: int, against: list[tuple[str, str, float]]
) -> None:
    wall: dict[str, list[float]] = {name: [] for name in cases}
    used: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(rounds + 1):  # the first one warms up
        for name, run in cases.items():
            cpu, start = time.process_time(), time.perf_counter()
            for _ in range(CALLS):
                run()
            if round_:
                wall[name].append((time.perf_counter() - start) / CALLS * 1e6)
                used[name].append((time.process_time() - cpu) / CALLS * 1e6)
    print(f"## {title}\n\n| | us | us of processor time |\n|---|--:|--:|")
    for name in cases:
        print(f"| {name} | {statistics.median(wall[name]):.0f} | {statistics.median(used[name]):.0f} |")
    print(f"\n| beside | median of {rounds} ratios | asked for, at most |\n|---|--:|--:|")
    for ours, other, most in against:
        ratio = statistics.median(a / b for a, b in zip(wall[ours], wall[other]))
        print(f"| {ours} / {other} | {ratio:.3f} | {most} |")
    print()
    return wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["decode", "augment"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    if "decode" in options.cases:
        cases, name = decoders(), "torchvision.io + Resize"
        wall = measure(
            "Decode and resize", cases, options.rounds, [("ours, CHW", "Pillow", 0.45), ("ours, CHW", name, 0.9)]
        )
        more = statistics.median(a - b for a, b in zip(wall["ours, CHW"], wall["libjpeg-turbo, bare"]))
        print(f"Ours takes {more:.0f} us more than libjpeg-turbo's bare decode (asked for: at most 150).\n")
    if "augment" in options.cases:
        f32, u8, alone = "ours, float32 of CHW", "ours, uint8", "OpenCV's resize alone"
        limits = [(f32, "torchvision v2, float32", 0.3), (u8, "torchvision v2, uint8", 0.3)]
        limits += [(f32, "OpenCV + NumPy, float32", 0.6), (u8, "OpenCV + NumPy, uint8", 0.6)]
        limits += [(f32, alone, 1.9), (u8, alone, 1.5)]
        measure("Augment", augmenters(), options.rounds, limits)


if __name__ == "__main__":
    main()
