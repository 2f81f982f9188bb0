"""Contiguous batches: row r of a batch continues where row r of the batch before it stopped. Many
files or generators of unequal length.

docs/guides/streams.md shows how to use it; docs/spec/stream-rows.md says which file a row reads,
and when."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.numbers import whole
from . import checkpoint
from .batch import StreamBatch
from .iterator import Progress, StreamIterator
from .open_files import Failure
from .scheduler import State, Step
from .settings import StreamSettings


@dataclass(frozen=True)
class StreamFailure:
    """A file that was not read to its end, with errors="skip". item: the first that is missing.
    message, trace: what was raised, and where."""

    file: Any
    number: int  # position of the file in the list of files
    item: int
    message: str
    trace: str


@dataclass(eq=False, repr=False)
class Streams(StreamSettings, Progress):
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

    failures: list[StreamFailure] = field(default_factory=list, init=False)  # files that errors="skip" left out
    _next: int = field(default=0, init=False)  # the epoch that the next iteration reads
    _loaded: State | None = field(default=None, init=False)  # or the state that it continues from
    _at: State = field(init=False)

    def __post_init__(self, read: Any) -> None:
        super().__post_init__(read)
        self._at = self.start(0)

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches of the next epoch. After `load_state_dict`, those of the state's epoch from where it stopped.
        Each iteration has an epoch of its own, even if the one before was not read to its end."""
        state, self._loaded = self._loaded or self.start(self._next), None
        self._next = state.epoch + 1
        self._at = state
        return StreamIterator(self, self.scheduler(state), self)

    def __len__(self) -> int:
        """How many batches the next iteration has. TypeError if that is not known."""
        return self.steps(self._loaded or self.start(self._next))

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration; later iterations count up from it. The iteration begins at the epoch's
        start, except for the epoch of a loaded state, which continues from the state."""
        epoch = whole("epoch", epoch)
        if self._loaded is not None and self._loaded.epoch == epoch:
            return
        self._next, self._loaded = epoch, None
        self._at = self.start(epoch)

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

    def _given(self, step: Step) -> None:
        self._at = step.state

    def _ended(self, epoch: int) -> None:
        self._at = self.start(epoch + 1)

    def _failed(self, failure: Failure) -> None:
        """A file was given up."""
        number, error = failure.assignment.number, failure.error
        made = StreamFailure(self.files[number], number, failure.item, error.summary, error.trace)
        self.failures.append(made)
        text = f"file {made.number} ({made.file!r}) is left out from item {made.item} on: {made.message}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


Streams.__module__ = "stocached.streams"  # where users find it
