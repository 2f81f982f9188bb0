"""Batches of contiguous rows: a pipe as a stream of files, and the reader of its files."""

from __future__ import annotations

import copy
import operator
import pickle
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._datasets.lists import WithoutIndex
from .._datasets.tally import Counters, current
from .._memory.texts import Texts
from .._streams.batch import StreamBatch
from .._streams.iterator import Progress, StreamIterator
from .._streams.order import StreamOrder
from .._streams.reader import Reader, parameters, skip
from .._streams.settings import StreamSettings
from .._streams.snapshots import Snapshot
from .._workers.stateful import is_stateful, state_of
from .batches import Batch
from .caching import Cache
from .functions import Counted, Filter, FlatMap, Map
from .shuffling import Shuffle
from .sources import Parts, Source
from .stage import Item, Stage
from .visits import Visit, Window

_PLAIN = (list, range, np.ndarray, Texts)  # sources whose elements cost nothing
_ITEM = operator.itemgetter(2)  # the item of an entry
_TELL = 0.05  # seconds between two sums of what a worker counts


def check(batch: Batch) -> None:
    """Raises InvalidError for a chain without rows."""
    if batch.by is not None or batch.pad is not None or batch.collate is not None or batch.drop_last:
        raise batch.refuse(
            "rows=True takes items of one shape, one for each row; leave size=, pad=, collate= and drop_last= out, and for "
            'full batches alone give ends="drop" to the loader'
        )
    lists: Stage | None = None
    for each in batch.chain()[1:]:
        why = _refused(each, lists)
        if why:
            raise batch.refuse(f"rows=True, and {each.shown()}{each.line} {why}")
        lists = each if isinstance(each, FlatMap) else lists
    try:
        settings_of(batch, 0, "pad", False, 0, 1)
    except InvalidError as error:
        raise batch.refuse(str(error)) from None


def _refused(stage: Stage, lists: Stage | None) -> str:
    """Why a stage cannot stand above the batches; "": it can. lists: the .flat_map below it."""
    if type(stage) is Map or (lists is None and type(stage) is Filter):
        return ""
    if isinstance(stage, Source):
        return "" if lists is not None else "has items alone; write .flat_map(read) below, which gives those of a file"
    if isinstance(stage, Counted):
        return "numbers the items of all files; leave count= out, and give lengths= to .batch()"
    if isinstance(stage, FlatMap):
        return "" if lists is None else "gives files that have no index; call both functions in one .flat_map"
    if isinstance(stage, Shuffle):
        if lists is not None and stage.weighted is None:
            return ""
        parts = isinstance(stage.above[0], Parts)
        above = "source(range(n)).shuffle(...).flat_map(f)" if parts else "it without weights= above .flat_map"
        return f"would mix or repeat items of files; write {above}, which shuffles the files"
    if isinstance(stage, Cache):
        return "" if lists is not None else "keeps whole files, which rows read piece by piece; leave it out"
    if isinstance(stage, Filter):
        return "leaves files out, so that they have no index; filter the list that source() gets"
    return "joins items of several pipes or elements; make rows of one source, with source([*a, *b])"


def settings_of(batch: Batch, seed: int, ends: Any, skips: bool, rank: int, world_size: int) -> StreamSettings:
    """seed: of the loader. ends: as it has it. skips: whether files that fail are left out."""
    shuffle = next((each for each in batch.chain() if isinstance(each, Shuffle)), None)
    reader = RowReader(batch.above[0], seed)
    return StreamSettings(
        reader.files,
        batch.size,
        reader,
        rank=rank,
        world_size=world_size,
        lengths=batch.lengths(),
        shuffle=shuffle is not None,
        seed=seed if shuffle is None or shuffle.seed is None else shuffle.seed,
        ends="pad" if ends == "uneven" else ends,
        uneven=ends == "uneven",
        errors="skip" if skips else "raise",
    )


def order_of(batch: Batch, seed: int, given: Any, chain: Any) -> StreamOrder:
    """given: the arguments of a loader. Raises InvalidError for those that rows do not know."""
    for name in ("restart_workers", "affinity"):
        if getattr(given, name):
            raise InvalidError(
                f"{batch.shown()} has no {name}=: its workers have the files of their rows for a whole iteration; leave "
                f"{name}= out"
            )
    if given.worker not in (None, "process"):
        raise InvalidError(
            f'{batch.shown()} has no worker="{given.worker}": its workers are processes; leave worker= out'
        )
    skips = given.bad_samples == "skip"
    return StreamOrder(partial(settings_of, batch, seed, given.ends or "pad", skips), seed, chain)


class PipeRows(WithoutIndex):
    """What a loader has in place of a dataset."""


def batches(batch: Batch) -> Iterator[StreamBatch]:
    """Those of epoch 0, for one rank."""
    settings = settings_of(batch, 0, "pad", False, 0, 1)
    return StreamIterator(settings, settings.scheduler(settings.start(0)), Progress())


