"""Measures reads and decodes of a few files drawn at random, for store="auto"."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from .._common.load_time import LoadTime
from .._common.processors import processors
from .._common.sizes import parse_size
from .._image.folder import Encoded
from .._image.steps import Step
from .._samples.tree import Tree
from . import probe
from .stores import Measured, choose

_MOST, _LEAST = 64, 8  # files
_PART = 20  # at most one in 20 files of the dataset, but _LEAST
_ALONE, _TOGETHER, _DECODE = 0.25, 0.35, 0.3  # seconds of each measurement, which ends what it has begun
_BYTES = 64 * 1024**2  # the most of files; of pictures twice as many
_MEMORY = 100e-6  # seconds: a read that waits less comes out of memory, not from the source


@dataclass
class Tried:
    """A file that was read."""

    index: int
    sample: Any
    read: float  # seconds
    read_busy: float
    decoded: Any = None
    decode: float | None = None
    augment: float = 0.0


class Files:
    """Some files of a dataset. They are kept for the cache."""

    def __init__(self, form: Encoded, n: int, workers: int, augment: Callable[..., Any] | None = None) -> None:
        """workers: how many will read; 0 counts as 1. augment: what is done with each sample after the cache."""
        self._form, self.tried = form, list[Tried]()
        # A function of the program may draw from its generators, or count its calls.
        self._augment = augment if isinstance(augment, Step) else None
        self._workers = workers = max(workers, 1)
        few = min(max(_LEAST, min(_MOST, n // _PART)), n)
        # Not from a generator of the program. Other files each time: those of the last run are in memory.
        left = iter(random.SystemRandom().sample(range(n), few))
        start = time.monotonic()
        first = islice(left, few if workers == 1 else max(few // 4, 2))
        _in_threads(1, first, self._read, start + _ALONE)
        alone = len(self.tried)
        self._vary = False  # whether pictures have several shapes
        self._bytes = 0  # bytes of files, and then of pictures
        self._together: float | None = None  # reads a second
        if alone and time.monotonic() - start < 2 * _ALONE and workers > 1:
            start = time.monotonic()
            _in_threads(workers, left, self._read, start + _TOGETHER)
            self._together = (len(self.tried) - alone) / (time.monotonic() - start)
        self.alone = self.tried[:alone]
        self._bytes = 0
        _in_threads(min(workers, processors()), list(self.tried), self._decode, time.monotonic() + _DECODE)

    def _read(self, index: int) -> bool:
        with LoadTime() as load:
            busy = time.thread_time()
            sample = probe.load(self._form, index)
            busy = time.thread_time() - busy
        assert load.seconds is not None
        self.tried.append(Tried(index, sample, load.seconds, busy))
        self._bytes += _bytes(sample)
        return self._bytes < _BYTES

    def _decode(self, one: Tried) -> bool:
        start = time.thread_time()
        one.decoded = self._form.decoded(one.index, one.sample)
        one.decode = time.thread_time() - start
        if self._augment is not None:
            start = time.thread_time()
            self._augment(one.decoded, np.random.default_rng(one.index))
            one.augment = time.thread_time() - start
        self._bytes += _bytes(one.decoded)
        return self._bytes < 2 * _BYTES

    @staticmethod
    def tried_for(
        root: tuple[Encoded, int, int, Callable[..., Any] | None],
        size: int | str | None,
        variable: bool | None,
        policy: str | None,
    ) -> tuple[str, str, list[Tried]]:
        """For a look: the choice, and the files. root: the arguments of the constructor."""
        files = Files(*root)
        return *files.choice(size, variable, policy), files.tried

    def choice(self, size: int | str | None, variable: bool | None, policy: str | None) -> tuple[str, str]:
        """The store for a cache with these settings, and why. size: None: as large as needed."""
        measured = self.measured()
        if measured is None:
            return "decoded", "no file could be read and decoded"
        costliest = policy == "cost" or (policy is None and not variable and not self._vary)
        room = 2**62 if size is None else parse_size(size)
        return choose(measured, room, self._workers, processors(), costliest)

    def measured(self) -> Measured | None:
        """None: no file could be read and decoded."""
        n, workers = len(self._form), self._workers
        decoded = [one for one in self.tried if one.decode is not None]
        if not decoded or not self.alone:
            return None
        read, busy = (_mean(getattr(one, name) for one in self.alone) for name in ("read", "read_busy"))
        decode = _mean(one.decode or 0.0 for one in decoded)
        waits = read - busy >= _MEMORY
        # Together, workers get no less than one of them gets alone. If reads take long, they count as independent.
        reads = max(self._together or workers / read, 1 / read)
        self._vary = len({value.shape for one in decoded for value in _values(one.decoded)[:1]}) > 1
        mean = _mean(_bytes(one.sample) for one in self.tried)
        grows = read * _grows([(_bytes(one.sample), one.read) for one in self.alone])
        grows += decode * _grows([(_bytes(one.sample), one.decode or 0.0) for one in decoded])
        return Measured(
            n,
            _mean(_cached_bytes(one.sample, True) for one in self.tried),
            _mean(_cached_bytes(one.decoded, self._vary) for one in decoded),
            read,
            reads if waits else float("inf"),
            decode,
            _mean(one.augment for one in decoded),
            tuple(sorted(1 + grows / (read + decode) * (_bytes(one.sample) / mean - 1) for one in self.tried)),
        )


def _in_threads(count: int, work: Iterable[Any], do: Callable[[Any], bool], end: float) -> None:
    """Does work in threads, until it is done, `do` returns False, or the time `end` has come. What fails is left out:
    the program gets the error when it reads the sample."""
    todo, lock, stop = iter(work), threading.Lock(), threading.Event()

    def run() -> None:
        while not stop.is_set():
            with lock:
                one = next(todo, None)
            if one is None:
                return
            try:
                if not do(one):
                    stop.set()
            except Exception:
                pass
            if time.monotonic() > end:
                stop.set()

    threads = [threading.Thread(target=run, daemon=True, name="stocached measure") for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _grows(measured: list[tuple[int, float]]) -> float:
    """The part of times that grows with bytes, by least squares: 0 to 1."""
    size, time = _mean(one[0] for one in measured), _mean(one[1] for one in measured)
    together = sum((one[0] - size) * (one[1] - time) for one in measured)
    apart = sum((one[0] - size) ** 2 for one in measured)
    return min(max(together / apart * size / time, 0.0), 1.0) if apart and time else 0.0


def _values(sample: Any) -> list[Any]:
    tree = Tree(sample)
    return [leaf.to_cache(value) for leaf, value in zip(tree.leaves, tree.take(sample))]


def _bytes(sample: Any) -> int:
    return sum(value.nbytes for value in _values(sample))


def _cached_bytes(sample: Any, variable: bool) -> int:
    values = _values(sample)
    if not variable:
        return sum(-(-value.nbytes // 8) * 8 for value in values)
    return sum(-(-value.nbytes // 64) * 64 + 64 for value in values)
