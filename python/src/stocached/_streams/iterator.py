"""One iteration over a stream: settles steps, has their items read into batches, and gives them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .._common.errors import ClosedError, StateError, StreamError
from .._common.sizes import parse_size
from .._memory.batch_pool import BatchPool
from .._workers.pool import Pool
from .assignment import NONE
from .batch import StreamBatch
from .items import Array, Items
from .open_files import Failure, FileFailed, OpenFiles, first_item
from .scheduler import Step, StepScheduler
from .settings import StreamSettings
from .workers import StreamWorkers, start_pool


class InProcessReader:
    """Reads in the thread that asks, if there are no workers."""

    def __init__(self, streams: StreamSettings, scheduler: StepScheduler, batch_pool: BatchPool) -> None:
        self._streams, self._scheduler, self._batch_pool = streams, scheduler, batch_pool
        self._known = streams.lengths is not None
        self._open_files = OpenFiles(
            streams.reader, streams.files, streams.errors == "skip", streams.snapshot_every_n_steps
        )
        self._late: FileFailed | None = None  # a failure behind the last step
        self.items = streams.items  # this is a Batch
        self.arrays: Sequence[Array] = ()
        for assignment in scheduler.begin():
            self._open_files.add(assignment)

    def next(self) -> tuple[Step, Items, Sequence[Array]] | None:
        """As StreamWorkers.next."""
        step = None
        if self._late is not None:
            raise self._late
        if self._known:
            step = self._scheduler.known()
            if step is None:
                return None
            if self.items is None and not step.mask.any():
                self._know(first_item(self._streams.reader, self._streams.files, self._streams.lengths))
            for assignment in step.assignments:
                self._open_files.add(assignment)
        if self.items is not None:
            self.arrays = self._new(self.items)
        put = self._open_files.put
        waiting = [row for row in range(self._streams.batch_size) if not self._put(row, step)]
        while not self._known and waiting:
            assignments = self._scheduler.round(waiting)
            for assignment in assignments:
                self._open_files.add(assignment)
            waiting = [assignment.row for assignment in assignments if not put(assignment.row, self)]
        step = step or self._scheduler.finish()
        if step is None or self.items is None:
            return None
        arrays, self.arrays = self.arrays, ()  # nothing of it stays here
        self._scheduler.snapshots.add(self._open_files.snapshots)
        self._open_files.snapshots.clear()
        return self._scheduler.give(step), self.items, arrays

    def _put(self, row: int, step: Step | None) -> bool:
        try:
            return self._open_files.put(row, self)
        except FileFailed as failed:
            if step is None or failed.failure.step <= step.number:
                raise
            self._late = self._late or failed  # the item of this step is there
            return True

    def learn(self, row: int, value: Any) -> bool:
        """As Batch.learn."""
        self.arrays = self._new(self._know(Items(value)))
        return True

    def _know(self, items: Items) -> Items:
        self.items = self._streams.items = items
        return items

    def _new(self, items: Items) -> list[Array]:
        rows = self._streams.batch_size
        self._batch_pool.resize(items.nbytes(rows))
        lease = self._batch_pool.take()
        return items.arrays(lease.array() if lease is not None else np.empty(items.nbytes(rows), np.uint8), rows)

    def failures(self) -> list[Failure]:
        """As StreamWorkers.failures."""
        taken, self._open_files.failures = self._open_files.failures, []
        return taken

    def close(self, *, harshly: bool = False) -> None:
        self._open_files.close()


class Progress:
    """What an iteration tells how far it is."""

    def _given(self, step: Step) -> None:
        """The training loop gets the batch of this step."""

    def _ended(self, epoch: int) -> None:
        """The training loop has had all batches of this epoch."""

    def _failed(self, failure: Failure) -> None:
        """A file was given up."""

    def _read(self, step: int, answers: Any) -> None:
        """Workers have read a step. answers: of a task queue. Called in any thread."""


def batch_pool_of(streams: StreamSettings) -> BatchPool:
    """That of the last iteration, if no other one has it."""
    batch_pool, pid = streams.batch_pool or (None, 0)
    streams.batch_pool = None
    if batch_pool is None or pid != os.getpid():  # a forked child must not write into its parent's batches
        batch_pool = BatchPool(parse_size(streams.pool_bytes), shared=streams.num_workers > 0)
    return batch_pool


class StreamIterator(Iterator[StreamBatch]):
    """The batches of one epoch, or without end."""

    def __init__(
        self,
        streams: StreamSettings,
        scheduler: StepScheduler,
        progress: Progress,
        pool: Pool | None = None,
        *,
        keep: bool = False,
    ) -> None:
        """pool: None: the iteration starts its workers, if it has some. keep: the next iteration has them too."""
        self._streams, self._progress, self._epoch = streams, progress, scheduler.rows.places.epoch
        # Row, first step, end: items that a file that failed does not have.
        self._gaps: list[tuple[int, int, int]] = []
        self._numbers = np.arange(streams.batch_size) + streams.rank * streams.batch_size
        self._source: InProcessReader | StreamWorkers | None = None
        self._pid = os.getpid()
        self._batch_pool = batch_pool_of(streams) if pool is None else pool.batch_pool
        if streams.num_workers:
            pool = pool or start_pool(streams, self._batch_pool)
            self._source = StreamWorkers(streams, scheduler, pool, progress._read, keep=keep)
        else:
            self._source = InProcessReader(streams, scheduler, self._batch_pool)

    def __next__(self) -> StreamBatch:
        if os.getpid() != self._pid:
            raise ClosedError("this iteration belongs to the process that began it; iterate again in this one")
        source = self._source  # another thread may close the iteration at any time
        if source is None:
            raise StopIteration
        try:
            got = source.next()
        except FileFailed as failed:
            self.close()
            cause = failed.__cause__ or failed.failure.error.rebuilt()
            raise self._error(failed.failure, cause) from cause
        except BaseException as error:
            self.close(harshly=not isinstance(error, Exception))
            raise
        self._note(source.failures())
        if got is None:
            self._progress._ended(self._epoch)
            self.close()
            raise StopIteration
        return self._batch(*got)

    def _batch(self, step: Step, items: Items, arrays: Sequence[Array]) -> StreamBatch:
        for row, first, end in self._gaps:
            if first <= step.number < end:
                step.mask[row] = False
                step.files[row] = step.positions[row] = NONE
        if not step.mask.all():
            for array in arrays:
                array[~step.mask] = 0
        self._progress._given(step)
        value, starts, rows = items.give(arrays), step.positions == 0, self._numbers.copy()
        return StreamBatch(value, step.mask, starts, rows, step.files, step.positions, step.number)

    def _note(self, failures: list[Failure]) -> None:
        for failure in failures:
            assignment = failure.assignment
            if assignment.length is not None:
                self._gaps.append((assignment.row, failure.step, assignment.step + assignment.length - assignment.item))
        for failure in failures:
            self._progress._failed(failure)  # it warns, which may be an error

    def _error(self, failure: Failure, cause: BaseException) -> StreamError | StateError:
        workers = min(self._streams.num_workers, self._streams.batch_size)
        row, number = failure.assignment.row, failure.assignment.number
        file = self._streams.files[number]
        worker = f", worker {row % workers}" if workers else ""
        where = f"file {number} ({file!r}), item {failure.item}, row {self._numbers[row]}{worker}"
        if isinstance(cause, StateError):
            return StateError(f"{where}: {cause}")
        return StreamError(f"{where}: {failure.error.summary}", file, number, failure.item)

    def close(self, *, harshly: bool = False) -> None:
        """Closes files and ends workers. Called by itself at the end of the epoch, when the
        iterator is gone, and when the interpreter ends. harshly: also ends workers that are kept."""
        source, self._source = self._source, None
        if source is not None:
            source.close(harshly=harshly)
            self._streams.batch_pool = self._batch_pool, self._pid

    def __del__(self) -> None:
        self.close()
