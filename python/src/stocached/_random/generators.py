"""The global generators of random numbers: those of the modules `random`, `numpy.random` and
`torch`.

Workers seed them for each sample, so that its random numbers do not depend on the worker. A seed
takes longer than the load of a small sample, and most datasets draw from one generator or none. So
a worker stops seeding a generator without draws, and checks after each sample whether a draw has
come. Then it seeds the generator, loads the sample again, and seeds the generator from then on.

Caches check for draws too (_checks/randomness.py). NumPy takes 40 us to give the state of its
generator, so we read states from memory if the layout is known. The position and the last word show
each draw: a draw moves the position, and when all words are used up, the generator makes new
ones."""

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

_WORDS = 624  # words of a Mersenne Twister; next to them is the number of words used up
_BYTES = 4 * (1 + _WORDS)
_random_state: Any = np.random.mtrand._rand  # the generator of numpy.random's functions
_join = b"".join
_module: Any = random.seed.__self__  # type: ignore[attr-defined]  # the generator of random's functions


class PythonGenerator:
    """The generator of the module `random`."""

    name = "random"

    def __init__(self) -> None:
        self._memory = memory(id(_module) + object.__basicsize__, _BYTES) if _python_is_known() else None

    def seed(self, seed: int) -> None:
        _Mersenne.seed(_module, seed)  # half the time of random.seed, which checks the type first
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
    """The generator of the functions in `numpy.random`."""

    name = "numpy.random"

    def __init__(self) -> None:
        self._mersenne: Any = None  # the object that has the memory
        self._memory = self._gauss = memoryview(b"")

    def seed(self, seed: int) -> None:
        np.random.seed(seed & 0xFFFFFFFF)

    def state(self) -> Any:
        bits = _random_state._bit_generator
        if self._find():
            return bits, self._memory.tobytes(), self._gauss.tobytes()
        return bits, pickle.dumps(np.random.get_state(legacy=False)), None  # another kind, which the program has set

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
        """Finds the memory of the generator; False if its layout is unknown.
        numpy.random.set_bit_generator changes the generator."""
        bits = _random_state._bit_generator
        if bits is not self._mersenne:
            if not isinstance(bits, np.random.MT19937) or not _numpy_is_known():
                return False
            self._memory = memory(bits.ctypes.state_address, _BYTES)
            self._gauss = memory(id(_random_state) + _gauss_offset(), 16)
            self._mersenne = bits
        return True


def _words_of(state: bytes | tuple[int, ...]) -> tuple[int, ...]:
    """The state of a generator of Python as `_Mersenne.setstate` takes it. In memory the position
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
    """Whether a generator of Python has the memory layout of CPython 3.10 to 3.14: the head of an
    object, the number of words used up, then the words."""
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
    """Whether a Mersenne Twister of NumPy has the memory layout since 1.17: the words, then the
    number of words used up."""
    probe = np.random.RandomState(5)
    mersenne = probe._bit_generator
    words = (ctypes.c_uint32 * (_WORDS + 1)).from_address(mersenne.ctypes.state_address)
    seen = [words[_WORDS]]
    probe.rand()
    seen.append(words[_WORDS])
    state = mersenne.state["state"]
    return seen == [_WORDS, 2] and list(words) == [*state["key"].tolist(), int(state["pos"])] and _gauss_offset() > 0


def _gauss_offset() -> int:
    """The offset in a RandomState of NumPy of the flag for a second Gaussian number; the number is
    8 bytes after it. 0: unknown."""
    probe, number = np.random.RandomState(5), 1.2345678901234567
    probe.set_state({**probe.get_state(legacy=False), "has_gauss": 1, "gauss": number})
    whole = ctypes.string_at(id(probe), np.random.RandomState.__basicsize__)
    at = whole.find(struct.pack("i4xd", 1, number))
    return max(at, 0) if whole.count(struct.pack("d", number)) == 1 else 0


_known: tuple[Generator, ...] = (PythonGenerator(), NumpyGenerator())


def known() -> tuple[Generator, ...]:
    """The global generators of this program. torch's is included after its import has ended."""
    global _known
    if len(_known) == 2 and hasattr(sys.modules.get("torch"), "default_generator"):
        from .torch_generator import TorchGenerator

        _known = (*_known, TorchGenerator())
    return _known


class _Observer:
    """The memory and states that `observe` reads."""

    def __init__(self) -> None:
        generators = known()
        self.numpys = _random_state._bit_generator
        self.torch = len(generators) == 3
        self.places = [place for generator in generators for place in generator.places()]
        self.others = [generator.state for generator in generators if not generator.places()]


_observer: _Observer | None = None


def observe() -> Any:
    """A value that differs after a draw from one of the generators, a seed, or the import of torch.
    Takes 0.3 us."""
    global _observer
    at, bits = _observer, _random_state._bit_generator
    if at is None or at.numpys is not bits or (not at.torch and "torch" in sys.modules):
        at = _observer = _Observer()
    return _join(at.places), _module.gauss_next, bits, [state() for state in at.others] if at.others else None


@contextmanager
def kept() -> Iterator[None]:
    """Restores all generators afterwards, so that probes change no seeded run."""
    states = [(generator, generator.state()) for generator in known()]
    try:
        yield
    finally:
        for generator, state in states:
            if generator.state() != state:
                generator.restore(state)


class Seeding:
    """Seeds the generators in one worker process, for one sample after the other."""

    def __init__(self, generators: Sequence[Generator]) -> None:
        self._all = list(generators)
        self._seeded: list[Generator] | None = None  # None: before the first sample
        self._unseeded: list[Callable[[], bool]] = []  # each tells whether a draw has come

    def load(self, seed: int, load: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """The result of load() with seeded generators. again: loads the sample from its beginning,
        as `load` may begin with a part that works only once."""
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
        """Whether a draw came from a generator that was not seeded."""
        return any(drawn() for drawn in self._unseeded)

    def _first(self, seed: int, load: Callable[[], Any]) -> Any:
        for generator in self._all:
            generator.seed(seed)
        watches = [(generator, generator.watch()) for generator in self._all]
        try:
            return load()
        finally:
            self._seeded = [generator for generator, drawn in watches if drawn is None or drawn()]
            self._unseeded = [
                drawn for generator, drawn in watches if drawn is not None and generator not in self._seeded
            ]
