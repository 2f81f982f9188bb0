"""What batches are made of: the NumPy backend of a loader. The backend of torch is in torch_backend.py."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._memory.ring import Device
from .._random.generator import Generator
from .._random.generators import NumpyGenerator, PythonGenerator
from .._samples import schema
from .._samples.containers import container_of
from .._samples.tree import Leaf
from .._workers import worker_info
from .._workers.errors import RemoteError


class NumpyBackend:
    """Batches of NumPy arrays. Each method has a twin in the backend of torch."""

    no_columns: frozenset[str] = frozenset()  # kinds of leaves that are no column of a batch
    tuples: type = tuple  # what a tuple of a sample is in a batch
    generators: tuple[Generator, ...] = (PythonGenerator(), NumpyGenerator())  # those that are seeded for each sample
    pins: bool = False  # whether batches go into pinned memory

    def collate(self, samples: Sequence[Any]) -> Any:
        """The batch of some samples: arrays of arrays and of numbers, lists of strings, bytes and other objects; dicts and tuples as the samples have them.

        Raises ValueError if arrays differ in shape."""
        first, container = samples[0], container_of(samples[0])
        if isinstance(first, Mapping):
            columns = {key: self.collate([sample[key] for sample in samples]) for key in first.keys()}  # noqa: SIM118 (a TensorDict iterates over rows)
            if container is None or not container.columns:
                return columns
            return container.make_batch(type(first), tuple(columns), container.parts(first).form, list(columns.values()))
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return type(first)(*(self.collate(column) for column in zip(*samples)))
        if isinstance(first, (tuple, list)):
            if any(len(sample) != len(first) for sample in samples):
                raise ValueError("samples of a batch differ in length; give collate_fn= to say what is to be done with them")
            return type(first)(self.collate(column) for column in zip(*samples))
        if container is not None and container.columns:  # a tensor of float8 or torchvision, an IntEnum
            return self.collate([container.parts(sample).values[0] for sample in samples])
        tensor = getattr(sys.modules.get("torch"), "Tensor", ())
        if isinstance(first, (np.ndarray, np.generic, bool, int, float, complex, tensor)):
            return np.stack([schema.as_array(sample) for sample in samples])
        return list(samples)

    def convert(self, sample: Any) -> Any:
        """A sample that is no batch."""
        return sample

    def column(self, leaf: Leaf, rows: Any) -> Any:
        """A column of a batch, over the memory of `rows`."""
        return rows

    def seed_worker(self, seed: int, worker: int) -> None:
        """Random numbers of a worker, before it loads anything."""
        random.seed(seed + worker)
        np.random.seed(np.random.SeedSequence((seed, worker)).generate_state(4))

    def seed_sample(self, seed: int) -> None:
        """Random numbers for one sample."""
        for generator in self.generators:
            generator.seed(seed)

    def random_state(self) -> Any:
        return random.getstate(), np.random.get_state()

    def set_random_state(self, state: Any) -> None:
        random.setstate(state[0])
        np.random.set_state(state[1])

    def enter_worker(self, worker: int, workers: int, seed: int, dataset: Any) -> None:
        """To be called in a worker process before anything of the user's."""
        worker_info.enter(worker, workers, seed, dataset)

    def error(self, error: BaseException, where: str) -> Any:
        """What is sent to the parent, which calls its reraise(). It can always be pickled."""
        return RemoteError.of(error, where)

    def pin(self, data: Any) -> Any:
        """A batch in pinned memory: what is not there already is copied."""
        return data

    def device(self) -> Device | None:
        """With which the memory of batches is to be registered."""
        return None
