"""The batches of a dataset of lists. Workers read runs of windows, and answer with blocks of items. When the items of a
batch are there, any worker makes it (docs/spec/workers.md)."""

from __future__ import annotations

import functools
import itertools
import pickle
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from .._common.errors import InvalidError, StateError
from .._datasets.lists import Entry, WindowWalk
from .._datasets.tally import bytes_of, current
from .._memory.batch_pool import Lease
from .._workers import serialization
from .._workers.pool import Asked
from .._workers.task_queue import place_of
from .._workers.tasks import BATCH, ERROR, ITEMS, NO_BUFFER
from .bad_samples import BadSample, all_bad
from .columns import joined
from .epoch_context import EpochContext
from .iterator import BatchIterator, Clocks, Delivered
from .lists_reader import Block, Finisher, Read, Reader, Run
from .worker_runtime import WorkerRuntime

_AHEAD = 64  # batches of items that are read ahead, for each worker
_SHORT = 5_000_000  # ns: a run that is read faster is followed by a longer one
_LONG = 50_000_000  # the same for shorter ones
_MOST_WINDOWS = 4096  # windows of a run


@dataclass
class _Answer:
    """The memory of what a worker has read. It is given back after its last item."""

    offset: int
    length: int
    lent: int  # its place
    memory: memoryview  # all of it
    left: int  # items that are in no batch that is ready

    def load(self, block: Block) -> Any:
        """What a block of it holds."""
        first = block.offset - self.offset
        return serialization.unpacked(self.memory[first : first + block.length], own=True)[0]


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
    length: int = 0  # windows at its begin
    took: int = 0  # ns
    ended: bool = False
    error: Any = None  # met after the items that are left
    rest: deque[_Rest] = field(default_factory=deque)
    items: int = 0  # items that are left


_Part = tuple[_Rest, int, int]
"""Items of a block for a batch: the first of them, and how many."""


@dataclass
class _Made:
    """A batch that a worker makes."""

    number: int
    before: int  # items
    parts: list[_Part]
    place: tuple[int, int]  # window and skip after it
    task: Asked
    lease: Lease | None


class _Place:
    """The place of the training loop in the walk. next: window and skip after the batch that it gets."""

    def __init__(self, context: EpochContext) -> None:
        assert isinstance(context.begun.walk, WindowWalk)
        self.walk = context.begun.walk
        self.next = self.walk.window, self.walk.skip
        self._progress, self._before = context.progress, self.walk.given

    def reach(self) -> None:
        self.walk.reach(*self.next, self._before + self._progress.samples)


class _Lists(BatchIterator):
    def __init__(self, context: EpochContext) -> None:
        super().__init__(context)
        self._place = _Place(context)
        self._skip = 0  # items to leave out that were not met yet
        # items that are in no batch yet, at most
        self._left = self._place.walk.left(context.batch_size or 1, context.job.drop_last)
        counters = context.job.counters
        self._counted = 0 if counters is None else counters.total()  # before this epoch

    def _note(self, batch: Delivered, position: int) -> int:
        self._place.reach()
        return position

    def _end(self, bad: list[BadSample], left: int) -> NoReturn:
        """Ends the epoch. bad: items that were left out after the last batch. left: those that are too few for a batch.
        Raises InvalidError if other ranks have more batches. Warns if there were no items."""
        if bad:
            assert self._context.bad is not None
            self._context.bad.met(bad, self._bad)
            if not self._given:
                raise all_bad(bad)
        walk = self._place.walk
        if self._skip:
            raise StateError(
                f"the state goes on after {walk.skip:,} items from window {walk.window} on, and there are only "
                f"{walk.skip - self._skip:,}: the data has changed, or the state is damaged. Begin the epoch again"
            )
        if walk.items is not None and self._left:
            raise InvalidError(
                f"rank {walk.rank} of {walk.world_size} has {walk.items - int(self._left):,} of the {walk.items:,} items "
                "that all ranks give in this epoch: elements have fewer items than when they were measured, or nearly all "
                "were left out. Measure the pipe again, or remove its cache if the data has changed"
            )
        if not (walk.given or self._planned) and walk.rank < walk.windows:
            size = self._context.batch_size
            why = (
                f"drop_last=True leaves out its batch, which has {left} of {size} items" if left else self._why_empty()
            )
            self.close()  # the warning may be an error
            self._say_empty(why)
        raise StopIteration

    def _why_empty(self) -> str:
        meter, counters = self._context.meter, self._context.job.counters
        assert counters is not None
        stages = counters.chain.stats(counters.total() - self._counted, meter.stats(), {}, *meter.part_seconds)
        for above, stage in itertools.pairwise(stages):
            if above.items and not stage.items:
                return f"{stage.stage} gave none of the {above.items:,} items that it got"
        return "the pipe gave no item"


