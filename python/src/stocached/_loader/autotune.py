"""Finds how many workers, gather threads and prefetched batches a loader needs, by trying."""

from __future__ import annotations

import copy
import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._cache.cache import Cache, unpickle
from .._common.errors import InvalidError
from .._datasets import probe
from .._memory.buffer_pool import BatchBuffers
from .._random import generators
from .options import gather_threads
from .sampling import OrderSampler

_ENOUGH = 0.97  # of the best: what takes less for it is taken
_BETTER = 1.03  # times as good: less is noise
_HIDDEN = 0.05  # of the time: a training loop that waits less has what it needs, and what it still lacks of the best is the step's
_LEAST = 3  # batches of a trial
_LONGEST = 4  # times what a trial should take: for batches that take long
_TRIALS = 12  # that the time is divided by
_EPOCH = 2**32  # the first whose order trials read in: none that training gets to


@dataclass(frozen=True)
class Trial:
    """One setting, and what it gave."""

    num_workers: int
    prefetch_factor: int | None  # None: without workers it has no meaning
    gather_threads: int | None  # None: as many as the loader takes by itself
    samples_per_second: float  # as the training loop got them, steps included
    waiting: float  # part of the time that it waited
    hit_rate: float
    first_batch_seconds: float  # from the start of the workers to the first batch
    batches: int
    seconds: float
    loads: bool = True  # whether anything was loaded, or augmented: if not, all came out of the cache as it is

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of a loader."""
        chosen: dict[str, Any] = {"num_workers": self.num_workers, "prefetch_factor": self.prefetch_factor, "gather_threads": self.gather_threads}
        if self.num_workers == 0:
            chosen |= {"persistent_workers": False, "multiprocessing_context": None}  # a loader without workers refuses others
        return chosen


@dataclass(frozen=True)
class Autotuned:
    """What `autotune` chose, and why. `str()` of it is a table.

    Use: DataLoader(**(loader.settings | tuned.settings))."""

    chosen: Trial
    current: Trial  # with the settings of the loader
    trials: tuple[Trial, ...]  # all, in the order in which they were made
    why: str
    notes: tuple[str, ...]  # what was left out or differs from the loader
    seconds: float  # that it took
    cpus: int

    @property
    def settings(self) -> dict[str, Any]:
        """num_workers, prefetch_factor and gather_threads, for the constructor of a loader; without workers also what must not be given then."""
        return self.chosen.settings

    def __str__(self) -> str:
        head = ("", "workers", "prefetch", "threads", "samples/s", "waiting", "hits", "first batch")
        rows = [head]
        for trial in self.trials:
            rows.append(
                (
                    "->" if trial.settings == self.chosen.settings else "",
                    str(trial.num_workers),
                    _shown(trial.prefetch_factor),
                    _shown(trial.gather_threads),
                    f"{trial.samples_per_second:,.0f}",
                    f"{trial.waiting:.0%}",
                    f"{trial.hit_rate:.0%}",
                    f"{trial.first_batch_seconds * 1000:,.0f} ms",
                )
            )
        widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        arguments = ", ".join(f"{name}={value}" for name, value in self.settings.items() if value is not None)
        return "\n".join(
            [
                f"{len(self.trials)} trials in {self.seconds:.1f} s, {self.cpus} CPUs",
                *table,
                f"chosen: {arguments}",
                self.why,
                *self.notes,
            ]
        )


def autotune(
    loader: Any,
    *,
    step: Callable[[Any], Any] | None = None,
    step_seconds: float | None = None,
    seconds: float = 10.0,
    workers: Iterable[int] | None = None,
) -> Autotuned:
    """Tries a loader's dataset with other numbers of workers, prefetched batches and gather threads, and chooses the least that give the most.

    loader: a stocached.Loader or stocached.torch.DataLoader. Its own settings are tried as well, and kept unless others are better by 3 %. Trials read other
    samples each, in the loader's order if it is one of ours, else in a shuffled order or, without shuffle=True, one after the other. They look into its cache
    as it is now and put nothing into it: call this after the first epoch to see the rates of the others.
    step: is called with each batch, as training would be. step_seconds: a step that takes that long, and no CPU; without either loading alone is measured.
    seconds: about how long to take; more where a batch takes long. workers: the numbers to try; None: 0, 1, 2, 4, ... to 4 times the CPUs, while it helps,
    without the 0 for an iterable dataset that has workers.

    The loader, its samplers, generators, epoch and cache stay as they are, and no process is left. The dataset is used in new workers, and for 0 workers in
    this process; what that changes in its attributes is put back. What it raises is raised here; InvalidError for a loader that cannot be tried."""
    if step is not None and step_seconds is not None:
        raise InvalidError("step= is called, step_seconds= is how long one takes; give one of them")
    if step_seconds is not None and not 0 <= step_seconds < 3600:
        raise InvalidError(f"step_seconds={step_seconds}; it must be between 0 and 3600")
    if not 0 < seconds <= 3600:
        raise InvalidError(f"seconds={seconds}; it must be more than 0, at most 3600")
    if not isinstance(getattr(loader, "settings", None), dict) or not callable(getattr(loader, "stats", None)):
        raise InvalidError(f"autotune() needs a stocached.Loader or stocached.torch.DataLoader, and got a {type(loader).__qualname__}")
    begin = time.monotonic()
    bench = _Bench(loader, _step(step, step_seconds), step is not None or bool(step_seconds), seconds / _TRIALS)
    try:
        search = _Search(bench, _candidates(loader, workers))
        chosen, current, why = search.run()
    finally:
        bench.close()
    return Autotuned(chosen, current, tuple(search.trials), why, tuple(bench.notes), time.monotonic() - begin, bench.cpus)


def _step(step: Callable[[Any], Any] | None, step_seconds: float | None) -> Callable[[Any], Any]:
    if step is not None:
        return step
    if step_seconds:
        return lambda _: time.sleep(step_seconds)
    return lambda _: None


def _candidates(loader: Any, workers: Iterable[int] | None) -> list[int]:
    """Numbers of workers to try, in their order."""
    if workers is not None:
        wanted = sorted({int(number) for number in workers})
        if not wanted or wanted[0] < 0:
            raise InvalidError(f"workers={wanted}; give numbers of 0 or more, one at least")
        if wanted[0] == 0 and _is_iterable(loader) and loader.num_workers:
            raise InvalidError("workers= has 0: an iterable dataset would be read in this process, which changes where it stands; leave 0 out")
        return wanted
    most = max(4 * _cpus(), loader.num_workers)
    least = [] if _is_iterable(loader) else [0]
    return sorted({*least, loader.num_workers, _cpus(), *(2**k for k in range(20) if 2**k <= most)})


def _is_iterable(loader: Any) -> bool:
    return bool(getattr(loader, "_iterable", False))


class _Search:
    """Workers first, the other two then, the chosen one against the loader's own settings at last."""

    def __init__(self, bench: _Bench, candidates: list[int]) -> None:
        self._bench = bench
        self._candidates = candidates
        self.trials: list[Trial] = []

    def run(self) -> tuple[Trial, Trial, str]:
        bench = self._bench
        own = bench.own
        current = self._try(own)
        by_workers = [current]
        without_gain = 0
        for number in self._candidates:
            if number == own.num_workers:
                continue
            best = max(trial.samples_per_second for trial in by_workers)
            trial = self._try(_with_workers(own, number))
            by_workers.append(trial)
            gained = trial.samples_per_second > best * _BETTER
            without_gain = 0 if gained else without_gain + (number > own.num_workers)
            if trial.waiting <= _HIDDEN or without_gain >= 2 or not (number or trial.loads):
                break  # the last: workers would have nothing to do
        chosen = self._least(by_workers)
        if chosen.hit_rate > 0.05:
            threads = [replace(chosen, gather_threads=2**k) for k in range(10) if 2**k <= bench.cpus and 2**k != bench.threads]
            chosen = self._best(chosen, threads)
        if bench.has_step and chosen.num_workers > 0 and chosen.waiting > _HIDDEN:  # loading alone waits for the workers, however far ahead they are
            factors = [replace(chosen, prefetch_factor=factor) for factor in (4, 8) if factor > (chosen.prefetch_factor or 2)]
            chosen = self._best(chosen, factors)
        if chosen.settings == own.settings:
            return chosen, current, f"the settings that it has are the best of these: {_rate(chosen)}"
        return self._confirm(chosen, by_workers)

    def _try(self, setting: Trial) -> Trial:
        trial = self._bench.measure(setting)
        self.trials.append(trial)
        return trial

    def _best(self, chosen: Trial, others: Sequence[Trial]) -> Trial:
        """The best of some, of one another's order of taking more."""
        return self._least([chosen, *(self._try(other) for other in others)])

    def _least(self, trials: Sequence[Trial]) -> Trial:
        """The one that takes least of those that are about as good as the best."""
        enough = _ENOUGH * max(trial.samples_per_second for trial in trials)
        return min((trial for trial in trials if trial.samples_per_second >= enough or trial.waiting <= _HIDDEN), key=_cost)

    def _confirm(self, chosen: Trial, by_workers: Sequence[Trial]) -> tuple[Trial, Trial, str]:
        """Measures the chosen one and the loader's own once more, in turn, as one trial of each may be luck."""
        own = self._bench.own
        again = [self._try(own), self._try(chosen), self._try(own), self._try(chosen)]
        mine, theirs = _mean(again[1::2]), _mean(again[::2])
        ratio = mine.samples_per_second / theirs.samples_per_second if theirs.samples_per_second else math.inf
        less = _cost(chosen) < _cost(own)
        if ratio < (_ENOUGH if less else _BETTER) and not (less and mine.waiting <= _HIDDEN):
            return theirs, theirs, f"the settings that it has are as good: {_rate(theirs)}; {_arguments(mine)} gave {mine.samples_per_second:,.0f}"
        why = f"{_rate(mine)}, {ratio:.2f} times the {theirs.samples_per_second:,.0f} of {_arguments(theirs)}"
        if ratio <= _BETTER:
            why = f"as fast as {_arguments(theirs)}, and takes less: {_rate(mine)}"
        more = [trial for trial in by_workers if trial.num_workers > chosen.num_workers]
        if more:
            most = max(more, key=lambda trial: trial.samples_per_second)
            why += f"; {most.num_workers} workers gave {most.samples_per_second:,.0f}"
        return mine, theirs, why


