"""The global generators of random numbers, which are seeded for each sample, so that what is drawn for it does not depend on who loads it.

Seeding takes longer than loading a small sample, and most datasets draw from one generator or from none. So a worker seeds those that nobody draws from
no more, and looks behind each sample whether somebody did after all: then the sample is loaded again, as it should have been, and the generator is seeded
from then on."""

from __future__ import annotations

import ctypes
import random
import sys
from _random import Random as _Mersenne
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

_WORDS = 624  # of a Mersenne Twister; how many of them are used up says whether something was drawn
_module: Any = random.seed.__self__  # type: ignore[attr-defined]  # the generator that the module's functions share


class Generator(Protocol):
    def seed(self, seed: int) -> None: ...

    def watch(self) -> Callable[[], bool] | None:
        """Something that says whether it was drawn from, or seeded, since this call. None: nobody can tell."""


class PythonGenerator:
    """That of the module `random`."""

    def seed(self, seed: int) -> None:
        _Mersenne.seed(_module, seed)  # random.seed, without the half of its time that it takes to find out that this is an int
        _module.gauss_next = None

    def watch(self) -> Callable[[], bool] | None:
        if not _python_is_known():
            return None
        address = id(_module) + object.__basicsize__
        return _watch(address, address + 4 * _WORDS, lambda: True)


class NumpyGenerator:
    """That of the functions in `numpy.random`."""

    def seed(self, seed: int) -> None:
        np.random.seed(seed & 0xFFFFFFFF)

    def watch(self) -> Callable[[], bool] | None:
        state = np.random.mtrand._rand
        mersenne = getattr(state, "_bit_generator", None)
        if not isinstance(mersenne, np.random.MT19937) or not _numpy_is_known():
            return None
        address = mersenne.ctypes.state_address
        return _watch(address + 4 * _WORDS, address + 4 * (_WORDS - 1), lambda: state._bit_generator is mersenne)


def _watch(used_address: int, last_address: int, same: Callable[[], bool]) -> Callable[[], bool]:
    """Of how many words are used up, and the last of the words, which is another one after a seed, and after all were used up."""
    used, last = ctypes.c_uint32.from_address(used_address), ctypes.c_uint32.from_address(last_address)
    was_used, was_last = used.value, last.value
    return lambda: used.value != was_used or last.value != was_last or not same()


def _python_is_known() -> bool:
    """Whether a generator of Python lies in memory as it does in CPython 3.10 to 3.14: behind the head of an object, the words used up, then the words."""
    if sys.implementation.name != "cpython" or _Mersenne.__basicsize__ < object.__basicsize__ + 4 * (1 + _WORDS):
        return False
    probe = random.Random(5)
    words = (ctypes.c_uint32 * (1 + _WORDS)).from_address(id(probe) + object.__basicsize__)
    seen = [words[0]]
    probe.random()
    seen.append(words[0])
    probe.getrandbits(32)
    seen.append(words[0])
    return seen == [_WORDS, 2, 3] and list(words) == [*probe.getstate()[1][-1:], *probe.getstate()[1][:-1]]


def _numpy_is_known() -> bool:
    """Whether a Mersenne Twister of NumPy is what it has been since 1.17: the words, then how many of them are used up."""
    probe = np.random.RandomState(5)
    mersenne = probe._bit_generator
    words = (ctypes.c_uint32 * (_WORDS + 1)).from_address(mersenne.ctypes.state_address)
    seen = [words[_WORDS]]
    probe.rand()
    seen.append(words[_WORDS])
    state = mersenne.state["state"]
    return seen == [_WORDS, 2] and list(words) == [*state["key"].tolist(), int(state["pos"])]


class Seeding:
    """Of one worker process, for one sample after the other."""

    def __init__(self, generators: Sequence[Generator]) -> None:
        self._all = list(generators)
        self._seeded: list[Generator] | None = None  # none yet
        self._unseeded: list[Callable[[], bool]] = []  # that say whether somebody draws from them after all

    def load(self, seed: int, load: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """load() with all generators seeded. again: does it from the beginning, where `load` began with what is used up."""
        if self._seeded is None:
            return self._first(seed, load)
        for generator in self._seeded:
            generator.seed(seed)
        try:
            sample = load()
        except BaseException:
            if not self._missed():
                raise
        else:
            if not self._missed():
                return sample
        self._seeded, self._unseeded = self._all, []
        return self.load(seed, again, again)

    def _missed(self) -> bool:
        """Whether it drew from a generator that was not seeded."""
        return any(drawn() for drawn in self._unseeded)

    def _first(self, seed: int, load: Callable[[], Any]) -> Any:
        for generator in self._all:
            generator.seed(seed)
        watches = [(generator, generator.watch()) for generator in self._all]
        try:
            return load()
        finally:
            self._seeded = [generator for generator, drawn in watches if drawn is None or drawn()]
            self._unseeded = [drawn for generator, drawn in watches if drawn is not None and generator not in self._seeded]
