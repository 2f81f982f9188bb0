"""The experiment: three epochs without a cache, then three with a fresh cache at each cached
fraction. The partial caches run twice: with the policy first-come, and with the policy cost, which
keeps the samples that take longest to load."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import stocached

from demo import processes
from demo.loading import SHAPE

Policy = Literal["first-come", "cost"]
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
EPOCHS = 3


class Pool(Protocol):
    """Runs epochs with worker processes: workers.WorkerPool or dataloader.LoaderPool."""

    def epoch(self, order: Sequence[int], progress: Callable[[int], None]) -> int: ...
    def close(self) -> None: ...


PoolFactory = Callable[[Sequence[Path], "stocached.Cache | None", int, int], Pool]


class WrongSamplesError(Exception):
    """An epoch read other bytes than the epoch before: the cache returned bytes that were never
    stored."""


@dataclass
class Run:
    """Three epochs at one cached fraction; `slots` is None without a cache."""

    slots: int | None
    samples: int
    policy: str = "first-come"
    seconds: list[float] = field(default_factory=list)  # time of each epoch
    cpu_seconds: list[float] = field(default_factory=list)  # the same in processor time of all processes
    hit_rates: list[float] = field(default_factory=list)
    pss_bytes: int = 0  # memory of all processes together, after the last epoch

    @property
    def fraction(self) -> float:
        return (self.slots or 0) / self.samples

    @property
    def warm_seconds(self) -> float:
        """The faster one of the epochs after the first, which fills the cache. Other programs
        disturb it least."""
        return min(self.seconds[1:])

    @property
    def warm_cpu_seconds(self) -> float:
        return min(self.cpu_seconds[1:])

    @property
    def warm_hit_rate(self) -> float:
        return statistics.fmean(self.hit_rates[1:])

    @property
    def samples_a_second(self) -> float:
        return self.samples / self.warm_seconds


@dataclass
class Result:
    """The measurements, and the predictions from them."""

    dataset: str
    short: str  # the same in a few words
    samples: int
    workers: int
    batch: int
    loader: str
    without: Run
    cached: list[Run]  # with the policy first-come
    costly: list[Run] = field(default_factory=list)  # with the policy cost: the partial caches

    @property
    def cold_seconds(self) -> float:
        return self.without.warm_seconds

    @property
    def hit_seconds(self) -> float:
        """An epoch of hits only: the run in which every sample has a slot."""
        return self.cached[-1].warm_seconds

    def predicted_seconds(self, fraction: float) -> float:
        """The ideal line: a cached fraction c of the dataset saves a fraction c of the time to load
        it."""
        return (1 - fraction) * self.cold_seconds + fraction * self.hit_seconds

    def predicted_cpu_seconds(self, fraction: float) -> float:
        """The same for processor time, which other programs disturb less."""
        return (1 - fraction) * self.without.warm_cpu_seconds + fraction * self.cached[-1].warm_cpu_seconds


@dataclass(frozen=True)
class Settings:
    files: Sequence[Path]
    workers: int
    batch: int
    make_pool: PoolFactory
    seed: int = 0


def orders(settings: Settings) -> Iterator[list[int]]:
    """A new random order for each epoch; all runs have the same orders."""
    for epoch in range(EPOCHS):
        order = list(range(len(settings.files)))
        random.Random(f"{settings.seed}/{epoch}").shuffle(order)
        yield order


def run(
    settings: Settings, slots: int | None, progress: Callable[[int], None], policy: Policy = "first-come"
) -> tuple[Run, int]:
    """Three epochs with a new cache of `slots` slots, or without a cache. Also returns the checksum
    of all epochs."""
    samples = len(settings.files)
    result = Run(slots, samples, policy)
    cache = None
    if slots is not None:
        cache = stocached.Cache.create(samples=samples, shape=SHAPE, dtype="uint8", slots=slots, policy=policy)
    checksums: list[int] = []
    try:
        pool = settings.make_pool(settings.files, cache, settings.workers, settings.batch)
        try:
            for order in orders(settings):
                hits = hits_of(cache)
                cpu, start = processes.cpu_seconds(os.getpid()), time.perf_counter()
                checksums.append(pool.epoch(order, progress))
                result.seconds.append(time.perf_counter() - start)
                result.cpu_seconds.append(processes.cpu_seconds(os.getpid()) - cpu)
                result.hit_rates.append((hits_of(cache) - hits) / samples)
            result.pss_bytes = processes.pss_bytes(os.getpid())
        finally:
            pool.close()
    finally:
        if cache is not None:
            cache.close()
    if len(set(checksums)) != 1:
        raise WrongSamplesError(f"the three epochs at {slots} slots read different bytes: checksums {checksums}")
    return result, checksums[0]


def hits_of(cache: stocached.Cache | None) -> int:
    """Samples that all processes have found so far, from the cache's stats."""
    return 0 if cache is None else cache.stats().hits


def measure(
    settings: Settings, dataset: str, short: str, loader: str, watch: Callable[[str], Callable[[int], None]]
) -> Result:
    """All runs. `watch` gets the name of the next run, and returns a function to call after each
    batch.

    Raises WrongSamplesError when an epoch of a run reads other bytes than the first epoch.
    """
    samples = len(settings.files)
    without, checksum = run(settings, None, watch("no cache"))
    runs: dict[Policy, list[Run]] = {"first-come": [], "cost": []}
    for fraction in FRACTIONS:
        slots = max(1, round(fraction * samples))  # one slot is the smallest cache
        for policy in runs:
            if policy == "cost" and fraction in (0.0, 1.0):
                continue  # nothing to choose
            with_cache, sum_with_cache = run(settings, slots, watch(f"{fraction:.0%} {policy}"), policy)
            if sum_with_cache != checksum:
                raise WrongSamplesError(
                    f"the epochs with {slots} slots read other bytes than those without a cache: checksums {sum_with_cache} and {checksum}"
                )
            runs[policy].append(with_cache)
    return Result(dataset, short, samples, settings.workers, settings.batch, loader, without, *runs.values())
