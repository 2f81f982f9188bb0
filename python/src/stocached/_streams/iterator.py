"""One iteration over a stream: settles steps, has their items read into batches, and gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._common.errors import StreamError
from .._common.sizes import parse_size
from .._memory.ring import Ring
from .assignment import NONE
from .items import Array, Items
from .open_files import Failure, FileFailed, Readings, first_item
from .scheduler import Front, Step
from .workers import Crew

if TYPE_CHECKING:
    from .streams import StreamBatch, Streams


class Here:
    """Reads in the thread that asks, for who has no workers."""

    def __init__(self, streams: Streams, front: Front, ring: Ring) -> None:
        self._streams, self._front, self._ring = streams, front, ring
        self._known = streams.lengths is not None
        self._readings = Readings(streams.reader, streams.files, streams.errors == "skip")
        self.items = streams.items  # this is a Batch
        self.arrays: Sequence[Array] = ()
        for turn in front.begin():
            self._readings.add(turn)

    def next(self) -> tuple[Step, Items, Sequence[Array]] | None:
        """As Crew.next."""
        step = None
        if self._known:
            step = self._front.known()
            if step is None:
                return None
            if self.items is None and not step.mask.any():
                self._know(first_item(self._streams))
            for turn in step.turns:
                self._readings.add(turn)
        if self.items is not None:
            self.arrays = self._new(self.items)
        put = self._readings.put
        waiting = [row for row in range(self._streams.batch_size) if not put(row, self)]
        while not self._known and waiting:
            turns = self._front.round(waiting)
            for turn in turns:
                self._readings.add(turn)
            waiting = [turn.row for turn in turns if not put(turn.row, self)]
        step = step or self._front.finish()
        if step is None or self.items is None:
            return None
        arrays, self.arrays = self.arrays, ()  # nothing of it stays here
        return step, self.items, arrays

    def learn(self, row: int, value: Any) -> None:
        """As Batch.learn."""
        self.arrays = self._new(self._know(Items(value)))

    def _know(self, items: Items) -> Items:
        self.items = self._streams.items = items
        return items

    def _new(self, items: Items) -> list[Array]:
        rows = self._streams.batch_size
        self._ring.resize(items.nbytes(rows))
        lease = self._ring.take()
        return items.arrays(lease.array() if lease is not None else np.empty(items.nbytes(rows), np.uint8), rows)

    def failures(self) -> list[Failure]:
        """As Crew.failures."""
        taken, self._readings.failures = self._readings.failures, []
        return taken

    def close(self) -> None:
        self._readings.close()


class StreamIterator(Iterator["StreamBatch"]):
    """The batches of one epoch, or without end."""

    def __init__(self, streams: Streams, front: Front) -> None:
        self._streams, self._epoch = streams, front.rows.places.epoch
        self._gaps: list[tuple[int, int, int]] = []  # row, first step, end: items that a file that failed does not have
        self._numbers = np.arange(streams.batch_size) + streams.rank * streams.batch_size
        self._source: Here | Crew | None = None
        ring = streams.ring or Ring(parse_size(streams.ring_bytes), shared=streams.num_workers > 0)
        streams.ring = None  # one iteration at a time has it
        self._ring = ring
        self._source = Crew(streams, front, ring) if streams.num_workers else Here(streams, front, ring)

    def __next__(self) -> StreamBatch:
        if self._source is None:
            raise StopIteration
        try:
            got = self._source.next()
        except FileFailed as failed:
            self.close()
            raise self._error(failed) from failed.__cause__
        except BaseException:
            self.close()
            raise
        self._note(self._source.failures())
        if got is None:
            self._streams._ended(self._epoch)
            self.close()
            raise StopIteration
        return self._batch(*got)

    def _batch(self, step: Step, items: Items, arrays: Sequence[Array]) -> StreamBatch:
        from .streams import StreamBatch

        for row, first, end in self._gaps:
            if first <= step.number < end:
                step.mask[row] = False
                step.files[row] = step.positions[row] = NONE
        if not step.mask.all():
            for array in arrays:
                array[~step.mask] = 0
        self._streams._given(step)
        return StreamBatch(items.give(arrays), step.mask, step.positions == 0, self._numbers.copy(), step.files, step.positions, step.number)

    def _note(self, failures: list[Failure]) -> None:
        for failure in failures:
            turn = failure.turn
            if turn.length is not None:
                self._gaps.append((turn.row, failure.step, turn.step + turn.length - turn.item))
            self._streams._failed(failure)

    def _error(self, failed: FileFailed) -> StreamError:
        failure, workers = failed.failure, min(self._streams.num_workers, self._streams.batch_size)
        row, number = failure.turn.row, failure.turn.number
        file = self._streams.files[number]
        worker = f", worker {row % workers}" if workers else ""
        trace = f"\n\n{failure.trace}" if workers else ""  # without workers it is the cause of this error
        return StreamError(
            f"file {number} ({file!r}), item {failure.item}, row {self._numbers[row]}{worker}: {failure.message}{trace}", file, number, failure.item
        )

    def close(self) -> None:
        """Lets go of files and workers. Called by itself at the end of the epoch, when the iterator is gone, and when the interpreter ends."""
        source, self._source = self._source, None
        if source is not None:
            source.close()
            self._streams.ring = self._ring

    def __del__(self) -> None:
        self.close()
