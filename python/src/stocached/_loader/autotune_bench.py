"""Measures one setting of a loader, for `autotune`."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._cache.cache import Cache
from .._common.errors import InvalidError
from .._common.processors import processors
from .._datasets import looks
from .._random import generators
from .options import gather_threads
from .sampling import OrderSampler

_LEAST = 3  # batches of a trial
_LONGEST = 4  # times the planned time of a trial, if batches take long
_EPOCH = 2**32  # the first epoch whose order trials read; no training gets to it


@dataclass(frozen=True)
class Trial:
    """One setting, and the rates that it gave."""

    num_workers: int
    prefetch_factor: int | None  # None without workers
    gather_threads: int | None  # None: the loader's own choice
    samples_per_second: float  # that the training loop got, its steps included
    waiting: float  # the fraction of the time that the training loop waited
    hit_rate: float
    first_batch_seconds: float  # from the start of the workers to the first batch
    batches: int
    seconds: float
    loads: bool = True  # whether the dataset loaded or augmented a sample; if not, all were plain hits

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of a loader with this setting."""
        chosen: dict[str, Any] = {
            "num_workers": self.num_workers,
            "prefetch_factor": self.prefetch_factor,
            "gather_threads": self.gather_threads,
        }
        if self.num_workers == 0:
            chosen |= {
                "persistent_workers": False,
                "multiprocessing_context": None,
            }  # a loader without workers refuses others
        return chosen


class Bench:
    """Measures settings with the dataset and the cache of a loader."""

    def __init__(self, loader: Any, step: Callable[[Any], Any], has_step: bool, seconds: float) -> None:
        self._loader, self._step, self._seconds = loader, step, seconds
        self.has_step = has_step
        self.notes: list[str] = []
        self.cpus = processors()
        settings: dict[str, Any] = loader.settings
        self.threads = gather_threads(settings.get("gather_threads"))
        self.own = Trial(loader.num_workers, loader.prefetch_factor, settings.get("gather_threads"), 0, 0, 0, 0, 0, 0)
        self._made = dict(settings) | {"trace": None, "persistent_workers": False}
        self._cache: Cache | None = None
        self._use_cache()
        if not is_iterable(loader):
            self._made |= self._order()

    def _use_cache(self) -> None:
        """Trials read the cache of the loader, and store nothing in it."""
        cached: Any = getattr(self._loader, "_cached", None)
        cache: Any = self._loader.cache
        if cache is None:
            return
        self._made |= dict.fromkeys(("cache", "size", "name", "fingerprint", "variable", "policy"))
        self._made["store"] = "decoded"  # the dataset of trials has its own
        if cached.served:
            self.notes.append("a server fills this cache: what trials miss, it reads")
            return
        self._cache = cache._reader()
        self._made["dataset"] = cached.over(self._cache)
        if cache.stats().ready == 0:
            self.notes.append("its cache is empty: these are the rates of a first epoch")

    def _order(self) -> dict[str, Any]:
        """Settings with which each trial reads new samples, and the loader's samplers do not
        move."""
        loader, settings = self._loader, self._loader.settings
        own: dict[str, Any] = {"shuffle": False, "batch_sampler": None, "generator": None}
        own |= dict.fromkeys(("seed", "order", "rank", "world_size", "ends"))
        size = loader.batch_size
        if size is None and loader.batch_sampler is not None:
            size = getattr(loader.batch_sampler, "batch_size", None)
            if not isinstance(size, int) or size < 1:
                raise InvalidError("the batch_sampler has no batch_size, which the trials need; give it one")
            self.notes.append(
                f"batch_sampler= is not asked, so that it stays where it is: batches of {size} samples in a shuffled order"
            )
            own["drop_last"] = False
        elif settings.get("sampler") is not None:
            self.notes.append("sampler= is not asked, so that it stays where it is: samples in a shuffled order")
        shuffled = (
            bool(settings.get("shuffle"))
            or settings.get("sampler") is not None
            or settings.get("batch_sampler") is not None
        )
        self._feed = _Feed(self._indices(shuffled))
        return own | {"batch_size": size, "sampler": self._feed}

    def _indices(self, shuffled: bool) -> Iterator[int]:
        """Endless."""
        sampler, n = self._loader.sampler, len(self._loader.dataset)
        if n < 1:
            raise InvalidError("the dataset is empty")
        if isinstance(sampler, OrderSampler):
            for epoch in itertools.count(_EPOCH):
                yield from sampler.order.epoch(epoch).shard(sampler.rank, sampler.world_size, ends=sampler.ends)
        draws = np.random.default_rng(0)
        while True:
            yield from (draws.permutation(n) if shuffled else np.arange(n)).tolist()

    def measure(self, setting: Trial) -> Trial:
        """Reads batches for about the time of a trial. The first few are not measured: the pipeline
        is empty."""
        if self._loader.num_workers == 0 or setting.num_workers:
            return self._measured(setting)
        # Workers that are forked later must not share what the dataset opens.
        loader = self._loader
        begun = looks.begin(self, loader.dataset, loader._backend.enter_worker, forks=forks(loader), workers=0)
        with begun as look:
            trial: Trial
            trial, taken = look.ask(Bench._measured_apart, setting)
        self._feed.go_on_from(taken)
        return trial

    def _measured_apart(self, setting: Trial) -> tuple[Trial, int]:
        """For a look: a trial, and how many indices it and the ones before have taken."""
        return self._measured(setting), self._feed.taken

    def _measured(self, setting: Trial) -> Trial:
        with generators.kept(), warnings.catch_warnings():
            # torch warns of more workers than CPUs, which trials need.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader = type(self._loader)(**(self._made | setting.settings))
            try:
                return self._run(loader, setting)
            finally:
                loader.close()

    def _run(self, loader: Any, setting: Trial) -> Trial:
        start = time.monotonic()
        batches = iter(loader)
        try:
            batch = next(batches, None)
            if batch is None:
                raise InvalidError("the loader gives no batches, so there is nothing to measure")
            began = time.monotonic()
            first, warm = began - start, setting.num_workers
            while warm > 0 and time.monotonic() - began < self._seconds:
                self._step(batch)
                batch, warm = next(batches, batch), warm - 1
            before, begin, count = loader.stats(), time.monotonic(), 0
            while True:
                self._step(batch)
                batch = next(batches, None)
                took = time.monotonic() - begin
                if batch is None:
                    break
                count += 1
                if (took >= self._seconds and count >= _LEAST) or took >= _LONGEST * self._seconds:
                    break
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
        stats = loader.stats() - before
        took = max(took, 1e-9)
        return replace(
            setting,
            samples_per_second=stats.samples / took,
            waiting=min(stats.wait_seconds / took, 1.0),
            hit_rate=stats.hit_rate,
            first_batch_seconds=first,
            batches=count,
            seconds=took,
            loads=stats.load_seconds > 0,
        )

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()


class _Feed:
    """A sampler whose iterators each continue where the one before stopped."""

    def __init__(self, indices: Iterator[int]) -> None:
        self._indices = indices
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for index in self._indices:
            self.taken += 1
            looks.note(index)
            yield index

    def go_on_from(self, taken: int) -> None:
        """Leaves out the indices that a copy in another process has taken."""
        for _ in range(self.taken, taken):
            next(self._indices)
        self.taken = taken

    def __len__(self) -> int:
        return 2**62


def is_iterable(loader: Any) -> bool:
    return bool(getattr(loader, "_iterable", False))


def forks(loader: Any) -> bool:
    """Whether workers of a loader are forked."""
    return loader.worker == "process" and looks.are_forked(getattr(loader, "multiprocessing_context", None))
