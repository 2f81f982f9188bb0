"""One epoch of a loader: how it began, its settings, and the progress of the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .._datasets.notices import Notices
from .._order.epoch import Shard
from .._order.nodes import Deal
from .._order.walk import Walk
from .._random import generator_states
from .._random.generator import plain
from .._samples.batch_layout import Layout
from .._workers.dataset_states import Here, Restored, Snapshots
from .bad_samples import BadSamples
from .job import Job
from .options import gather_threads
from .sampling import Sampled
from .setup import Setup
from .stats import Meter
from .tracing import Tracing


@dataclass(frozen=True)
class Generators:
    """The states of the generators at one moment."""

    own: Any  # state of the loader's own generator; None: it has none
    start: generator_states.Taken  # state of the global generators

    def plain(self) -> dict[str, Any]:
        return {"own": None if self.own is None else plain(self.own), "start": self.start.plain()}


@dataclass
class Begun:
    """An epoch that has begun: what a state of it needs. The loader keeps it longer than the iteration."""

    epoch: int
    base_seed: int  # seed of the workers
    key: int  # key of all random numbers of this epoch's samples
    shard: Shard | Deal | None = None  # consecutive samples of an order of stocached; None: another sampler gives them
    walk: Walk | None = None  # the walk of a pipe without an index, in place of a shard
    first_dealt: bool = False  # no epoch of this loader was dealt to nodes before
    # Of another sampler:
    skipped: int = 0  # batches before the state that the epoch continues from
    generators: Generators | None = None  # when the epoch began
    turn: int = 0  # epochs before this one that had the same base seed
    sampled: Sampled | None = None  # holds the sampler's states
    sampler_epoch: Any = None  # when the first batch was planned
    pipes: Any = None  # settings of torch's DataPipes; None: the dataset is no DataPipe
    restored: Restored | None = None  # the part of a state that the epoch continues from
    overtaken: frozenset[int] = frozenset()  # numbers of batches that the training loop got before that state

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
    """One epoch of a loader, for the iteration that reads it."""

    setup: Setup
    job: Job
    begun: Begun
    wanted: Iterator[Any]  # the indices of one batch after the other
    meter: Meter
    bad: BadSamples | None  # None: a bad sample is an error
    trace: Tracing | None
    by_rows: bool  # batches are filled row by row, else made whole
    layout: Layout | None  # layout of batches that are gathered from the cache
    row_layout: Layout | None  # layout of rows that workers make, if it is known before the first
    ours: bool  # samples are made without a function of the program
    changes: tuple[int, ...] | None  # changes of the cache, before the first batch was begun ahead; None: not ahead
    follow: Callable[[], None] | None  # called when all batches are begun
    renew: Callable[[Any], Any]  # called before the first batch; gives an iteration to read instead, or None
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        """What each batch needs."""
        setup = self.setup
        self.epoch, self.batch_size = self.begun.epoch, self.job.batch_size
        self.cached, self.timeout = setup.cached, setup.timeout
        self.in_order = setup.in_order or setup.num_workers == 0
        self.batch_augment = setup.batch_function()
        self.notices: Notices | None = None if setup.cached is None else setup.cached.notices
        self.ahead, self.threads = setup.ahead, gather_threads(setup.gather_threads)
        self.ahead_bytes, self.pool_bytes = setup.bytes_of("prefetch_bytes"), setup.bytes_of("pool_bytes")

    @property
    def only_hits(self) -> bool:
        """Whether batches that need loads wait until the program asks for the epoch."""
        return self.changes is not None and not self.ours and self.job.workers > 0

    @property
    def snapshot_every(self) -> int | None:
        """Batches between two snapshots of workers; None: no snapshots."""
        return self.setup.snapshot_every if self.job.snapshots else None

    @property
    def ordered(self) -> bool:
        """Whether samples come in an order of stocached, which can be read ahead."""
        return self.begun.shard is not None

    @property
    def gathers(self) -> bool:
        """Whether rows are gathered directly from the cache. Not with a layout of samples: their leaves
        are no columns of the cache."""
        return self.cached is not None and self.layout is not None
