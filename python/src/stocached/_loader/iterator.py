"""One pass over an epoch: the common part of the iterators of a loader."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._common import threads
from .._common.errors import ClosedError, InvalidError, NondeterministicDatasetError, StateError
from .._common.load_time import delay_ns, idle_ns
from .._common.notes import no_end
from .._common.reads_ahead import ahead_of
from .._common.warning import warn_user
from .._memory.mapping import keep_some_freed
from .._order.epoch import Shard
from .._trace.augment_time import spent_ns
from .._workers.dataset_states import Report, Restored
from .announcer import Announcer, say_unannounced
from .bad_samples import BadSample, all_bad
from .epoch_context import EpochContext
from .sampling import listed

_LEAVE = 1.0  # seconds: how long a close, and a program that ends, wait for threads in `next`
# The words of torch's warning: programs search logs for them.
_REPLICAS = (
    "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset replica at each worker. Please see "
    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
)


@dataclass
class Delivered:
    """A batch that is ready, and its counts."""

    data: Any
    number: int
    samples: int
    hits: int = 0
    bytes: int = 0
    report: Report | None = None  # report of the worker that made it
    bad: list[BadSample] = field(default_factory=list)  # left out


class Clocks:
    """The clocks of this thread before it loads, in nanoseconds."""

    __slots__ = ("augment", "delay", "idle", "start")

    def __init__(self) -> None:
        self.start, self.augment, self.idle, self.delay = time.monotonic_ns(), spent_ns(), idle_ns(), delay_ns()


class BatchIterator:
    """Gives the batches of one epoch. One thread at a time; not usable in a forked child, and
    cannot be pickled.

    Its end closes it. So do the loader, the garbage collector, the exit of the interpreter, and
    errors that are no Exception (Ctrl-C)."""

    # Of the class: an interrupt may come before the constructor has set an attribute.
    ended = False
    _announcer: Announcer | None = None

    def __init__(self, context: EpochContext) -> None:
        self._context = context
        self._pid = os.getpid()
        keep_some_freed()
        self._turn = threading.RLock()  # threads that share an iteration take turns
        self._returned = 0  # ns: when the training loop got its last batch
        self._step = 0  # ns: how long it worked on the last batch
        self._number = 0  # number of the next batch to plan
        self._planned = 0  # samples of the batches before
        self._given = 0  # batches to the training loop
        self._instead: BatchIterator | None = None
        self._overtaken = set(context.begun.overtaken)  # numbers of batches that came before an earlier one
        self._bad: set[Any] = set()  # indices of samples that were counted as bad
        # The length of an iterable dataset, if the program has read it.
        self._reported = context.setup.length_read
        self._why: str | None = None  # why it was closed, if the training loop did not close it
        shard, served = context.begun.shard, context.job.served
        # Has the samples of a batch read together, before workers ask for them one by one.
        self._ahead = None if context.job.iterable else ahead_of(context.job.dataset)
        say_unannounced(context.job.dataset, shard)
        # Of a Subset it cannot: the server knows the samples by their numbers in the cache.
        announces = served is not None and served.indices is None and served.cache.policy == "planned"
        if served is not None and shard is not None and announces and not context.gathers:
            self._announcer = Announcer(served.cache, shard, context.batch_size or 1)
        _all.add(self)

    @property
    def context(self) -> EpochContext:
        return self._context

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        """Batches of the whole epoch; TypeError if the sampler has no length."""
        return len(self._context.setup.index)

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iteration cannot be pickled; pickle the loader, and its state_dict()")

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise ClosedError(
                "this iteration belongs to the process that began it; iterate over the loader again in this one"
            )
        try:
            with self._turn:
                if not self._context.progress.begun and self._instead is None:
                    self._instead = self._context.renew(self)
                return self._in_turn() if self._instead is None else next(self._instead)
        finally:
            threads.stop_if_program_ends()

    def asked_for(self) -> None:
        """The program asks for this epoch, which was begun ahead."""

    def _in_turn(self) -> Any:
        context, start = self._context, time.monotonic_ns()
        self._step = step = start - self._returned if self._returned else 0
        if self.ended:
            if self._why is not None:
                raise ClosedError(self._why)
            raise StopIteration
        try:
            if context.notices is not None:
                context.notices.error.check()
            if self._announcer is not None:
                self._announcer.begin()
            batch = self._next()
            if batch.bad:
                self._note_bad(batch)
            if context.job.backend.pins:
                batch.data = self._pinned(batch)
            data = batch.data if context.batch_augment is None else self._augmented(batch)
        except StopIteration:
            context.progress.complete = True
            if self._announcer is not None:
                self._announcer.gave(context.progress.samples, complete=True)
            context.meter.add(wait=time.monotonic_ns() - start, step=step)
            if context.trace is not None:
                context.trace.stepped(context.epoch, self._given, start, step)
            self.close()
            self._say_dropped()
            raise
        except Exception as error:
            self._returned = now = time.monotonic_ns()
            if self._why is not None:  # another thread has ended it
                raise ClosedError(self._why) from error
            context.meter.add(wait=now - start, step=step)
            if context.trace is not None:
                context.trace.failed(context.epoch, self._given, start, now, step)
            if isinstance(error, NondeterministicDatasetError):
                error.args = (f"{str(error).rstrip()} The loader gave {context.meter.stats().batches} batches before.",)
            raise
        except BaseException as error:  # Ctrl-C at any step: a batch may be lost, or workers still write
            self.end(
                f"this iteration was interrupted by {type(error).__name__}; iterate over the loader again", harshly=True
            )
            raise
        self._count(batch)
        if self._announcer is not None:
            self._announcer.gave(context.progress.samples)
        context.progress.begun = True
        self._returned = now = time.monotonic_ns()
        context.meter.batch(batch.samples, batch.hits, batch.samples - batch.hits, batch.bytes, now - start, step)
        if context.trace is not None:
            context.trace.lap(
                start - step, start, now, context.epoch, self._given - 1, batch.samples, batch.hits, batch.bytes
            )
        if self._reported is not None:
            self._compare_length(self._reported)
        return data

    def _compare_length(self, reported: int) -> None:
        """Warns as torch does if an iterable dataset gives more than its length."""
        job, fetched = self._context.job, self._given + self._context.begun.skipped
        if fetched > reported:
            warnings.warn(
                f"Length of IterableDataset {job.dataset} was reported to be {reported}(when accessing len(dataloader)), but "
                f"{fetched} samples have been fetched. {_REPLICAS if job.workers else ''}",
                stacklevel=4,
            )

    def _say_dropped(self) -> None:
        """Warns if the epoch has no batch, as all its samples were left out."""
        setup, shard, samples = self._context.setup, self._context.begun.shard, 0
        if self._given or self._context.begun.skipped or not setup.batched or setup.iterable:
            return
        if isinstance(shard, Shard):
            samples = 0 if shard.start else len(shard)
            if shard.ends == "drop" and len(shard.epoch) and shard.start == samples == 0:
                self._say_empty(f'ends="drop" leaves out all {len(shard.epoch)} samples, for {shard.world_size} ranks')
        elif setup.drop_last:
            with contextlib.suppress(TypeError, NotImplementedError):  # a sampler without a length
                samples = len(setup.sampler)
        if setup.drop_last and 0 < samples < (setup.batch_size or 0):
            self._say_empty(f"drop_last=True leaves out its batch, which has {samples} of {setup.batch_size} samples")

    def _say_empty(self, why: str) -> None:
        warn_user(f"epoch {self._context.epoch} has no batch: {why}")

    def _note_bad(self, batch: Delivered) -> None:
        """Counts the samples that were left out of a batch. Raises BadSampleError if no other is left."""
        assert self._context.bad is not None
        self._context.bad.met(batch.bad, self._bad)
        if not batch.samples:
            self._fail(batch)
            raise all_bad(batch.bad)

    def _count(self, batch: Delivered) -> None:
        """Counts a batch that the training loop gets, for states."""
        progress = self._context.progress
        progress.samples, progress.batches = self._done()
        self._given += 1
        if self._context.job.iterable and self._context.job.workers:
            # Some planned batches do not exist: the worker's part had ended.
            progress.batches = self._given
        elif not self._context.in_order:
            self._overtaken = {number for number in (*self._overtaken, batch.number) if number >= progress.batches}
            progress.overtaken = sorted(self._overtaken)
        position = self._note(batch, self._context.begun.skipped + progress.batches)
        if self._context.begun.sampled is not None:
            self._context.begun.sampled.forget(position)

    def _note(self, batch: Delivered, position: int) -> int:
        """Notes that the training loop gets a batch. position: after it, as a state counts. Returns
        the position that a state continues from, which may be earlier."""
        return position

    def throw_away(self, batches: int) -> None:
        """Makes the first batches and drops them: the training loop got them before the state."""
        while self._context.progress.batches < batches:
            before = self._done()
            try:
                self._count(self._next())
            except StopIteration:
                return
            except Exception:
                if self._done() == before:
                    raise
                # else this batch raised before the state too

    def _drawn(self) -> Any:
        """The sampler's indices of the next batch. Skips batches that had overtaken others when the
        state was taken."""
        while self._number in self._context.begun.overtaken:
            next(self._context.wanted)
            self._number += 1
        wanted = next(self._context.wanted)
        if self._ahead is not None:
            wanted = wanted if isinstance(wanted, (int, np.ndarray)) else listed(wanted)
            self._ahead(np.array(wanted, np.int64, ndmin=1))
        return wanted

    def _next(self) -> Delivered:
        raise NotImplementedError

    def _check_ended(self) -> None:
        """Raises ClosedError if another thread has closed it, and so its workers answer no more."""
        if self.ended:
            raise ClosedError(self._why or "another thread has closed this iteration")

    def _pinned(self, batch: Delivered) -> Any:
        context = self._context
        start = time.monotonic_ns()
        data = context.job.backend.pin(batch.data)
        end = time.monotonic_ns()
        context.meter.add(transfer=end - start)
        if context.trace is not None:
            context.trace.transferred(context.epoch, batch.number, start, end, batch.samples, batch.bytes)
        return data

    def _augmented(self, batch: Delivered) -> Any:
        context, start = self._context, time.monotonic_ns()
        assert context.batch_augment is not None
        name = getattr(context.setup.batch_augment, "named", "batch_augment=")
        try:
            with context.job.counting():
                made = context.batch_augment(batch.data)
            if made is None and batch.data is not None:
                raise InvalidError(
                    f"{name} returned None: it must return the batch that the training loop gets. Is a return missing?"
                )
            return made
        except BaseException as error:
            self._fail(batch)
            if isinstance(error, StopIteration):
                raise no_end(error, name) from error
            raise
        finally:
            end = time.monotonic_ns()
            context.meter.add(batch_augment=end - start)
            if context.trace is not None:
                context.trace.batch_augmented(context.epoch, self._given, start, end)

    def _hits(self) -> int:
        """Samples that this thread got from the cache so far."""
        return 0 if self._context.cached is None else self._context.cached.thread_hits.count

    def _loaded_here(self, clocks: Clocks, number: int, index: int = -1, *, hit: bool) -> None:
        """The training loop's thread has just loaded a sample, or a batch. hit: the cache had all of it."""
        start, end, augment = clocks.start, time.monotonic_ns(), spent_ns() - clocks.augment
        waited, delay = 0 if hit else max(idle_ns() - clocks.idle, 1), delay_ns() - clocks.delay
        rest = end - start - augment
        measured = 0 if hit else max(rest - delay, 0)
        self._context.meter.add(
            load=end - start, waited=waited, measured=measured, augment=augment, hit=rest if hit else 0
        )
        if self._context.trace is not None:
            self._context.trace.loaded_here(
                self._context.epoch, number, start, end, index, hit=hit, augment_ns=augment, waited_ns=waited,
                delayed_ns=delay,
            )  # fmt: skip

    def _fail(self, batch: Delivered) -> None:
        """The training loop does not get the batch."""

    def _done(self) -> tuple[int, int]:
        """Samples and batches that the training loop has: those before the first pending batch."""
        return self._planned, self._number

    def end(self, why: str, *, harshly: bool = False) -> None:
        """Closes it. why: the error of later calls of `next`. harshly: also ends workers that the
        loader would keep."""
        if not self.ended:
            self._why = why
        self._close(harshly)

    def close(self) -> None:
        """Ends background work; no more batches come. May be called again."""
        self._close(False)

    def _close(self, harshly: bool, leave: float = _LEAVE) -> None:
        """leave: seconds that a thread in `next` gets to leave."""
        if os.getpid() == getattr(self, "_pid", -1):
            first, self.ended = not self.ended, True
            # A thread that waits in `next` sees it soon. One that loads a sample itself may not leave for long.
            turn: Any = getattr(self, "_turn", None)
            alone = turn is not None and turn.acquire(timeout=leave)
            try:
                self._stop(harshly)
            finally:
                if alone:
                    turn.release()
            if self._announcer is not None:
                self._announcer.close()
            if first and self._context.notices is not None:
                self._context.notices.warn()

    def _stop(self, harshly: bool) -> None:
        """Called by `_close`; maybe more than once, and maybe after the constructor has raised."""

    def __del__(self, ends: Any = sys.is_finalizing) -> None:
        if not ends():  # `_close_all` has closed it, and modules may be empty
            self.close()


