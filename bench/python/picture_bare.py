"""Threads that do in C what native workers do, without a loader: the least time of any loader of pictures."""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from picture_setting import BATCH, CACHED, MEAN, SIDE, STD, random_box

ROOT = Path(__file__).resolve().parents[2]
RING = 6  # batches, as many as the memory of a loader's batches


def compiled(name: str, *libraries: str) -> ctypes.CDLL:
    """bench/c/<name>.c as a library."""
    with tempfile.TemporaryDirectory() as folder:
        made, source = f"{folder}/made.so", ROOT / f"bench/c/{name}.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, source, *libraries], check=True)
        return ctypes.CDLL(made)


def pages(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory that begins at a page, as that of a loader's batches, and that has its pages."""
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    memory.fill(1)
    return memory


def in_threads(part: Callable[[int, int], None], threads: int) -> None:
    """part(k, threads) in thread k of so many."""
    others = [threading.Thread(target=part, args=(k, threads)) for k in range(threads)]
    for one in others:
        one.start()
    for one in others:
        one.join()


class Bare:
    """The fused pass of cached pictures."""

    def __init__(self, folder: str) -> None:
        from stocached import image
        from stocached._native import _image_header as native

        files = image.Folder(folder, size=CACHED, short_side=CACHED, layout="chw")
        self._cached = np.stack([picture for picture, _ in files])
        self._loop, self._native = compiled("augment").loop_augment, native
        self.pictures = (native.Picture * len(files))()
        self._how = (native.Augment * len(files))()
        order = random.sample(range(len(files)), len(files))
        for k, picture in enumerate(order):
            self.pictures[k] = native.Picture(self._cached[picture].ctypes.data, CACHED, CACHED, 3, native.CHW)
            how = self._how[k]
            how.box_y, how.box_x, how.box_height, how.box_width = random_box(CACHED, CACHED)
            how.resized_width = how.resized_height = how.width = how.height = SIDE
            how.flip, how.dtype, how.divisor = random.randrange(2), native.FLOAT32, 255
            how.mean[:], how.std[:] = MEAN, STD
        shape = (RING * BATCH, 3, SIDE, SIDE)
        self.ring = pages(4 * math.prod(shape)).view(np.float32).reshape(shape)
        self._workers = [native.worker_new() for _ in range(2)]

    def _part(self, k: int, of: int) -> None:
        """Every so many-th picture. ctypes releases the GIL."""
        augment = ctypes.cast(self._native.augment, ctypes.c_void_p)
        code = self._loop(
            augment, self._workers[k], self.pictures, self._how, *map(ctypes.c_size_t, (k, len(self.pictures), of)),
            self.ring.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(self.ring)),
        )  # fmt: skip
        assert code == 0

    def run(self, threads: int) -> None:
        in_threads(self._part, threads)


class BareFiles:
    """Read, decode and augment of files."""

    def __init__(self, folder: str) -> None:
        from stocached import image
        from stocached._native import _image_header as native
        from stocached._samples.batch_layout import Layout

        steps = [image.RandomResizedCrop(SIDE), image.RandomHorizontalFlip(), image.ToDtype("float32", scale=True)]
        augment = image.Compose([*steps, image.Normalize(MEAN, STD)])
        files = image.Folder(folder, layout="chw")
        pipeline = files.pipeline(augment)
        layout = Layout.of(augment(pipeline.blanks()[0]), BATCH)
        self._workers, self._native = [pipeline.worker(layout) for _ in range(2)], native
        self._memory = [pages(layout.bytes) for _ in range(RING)]
        self.ring = [layout.arrays(memory, BATCH)[0] for memory in self._memory]
        self.samples, self._order = len(files), random.sample(range(len(files)), len(files))

    def _part(self, k: int, of: int) -> None:
        handle, sample, size = self._workers[k].handle, ctypes.c_void_p(), ctypes.c_size_t()
        for at in range(k, self.samples, of):
            index, memory = self._order[at], self._memory[at // BATCH % RING].ctypes.data
            assert self._native.load(handle, index, ctypes.byref(sample), ctypes.byref(size)) == 0
            assert self._native.finish(handle, at, sample, size, memory, at % BATCH) == 0

    def run(self, threads: int) -> None:
        in_threads(self._part, threads)
