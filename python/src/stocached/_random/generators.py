"""The global generators of random numbers: those of the modules `random`, `numpy.random` and
`torch`.

Workers seed them for each sample, so that what is drawn for it does not depend on who loads it.
Seeding takes longer than loading a small sample, and most datasets draw from one generator or from
none. So a worker stops seeding those that nobody draws from, and looks after each sample whether
somebody did after all: then the sample is loaded again, with the generator seeded, and the
generator is seeded from then on.

Caches look for draws as well (_checks/randomness.py). NumPy takes 40 us to give the state of its
generator, so we read states from memory, where the layout is the one that we know. To see a draw it
is enough to look at the position and the last word: the position moves with each draw, and when all
words are used up, there are new ones."""

from __future__ import annotations

import ctypes
import functools
import pickle
import random
import struct
import sys
from _random import Random as _Mersenne
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .generator import Generator, memory, plain

_WORDS = 624  # of a Mersenne Twister; beside them lies how many are used up
_BYTES = 4 * (1 + _WORDS)
_random_state: Any = np.random.mtrand._rand  # so for numpy.random
_join = b"".join
_module: Any = random.seed.__self__  # type: ignore[attr-defined]  # the generator that the module's functions share


class PythonGenerator:
    """That of the module `random`."""

    name = "random"

    def __init__(self) -> None:
        self._memory = memory(id(_module) + object.__basicsize__, _BYTES) if _python_is_known() else None

    def seed(self, seed: int) -> None:
        _Mersenne.seed(_module, seed)  # random.seed, without the half of its time that it takes to find out that this is an int
        _module.gauss_next = None

    def state(self) -> Any:
        return (self._memory.tobytes() if self._memory is not None else _Mersenne.getstate(_module)), _module.gauss_next

    def restore(self, state: Any) -> None:
        words, gauss = state
        _Mersenne.setstate(_module, _words_of(words))
        _module.gauss_next = gauss

    def plain(self, state: Any) -> Any:
        words, gauss = state
        return [_module.VERSION, list(_words_of(words)), gauss]

    def restore_plain(self, state: Any) -> None:
        version, words, gauss = state
        random.setstate((version, tuple(words), gauss))

    def places(self) -> list[memoryview]:
        return [self._memory[:4], self._memory[-4:]] if self._memory is not None else []

    def watch(self) -> Callable[[], bool] | None:
        return _watch(self) if _python_is_known() else None


class NumpyGenerator:
    """That of the functions in `numpy.random`."""

    name = "numpy.random"

    def __init__(self) -> None:
        self._mersenne: Any = None  # where the memory is
        self._memory = self._gauss = memoryview(b"")

    def seed(self, seed: int) -> None:
        np.random.seed(seed & 0xFFFFFFFF)

    def state(self) -> Any:
        bits = _random_state._bit_generator
        if self._find():
            return bits, self._memory.tobytes(), self._gauss.tobytes()
        return bits, pickle.dumps(np.random.get_state(legacy=False)), None  # of another kind, which the program has put there

    def restore(self, state: Any) -> None:
        bits, words, gauss = state
        if _random_state._bit_generator is not bits:
            np.random.set_bit_generator(bits)  # type: ignore[attr-defined]
        if gauss is None:
            np.random.set_state(pickle.loads(words))
            return
        used = int(np.frombuffer(words, np.int32)[_WORDS])
        np.random.set_state(("MT19937", np.frombuffer(words, np.uint32, _WORDS), used, *struct.unpack("i4xd", gauss)))

    def plain(self, state: Any) -> Any:
        _bits, words, gauss = state
        if gauss is None:
            return plain(pickle.loads(words))
        has_gauss, number = struct.unpack("i4xd", gauss)
        *key, pos = np.frombuffer(words, np.uint32, _WORDS + 1).tolist()
        return {"bit_generator": "MT19937", "state": {"key": key, "pos": pos}, "has_gauss": has_gauss, "gauss": number}

    def restore_plain(self, state: Any) -> None:
        np.random.set_state(state)

    def places(self) -> list[memoryview]:
        return [self._memory[4 * (_WORDS - 1) :], self._gauss] if self._find() else []

    def watch(self) -> Callable[[], bool] | None:
        return _watch(self) if _numpy_is_known() and self._find() else None

    def _find(self) -> bool:
        """Whether the memory of the generator is known. It is another one after
        numpy.random.set_bit_generator."""
        bits = _random_state._bit_generator
        if bits is not self._mersenne:
            if not isinstance(bits, np.random.MT19937) or not _numpy_is_known():
                return False
            self._memory = memory(bits.ctypes.state_address, _BYTES)
            self._gauss = memory(id(_random_state) + _gauss_offset(), 16)
            self._mersenne = bits
        return True