_all: weakref.WeakSet[BatchIterator] = weakref.WeakSet()


@threads.at_exit
def _close_all() -> None:
    """Closes iterations before the interpreter ends, while threads still write into its memory. Daemon threads that
    iterate stop when they leave `next`."""
    iterations = list(_all)
    with contextlib.ExitStack() as ended:  # all of them, though one warns and warnings are errors
        for iteration in iterations:
            ended.callback(iteration._close, False, 0.0)
    until = time.monotonic() + _LEAVE
    for iteration in iterations:
        if iteration._pid == os.getpid():
            iteration._turn.acquire(timeout=max(until - time.monotonic(), 0))


def check_found(restored: Restored, found: int) -> None:
    """Raises StateError if the dataset gave fewer batches than came before the snapshots."""
    if found < sum(int(snapshot["batches"]) for snapshot in restored.parts):
        raise StateError(
            f"the state was taken after batch {restored.before} of an epoch, and the dataset has given {found}; is it another one?"
        )


def as_request(wanted: Any, batched: bool) -> tuple[Any, int]:
    """The argument of a fetcher for a sampler's indices, and their number of samples."""
    indices = wanted.tolist() if isinstance(wanted, np.ndarray) else listed(wanted) if batched else wanted
    return indices, len(indices) if batched else 1