class ListsIterator(_Lists):
    """Reads ahead in as many runs as there are workers, and gives their items in order."""

    def __init__(self, context: EpochContext, runtime: WorkerRuntime, owned: bool) -> None:
        super().__init__(context)
        self._runtime, self._owned, self._workers = runtime, owned, runtime.processes
        self._size = context.batch_size or 1
        self._windows = self._place.walk.rest()  # windows that are in no run yet
        self._skip = self._place.walk.skip  # items to leave out, from the first of these windows on
        self._length = 1  # windows of the next run
        self._runs: deque[_Run] = deque()
        self._there = self._memory = 0  # items of the runs, and bytes of their blocks
        self._wanted = 0  # items that are read ahead
        self._pending: deque[_Made] = deque()
        self._bad_items: list[BadSample] = []  # items that were left out before the next batch
        self._fill()

    def _done(self) -> tuple[int, int]:
        return (self._pending[0].before, self._pending[0].number) if self._pending else super()._done()

    def _next(self) -> Delivered:
        while True:
            count = 0 if 2 * self._there < self._wanted else self._joinable()
            if not count:
                self._fill()
                count = self._joinable()
            if count:
                return self._joined(count)
            asked = [run.asked for run in self._runs if run.asked is not None]
            if self._pending:
                if self._is_next(self._pending[0].task, asked):
                    return self._made()
            else:
                if self._left:
                    self._raise_error()
                if not asked or not self._left:
                    if self._left and (self._windows or not all(run.ended for run in self._runs)):
                        raise AssertionError("no worker reads the items that are left")
                    bad, self._bad_items = self._bad_items, []
                    self._end(bad, self._there)
                self._is_next(None, asked)

    def _is_next(self, task: Asked | None, others: list[Asked]) -> bool:
        """Waits for the answer to one of several tasks; whether that is the first one."""
        self._runtime.check_workers()
        tasks = [(each.position, 1) for each in ([] if task is None else [task]) + others]
        return self._runtime.wait(tasks, self._context.timeout, self._check_ended) == 0 and task is not None

    def _fill(self) -> None:
        """Begins all that can be begun."""
        most = self._runtime.ahead(self._context)
        self._wanted = self._size * (most + _AHEAD * self._context.job.workers)
        for run in self._runs:
            if run.asked is not None and self._runtime.is_ready(run.asked):
                self._hear(run, run.asked)
        while len(self._pending) < most and (count := self._ready()) and not self._is_joined(count):
            self._begin(count)
        room = self._there < min(self._wanted, self._left) and self._memory < self._context.ahead_bytes
        self._read_ahead(room)

    # ------------------------------------------------------------ runs

    def _read_ahead(self, room: bool) -> None:
        """room: whether more may be read than the next batch needs."""
        there, size = 0, min(self._size, self._left)  # items of the next batch
        for run in self._runs:
            there += run.items
            if run.ended:
                continue
            if (room or there < size) and run.asked is None and run.error is None:
                self._ask(run)
            there = self._size  # this run gives the others
        while self._windows and (room or there < size):
            reading = sum(not run.ended for run in self._runs)
            if reading >= (1 if self._skip else self._context.job.workers):
                return
            windows, self._windows = self._windows[: self._length], self._windows[self._length :]
            run = _Run(windows, self._skip, length=len(windows))
            self._runs.append(run)
            self._ask(run)
            there = self._size

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
            queue.unlend(asked.lent)
            return
        data, _ = queue.view(offset, length)
        head = int.from_bytes(data[:8], "little")
        read: Read = pickle.loads(data[8 : 8 + head])
        memory = _Answer(offset, length, asked.lent, data, sum(block.items for block in read.blocks))
        for block in read.blocks:
            run.rest.append(_Rest(memory, block._replace(offset=offset + 8 + head + block.offset), read.base))
            self._memory += block.length
        run.items += memory.left
        self._there += memory.left
        if not memory.left:
            self._give_back(memory)
        self._bad_items += read.bad
        if self._skip:  # then it is the only run, and has just begun
            self._skip -= read.skipped
        run.worker, run.ended, run.error = read.worker, read.ended, read.error
        run.windows, run.skip = read.windows, read.given
        self._loaded(answer, self._number)
        took = int(answer["ended_ns"]) - int(answer["began_ns"])
        run.took += took
        if run.ended and run.took < _SHORT and run.length == self._length < _MOST_WINDOWS:
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

    def _ready(self) -> int:
        """The items of the next batch. 0: they are not there yet, or there is none."""
        runs, size = self._runs, int(min(self._size, self._left))
        while runs and runs[0].ended and not runs[0].rest:
            runs.popleft()
        there, run = 0, None
        for run in runs:
            there += run.items
            if there >= size:
                return size
            if not run.ended:
                return 0
        return 0 if self._windows or run is None or self._context.job.drop_last else there

    def _joinable(self) -> int:
        """The items of the next batch, if none is begun and it needs no worker; else 0."""
        count = 0 if self._pending else self._ready()
        return count if count and self._is_joined(count) else 0

    def _is_joined(self, count: int) -> bool:
        """Whether the next batch is made of parts of batches."""
        signature = None
        for run in self._runs:
            for rest in run.rest:
                if rest.block.signature is None or signature not in (None, rest.block.signature):
                    return False
                signature, count = rest.block.signature, count - rest.items
                if count <= 0:
                    return True
        return True

    def _cut(self, count: int) -> tuple[list[_Part], tuple[int, int]]:
        """The parts of the next batch, and the place after it."""
        parts: list[_Part] = []
        place, left = (0, 0), count
        for run in self._runs:
            while left and run.rest:
                rest = run.rest[0]
                some = min(left, rest.block.items - rest.used)
                parts.append((rest, rest.used, some))
                rest.used, left, run.items = rest.used + some, left - some, run.items - some
                place = rest.windows.start, rest.block.first + rest.used
                if rest.used == rest.block.items:
                    run.rest.popleft()
                    self._memory -= rest.block.length
            if not left:
                break
        self._there -= count
        self._left -= count
        self._number += 1
        self._planned += count
        return parts, place

    def _joined(self, count: int) -> Delivered:
        """The next batch, of parts of batches."""
        parts, self._place.next = self._cut(count)
        several = []
        for rest, first, items in parts:
            if rest.batch is None:
                rest.batch = rest.answer.load(rest.block)
            several.append((rest.batch, first, items))
        start = time.monotonic_ns()
        data = joined(several, parts[0][0].block.signature)
        if self._context.job.counters is not None:
            self._context.job.counters.joined_ns += time.monotonic_ns() - start
        self._drop(parts)
        bad, self._bad_items = self._bad_items, []
        return Delivered(data, self._number - 1, count, 0, bytes_of(data), bad=bad)

    def _begin(self, count: int) -> None:
        """Posts the task of the next batch."""
        pool, number, before = self._runtime.batch_pool, self._number, self._planned
        parts, place = self._cut(count)
        lease = pool.take() if self._runtime.batch_bytes else None
        wanted = [(rest.block, first, items) for rest, first, items in parts]
        what = wanted, pool.buffer_bytes if lease else 0, False
        task = self._runtime.ask(None, BATCH, what, lease.number if lease else NO_BUFFER)
        self._pending.append(_Made(number, before, parts, place, task, lease))

    def _made(self) -> Delivered:
        """The next batch, which a worker has made."""
        made = self._pending.popleft()
        self._place.next = made.place
        try:
            return self._take(made)
        finally:
            self._runtime.task_queue.unlend(made.task.lent)
            self._drop(made.parts)
            self._fill()

    def _give_back(self, answer: _Answer) -> None:
        self._runtime.task_queue.drop(answer.offset, answer.length)
        self._runtime.task_queue.unlend(answer.lent)

    def _drop(self, parts: list[_Part]) -> None:
        """Gives the memory of answers back whose items are all in batches."""
        for rest, _, items in parts:
            answer = rest.answer
            answer.left -= items
            if not answer.left:
                self._give_back(answer)

    def _take(self, made: _Made) -> Delivered:
        runtime, queue = self._runtime, self._runtime.task_queue
        answer = runtime.answer(made.task)
        offset, length = place_of(answer)
        self._loaded(answer, made.number)
        if answer["result"] == ERROR:
            queue.take_object(offset, length).reraise()
        (data, samples, hits, bad, _), nbytes = runtime.received(offset, length, made.lease)
        bad, self._bad_items = [*self._bad_items, *bad], []
        return Delivered(data, made.number, samples, hits, nbytes, bad=bad)

    def _loaded(self, answer: Any, number: int) -> None:
        """Notes how long a task took. number: of the batch, or of the first one that may have its items."""
        self._context.meter.add(load=max(int(answer["ended_ns"]) - int(answer["began_ns"]), 0))
        if self._context.trace is not None:
            self._context.trace.loaded(self._context.epoch, number, np.array([answer]), np.array([-1]))

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
            self._drop([(rest, 0, rest.block.items - rest.used) for rest in run.rest])
        for made in pending:  # a worker may read their blocks
            self._runtime.abandon(made.task.position, 1, made.lease, functools.partial(self._drop, made.parts))


