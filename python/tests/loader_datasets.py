"""Datasets for tests of the loader: samples that contain their index, that load slowly, or that end
the process that loads them."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from helpers import outcomes

SIZE = 500  # items of a sample


def sample(index: int) -> np.ndarray:
    """Items that differ between any two samples, and within one."""
    return np.arange(SIZE, dtype=np.int64) * 1_000_003 + index


def check(batch: np.ndarray) -> list[int]:
    """Checks every item of a batch, and returns the indices of its samples."""
    indices = batch[:, 0]
    np.testing.assert_array_equal(batch, np.arange(SIZE, dtype=np.int64) * 1_000_003 + indices[:, None])
    return indices.tolist()


def read(batches: Iterable[np.ndarray]) -> list[int]:
    """Checks all samples, and returns their indices."""
    return [index for batch in batches for index in check(np.atleast_2d(batch))]


def drained(batches: Iterator[np.ndarray], kind: type[Exception] = Exception) -> tuple[list[int], list[Exception]]:
    """Reads as `read` does, and goes on after errors of a kind. Returns them too."""
    found = list(outcomes(batches, kind))
    return read(one for one in found if not isinstance(one, kind)), [one for one in found if isinstance(one, kind)]


class Numbers:
    def __init__(self, n: int, seconds: float = 0.0) -> None:
        self.n, self.seconds = n, seconds

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        if self.seconds:
            time.sleep(self.seconds)
        return sample(index)


def die(how: str) -> None:
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    if how == "SIGSEGV":
        faulthandler.disable()  # pytest's handler would write into the output of the tests
        ctypes.string_at(8)
    if how == "os._exit":
        os._exit(3)
    if how == "sys.exit":
        sys.exit(4)
    raise AssertionError(f"{how} did not end the process")


class Deadly(Numbers):
    """Sample `at` ends the process that loads it; with `once` only the first time."""

    def __init__(self, n: int, at: int, how: str, note: Path, *, once: bool = False, seconds: float = 0.0) -> None:
        """note: a file that is written then, with the time."""
        super().__init__(n, seconds)
        self.at, self.how, self.note, self.once = at, how, note, once

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            try:
                with open(self.note, "x") as file:
                    file.write(str(time.monotonic()))
            except FileExistsError:
                first = False
            else:
                first = True
            if first or not self.once:
                die(self.how)
        return super().__getitem__(index)


class Stream:
    """An iterable dataset."""

    def __init__(self, samples: Numbers) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return (self.samples[k] for k in range(len(self.samples)))


class Asleep(Numbers):
    """Every sample but the first ones takes a minute."""

    def __init__(self, n: int, awake: int = 0) -> None:
        super().__init__(n)
        self.awake = awake

    def __getitem__(self, index: int) -> Any:
        if index >= self.awake:
            time.sleep(60)
        return super().__getitem__(index)
