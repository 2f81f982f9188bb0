"""The batches of a dataset of lists. Workers read runs of windows, and answer with blocks of items. When the items of a
batch are there, any worker makes it (docs/spec/workers.md)."""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._datasets.lists import Entry
from .._memory.batch_pool import Lease
from .._workers import serialization
from .._workers.task_queue import place_of
from .bad_samples import BadSample
from .columns import joined
from .epoch_context import EpochContext
from .iterator import BatchIterator, Clocks, Delivered, array_bytes
from .lists_reader import Block, Finisher, Read, Reader, Run, load
from .tasks import BATCH, ERROR, ITEMS, NO_BUFFER
from .worker_runtime import Asked, WorkerRuntime

_AHEAD = 16  # batches of items that are read ahead, for each worker
_SHORT = 5_000_000  # ns: a run that is read faster is followed by a longer one
_LONG = 50_000_000  # the same for shorter ones
_MOST_WINDOWS = 4096  # of a run


@dataclass
class _Answer:
    """The memory of what a worker has read. It is given back after its last item."""

    offset: int
    length: int
    left: int  # items that are in no batch that is ready


@dataclass
class _Rest:
    """What is left of a block. windows: those that its run had then. batch: what it holds, if it is a batch and was
    read."""

    answer: _Answer
    block: Block
    windows: range
    used: int = 0
    batch: Any = None

    @property
    def items(self) -> int:
        return self.block.items - self.used


@dataclass
class _Run:
    windows: range
    skip: int  # items of these windows that were read
    worker: int | None = None  # which reads it; None: any
    asked: Asked | None = None
    ended: bool = False
    error: Any = None  # met after the items that are left
    rest: deque[_Rest] = field(default_factory=deque)

    @property
    def items(self) -> int:
        return sum(rest.items for rest in self.rest)


@dataclass
class _Made:
    """A batch of parts of blocks. task: of the worker that makes it; None: the blocks are batches."""

    number: int
    before: int  # items
    parts: list[tuple[_Rest, int, int]]  # each with its first item and how many
    place: tuple[int, int]  # window and skip after it
    task: Asked | None
    lease: Lease | None