def _words_of(state: bytes | tuple[int, ...]) -> tuple[int, ...]:
    """The state of a generator of Python as `_Mersenne.setstate` takes it: in memory the position
    comes first."""
    if isinstance(state, tuple):
        return state
    position, *words = struct.unpack(f"{1 + _WORDS}I", state)
    return (*words, position)


def _watch(generator: Generator) -> Callable[[], bool]:
    before = generator.state()
    return lambda: generator.state() != before


@functools.cache
def _python_is_known() -> bool:
    """Whether a generator of Python lies in memory as it does in CPython 3.10 to 3.14: after the
    head of an object, the words used up, then the words."""
    if sys.implementation.name != "cpython" or _Mersenne.__basicsize__ < object.__basicsize__ + _BYTES:
        return False
    probe = random.Random(5)
    words = (ctypes.c_uint32 * (1 + _WORDS)).from_address(id(probe) + object.__basicsize__)
    seen = [words[0]]
    probe.random()
    seen.append(words[0])
    probe.getrandbits(32)
    seen.append(words[0])
    return seen == [_WORDS, 2, 3] and list(words) == [*probe.getstate()[1][-1:], *probe.getstate()[1][:-1]]


@functools.cache
def _numpy_is_known() -> bool:
    """Whether a Mersenne Twister of NumPy is what it has been since 1.17: the words, then how many
    of them are used up."""
    probe = np.random.RandomState(5)
    mersenne = probe._bit_generator
    words = (ctypes.c_uint32 * (_WORDS + 1)).from_address(mersenne.ctypes.state_address)
    seen = [words[_WORDS]]
    probe.rand()
    seen.append(words[_WORDS])
    state = mersenne.state["state"]
    return seen == [_WORDS, 2] and list(words) == [*state["key"].tolist(), int(state["pos"])] and _gauss_offset() > 0


def _gauss_offset() -> int:
    """Where in a RandomState of NumPy lies whether it holds a second Gaussian number, and 8 bytes
    on that number. 0: unknown."""
    probe, number = np.random.RandomState(5), 1.2345678901234567
    probe.set_state({**probe.get_state(legacy=False), "has_gauss": 1, "gauss": number})
    whole = ctypes.string_at(id(probe), np.random.RandomState.__basicsize__)
    at = whole.find(struct.pack("i4xd", 1, number))
    return max(at, 0) if whole.count(struct.pack("d", number)) == 1 else 0


_known: tuple[Generator, ...] = (PythonGenerator(), NumpyGenerator())


def known() -> tuple[Generator, ...]:
    """The global generators of this program: torch's from the end of its import on."""
    global _known
    if len(_known) == 2 and hasattr(sys.modules.get("torch"), "default_generator"):
        from .torch_generator import TorchGenerator

        _known = (*_known, TorchGenerator())
    return _known


class _Observer:
    """What `look` looks at."""

    def __init__(self) -> None:
        generators = known()
        self.numpys = _random_state._bit_generator
        self.torch = len(generators) == 3
        self.places = [place for generator in generators for place in generator.places()]
        self.others = [generator.state for generator in generators if not generator.places()]


_observer: _Observer | None = None


def observe() -> Any:
    """A value that is another one after a draw from any of them, or a seed, and after the import of
    torch. It takes 0.3 us."""
    global _observer
    at, bits = _observer, _random_state._bit_generator
    if at is None or at.numpys is not bits or (not at.torch and "torch" in sys.modules):
        at = _observer = _Observer()
    return _join(at.places), _module.gauss_next, bits, [state() for state in at.others] if at.others else None


@contextmanager
def kept() -> Iterator[None]:
    """Puts all of them back afterwards, so that what is tried out changes no seeded run."""
    states = [(generator, generator.state()) for generator in known()]
    try:
        yield
    finally:
        for generator, state in states:
            if generator.state() != state:
                generator.restore(state)


class Seeding:
    """Of one worker process, for one sample after the other."""

    def __init__(self, generators: Sequence[Generator]) -> None:
        self._all = list(generators)
        self._seeded: list[Generator] | None = None  # none yet
        self._unseeded: list[Callable[[], bool]] = []  # that say whether somebody draws from them after all

    def load(self, seed: int, load: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """load() with all generators seeded. again: does it from the beginning, where `load` began
        with what is used up."""
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
