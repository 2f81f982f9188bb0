"""What reads the items of a dataset of lists, in a worker or in the training loop's thread."""

from __future__ import annotations

import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._datasets.lists import Lists, Reading
from .._random.generators import Seeding, known
from .._workers import serialization
from .._workers.task_queue import TaskQueue
from .bad_samples import BadSample, bad_sample
from .job import Job

_LONGEST = 20_000_000  # ns: how long a task reads, if it has some items
_MOST_BYTES = 16 << 20  # of the items of a task
_MOST_BLOCKS = 8  # of a task
_KEPT = 8  # unfinished runs that a worker keeps


class Run(NamedTuple):
    """Windows of an epoch that are read one after the other, and the items of them to leave out at the start."""

    epoch: int
    windows: range
    world_size: int
    skip: int


class Block(NamedTuple):
    """Consecutive items in the overflow, and which of the run they are."""

    offset: int
    length: int
    items: int
    first: int


@dataclass
class Read:
    """What a worker answers. skipped: of the items to leave out, those that were there. windows: those that are left
    after an error; None: those of the run."""

    worker: int
    skipped: int
    blocks: list[Block]  # offsets after the answer's head
    ended: bool
    windows: range | None
    error: Any
    bad: list[BadSample]


class Reader:
    """The items of a run, each with its place. After an error it goes on with the next window."""

    def __init__(self, lists: Lists, run: Run, skips_bad: bool, seeds: Callable[[int], None]) -> None:
        """seeds: called with the seed of each element before it is read."""
        self._lists, self._skips_bad = lists, skips_bad
        self._reading = Reading(run.epoch, run.world_size, seeds, self._left_out)
        self.bad: list[BadSample] = []  # that were left out since the last look
        self.windows, self.given = run.windows, 0
        self._at = self._before = 0  # which window it is, and the items of those before
        self._items = self._all()
        self.skipped = 0
        while self.skipped < run.skip:
            try:
                if next(self, None) is None:
                    break
            except Exception:  # it was raised before
                continue
            self.skipped += 1
        self.bad.clear()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __next__(self) -> tuple[Any, Any]:
        try:
            item = next(self._items)
        except StopIteration:
            raise
        except Exception:
            self.windows, self.given = self.windows[self._at + 1 :], 0
            self._at = self._before = 0
            self._items = self._all()
            raise
        self.given += 1
        return item

    def _all(self) -> Iterator[tuple[Any, Any]]:
        for at, window in enumerate(self.windows):
            self._at, self._before = at, self.given
            yield from self._lists.items(window, self._reading)

    @property
    def place(self) -> tuple[int, int]:
        """The window that it is in, and the items that it has given of it."""
        return self.windows.start + self._at * self.windows.step, self.given - self._before

    def _left_out(self, name: str, error: Exception) -> None:
        bad = bad_sample(name, error) if self._skips_bad else None
        if bad is None:
            raise error
        self.bad.append(bad)


class Finisher:
    """Makes batches of items, as `Fetcher` of samples."""

    stateful = False

    def __init__(self, job: Job, read: Callable[[Any], list[tuple[Any, Any]]] | None = None) -> None:
        """read: gives the items that `fetch` takes, as new objects each time; None: `fetch` takes items."""
        self._job, self._lists, self._read = job, job.dataset, read
        self._seeding = Seeding(job.backend.generators) if job.seed_samples else None
        self.count = 0
        self.bad: list[BadSample] = []

    def fetch(self, wanted: Any) -> Any:
        """wanted: items, each with its place, or what `read` takes. None: all items are bad."""
        self.bad, made = [], []
        for k, (place, item) in enumerate(wanted if self._read is None else self._read(wanted)):
            try:
                made.append(self._finished(place, item, wanted, k))
            except Exception as error:
                bad = bad_sample(self._lists.where(place), error) if self._job.skips_bad else None
                if bad is None:
                    raise
                self.bad.append(bad)
        self.count = len(made)
        if not made:
            return None
        return self._job.collate(made if self._job.batched else made[0])

    def _finished(self, place: Any, item: Any, wanted: Any, k: int) -> Any:
        lists, read = self._lists, self._read
        if self._seeding is None or place is None or read is None:
            return lists.finish(place, item)
        return self._seeding.load(
            lists.seed(place), lambda: lists.finish(place, item), lambda: lists.finish(place, read(wanted)[k][1])
        )


class WorkerReader:
    """Reads runs in a worker. It keeps those that are not at their end."""

    def __init__(self, number: int, job: Job, task_queue: TaskQueue) -> None:
        self._number, self._job, self._task_queue = number, job, task_queue
        self._kept: OrderedDict[tuple[int, int], tuple[Reader, Any]] = OrderedDict()

    def read(self, run: Run, first: int, block: int) -> tuple[int, int]:
        """Answers with the next items of a run. first: items of the first block; block: of each other one. Returns where
        the answer lies."""
        reader, error, ended = self._reader(run), None, False
        until = time.monotonic_ns() + _LONGEST
        made, items, windows, at = _Blocks(), [], reader.windows, reader.given
        try:
            while len(made.blocks) < _MOST_BLOCKS and made.bytes < _MOST_BYTES:
                item = next(reader, None)
                if item is None:
                    ended = True
                    break
                items.append(item)
                if len(items) == (block if made.blocks else first):
                    made.add(items, at)
                    at, items = at + len(items), []
                if time.monotonic_ns() > until:
                    break
        except Exception as raised:
            error = self._job.backend.error(raised, self._job.where(self._number))
        if items:
            made.add(items, at)
        left = None if reader.windows is windows else reader.windows
        bad, reader.bad = reader.bad, []
        if not ended and reader.windows:
            self._keep(run, reader)
        head = pickle.dumps(Read(self._number, reader.skipped, made.blocks, ended, left, error, bad), 5)
        return self._task_queue.put(len(head).to_bytes(8, "little"), head, *made.parts)

    def items(self, wanted: list[tuple[int, int, int, int]]) -> list[tuple[Any, Any]]:
        """The items of parts of blocks: where a block lies, its first item that is wanted, and how many."""
        made: list[tuple[Any, Any]] = []
        for offset, length, first, count in wanted:
            items, _ = serialization.unpacked(memoryview(self._task_queue.get(offset, length)))
            made += items[first : first + count]
        return made

    def _reader(self, run: Run) -> Reader:
        """The kept reader if it is there, else a new one."""
        kept = self._kept.pop((run.epoch, run.windows.start), None)
        if kept is not None and kept[0].given == run.skip:
            for generator, state in kept[1]:
                generator.restore(state)
            return kept[0]
        return Reader(self._job.dataset, run, self._job.skips_bad, self._seed)

    def _keep(self, run: Run, reader: Reader) -> None:
        """With the states of the generators, which other tasks change."""
        states = [(generator, generator.state()) for generator in known()] if self._job.seed_samples else []
        self._kept[run.epoch, reader.windows.start] = reader, states
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def _seed(self, seed: int) -> None:
        if self._job.seed_samples:
            self._job.backend.seed_sample(seed)


class _Blocks:
    """The blocks of an answer."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.parts: list[Any] = []
        self.bytes = 0

    def add(self, items: list[Any], at: int) -> None:
        """at: which of the run the first one is."""
        parts = serialization.packed(items)
        length = sum(memoryview(part).nbytes for part in parts)
        self.blocks.append(Block(self.bytes, length, len(items), at))
        self.parts += parts
        self.bytes += length
