"""The stats of a loader."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace

from .._datasets.stage_stats import StageStats
from .bad_samples import BadSample


@dataclass(frozen=True)
class LoaderStats:
    """Counters of a loader since it was made, over all its epochs. `after - before` gives the
    counts between two moments.

    They are added up while the loader works, so they may include a part of batches that are not
    ready."""

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


class Meter:
    """Adds up the stats of a loader. Safe from any thread; a forked child must make its own. Times
    are nanoseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = self._samples = self._hits = self._misses = self._bytes = 0
        self._wait = self._step = self._gather = self._load = self._transfer = self._waited = self._measured = 0
        self._augment = self._hit = self._batch_augment = 0

    def batch(self, samples: int, hits: int, misses: int, nbytes: int, wait_ns: int, step_ns: int = 0) -> None:
        """The training loop got a batch: it waited wait_ns for it, and was busy step_ns before it
        asked."""
        with self._lock:
            self._batches += 1
            self._samples += samples
            self._hits += hits
            self._misses += misses
            self._bytes += nbytes
            self._wait += wait_ns
            self._step += step_ns

    def step(self, ns: int) -> None:
        """The training loop was busy with the last step of an epoch, which no batch follows."""
        with self._lock:
            self._step += ns

    def wait(self, ns: int) -> None:
        """The training loop waited for the end of an epoch, and got no batch."""
        with self._lock:
            self._wait += ns

    def gather(self, ns: int) -> None:
        with self._lock:
            self._gather += ns

    def load(self, ns: int, waited_ns: int = 0, measured_ns: int = 0, augment_ns: int = 0, hit_ns: int = 0) -> None:
        """Loads took ns. Of these, `augment=` took augment_ns, and reads of hits hit_ns. Where it is known, loads of
        measured_ns waited waited_ns for their source."""
        with self._lock:
            self._load += ns
            self._waited += waited_ns
            self._measured += measured_ns
            self._augment += augment_ns
            self._hit += hit_ns

    def batch_augment(self, ns: int) -> None:
        with self._lock:
            self._batch_augment += ns

    @property
    def part_seconds(self) -> tuple[float, float, float]:
        """Of `augment=`, of reads of hits in `load`, and of `batch_augment=`."""
        return self._augment / 1e9, self._hit / 1e9, self._batch_augment / 1e9

    @property
    def source_share(self) -> float | None:
        """The part of the loads in which they waited for the source; None: unknown."""
        return min(self._waited / self._measured, 1.0) if self._measured else None

    def transfer(self, ns: int) -> None:
        with self._lock:
            self._transfer += ns

    def stats(self) -> LoaderStats:
        with self._lock:
            return LoaderStats(
                batches=self._batches,
                samples=self._samples,
                hits=self._hits,
                misses=self._misses,
                bytes=self._bytes,
                wait_seconds=self._wait / 1e9,
                step_seconds=self._step / 1e9,
                gather_seconds=self._gather / 1e9,
                load_seconds=self._load / 1e9,
                transfer_seconds=self._transfer / 1e9,
            )