class ListsIterator(BatchIterator):
    """Reads ahead in as many runs as there are workers, and gives their items in order."""

    def __init__(self, context: EpochContext, runtime: WorkerRuntime, owned: bool) -> None:
        super().__init__(context)
        self._place = _Place(context)
        self._runtime, self._owned, self._workers = runtime, owned, runtime.processes
        self._size = context.batch_size or 1
        self._windows = self._place.walk.rest()  # that are in no run yet
        self._skip = self._place.walk.skip  # items to leave out, from the first of these windows on
        self._length = 1  # windows of the next run
        self._runs: deque[_Run] = deque()
        self._pending: deque[_Made] = deque()
        self._bad_items: list[BadSample] = []  # that were left out before the next batch
        self._fill()

    def _done(self) -> tuple[int, int]:
        return (self._pending[0].before, self._pending[0].number) if self._pending else super()._done()

    def _next(self) -> Delivered:
        while True:
            self._fill()
            asked = [run.asked for run in self._runs if run.asked is not None]
            if self._pending:
                task = self._pending[0].task
                if task is None or self._is_next(task, asked):
                    return self._given_next()
            else:
                self._raise_error()
                if not asked:
                    raise StopIteration
                self._is_next(None, asked)

    def _is_next(self, task: Asked | None, others: list[Asked]) -> bool:
        """Waits for the answer to one of several tasks; whether that is the first one."""
        self._runtime.check_workers()
        tasks = [(each.position, 1) for each in ([] if task is None else [task]) + others]
        return self._runtime.wait(tasks, self._context.timeout) == 0 and task is not None

    def _given_next(self) -> Delivered:
        made = self._pending.popleft()
        try:
            return self._joined(made) if made.task is None else self._take(made, made.task)
        finally:
            self._place.next = made.place
            for rest, _, items in made.parts:
                rest.answer.left -= items
                if not rest.answer.left:
                    self._runtime.task_queue.drop(rest.answer.offset, rest.answer.length)
            self._fill()

    def _fill(self) -> None:
        """Begins all that can be begun."""
        for run in self._runs:
            if run.asked is not None and self._runtime.is_ready(run.asked):
                self._hear(run, run.asked)
        while self._begin():
            pass
        self._read_ahead()

    # ------------------------------------------------------------ runs

    def _read_ahead(self) -> None:
        context = self._context
        most = self._size * (self._runtime.ahead(context) + _AHEAD * context.job.workers)
        there = sum(run.items for run in self._runs)
        room = there < most and self._memory() < context.ahead_bytes
        for k, run in enumerate(self._runs):
            needed = room or (k == 0 and run.items < self._size)
            if needed and run.asked is None and run.error is None and not run.ended:
                self._ask(run)
        while self._windows and (room or not self._runs):
            reading = sum(not run.ended for run in self._runs)
            if reading >= (1 if self._skip else context.job.workers):
                return
            windows, self._windows = self._windows[: self._length], self._windows[self._length :]
            run = _Run(windows, self._skip)
            self._runs.append(run)
            self._ask(run)

    def _memory(self) -> int:
        """The bytes of the blocks that are in no batch yet."""
        return sum(rest.block.length for run in self._runs for rest in run.rest)

    def _ask(self, run: _Run) -> None:
        first = self._size
        if run is self._runs[0]:  # then its next blocks begin where batches do
            first -= run.items % self._size
        walk = self._place.walk
        what = Run(walk.epoch, run.windows, walk.world_size, run.skip), first, self._size
        run.asked = self._runtime.ask(run.worker, ITEMS, what)

    def _hear(self, run: _Run, asked: Asked) -> None:
        """Notes what a worker has read."""
        run.asked, queue, answer = None, self._runtime.task_queue, self._runtime.answer(asked)
        offset, length = place_of(answer)
        if answer["result"] == ERROR:  # a worker could not start
            run.windows, run.error = run.windows[:0], queue.take_object(offset, length)
            return
        head = int.from_bytes(queue.get(offset, 8), "little")
        read: Read = pickle.loads(queue.get(offset + 8, head))
        memory = _Answer(offset, length, sum(block.items for block in read.blocks))
        for block in read.blocks:
            run.rest.append(_Rest(memory, block._replace(offset=offset + 8 + head + block.offset), run.windows))
        if not memory.left:
            queue.drop(offset, length)
        self._bad_items += read.bad
        if self._skip:  # then it is the only run, and has just begun
            self._skip -= read.skipped
        run.worker, run.ended, run.error = read.worker, read.ended, read.error
        run.skip += memory.left
        if read.windows is not None:  # after an error it goes on there
            run.windows, run.skip = read.windows, 0
        self._loaded(answer, self._number)
        took = int(answer["ended_ns"]) - int(answer["began_ns"])
        if run.ended and took < _SHORT and len(run.windows) == self._length < _MOST_WINDOWS:
            self._length *= 2
        elif took > _LONG and self._length > 1:
            self._length //= 2

    def _raise_error(self) -> None:
        """Raises the error that the items of the next batch end with. Their run goes on after it."""
        run = next((run for run in self._runs if not run.ended), None)
        if run is not None and run.error is not None:
            error, run.error, run.ended = run.error, None, not run.windows
            error.reraise()

    # ------------------------------------------------------------ batches

    def _begin(self) -> bool:
        """Posts the task of the next batch. False: its items are not there yet, or there is none."""
        if len(self._pending) >= self._runtime.ahead(self._context):
            return False
        while self._runs and self._runs[0].ended and not self._runs[0].rest:
            self._runs.popleft()
        there, run = 0, None
        for run in self._runs:
            there += run.items
            if there >= self._size or not run.ended:
                break
        if there < self._size and (self._windows or run is None or not run.ended):
            return False
        if not there or (there < self._size and self._context.job.drop_last):
            return False
        self._post(min(there, self._size))
        return True

    def _post(self, count: int) -> None:
        """Begins a batch of the next items."""
        parts, place, left = [], (0, 0), count
        for run in self._runs:
            while left and run.rest:
                rest = run.rest[0]
                some = min(left, rest.items)
                parts.append((rest, rest.used, some))
                rest.used, left = rest.used + some, left - some
                place = rest.windows.start, rest.block.first + rest.used
                if not rest.items:
                    run.rest.popleft()
        signature, task, lease = parts[0][0].block.signature, None, None
        if signature is None or any(rest.block.signature != signature for rest, _, _ in parts):
            pool = self._runtime.batch_pool
            lease = pool.take() if self._runtime.batch_bytes else None
            wanted = [(rest.block, first, some) for rest, first, some in parts]
            what = wanted, pool.buffer_bytes if lease else 0, False
            task = self._runtime.ask(None, BATCH, what, lease.number if lease else NO_BUFFER)
        self._pending.append(_Made(self._number, self._planned, parts, place, task, lease))
        self._number += 1
        self._planned += count

    def _joined(self, made: _Made) -> Delivered:
        """The batch of blocks that are batches."""
        several = []
        for rest, first, items in made.parts:
            if rest.batch is None:
                rest.batch = load(self._runtime.task_queue, rest.block)
            several.append((rest.batch, first, items))
        data = joined(several, made.parts[0][0].block.signature)
        bad, self._bad_items = self._bad_items, []
        return Delivered(data, made.number, sum(part[2] for part in several), 0, array_bytes(data), bad=bad)

    def _take(self, made: _Made, task: Asked) -> Delivered:
        """The batch that a worker has made."""
        runtime, queue = self._runtime, self._runtime.task_queue
        answer = runtime.answer(task)
        offset, length = place_of(answer)
        self._loaded(answer, made.number)
        if answer["result"] == ERROR:
            queue.take_object(offset, length).reraise()
        (data, samples, hits, bad, _), nbytes = serialization.receive(queue, offset, length, made.lease)
        if not runtime.batch_bytes and nbytes:
            runtime.batch_pool.resize(nbytes + nbytes // 4 + 4096)
            runtime.batch_bytes = runtime.batch_pool.buffer_bytes
        bad, self._bad_items = [*self._bad_items, *bad], []
        return Delivered(data, made.number, samples, hits, nbytes, bad=bad)

    def _loaded(self, answer: Any, number: int) -> None:
        """Notes how long a task took. number: of the batch, or of the first one that may have its items."""
        self._context.meter.load(max(int(answer["ended_ns"]) - int(answer["began_ns"]), 0), 0, 0)
        if self._context.trace is not None:
            self._context.trace.loaded(self._context.epoch, number, np.array([answer]), np.array([-1]))

    def _note(self, batch: Delivered, position: int) -> int:
        self._place.reach()
        return position

    def _stop(self, harshly: bool) -> None:
        if not hasattr(self, "_pending"):
            return
        runs, self._runs = self._runs, deque()
        pending, self._pending = self._pending, deque()
        self._windows = self._windows[:0]
        if self._owned or harshly:
            self._runtime.close()
            return
        for run in runs:
            if run.asked is not None:
                self._runtime.abandon(run.asked.position, 1, None)
        for made in pending:
            if made.task is not None:
                self._runtime.abandon(made.task.position, 1, made.lease)
        answers = [rest.answer for run in runs for rest in run.rest]
        answers += [rest.answer for made in pending for rest, _, _ in made.parts]
        for offset, length in {(answer.offset, answer.length) for answer in answers}:
            self._runtime.task_queue.drop(offset, length)


class ListsHere(BatchIterator):
    """Without workers: the training loop's thread reads the items of each batch in `next`."""

    def __init__(self, context: EpochContext) -> None:
        super().__init__(context)
        self._place = _Place(context)
        walk, job = self._place.walk, context.job
        run = Run(walk.epoch, walk.rest(), walk.world_size, walk.skip)
        self._reader, self._finisher = Reader(job.dataset, run, job.skips_bad, _seed), Finisher(job)
        self._entries: list[Entry] = []  # of the next batch

    def _next(self) -> Delivered:
        clocks, size = Clocks(), self._context.batch_size or 1
        entries = self._reader.take(self._entries, size)
        self._entries = []
        if not entries or (len(entries) < size and self._context.job.drop_last):
            raise StopIteration
        self._place.next = self._reader.place
        self._number += 1
        self._planned += len(entries)
        data = self._finisher.fetch(entries)
        bad, self._reader.bad = [*self._reader.bad, *self._finisher.bad], []
        self._loaded_here(clocks, self._given, hit=False)
        return Delivered(data, self._number - 1, self._finisher.count, 0, array_bytes(data), bad=bad)

    def _note(self, batch: Delivered, position: int) -> int:
        self._place.reach()
        return position


def _seed(seed: int) -> None:
    """The program's generators stay as they are."""


class _Place:
    """The place of the training loop in the walk. next: window and skip after the batch that it gets."""

    def __init__(self, context: EpochContext) -> None:
        assert context.begun.walk is not None
        self.walk = context.begun.walk
        self.next = self.walk.window, self.walk.skip
        self._progress, self._before = context.progress, self.walk.given

    def reach(self) -> None:
        self.walk.reach(*self.next, self._before + self._progress.samples)
