"""Datasets that the loaders read. The first four bytes of a sample are its index, so that each
subject can check that it got every sample once."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

IMAGE = (3, 256, 256)
SMALL = (3, 32, 32)


class Images:
    """Samples computed from a few arrays: (shape), uint8, with the index at the start."""

    def __init__(self, n: int, shape: tuple[int, ...], wrap: Any = None) -> None:
        rng = np.random.default_rng(2)
        self.n, self.shape, self._wrap = n, tuple(shape), wrap
        self._data = [rng.integers(0, 256, self.shape, np.uint8) for _ in range(16)]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        sample = self._data[i % 16].copy()
        sample.reshape(-1)[:4].view("<u4")[0] = i
        return sample if self._wrap is None else self._wrap(sample)


def numbers(batch: Any) -> list[int]:
    """The indices of a batch's samples."""
    array: npt.NDArray[np.uint8] = np.asarray(batch)
    found: list[int] = np.ascontiguousarray(array.reshape(len(array), -1)[:, :4]).view("<u4").reshape(-1).tolist()
    return found


class Jpegs:
    """Files of JPEG, decoded by Pillow to (3, height, width) uint8 tensors."""

    def __init__(self, folder: str, n: int) -> None:
        self._folder, self.n = folder, n

    @staticmethod
    def make(folder: str, n: int, shape: tuple[int, ...]) -> None:
        from PIL import Image

        Path(folder).mkdir()
        rng = np.random.default_rng(3)
        height, width = shape[1:]
        for i in range(n):
            coarse = rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8)
            image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            noisy = np.asarray(image).astype(np.int16) + rng.integers(-12, 13, (height, width, 1), np.int16)
            out = io.BytesIO()
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
            Path(folder, f"{i}.jpg").write_bytes(out.getvalue())

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        import torch
        from PIL import Image

        with Image.open(f"{self._folder}/{i}.jpg") as image:
            return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


class Sleeps:
    """Small samples that take time, but no processor."""

    def __init__(self, n: int, seconds: float, started: Any = None) -> None:
        self.n, self._seconds, self._started = n, seconds, started

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if self._started is not None:
            self._started[i] = time.monotonic_ns()
        time.sleep(self._seconds)
        return np.full(64, i % 251, np.uint8)


class Started:
    """The time at which any forked worker began to load each sample."""

    def __init__(self, n: int) -> None:
        self._times = np.frombuffer(mmap.mmap(-1, 8 * n), np.int64)

    def __setitem__(self, i: int, now: int) -> None:
        self._times[i] = now

    def first(self) -> int:
        return int(self._times[self._times > 0].min())

    def clear(self) -> None:
        self._times[:] = 0


class Loops:
    """The C loops of bench/c/loops.c. ctypes releases the GIL during a call."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        gather = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self.gather, self.gather_2, self.work = library.loop_gather, library.loop_gather_2, library.loop_work
        self.gather.argtypes = self.gather_2.argtypes = gather
        self.work.argtypes = [ctypes.c_int64]
        for function in (self.gather, self.gather_2, self.work):
            function.restype = None


class Augment:
    """Some microseconds of work for each sample, in C without the GIL."""

    def __init__(self, loops: str, microseconds: float) -> None:
        self._path, self._ns = loops, int(microseconds * 1000)
        self._work: Any = None

    def __call__(self, sample: Any) -> Any:
        if self._work is None:
            self._work = Loops(self._path).work
        self._work(self._ns)
        return sample

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_ns": self._ns, "_work": None}


class Some:
    """A sampler of a number of different samples, new ones each epoch."""

    def __init__(self, of: int, n: int) -> None:
        self._of, self._n = of, min(n, of)
        self._rng = np.random.default_rng(5)

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Any:
        return iter(self._rng.choice(self._of, self._n, replace=False).tolist())


def own_name(what: str) -> str:
    return f"bench-{what}-{os.getpid()}"
