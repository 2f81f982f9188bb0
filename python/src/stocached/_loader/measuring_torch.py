"""Measures torch's own DataLoader: another one over the same dataset, whose samples and batches are timed in its
workers. The times come back with the batches."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np

from .._cache.cache import Cache
from .._common.load_time import delay_ns, idle_ns
from .._common.subsets import is_subset
from .._random import generators
from .._trace import LOOP, Recorder, worker
from .measuring import Feed, Step, batch_size_of, bytes_of, checked, epoch_samples, indices, step_of, until
from .setup import loads_one_by_one

_KEPT = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
_LOAD, _AUGMENT, _COLLATE = 0, 1, 2
_ROW = 8  # numbers of a timed step: kind, index, start, end, idle, delay, bytes, worker
_spent = threading.local()  # .rows of the present batch, .augment: ns and bytes of the present sample


class TorchTrial:
    """Its loader reads another order, so that samplers and generators of the program do not move."""

    def __init__(self, loader: Any) -> None:
        self._data = sys.modules["torch.utils.data"]
        checked(loader, isinstance(loader.dataset, self._data.IterableDataset))
        self._loader = loader
        self.cache: Cache | None = None
        self.source_share: float | None = None
        self.notes: list[str] = []

    def run(self, path: str, seconds: float, step: Step | None, step_seconds: float | None) -> None:
        loader, work = self._loader, step_of(step, step_seconds)
        size = batch_size_of(loader, self.notes)
        dataset = _timed(loader.dataset)
        shuffled = not isinstance(loader.sampler, self._data.SequentialSampler) or loader.batch_size is None
        arguments = {
            "batch_size": size,
            "sampler": Feed(indices(len(loader.dataset), shuffled)),
            "num_workers": loader.num_workers,
            "collate_fn": _Collate(loader.collate_fn, loader.num_workers > 0),
            "pin_memory": loader.pin_memory,
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
        }
        settings = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)} | {"batch_size": size}
        if isinstance(dataset.inner, _Transformed):
            settings["transform"] = dataset.inner.transform
        about: dict[str, int] = {"samples": len(loader.dataset), "epoch_samples": epoch_samples(loader)}
        with generators.kept(), warnings.catch_warnings():
            # Of more workers than CPUs: the loader has them.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            recorder = Recorder(path, settings=settings, about=about)
            _spent.rows = []
            batches: Any = None
            try:
                batches = iter(self._data.DataLoader(dataset, **arguments))
                recorder.about["sample_bytes"] = _read(batches, recorder, work, seconds, max(loader.num_workers, 1))
            finally:
                if loader.num_workers and batches is not None:
                    batches._shutdown_workers()
                recorder.close()


def _read(batches: Any, recorder: Recorder, work: Step, seconds: float, warm: int) -> int:
    """Reads and records batches. Returns the mean size of samples. The first batches, `warm` of them, are an epoch of
    their own, because they wait for workers that start."""
    loop, name = recorder.track(LOOP), recorder.name
    sizes = samples = 0
    enough = until(seconds)
    for number in range(2**31):
        start = time.monotonic_ns()
        batch, rows = next(batches)
        end = time.monotonic_ns()
        epoch = int(number >= warm)
        if number == warm:
            enough = until(seconds)
        table = np.frombuffer(rows, np.int64).reshape(-1, _ROW)
        loads = table[table[:, 0] == _LOAD]
        sizes, samples = sizes + int(loads[:, 6].sum()), samples + len(loads)
        for kind, index, began, ended, idle, delay, _, owner in table.tolist():
            track = loop if owner < 0 else recorder.track(worker(owner))
            done = max(ended - delay, began)
            if delay > (ended - began) // 100:
                recorder.put(track, name("delay"), done, ended, epoch, number, index)
            recorder.put(track, name(("load", "augment", "collate")[kind]), began, done, epoch, number, index)
            if kind == _LOAD and idle > 0:
                recorder.put(track, name("source"), began, min(began + idle, done), epoch, number, index)
        recorder.put(loop, name("wait"), start, end, epoch, number, samples=len(loads), hits=0, misses=len(loads))
        work(batch)
        recorder.put(loop, name("step"), end, time.monotonic_ns(), epoch, number)
        if number >= warm and enough(number - warm):
            break
    return max(sizes // max(samples, 1), 1)


class _Transformed:
    """The `transform` of a dataset, timed apart. What it gets is what a cache stores."""

    def __init__(self, dataset: Any) -> None:
        self.transform = dataset.transform
        self.dataset = copy.copy(dataset)
        self.dataset.transform = self._timed

    def _timed(self, sample: Any) -> Any:
        start, delay = time.monotonic_ns(), delay_ns()
        try:
            return self.transform(sample)
        finally:
            delay = delay_ns() - delay
            _spent.augment = max(time.monotonic_ns() - start - delay, 1), bytes_of(sample)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]


class _Timed:
    """A dataset whose samples are timed one by one."""

    def __init__(self, inner: Any, samples: int) -> None:
        self.inner, self._samples = inner, samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: Any) -> Any:
        _spent.augment = 0, 0
        start, idle, delay = time.monotonic_ns(), idle_ns(), delay_ns()
        sample = self.inner[index]
        idle, delay, end = idle_ns() - idle, delay_ns() - delay, time.monotonic_ns()
        augment, size = _spent.augment
        _note(_LOAD, index, start, end - augment, max(idle, 0), delay, size or bytes_of(sample))
        if augment:
            _note(_AUGMENT, index, end - augment, end, 0, 0, 0)
        return sample


class _TimedBatches(_Timed):
    """A dataset that gives many samples at once: each counts for an equal part of the time."""

    def __getitems__(self, wanted: Any) -> Any:
        start, idle, delay = time.monotonic_ns(), idle_ns(), delay_ns()
        samples = self.inner.__getitems__(wanted)
        idle, delay, end = idle_ns() - idle, delay_ns() - delay, time.monotonic_ns()
        n = max(len(wanted), 1)
        for k, (index, sample) in enumerate(zip(wanted, samples)):
            began = start + (end - start) * k // n
            _note(_LOAD, index, began, began + (end - start) // n, max(idle, 0) // n, delay // n, bytes_of(sample))
        return samples


def _timed(dataset: Any) -> _Timed:
    samples = len(dataset)
    if not loads_one_by_one(dataset):
        return _TimedBatches(dataset, samples)
    if callable(getattr(dataset, "transform", None)) and not is_subset(dataset):
        with contextlib.suppress(AttributeError):  # it cannot be set: then it counts as a part of the load
            return _Timed(_Transformed(dataset), samples)
    return _Timed(dataset, samples)


class _Collate:
    """collate_fn, timed. It gives the times of the batch too."""

    def __init__(self, collate: Any, in_worker: bool) -> None:
        self._collate, self._in_worker = collate, in_worker

    def __call__(self, samples: Any) -> tuple[Any, bytes]:
        start, delay = time.monotonic_ns(), delay_ns()
        batch = self._collate(samples)
        _note(_COLLATE, -1, start, time.monotonic_ns(), 0, delay_ns() - delay, 0)
        number = sys.modules["torch.utils.data"].get_worker_info().id if self._in_worker else -1
        rows, _spent.rows = _spent.rows, []
        return batch, np.array([(*row, number) for row in rows], np.int64).tobytes()


def _note(*row: int) -> None:
    if not hasattr(_spent, "rows"):
        _spent.rows = []
    _spent.rows.append(row)
