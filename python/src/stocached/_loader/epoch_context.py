"""One epoch of a loader: how it began, its settings, and the progress of the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .._datasets.notices import Notices
from .._order.epoch import Shard
from .._order.nodes import Deal
from .._random import generator_states
from .._random.generator import plain
from .._workers.dataset_states import Here, Restored, Snapshots
from .bad_samples import BadSamples
from .job import Job
from .sampling import Sampled


@dataclass(frozen=True)
class Generators:
    """The states of the generators at one moment."""

    own: Any  # of the loader's own generator; None: it has none
    start: generator_states.Taken  # of the global generators

    def plain(self) -> dict[str, Any]:
        return {"own": None if self.own is None else plain(self.own), "start": self.start.plain()}


@dataclass
class Begun:
    """An epoch that has begun: what a state of it needs. The loader keeps it longer than the iteration."""

    epoch: int
    base_seed: int  # of the workers
    key: int  # of all random numbers of this epoch's samples
    shard: Shard | Deal | None = None  # consecutive samples of an order of stocached; None: another sampler gives them
    first_dealt: bool = False  # no epoch of this loader was dealt to nodes before
    # Of another sampler:
    skipped: int = 0  # batches before the state that the epoch continues from
    generators: Generators | None = None  # when the epoch began
    turn: int = 0  # epochs before this one that had the same base seed
    sampled: Sampled | None = None  # holds the sampler's states
    sampler_epoch: Any = None  # when the first batch was planned
    pipes: Any = None  # settings of torch's DataPipes; None: the dataset is no DataPipe
    restored: Restored | None = None  # the part of a state that the epoch continues from

    def note_epoch(self, sampler: Any) -> None:
        self.sampler_epoch = getattr(sampler, "epoch", None)


@dataclass
class Progress:
    """The batches of an epoch that the training loop has got."""

    samples: int = 0
    batches: int = 0
    begun: bool = False
    overtaken: list[int] = field(default_factory=list)  # numbers of batches that came before an earlier one
    complete: bool = False
    snapshots: Snapshots | Here | None = None  # states of workers, or of the dataset in this process


@dataclass
class EpochContext:
    """The settings of a loader that an iteration uses."""

    job: Job
    begun: Begun
    wanted: Iterator[Any]  # the indices of one batch after the other
    batch_size: int | None
    ahead: int  # batches
    ahead_bytes: int
    pool_bytes: int
    timeout: float
    in_order: bool
    batch_augment: Any
    threads: int
    cached: Any  # CachedSamples or None
    meter: Any
    bad: BadSamples | None  # of the loader; None: a bad sample is an error
    trace: Any
    progress: Progress
    by_rows: bool  # batches are filled row by row, else made whole
    sampler: Any  # its length, if it has one, is the number of batches
    reported: int | None  # the length of an iterable dataset, if the program has read it
    snapshot_every: int | None = None  # batches between two snapshots of workers; None: no snapshots
    overtaken: frozenset[int] = frozenset()  # numbers of batches that the training loop got before the state
    layout: Any = None  # of batches that are gathered from the cache
    row_layout: Any = None  # of rows that workers make, if it is known before the first
    follow: Callable[[], None] | None = None  # called when all batches are begun
    changes: tuple[int, ...] = ()  # of the cache, before the first batch was begun ahead
    ours: bool = True  # samples are made without a function of the program
    only_hits: bool = False  # until the program asks for the epoch
    notices: Notices | None = None  # of a dataset that is cached
    # Called before the first batch; gives an iteration to read instead, or None.
    renew: Callable[[Any], Any] | None = None

    @property
    def epoch(self) -> int:
        return self.begun.epoch

    @property
    def ordered(self) -> bool:
        """Whether samples come in an order of stocached, which can be read ahead."""
        return self.begun.shard is not None

    @property
    def gathers(self) -> bool:
        """Whether rows are gathered directly from the cache. Not with a layout of samples: their leaves
        are no columns of the cache."""
        return self.cached is not None and self.layout is not None
