"""The NumPy backend of a loader, which makes batches. The torch backend is in torch_backend.py."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._memory.batch_pool import Device
from .._random.generator import Generator
from .._random.generators import known
from .._samples import schema
from .._samples.containers import container_of
from .._samples.keys import any_longer, check_keys
from .._samples.tree import Leaf
from .._workers import set_up
from .._workers.errors import RemoteError

_NUMBERS: dict[type, Any] = {int: np.int64} | {kind: kind for kind in (bool, float, complex)}
_NUMBERS |= {np.dtype(code).type: np.dtype(code).type for code in "?bBhHiIlLqQefdFD"}


def _numbers(samples: Sequence[Any]) -> Any:
    """An array of numbers of one type, in a sixth of the time of np.stack; None: they are others."""
    kind, *others = {*map(type, samples)}
    if others or kind not in _NUMBERS:
        return None
    try:
        return np.array(samples, _NUMBERS[kind])
    except OverflowError:  # an int beyond 64 bits
        return None


class NumpyBackend:
    """Makes batches of NumPy arrays. The torch backend overrides its methods."""

    no_columns: frozenset[str] = frozenset()  # kinds of leaves without a column in a batch
    tuples: type = tuple  # the type in a batch of a sample's tuple
    draws_from = "numpy.random"  # the global generator of a loader without a generator of its own
    pins: bool = False  # whether batches go into pinned memory
    enter_worker = staticmethod(set_up.numpy_worker)  # a worker process calls it before any code of the user

    @property
    def generators(self) -> tuple[Generator, ...]:
        """They are seeded for each sample."""
        return known()

    def batch(self, samples: Sequence[Any]) -> Any:
        """`collate` of whole samples. InvalidError for None: a list of it would hide a return that is missing."""
        if type(None) in {*map(type, samples)}:
            raise InvalidError("a batch has no place for None")
        return self.collate(samples)

    def collate(self, samples: Sequence[Any]) -> Any:
        """The batch of some samples, with their dicts and tuples. Arrays and numbers become arrays;
        strings, bytes and other objects become lists.

        Raises ValueError if arrays differ in shape, or samples in keys."""
        first, container = samples[0], container_of(samples[0])
        if isinstance(first, Mapping):
            try:
                columns = {key: self.collate([sample[key] for sample in samples]) for key in first.keys()}  # noqa: SIM118
            except KeyError:
                check_keys(samples)
                raise
            if any_longer(samples):
                check_keys(samples)
            if container is None or not container.columns:
                return columns
            return container.make_batch(
                type(first), tuple(columns), container.parts(first).form, list(columns.values())
            )
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return type(first)(*(self.collate(column) for column in zip(*samples)))
        if isinstance(first, (tuple, list)):
            if any(len(sample) != len(first) for sample in samples):
                raise ValueError("samples of a batch differ in length; give a collate_fn= that handles them")
            return type(first)(self.collate(column) for column in zip(*samples))
        if container is not None and container.columns:  # a tensor of float8 or torchvision, an IntEnum
            return self.collate([container.parts(sample).values[0] for sample in samples])
        tensor = getattr(sys.modules.get("torch"), "Tensor", ())
        if isinstance(first, (np.ndarray, np.generic, bool, int, float, complex, tensor)):
            numbers = _numbers(samples)
            if numbers is not None:
                return numbers
            arrays = [schema.as_array(sample) for sample in samples]
            other = next((array.shape for array in arrays if array.shape != arrays[0].shape), None)
            if other is not None:
                raise ValueError(
                    f"samples of a batch have the shapes {arrays[0].shape} and {other}; give samples of one shape, such as "
                    "pictures with size=, or a collate_fn= that handles them"
                )
            # NumPy would make texts of numbers, and objects of numbers beside a None.
            if len({array.dtype.kind in "SU" for array in arrays}) > 1 or any(sample is None for sample in samples):
                return list(samples)
            return np.stack(arrays)
        return list(samples)

    def convert(self, sample: Any) -> Any:
        """A sample without a batch."""
        return sample

    def column(self, leaf: Leaf, rows: Any) -> Any:
        """A column of a batch, over the memory of `rows`."""
        return rows

    def over(self, batch: Any) -> Any:
        """A batch of arrays, as this backend gives it, over the same memory."""
        return batch

    def seed_sample(self, seed: int) -> None:
        """Seeds the generators for one sample."""
        for generator in self.generators:
            generator.seed(seed)

    def random_state(self) -> Any:
        return random.getstate(), np.random.get_state()

    def set_random_state(self, state: Any) -> None:
        random.setstate(state[0])
        np.random.set_state(state[1])

    def base_seed(self, generator: Any) -> int:
        """Draws the base seed of an epoch from a loader's generator; None: from the global one."""
        draw = np.random.randint if generator is None else generator.integers
        return int(draw(0, 2**63 - 1, dtype=np.int64))

    def generator_state(self, generator: Any) -> Any:
        """The state of a loader's generator; None: of the global one."""
        return np.random.get_state(legacy=False) if generator is None else generator.bit_generator.state

    def put_generator_state(self, generator: Any, state: Any) -> None:
        """Sets a state of `generator_state`, or `generator.plain` of it."""
        if generator is None:
            np.random.set_state(state)
        else:
            generator.bit_generator.state = state

    def error(self, error: BaseException, where: str) -> Any:
        """An error as an object with reraise(), to send to the parent. It can always be pickled."""
        return RemoteError.of(error, where)

    def pin(self, data: Any) -> Any:
        """A batch in pinned memory; copies what is not pinned yet."""
        return data

    def device(self) -> Device | None:
        """The device with which the memory of batches is registered; None: no device."""
        return None