class ListsHere(_Lists):
    """Without workers: the training loop's thread reads the items of each batch in `next`."""

    def __init__(self, context: EpochContext) -> None:
        super().__init__(context)
        walk, job = self._place.walk, context.job
        run = Run(walk.epoch, walk.rest(), walk.world_size, walk.skip)
        with job.counting():
            self._reader, self._finisher = Reader(job.dataset, run, job.skips_bad), Finisher(job)
        self._skip = walk.skip - self._reader.skipped
        self._entries: list[Entry] = []  # the entries of the next batch

    def _next(self) -> Delivered:
        clocks = Clocks()
        with self._context.job.counting():
            batch = self._read()
        if batch is None:
            bad, self._reader.bad = self._reader.bad, []
            self._end(bad, len(self._entries))
        self._loaded_here(clocks, self._given, hit=False)
        return batch

    def _read(self) -> Delivered | None:
        size = self._context.batch_size or 1
        entries = self._reader.take(self._entries, int(min(size, self._left)))
        self._left -= len(entries)
        if not entries or (len(entries) < size and self._context.job.drop_last):
            return None
        self._entries = []
        self._place.next = self._reader.place
        self._number += 1
        self._planned += len(entries)
        data = self._finisher.fetch(entries)
        bad, self._reader.bad = [*self._reader.bad, *self._finisher.bad], []
        if self._context.trace is not None:
            current().flush()
        return Delivered(data, self._number - 1, self._finisher.count, 0, bytes_of(data), bad=bad)