class _Bench:
    """Measures settings on what a loader has."""

    def __init__(self, loader: Any, step: Callable[[Any], Any], has_step: bool, seconds: float) -> None:
        self._loader, self._step, self._seconds = loader, step, seconds
        self.has_step = has_step
        self.notes: list[str] = []
        self.cpus = _cpus()
        settings: dict[str, Any] = loader.settings
        self.threads = gather_threads(settings.get("gather_threads"))
        self.own = Trial(loader.num_workers, loader.prefetch_factor, settings.get("gather_threads"), 0, 0, 0, 0, 0, 0)
        self._made = dict(settings) | {"trace": None, "persistent_workers": False}
        self._cache: Cache | None = None
        self._look_into_cache()
        if not _is_iterable(loader):
            self._made |= self._order()

    def _look_into_cache(self) -> None:
        """Trials see the cache of the loader, and put nothing into it."""
        cached: Any = getattr(self._loader, "_cached", None)
        cache: Any = self._loader.cache
        if cache is None:
            return
        self._made |= {"cache": None, "size": None, "name": None, "fingerprint": None}
        if cached.served:
            self.notes.append("a server fills this cache: what trials miss, it reads")
            return
        _, (kind, path, pid, fd, uuid, _) = cache.__reduce__()
        self._cache = unpickle(kind, path, pid, fd, uuid, True)
        looks = copy.copy(cached)
        looks.cache, looks._batches = self._cache, BatchBuffers(self._cache.fields)
        self._made["dataset"] = looks
        if cache.stats().ready == 0:
            self.notes.append("its cache is empty: these are the rates of a first epoch")

    def _order(self) -> dict[str, Any]:
        """Settings by which trials read samples that no other trial has read, and leave the loader's samplers alone."""
        loader, settings = self._loader, self._loader.settings
        own: dict[str, Any] = {"shuffle": False, "batch_sampler": None, "generator": None}
        own |= dict.fromkeys(("seed", "order", "rank", "world_size", "ends"))
        size = loader.batch_size
        if size is None and loader.batch_sampler is not None:
            size = getattr(loader.batch_sampler, "batch_size", None)
            if not isinstance(size, int) or size < 1:
                raise InvalidError("the batch_sampler has no batch_size, which the trials need; give it one")
            self.notes.append(f"batch_sampler= is not asked, so that it stays where it is: batches of {size} samples in a shuffled order")
            own["drop_last"] = False
        elif settings.get("sampler") is not None:
            self.notes.append("sampler= is not asked, so that it stays where it is: samples in a shuffled order")
        shuffled = bool(settings.get("shuffle")) or settings.get("sampler") is not None or settings.get("batch_sampler") is not None
        return own | {"batch_size": size, "sampler": _Feed(self._indices(shuffled))}

    def _indices(self, shuffled: bool) -> Iterator[int]:
        """Without an end."""
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
        """Reads batches for about the time of a trial, after a first few that come from an empty pipeline."""
        here = setting.num_workers == 0 < self._loader.num_workers  # what the dataset opens here must not stay open for workers that are forked later
        with generators.kept(), probe.left_as_it_was(self._loader.dataset if here else None), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than CPUs, on purpose
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
    """A sampler whose iterators all go on where the last one was."""

    def __init__(self, indices: Iterator[int]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[int]:
        return self._indices

    def __len__(self) -> int:
        return 2**62


def _with_workers(trial: Trial, number: int) -> Trial:
    factor = (trial.prefetch_factor or 2) if number else None
    return replace(trial, num_workers=number, prefetch_factor=factor)


def _cost(trial: Trial) -> tuple[int, int, int]:
    return trial.num_workers, trial.gather_threads or 0, trial.prefetch_factor or 0


def _mean(trials: Sequence[Trial]) -> Trial:
    """One trial of several of the same settings."""
    seconds = sum(trial.seconds for trial in trials)

    def over_time(name: str) -> float:
        return sum(float(getattr(trial, name)) * trial.seconds for trial in trials) / seconds

    return replace(
        trials[0],
        samples_per_second=over_time("samples_per_second"),
        waiting=over_time("waiting"),
        hit_rate=over_time("hit_rate"),
        first_batch_seconds=min(trial.first_batch_seconds for trial in trials),
        batches=sum(trial.batches for trial in trials),
        seconds=seconds,
    )


def _arguments(trial: Trial) -> str:
    return ", ".join(f"{name}={value}" for name, value in trial.settings.items() if value is not None)


def _rate(trial: Trial) -> str:
    return f"{trial.samples_per_second:,.0f} samples/s, waiting {trial.waiting:.0%}"


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
