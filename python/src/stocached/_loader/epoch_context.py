"""What one epoch of a loader is: its settings, and how far the training loop has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .._datasets.notices import Notices
from .._workers.dataset_states import Here, Restored, Snapshots
from .job import Job
from .sampling import Sampled


@dataclass
class Progress:
    """What the training loop has got of an epoch."""

    samples: int = 0
    batches: int = 0
    begun: bool = False
    overtaken: list[int] = field(default_factory=list)  # numbers of batches that came before an earlier one
    complete: bool = False
    snapshots: Snapshots | Here | None = None  # states of workers, or of the dataset in this process


@dataclass
class EpochContext:
    """What an iteration needs to know of its loader."""

    job: Job
    wanted: Iterator[Any]  # indices of the next batch, again and again
    batch_size: int | None
    ahead: int  # batches
    ahead_bytes: int
    ring_bytes: int
    timeout: float
    in_order: bool
    batch_augment: Any
    threads: int
    cached: Any  # CachedSamples or None
    meter: Any
    trace: Any
    epoch: int
    began: dict[str, Any]  # what a state of the epoch needs
    progress: Progress
    ordered: bool  # in an order of ours, which may be asked ahead
    by_rows: bool  # batches are put together row by row, else made whole
    sampler: Any  # that says how many batches there are, if it does
    reported: int | None  # samples that an iterable dataset has said it has, if it was asked
    sampled: Sampled | None = None  # holds the sampler's states
    snapshot_every: int | None = None  # batches from one snapshot of workers to the next; None: states hold none
    restored: Restored | None = None  # what the epoch takes out of a state
    overtaken: frozenset[int] = frozenset()  # numbers of batches that the training loop got before the state
    layout: Any = None
    follow: Callable[[], None] | None = None  # to be called when all batches are on their way
    notices: Notices | None = None  # of a dataset that is cached
    renew: Callable[[Any], Any] | None = None  # called before the first batch: an iteration to read instead
