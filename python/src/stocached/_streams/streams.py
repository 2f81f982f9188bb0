"""Contiguous batches: row r of a batch continues where row r of the batch before it stopped. Many
files or generators of unequal length.

docs/guides/streams.md shows how to use it; docs/spec/stream-rows.md says which file a row reads,
and when."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError
from .._common.numbers import whole
from .._common.ranks import rank_of
from .._common.sizes import parse_size
from . import checkpoint
from .assignment import Groups, Places, Rows, steps
from .batch import StreamBatch
from .iterator import StreamIterator
from .open_files import Failure
from .reader import Reader, read_itself
from .scheduler import State, Step, StepScheduler
from .settings import StreamSettings
from .workers import check_workers

ENDS = ("pad", "drop", "cycle")
ERRORS = ("raise", "skip")


@dataclass(frozen=True)
class StreamFailure:
    """A file that was not read to its end, with errors="skip". item: the first that is missing.
    message, trace: what was raised, and where."""

    file: Any
    number: int  # position of the file in the list of files
    item: int
    message: str
    trace: str


class Streams(StreamSettings):
    """Batches of `batch_size` rows, each of which reads one file after the other.

    files: a sequence of whatever `read` takes: paths, names, numbers.
    read: a function of a file that returns an iterable of its items. It runs in the workers. None: files are
        sequences, or functions without arguments that return an iterable. Items are arrays of one shape and dtype for
        all files, or tuples, lists and dicts of them.
        With a parameter `start` it gets the number of the item to begin with. Without one, the items before a
        checkpoint are read and discarded. With a parameter `rng` it gets a numpy Generator that depends only on seed,
        epoch and file.
        If the iterable or its iterator has `state_dict` and `load_state_dict`, a checkpoint has its state. Only the
        items since that state are read and discarded.
    lengths: how many items each file has. With them, `len()` works and all ranks end together.
    shuffle, seed: the order of files, another one in each epoch.
    ends: of rows that find no more files. "pad": they are empty until all rows end. "drop": the epoch ends before the
        first batch that would not be full. "cycle": the files of the next epoch follow, without end.
    errors: "raise", or "skip": leaves out the rest of a file that fails.
    num_workers: processes that read; 0: the training loop reads. prefetch_batches: that workers read ahead.
    pool_bytes: the most shared memory for batches, also for those that you keep. Further batches are copied.
    timeout: seconds to wait for a batch; 0: no limit.
    snapshot_every_n_steps: batches between two states of such an iterable. 0 or None: only when a file is opened.
    worker_init_fn: called with the number of each worker before it reads.
    multiprocessing_context: "fork", "forkserver", "spawn", or a context.
    rank, world_size: default: from torch.distributed, or RANK and WORLD_SIZE, or 0 of 1.
    groups: of rows that take files from one queue, over all ranks. Without lengths, a multiple of world_size.
    uneven: ranks may end at different steps.

    Iterations may run side by side; the state is that of the one that gave a batch last. Raises InvalidError for
    impossible settings."""

    def __init__(
        self,
        files: Sequence[Any],
        batch_size: int,
        read: Callable[..., Iterable[Any]] | None = None,
        *,
        lengths: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        ends: Literal["pad", "drop", "cycle"] = "pad",
        errors: Literal["raise", "skip"] = "raise",
        num_workers: int = 0,
        prefetch_batches: int = 4,
        pool_bytes: int | str = "1GiB",
        timeout: float = 0,
        snapshot_every_n_steps: int | None = 1,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        groups: int | None = None,
        uneven: bool = False,
    ) -> None:
        self.files, self.batch_size = files, whole("batch_size", batch_size, 1)
        self.shuffle, self.seed = shuffle, whole("seed", seed)
        self.ends, self.errors = ends, errors
        self.num_workers = whole("num_workers", num_workers)
        self.prefetch_batches = whole("prefetch_batches", prefetch_batches, 1)
        self.timeout = timeout
        every = 0 if snapshot_every_n_steps is None else snapshot_every_n_steps
        self.snapshot_every_n_steps = whole("snapshot_every_n_steps", every)
        self.pool_bytes = pool_bytes
        self.worker_init_fn, self.multiprocessing_context, self.uneven = worker_init_fn, multiprocessing_context, uneven
        self.rank, self.world_size = rank_of(rank, world_size)
        self.lengths = None if lengths is None else _lengths(lengths, files)
        usual = 1 if lengths is not None else self.world_size
        self.groups = whole("groups", groups, 1) if groups is not None else usual
        _check(self)
        self.reader = Reader(read if read is not None else read_itself, self.seed)
        self.failures: list[StreamFailure] = []
        self._next = 0  # the epoch that the next iteration reads
        self._loaded: State | None = None  # or the state that it continues from
        self._at = self._start(0)

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches of the next epoch. After `load_state_dict`, those of the state's epoch from where it stopped.
        Each iteration has an epoch of its own, even if the one before was not read to its end."""
        state, self._loaded = self._loaded or self._start(self._next), None
        self._next = state.epoch + 1
        self._at = state
        return StreamIterator(self, self._scheduler(state), self)

    def __len__(self) -> int:
        """How many batches the next iteration has. TypeError if that is not known."""
        if self.lengths is None or self.ends == "cycle":
            raise TypeError('how many batches there are is known with lengths=, and without ends="cycle"')
        state = self._loaded or self._start(self._next)
        rows, _ = self._rows(state)
        return steps(rows, self.lengths, self.ends == "drop")

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration; later iterations count up from it. The iteration begins at the epoch's
        start, except for the epoch of a loaded state, which continues from the state."""
        epoch = whole("epoch", epoch)
        if self._loaded is not None and self._loaded.epoch == epoch:
            return
        self._next, self._loaded = epoch, None
        self._at = self._start(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place of the iteration: after the last batch that it gave. Numbers, strings, lists of them, and the
        states of iterables that have one."""
        return checkpoint.to_dict(self, self._at)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """The next iteration continues from the state. If the number of ranks has changed, give a list of the states of
        all ranks, unless lengths are known and no iterable has a state.

        Raises InvalidError if the state is of other files, rows or settings, or lacks rows of this rank."""
        loaded = checkpoint.from_dicts(self, state)
        self._next, self._loaded, self._at = loaded.epoch, loaded, loaded

    def dataset(self) -> Any:
        """A torch IterableDataset of these batches, as tensors, for torch's own DataLoader with
        batch_size=None. Imports torch."""
        from .torch_dataset import StreamsDataset

        return StreamsDataset(self)

    def part(self, number: int, parts: int) -> Streams:
        """The same streams for one of several processes that share the rows of this rank, without workers. They
        continue where these streams are. Raises InvalidError."""
        if self.batch_size % parts:
            rows = f"batch_size={self.batch_size} rows"
            raise InvalidError(f"{rows} cannot be dealt to {parts} workers of a DataLoader evenly")
        if self.lengths is None and self.groups % (parts * self.world_size):
            raise InvalidError(
                f"{parts} workers of a DataLoader cannot tell each other where files end, and lengths are not known: "
                f"say lengths=, or groups={parts * self.world_size}, or leave the workers to the stream: "
                f"num_workers={parts} here, and 0 there"
            )
        share = Streams(
            self.files,
            self.batch_size // parts,
            self.reader.read,
            lengths=self.lengths,
            shuffle=self.shuffle,
            seed=self.seed,
            ends=self.ends,
            errors=self.errors,
            pool_bytes=self.pool_bytes,
            snapshot_every_n_steps=self.snapshot_every_n_steps,
            rank=self.rank * parts + number,
            world_size=self.world_size * parts,
            groups=self.groups,
            uneven=self.uneven,
        )
        if self._loaded is not None:
            share.load_state_dict(self.state_dict())
        else:
            share.set_epoch(self._next)
        return share

    def _rows(self, state: State) -> tuple[Rows, slice]:
        """The rows that this rank assigns, in that state, and which of them it reads."""
        rows = self._new_rows(state.epoch)
        rows.restore(state.place, state.item, state.next)
        own = self.rank * self.batch_size - rows.first
        return rows, slice(own, own + self.batch_size)

    def _new_rows(self, epoch: int) -> Rows:
        """The rows that this rank assigns, before any has a file: its own, or those of all ranks if lengths are
        known."""
        places = Places(len(self.files), self.seed, self.shuffle, epoch, self.ends == "cycle")
        first, count = (0, self.rows) if self.lengths is not None else (self.rank * self.batch_size, self.batch_size)
        return Rows(places, Groups(self.rows, self.groups), first, count)

    def _start(self, epoch: int) -> State:
        rows = self._new_rows(epoch)
        return State(epoch, 0, rows.first, rows.place.tolist(), rows.item.tolist(), rows.next)

    def _scheduler(self, state: State) -> StepScheduler:
        rows, own = self._rows(state)
        return StepScheduler(rows, own, self.lengths, self.ends, state.step, state.snapshots)

    def _given(self, step: Step) -> None:
        self._at = step.state

    def _ended(self, epoch: int) -> None:
        self._at = self._start(epoch + 1)

    def _failed(self, failure: Failure) -> None:
        """A file was given up."""
        number, error = failure.assignment.number, failure.error
        made = StreamFailure(self.files[number], number, failure.item, error.summary, error.trace)
        self.failures.append(made)
        text = f"file {made.number} ({made.file!r}) is left out from item {made.item} on: {made.message}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


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


