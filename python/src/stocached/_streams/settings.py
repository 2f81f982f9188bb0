"""What a stream was made with, and what its iterations have in common. All parts of this package
read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError
from .._common.numbers import seconds, whole
from .._common.ranks import rank_of
from .._common.sizes import parse_size
from .._memory.batch_pool import BatchPool
from .assignment import Groups, Places, Rows, steps
from .items import Items
from .reader import FileReader, Reader, read_itself
from .scheduler import State, StepScheduler
from .worker import MOST_WORKERS

ENDS = ("pad", "drop", "cycle")
ERRORS = ("raise", "skip")


@dataclass(eq=False, repr=False)
class StreamSettings:
    """The parameters of `Streams`, checked: it says what they mean. read: or a Reader. Raises InvalidError."""

    files: Sequence[Any]
    batch_size: int  # rows of this rank
    read: InitVar[Callable[..., Iterable[Any]] | Reader | None] = None
    _: KW_ONLY
    lengths: Any = None  # here an array of whole numbers, or None
    shuffle: bool = True
    seed: int = 0
    ends: Literal["pad", "drop", "cycle"] = "pad"
    errors: Literal["raise", "skip"] = "raise"
    num_workers: int = 0
    prefetch_batches: int = 4
    pool_bytes: int | str = "1GiB"
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    snapshot_every_n_steps: Any = 1  # here, as those below, a whole number and not None
    rank: Any = None
    world_size: Any = None
    groups: Any = None
    uneven: bool = False
    reader: Reader = field(init=False)  # opens files
    items: Items | None = field(default=None, init=False)  # what items are made of, once that is known
    batch_pool: tuple[BatchPool, int] | None = field(default=None, init=False)  # the last iteration's, and its process

    def __post_init__(self, read: Any) -> None:
        self.seed = whole("seed", self.seed)
        self.reader = read if isinstance(read, Reader) else FileReader(read_itself if read is None else read, self.seed)
        self.rank, self.world_size = rank_of(self.rank, self.world_size)
        self.groups = 0 if self.groups is None else whole("groups", self.groups, 1)
        self.batch_size = whole("batch_size", self.batch_size, 1)
        self.num_workers = whole("num_workers", self.num_workers)
        self.prefetch_batches = whole("prefetch_batches", self.prefetch_batches, 1)
        every = self.snapshot_every_n_steps
        self.snapshot_every_n_steps = 0 if every is None else whole("snapshot_every_n_steps", every)
        self.lengths = None if self.lengths is None else _lengths(self.lengths, self.files)
        self.groups = self.groups or (1 if self.lengths is not None else self.world_size)
        self.check()

    def check(self) -> None:
        """Raises InvalidError for impossible settings."""
        if len(self.files) == 0:
            raise InvalidError("there are no files")
        if self.ends not in ENDS:
            raise InvalidError(f"ends={self.ends!r} is none of {', '.join(ENDS)}, of a pipe uneven")
        if self.errors not in ERRORS:
            raise InvalidError(f"errors={self.errors!r} is none of {', '.join(ERRORS)}")
        if self.num_workers > MOST_WORKERS:
            raise InvalidError(f"num_workers={self.num_workers} is above {MOST_WORKERS}")
        parse_size(self.pool_bytes, "pool_bytes")
        seconds("timeout", self.timeout)
        if self.rows % self.groups:
            rows = f"{self.rows} rows (batch_size={self.batch_size} x world_size={self.world_size})"
            raise InvalidError(f"groups={self.groups} does not divide the {rows}")
        if self.lengths is None and self.groups % self.world_size:
            raise InvalidError(
                f"groups={self.groups} is no multiple of world_size={self.world_size}; it must be where lengths are not known: "
                "ranks cannot share a queue of files"
            )
        if self.lengths is None and self.world_size > 1 and self.ends != "cycle" and not self.uneven:
            raise InvalidError(
                f'ends="{self.ends}" over {self.world_size} ranks needs lengths=: ranks would end at different steps, and wait '
                'for each other for ever. Say lengths=, or ends="cycle", or uneven=True (of a pipe ends="uneven") if they do not wait'
            )
        if self.ends == "drop" and len(self.files) < self.rows:
            few = f"{len(self.files)} files are too few for {self.rows} rows"
            raise InvalidError(f'{few}: with ends="drop" there is no batch at all')

    @property
    def rows(self) -> int:
        """Rows of all ranks."""
        return self.batch_size * int(self.world_size)

    def keep(self, other: StreamSettings) -> None:
        """The next iteration has what an iteration of a copy of these settings has learnt, and its memory."""
        self.items, self.batch_pool = other.items, other.batch_pool

    def start(self, epoch: int) -> State:
        rows = self._new_rows(epoch)
        return State(epoch, 0, rows.first, rows.place.tolist(), rows.item.tolist(), rows.next)

    def scheduler(self, state: State) -> StepScheduler:
        """Settles the steps from a state on."""
        own = self.rank * self.batch_size - state.first_row
        rows = slice(own, own + self.batch_size)
        return StepScheduler(self._rows(state), rows, self.lengths, self.ends, state.step, state.snapshots)

    def steps(self, state: State) -> int:
        """How many there are from a state to the end of its epoch. TypeError if that is not known."""
        if self.lengths is None or self.ends == "cycle":
            raise TypeError(
                'batches are counted with lengths=, of a pipe also after measure(), and without ends="cycle"'
            )
        return steps(self._rows(state), self.lengths, self.ends == "drop")

    def _rows(self, state: State) -> Rows:
        """The rows that this rank assigns, in that state."""
        rows = self._new_rows(state.epoch)
        rows.restore(state.place, state.item, state.next)
        return rows

    def _new_rows(self, epoch: int) -> Rows:
        """The rows that this rank assigns, before any has a file: its own, or those of all ranks if lengths are
        known."""
        places = Places(len(self.files), self.seed, self.shuffle, epoch, self.ends == "cycle")
        first, count = (0, self.rows) if self.lengths is not None else (self.rank * self.batch_size, self.batch_size)
        return Rows(places, Groups(self.rows, self.groups), first, count)


def _lengths(lengths: Any, files: Sequence[Any]) -> npt.NDArray[np.int64]:
    array = np.asarray(lengths)
    if array.shape != (len(files),) or array.dtype.kind not in "iu":
        want = f"a whole number for each of the {len(files)} files"
        raise InvalidError(f"lengths are {array.dtype}{list(array.shape)}, and must be {want}")
    if array.size and int(array.min()) < 0:
        raise InvalidError(f"file {int(array.argmin())} has a length of {int(array.min())}")
    if array.size and not array.any():
        raise InvalidError(f"all {len(files)} files have a length of 0")
    return array.astype(np.int64)
