"""What reads the items of a dataset of lists, in a worker or in the training loop's thread."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from .._common.notes import raise_noted
from .._datasets.lists import Entry, Reading, no_seed, turn
from .._datasets.tally import current
from .._pipes.lists import PipeLists
from .._random.generators import known, observe
from .._workers import serialization
from .._workers.task_queue import TaskQueue
from . import columns
from .bad_samples import BadSample, bad_sample
from .fetcher import made_by
from .job import Job

_LONGEST = 20_000_000  # ns: how long a task reads, if it has some items
_STEP = 2_000_000  # ns: between two looks at the clock
_MOST_BYTES = 4 << 20  # bytes of the items of a task
_MOST_BLOCKS = 64  # blocks of a task
# Of a block that is a batch, unless a batch of the loader is larger: batches are parts of its memory.
_BLOCK_BYTES = 1 << 20
_MOST_TOGETHER = 64  # batches in a block
_KEPT = 8  # unfinished runs that a worker keeps
_PIECE = 64  # windows of one element that are read in one go
_CHEAP = 30_000  # ns: items whose last functions take longer are finished when their batch is made, unless
_MOVE = 0.5  # ns a byte: their way to there takes longer


class Run(NamedTuple):
    """Windows of an epoch that are read one after the other, and the items of them to leave out at the start."""

    epoch: int
    windows: range
    world_size: int
    skip: int


class Block(NamedTuple):
    """Consecutive items in the overflow. first: which of the run the first one is. signature: of items that are a batch
    already; None: they are entries."""

    offset: int
    length: int
    items: int
    first: int
    signature: Any


@dataclass
class Read:
    """What a worker answers. skipped: of the items to leave out, those that were there. base: the windows that the blocks
    count from. windows, given: where the run is now; after an error, that is another window."""

    worker: int
    skipped: int
    blocks: list[Block]  # offsets after the answer's head
    base: range
    windows: range
    given: int
    ended: bool
    error: Any
    bad: list[BadSample]


class Reader:
    """The entries of a run. After an error it goes on with the next window."""

    def __init__(self, lists: PipeLists, run: Run, skips_bad: bool, begin: Callable[[Any], None] = no_seed) -> None:
        """begin: of `Reading`."""
        self._lists, self._skips_bad = lists, skips_bad
        self._reading = Reading(run.epoch, run.world_size, begin, self._left_out)
        self.bad: list[BadSample] = []  # items that were left out since the last look
        self.windows, self.given = run.windows, 0  # items of these windows
        self._piece, self._before = run.windows[:0], 0  # what is read now, and the items before it
        self._now = 0  # the window that is read now
        self._told: int | None = None  # the last window that was told ahead
        self._windows = lists.windows(run.world_size)[0]
        self._turn = turn(self._windows, run.world_size)
        self._entries: Iterator[Entry] = iter(())
        self.ended = False
        self.skipped = 0
        mark = current().mark()  # what it leaves out was counted before
        while self.skipped < run.skip and not self.ended:
            some: list[Entry] = []
            with contextlib.suppress(Exception):  # it was raised before
                self.take(some, min(run.skip - self.skipped, 1024))
            self.skipped += len(some)
        current().back(mark)
        self.bad.clear()

    def take(self, into: list[Entry], count: int) -> list[Entry]:
        """Adds entries, up to so many in all. At an error, those before it are added."""
        while len(into) < count and not self.ended:
            before = len(into)
            try:
                into.extend(islice(self._entries, count - before))
            except Exception:
                self.windows, self.given = self.windows[self.windows.index(self._now) + 1 :], 0
                self._piece, self._entries, self._before = self.windows[:0], iter(()), 0
                self.ended = not self.windows
                raise
            self.given += len(into) - before
            if len(into) < count:
                self._next_piece()
        return into

    def _next_piece(self) -> None:
        done = self.windows.index(self._piece[-1]) + 1 if self._piece else 0
        self._piece = self.windows[done : done + (1 if current().begin() or self._lists.mixes else _PIECE)]
        self._before, self.ended = self.given, not self._piece
        told = 0 if self._told is None or self._told not in self.windows else self.windows.index(self._told) + 1
        soon = self.windows[max(done, told) : done + 2 * len(self._piece)]
        if soon:
            self._told = soon[-1]
            numbers = (window % self._turn for window in soon)
            self._lists.ahead([n for n in numbers if n < self._windows], self._reading.epoch, self._reading.world_size)
        self._now = self._piece.start
        self._entries = self._lists.items(self._noted(self._piece), self._reading)

    def _noted(self, windows: Iterable[int]) -> Iterator[int]:
        for self._now in windows:
            window = self._now % self._turn
            if window < self._windows:  # ranks have one more or less
                yield window

    @property
    def place(self) -> tuple[int, int]:
        """A window that it has come to, and how many items it has given from there on."""
        if self.ended and self.windows:
            return self.windows[-1] + self.windows.step, 0
        return self._piece.start if self._piece else self.windows.start, self.given - self._before

    def _left_out(self, name: str, error: Exception) -> None:
        bad = bad_sample(name, error) if self._skips_bad else None
        if bad is None:
            raise error
        self.bad.append(bad)


class Finisher:
    """Makes batches of entries, as `Fetcher` of samples."""

    stateful = False

    def __init__(self, job: Job, read: Callable[[Any], list[Entry]] | None = None) -> None:
        """read: gives the entries that `fetch` takes, as new objects each time; None: `fetch` takes entries."""
        self._job, self._lists, self._read = job, job.dataset, read
        self._seeds = job.seed_samples and read is not None
        self._seeded = False  # whether a function has drawn from a global generator
        self.count = 0
        self.bad: list[BadSample] = []
        self.paces = 0.0, 0.0  # ns that the last functions of an item took, in the last two measurements

    def fetch(self, wanted: Any) -> Any:
        """wanted: entries, or what `read` takes. None: all items are bad."""
        items = self._finished(wanted if self._read is None else self._read(wanted))
        if items is None:
            assert self._read is not None
            items = self._finished(self._read(wanted))
            assert items is not None
        self.count = len(items)
        if not items:
            return None
        return collated(self._job, items if self._job.batched else items[0])

    def _finished(self, entries: list[Entry]) -> list[Any] | None:
        """None: a function has drawn from a global generator, which was not seeded."""
        self.bad = []
        if self._seeded:
            return self._with_seeds(entries)
        before, mark = (observe(), current().mark()) if self._seeds else (None, None)
        start = time.monotonic_ns()
        try:
            items = self.finish(entries)
        except Exception:
            if not self._seeds or observe() == before:
                raise
        else:
            self.took(time.monotonic_ns() - start, len(entries))
            if not self._seeds or observe() == before:
                return items
        self._seeded = True
        current().back(mark)
        return None

    def took(self, ns: int, items: int) -> None:
        """Notes how long the last functions of some items took. On a busy machine one measurement says little."""
        self.paces = self.paces[1], ns / max(items, 1)

    def _with_seeds(self, entries: list[Entry]) -> list[Any]:
        items: list[Any] = []
        for entry in entries:
            if entry[0] is not None:
                self._job.backend.seed_sample(self._lists.seed(entry))
            items += self.finish([entry])
        return items

    def finish(self, entries: list[Entry]) -> list[Any]:
        """The items of entries, without those that are left out."""
        items: list[Any] = []
        done = 0
        while done < len(entries):
            before = len(items)
            try:
                self._lists.finish(entries[done:], items)
                return items
            except Exception as error:
                done += len(items) - before
                name = self._lists.where(entries[done])
                bad = bad_sample(name, error) if self._job.skips_bad else None
                if bad is None:
                    raise
                self.bad.append(bad)
                done += 1
        return items


class WorkerReader:
    """Reads runs in a worker. It keeps those that are not at their end.

    Elements and items get seeds for the global generators. As that takes longer than a small item, it begins when a
    draw was seen; then it reads the block with the draw again."""

    def __init__(self, number: int, job: Job, task_queue: TaskQueue) -> None:
        self._number, self._job, self._task_queue = number, job, task_queue
        self._kept: OrderedDict[tuple[int, range, int], tuple[Reader, Any]] = OrderedDict()
        self._seeded = False
        self._pace = float(_STEP)  # ns of an item
        self._several = 1  # batches in a block
        self._moved = 0.0  # bytes of an item before its last functions
        self.finisher = Finisher(job, self.entries)

    def read(self, lent: int, run: Run, first: int, block: int) -> tuple[int, int]:
        """Answers with the next items of a run. block: items of a block that is no batch; others have several times as
        many. first: of the first block, so that the next one begins where a batch does. lent: the place of the task. Returns
        where the answer lies."""
        reader, error, until = self._reader(run), None, time.monotonic_ns() + _LONGEST
        skipped, base, made, apart = reader.skipped, reader.windows, _Blocks(), False
        bad: list[BadSample] = []
        while not reader.ended and made.has_room and not (made.blocks and time.monotonic_ns() > until):
            entries: list[Entry] = []
            place, mark = (reader.windows, reader.given), current().mark()
            seen = observe() if self._job.seed_samples and not self._seeded else None
            try:
                self._take(reader, entries, (block if made.blocks else first) + (self._several - 1) * block, until)
            except Exception as raised:
                error = raised
            items, again = self._finished(entries) if error is None and not apart else (None, False)
            if seen is not None and observe() != seen:
                self._seeded = again = True
            if again:  # functions have changed the items, or had no seeds
                current().back(mark)
                reader, error, apart = self._opened(run._replace(windows=place[0], skip=place[1])), None, True
                continue
            apart = False
            bad += reader.bad
            reader.bad.clear()
            if entries:
                value, signature = self._sent(entries, items)
                try:
                    length = made.add(value, signature, len(entries), place[1])
                except Exception as raised:  # such as an open file, which cannot be pickled
                    where = self._job.dataset.where(entries[0])
                    raise_noted(
                        raised,
                        f"stocached: a worker cannot send the items from {where} on; write .map above that makes arrays or "
                        "plain values of them",
                    )
                several = _BLOCK_BYTES * len(entries) // (length * block)
                if items is None:
                    self._moved = length / len(entries)
                self._several = 1 if signature is None else max(1, min(several, _MOST_TOGETHER))
            if error is not None:
                error = self._job.backend.error(error, self._job.where(self._number))
                break
        if not reader.ended:
            self._keep(run, reader)
        ended = reader.ended and error is None
        read = Read(self._number, skipped, made.blocks, base, reader.windows, reader.given, ended, error, bad)
        head = pickle.dumps(read, 5)
        return self._task_queue.put(len(head).to_bytes(8, "little"), head, *made.parts, lent=lent)

    def _take(self, reader: Reader, entries: list[Entry], size: int, until: int) -> None:
        """Reads entries, fewer than `size` if they take long."""
        now = time.monotonic_ns()
        while len(entries) < size and not reader.ended and not (entries and now > until):
            before, then = len(entries), now
            reader.take(entries, min(size, before + max(1, int(_STEP / self._pace))))
            now = time.monotonic_ns()
            self._pace += ((now - then) / max(len(entries) - before, 1) - self._pace) / 2

    def _finished(self, entries: list[Entry]) -> tuple[list[Any] | None, bool]:
        """The items of entries whose last functions are cheap; None: they are finished when their batch is made. And
        whether the entries are spoilt."""
        lists, finisher = self._job.dataset, self.finisher
        if not lists.finishes:
            return [item for _, _, item in entries], False
        if self._seeded or min(finisher.paces) > _CHEAP + _MOVE * self._moved:
            return None, False
        start = time.monotonic_ns()
        items: list[Any] = []
        try:
            lists.finish(entries, items)
        except Exception:  # it belongs to a batch
            return None, True
        finisher.took(time.monotonic_ns() - start, len(entries))
        return items, False

    def _sent(self, entries: list[Entry], items: list[Any] | None) -> tuple[Any, Any]:
        """What a block holds, and the signature of a batch."""
        job = self._job
        if items is None:
            return job.dataset.sent(entries), None
        if job.batched and job.default_collate:
            signature = columns.signature(items)
            if signature is not None:
                with contextlib.suppress(Exception):  # then its batch raises it
                    return collated(job, items), signature
        return [(None, 0, item) for item in items], None

    def entries(self, wanted: list[tuple[Block, int, int]]) -> list[Entry]:
        """Those of parts of blocks: the first one, and how many."""
        made: list[Entry] = []
        for block, first, count in wanted:
            value = serialization.unpacked(self._task_queue.get(block.offset, block.length))[0]
            if block.signature is None:
                made += value[first : first + count]
            else:
                made += [(None, 0, item) for item in columns.apart(value, block.signature, first, count)]
        return made

    def _reader(self, run: Run) -> Reader:
        """The kept reader if it is there, else a new one."""
        kept = self._kept.pop((run.epoch, run.windows, run.world_size), None)
        if kept is None or kept[0].given != run.skip:
            return self._opened(run)
        for generator, state in kept[1]:
            generator.restore(state)
        return kept[0]

    def _opened(self, run: Run) -> Reader:
        return Reader(self._job.dataset, run, self._job.skips_bad, self._seed)

    def _keep(self, run: Run, reader: Reader) -> None:
        """With the states of the generators, which other tasks change. Readers of other epochs may have files open."""
        for key in [key for key in self._kept if key[0] != run.epoch]:
            del self._kept[key]
        states = [(generator, generator.state()) for generator in known()] if self._seeded else []
        self._kept[run.epoch, reader.windows, run.world_size] = reader, states
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def _seed(self, visit: Any) -> None:
        if self._seeded:
            self._job.backend.seed_sample(self._job.dataset.seed((visit, 0, None)))


def collated(job: Job, items: Any) -> Any:
    """A batch, whose time is that of its stage."""
    start = time.monotonic_ns()
    try:
        return made_by(job.collate, items)
    finally:
        if job.counters is not None:
            current().ns[job.counters.chain.batch] += time.monotonic_ns() - start


class _Blocks:
    """The blocks of an answer."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.parts: list[Any] = []
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        return len(self.blocks) < _MOST_BLOCKS and self._bytes < _MOST_BYTES

    def add(self, value: Any, signature: Any, items: int, first: int) -> int:
        """value: entries, or with a signature a batch. first: which of the run the first one is. Returns the bytes."""
        parts = serialization.packed(value)
        length = sum(memoryview(part).nbytes for part in parts)
        self.blocks.append(Block(self._bytes, length, items, first, signature))
        self.parts += parts
        self._bytes += length
        return length