def _check(s: Streams) -> None:
    """Raises InvalidError for impossible settings."""
    if len(s.files) == 0:
        raise InvalidError("there are no files")
    if s.ends not in ENDS:
        raise InvalidError(f"ends={s.ends!r} is none of {', '.join(ENDS)}")
    if s.errors not in ERRORS:
        raise InvalidError(f"errors={s.errors!r} is none of {', '.join(ERRORS)}")
    check_workers(s.num_workers)
    parse_size(s.pool_bytes, "pool_bytes")
    if s.timeout < 0:
        raise InvalidError(f"timeout={s.timeout} is below 0")
    if s.rows % s.groups:
        rows = f"{s.rows} rows (batch_size={s.batch_size} x world_size={s.world_size})"
        raise InvalidError(f"groups={s.groups} does not divide the {rows}")
    if s.lengths is None and s.groups % s.world_size:
        raise InvalidError(
            f"groups={s.groups} is no multiple of world_size={s.world_size}; it must be where lengths are not known: "
            "ranks cannot share a queue of files"
        )
    if s.lengths is None and s.world_size > 1 and s.ends != "cycle" and not s.uneven:
        raise InvalidError(
            f'ends="{s.ends}" over {s.world_size} ranks needs lengths=: ranks would end at different steps, and wait '
            'for each other for ever. Say lengths=, or ends="cycle", or uneven=True if they do not wait'
        )
    if s.ends == "drop" and len(s.files) < s.rows:
        few = f"{len(s.files)} files are too few for {s.rows} rows"
        raise InvalidError(f'{few}: with ends="drop" there is no batch at all')


for _kind in (StreamFailure, Streams):
    _kind.__module__ = "stocached.streams"  # where users find them
