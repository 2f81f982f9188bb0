"""The stats of a loader."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from typing import Any

from .._datasets.stage_stats import StageStats
from .bad_samples import BadSample


@dataclass(frozen=True)
class LoaderStats:
    """Counters of a loader since it was made, over all its epochs. `after - before` gives the
    counts between two moments.

    They are added up while the loader works, so they may include a part of batches that are not
    ready. With `.cache` of a table, hits and misses count its elements, such as row groups."""

    batches: int = 0  # given to the training loop
    samples: int = 0  # in these batches
    hits: int = 0  # samples from the cache
    misses: int = 0  # samples that were loaded, or came from the disk cache
    bytes: int = 0  # bytes of these samples
    wait_seconds: float = 0.0  # the training loop waited for a batch
    step_seconds: float = 0.0  # the training loop worked on a batch
    gather_seconds: float = 0.0  # hits were copied into batches, summed over threads
    load_seconds: float = 0.0  # misses were loaded, and encoded samples decoded, summed over workers
    transfer_seconds: float = 0.0  # batches went into pinned memory, while the training loop waited
    store: str = ""  # what the cache keeps: "decoded" samples, or "encoded" files; "": the loader fills none
    bad_samples: int = 0  # left out of batches, each once an epoch
    bad: tuple[BadSample, ...] = ()  # which and why, each once; the first 256
    stages: tuple[StageStats, ...] = ()  # as `print(pipe)` lists them; arguments are stages, too
    # of the disk cache (disk=), by all processes that share its file
    disk_hits: int = 0  # samples that the disk cache had
    disk_misses: int = 0  # samples that the disk cache did not have
    disk_writes: int = 0  # samples written to the disk cache
    disk_dropped: int = 0  # not written: the disk was slow, or another process wrote the sample
    disk_poisoned: int = 0  # samples whose checksum was wrong; they were loaded again
    disk_failed: int = 0  # reads and writes that the disk failed: its samples are loaded again

    @property
    def hit_rate(self) -> float:
        """Hits of hits and misses; 0.0 without any."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    @property
    def seconds(self) -> float:
        """The training loop's time: waits and steps."""
        return self.wait_seconds + self.step_seconds

    @property
    def waiting(self) -> float:
        """The fraction of the training loop's time that it waited; 0.0 before the first batch."""
        return self.wait_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def slowest(self) -> StageStats | None:
        """The stage with the most seconds, if some was read."""
        slowest = max(self.stages, key=lambda stage: stage.seconds, default=None)
        return slowest if slowest is not None and slowest.seconds > 0 else None

    @property
    def samples_per_second(self) -> float:
        """Samples that the training loop gets in a second; 0.0 before the first batch."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def __sub__(self, before: LoaderStats) -> LoaderStats:
        if not isinstance(before, LoaderStats):
            return NotImplemented
        counts = [field.name for field in fields(self) if field.name not in ("store", "bad", "stages")]
        since = {name: getattr(self, name) - getattr(before, name) for name in counts}
        stages = tuple(now - then for now, then in zip(self.stages, before.stages))
        return replace(self, **since, bad=self.bad[len(before.bad) :], stages=stages)

    def __str__(self) -> str:
        slowest, all_seconds = self.slowest, sum(stage.seconds for stage in self.stages)
        return (
            f"{self.samples:,} samples in {self.batches:,} batches, {self.hit_rate:.1%} hits, {self.samples_per_second:,.0f} samples/s; "
            f"the training loop waited {self.wait_seconds:.3f} of {self.seconds:.3f} s ({self.waiting:.1%})"
            f"{f'; {self.bad_samples:,} bad samples were left out' if self.bad_samples else ''}"
            + (
                f"; the slowest stage: {slowest.stage}, {slowest.seconds / all_seconds:.0%} of them all"
                if slowest
                else ""
            )
        )


_TIMES = ("wait", "step", "gather", "load", "transfer")


class Meter:
    """Adds up the stats of a loader. Safe from any thread; a forked child must make its own. Times
    are nanoseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = self._samples = self._hits = self._misses = self._bytes = 0
        names = (*_TIMES, "waited", "measured", "augment", "hit", "batch_augment")
        self._ns = dict.fromkeys(names, 0)

    def batch(self, samples: int, hits: int, misses: int, nbytes: int, wait_ns: int, step_ns: int = 0) -> None:
        """The training loop got a batch: it waited wait_ns for it, and was busy step_ns before it
        asked."""
        with self._lock:
            self._batches += 1
            self._samples += samples
            self._hits += hits
            self._misses += misses
            self._bytes += nbytes
            self._ns["wait"] += wait_ns
            self._ns["step"] += step_ns

    def add(self, **times: int) -> None:
        """Adds times as LoaderStats has them, beside batches. Also of `batch_augment`, and of load: `augment` is of augment=,
        `hit` of reads of hits; where it is known, loads of `measured` waited for their source for `waited`."""
        with self._lock:
            for name, ns in times.items():
                self._ns[name] += ns

    @property
    def part_seconds(self) -> tuple[float, float, float]:
        """Of `augment=`, of reads of hits in `load`, and of `batch_augment=`."""
        return self._ns["augment"] / 1e9, self._ns["hit"] / 1e9, self._ns["batch_augment"] / 1e9

    @property
    def source_share(self) -> float | None:
        """The part of the loads in which they waited for the source; None: unknown."""
        return min(self._ns["waited"] / self._ns["measured"], 1.0) if self._ns["measured"] else None

    def stats(self) -> LoaderStats:
        with self._lock:
            seconds: dict[str, Any] = {f"{name}_seconds": self._ns[name] / 1e9 for name in _TIMES}
            return LoaderStats(self._batches, self._samples, self._hits, self._misses, self._bytes, **seconds)