def steps(batch: Batch) -> int:
    """How many `batches` there are. TypeError if that is not known."""
    settings = settings_of(batch, 0, "pad", False, 0, 1)
    return settings.steps(settings.start(0))


class RowReader(Reader):
    """Opens elements of a pipe as files. seed: of the loader."""

    def __init__(self, stage: Stage, seed: int) -> None:
        above = stage.chain()
        self._lists = next(each for each in above if isinstance(each, FlatMap))
        self._seed, self._told = seed, 0.0
        self._counters: Counters | None = None
        self._below = _below(stage, self._lists)
        self._filters = any(type(each) is Filter for each in above)
        self.seeks = "start" in parameters(self._lists.function)
        source: Any = above[-1]
        self.files: Any = source.data if isinstance(source.data, _PLAIN) else range(len(self._lists.above[0]))

    def values(self, file: Any, number: int, epoch: int, start: int) -> Iterable[Any]:
        visit = Visit(number, 0, epoch)
        [(_, _, item)] = self._lists.above[0].items([visit], Window(self._seed, epoch))
        lists = self._lists
        if self.seeks:
            lists = copy.copy(lists)
            lists.function = partial(lists.function, start=start)
        made: Iterable[Any] = lists.called(item, visit, lists.seed_of(visit, 0, self._seed))
        return made

    def open(
        self, file: Any, number: int, epoch: int, start: int, snapshot: Snapshot | None = None
    ) -> tuple[Any, Iterator[Any]]:
        tally, read, begin = current(), start, start
        tally.begin()
        if self._filters:  # `read` counts the items that the filter gets, and `start` those that it gives
            read = begin = 0
            if snapshot is not None:
                of_values, of_items = pickle.loads(snapshot.data)
                read, begin = of_items["read"], snapshot.item
                snapshot = replace(snapshot, item=read, data=pickle.dumps((of_values, of_items["state"])))
        values, items = super().open(file, number, epoch, read, snapshot)
        opened = _Items(self, Visit(number, 0, epoch), items, read)
        stateful = is_stateful(items) or (self._filters and is_stateful(values))
        made = opened if stateful else opened.made
        mark = tally.mark()
        skip(made, start - begin)
        tally.back(mark)
        return made if values is items else values, made

    def counting(self, counters: Counters | None) -> RowReader:
        made = copy.copy(self)
        made._counters = counters
        return made

    def enter_worker(self, number: int) -> None:
        if self._counters is not None:
            self._counters.enter_worker(number)
            current().wake()

    def tell(self, *, ends: bool = False) -> None:
        now = time.monotonic()
        if ends or now - self._told > _TELL:
            self._told = now
            current().flush()


class _Items(Iterator[Any]):
    """The items that the stages below make of those of an open file. They have its state.

    made: the items without a state, which come faster. read: the number of the next item of the file."""

    def __init__(self, reader: RowReader, visit: Visit, items: Iterator[Any], read: int) -> None:
        self._reader, self._items, self._read, self._visit = reader, items, read, visit
        self.made = self._make()

    def _make(self) -> Generator[Any, None, None]:
        below, lists = self._reader._below, self._reader._lists
        try:
            if isinstance(below, _OpenList):  # no stage needs the visits of items
                try:
                    yield from current().reading.given(below.number, iter, self._items)
                except Exception as error:
                    lists.failed(error, self._visit)
            else:
                window = _Open(self._reader._seed, self._visit.epoch, entries=self._entries())
                yield from map(_ITEM, below.items([self._visit], window))
        finally:
            if hasattr(self._items, "close"):
                self._items.close()

    def _entries(self) -> Iterator[Item]:
        try:
            for item in self._items:
                ordinal, self._read = self._read, self._read + 1
                yield self._visit, ordinal, item
        except Exception as error:
            self._reader._lists.failed(error, self._visit)

    def __next__(self) -> Any:
        return next(self.made)

    def close(self) -> None:
        self.made.close()

    def state_dict(self) -> Any:
        state = state_of(self._items)
        return {"read": self._read, "state": state} if self._reader._filters else state

    def load_state_dict(self, state: Any) -> None:
        """`RowReader.open` gives the states back."""


@dataclass(frozen=True)
class _Open(Window):
    entries: Iterator[Item] = field(default_factory=lambda: iter(()))


class _OpenList(Stage):
    """The items of an open file, in place of a .flat_map."""

    indexed = False

    def __init__(self, lists: FlatMap) -> None:
        self.above, self.line, self.number = (lists,), lists.line, lists.number

    def read(self, some: Iterable[Visit], window: Any) -> Iterator[Item]:
        return window.entries  # type: ignore[no-any-return]


def _below(stage: Stage, lists: FlatMap) -> Stage:
    """A copy of the stages below a .flat_map, which take the items of an open file."""
    if stage is lists:
        return _OpenList(lists)
    made: Stage = stage.copied()
    made.above = (_below(stage.above[0], lists),)
    return made
