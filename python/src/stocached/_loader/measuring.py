"""What measuring any loader for `stocached.advise` has in common: new samples, and when to stop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from .._cache.cache import Cache
from .._common.errors import InvalidError
from .._datasets.lists import WithoutIndex

EPOCH = 2**32  # the first epoch whose order is read; no training gets to it
_LEAST = 3  # batches
_LONGEST = 4  # times the planned time, if batches take long

Step = Callable[[Any], Any]


class Trial(Protocol):
    """One loader that is measured. cache: of the loader. source_share: part of the loads of its training in which they
    waited for their source. notes: how the trial differs from it."""

    cache: Cache | None
    source_share: float | None
    notes: list[str]

    def run(self, path: str, seconds: float, step: Step | None, step_seconds: float | None) -> None:
        """Reads batches for about so long, and writes a timeline."""


def step_of(step: Step | None, seconds: float | None) -> Step:
    if step is not None:
        return step
    return (lambda _: time.sleep(seconds)) if seconds else lambda _: None


def until(seconds: float) -> Callable[[int], bool]:
    """A function that gets the number of batches so far, and says whether they are enough."""
    begin = time.monotonic()

    def enough(batches: int) -> bool:
        took = time.monotonic() - begin
        return (took >= seconds and batches >= _LEAST) or took >= _LONGEST * seconds

    return enough


def batch_size_of(loader: Any, notes: list[str]) -> int | None:
    """Samples of a batch. The batch_sampler of a program is not asked, so that it stays where it is."""
    size: int | None = loader.batch_size
    if size is None and loader.batch_sampler is not None:
        size = getattr(loader.batch_sampler, "batch_size", None)
        if not isinstance(size, int) or size < 1:
            raise InvalidError("the batch_sampler has no batch_size, which advise() needs; give it one")
        notes.append(f"batch_sampler= is not asked: these were batches of {size} samples in a shuffled order")
    return size


def epoch_samples(loader: Any) -> int:
    """Samples of a whole epoch of this loader."""
    sampler = loader.sampler if loader.batch_size is not None or loader.batch_sampler is None else None
    try:
        return len(loader.dataset if sampler is None else sampler)
    except (TypeError, NotImplementedError):
        return len(loader.dataset)


def checked(loader: Any, iterable: bool) -> None:
    """Raises InvalidError for a dataset whose samples cannot be asked for one by one."""
    if iterable:
        raise InvalidError(
            'advise() reads samples by their index, and an iterable dataset has none: measure it with Loader(..., trace="run.json") '
            "and `stocached trace run.json`"
        )
    if isinstance(loader.dataset, WithoutIndex):
        raise InvalidError(
            "advise() reads samples by their index, and this pipe has none: after an epoch, stats().slowest of the loader "
            "names its slowest stage"
        )
    if len(loader.dataset) < 1:
        raise InvalidError("the dataset is empty")


class Feed:
    """An endless sampler."""

    def __init__(self, indices: Iterator[int]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[int]:
        return self._indices

    def __len__(self) -> int:
        return 2**62


def indices(samples: int, shuffled: bool) -> Iterator[int]:
    draws = np.random.default_rng(0)
    for _ in itertools.count():
        yield from (draws.permutation(samples) if shuffled else np.arange(samples)).tolist()


def bytes_of(value: Any) -> int:
    """The size of a sample in a cache: its arrays, texts and numbers. A picture of PIL has a byte a channel."""
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(bytes_of, value))
    if isinstance(value, (bytes, str)):
        return len(value)
    if callable(bands := getattr(value, "getbands", None)):
        return int(value.width * value.height * len(bands()))
    return int(getattr(value, "nbytes", 8))
