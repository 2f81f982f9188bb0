"""One batch of a stream, and whole batches out of the parts of several workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._common.errors import StreamError
from .items import concatenate


class StreamBatch(NamedTuple):
    """One item of each row. A batch that you keep never changes. Its memory is reused when its last array is gone.

    items: have the structure of one item, with arrays of (rows, *shape).
    mask: False for rows without an item, whose values are zeros.
    starts: True for rows that begin a file with this item: reset what your model remembers of the row.
    rows: the numbers of the rows, over all ranks.
    files: the number of each row's file in the list of files; -1: it has none.
    positions: the number of each item in its file; -1: there is none.
    step: the number of the batch in its epoch."""

    items: Any
    mask: npt.NDArray[np.bool_]
    starts: npt.NDArray[np.bool_]
    rows: npt.NDArray[np.int64]
    files: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    step: int


def join(parts: Iterable[StreamBatch]) -> Iterator[StreamBatch]:
    """Whole batches out of the parts that several workers of torch's own DataLoader give one after
    the other. StreamError if parts are missing or out of order."""
    waiting: list[StreamBatch] = []
    rows = 0
    for part in parts:
        if waiting and part.step != waiting[0].step:
            yield _joined(waiting, rows)
            rows = rows or sum(len(other.rows) for other in waiting)
            waiting = []
        waiting.append(part)
    if waiting:
        yield _joined(waiting, rows)


def _joined(parts: list[StreamBatch], rows: int) -> StreamBatch:
    """One batch of parts of one step, which has so many rows if that is known."""
    numbers = [int(row) for part in parts for row in part.rows]
    first = numbers[0]
    if numbers != list(range(first, first + len(numbers))) or rows not in (0, len(numbers)):
        raise StreamError(
            f"step {parts[0].step} has rows {numbers}: the parts of a step must come one after the other "
            "(in_order=True), and all workers must end at the same step"
        )
    if len(parts) == 1:
        return parts[0]
    *columns, steps = zip(*parts)
    return StreamBatch._make([*map(concatenate, columns), steps[0]])


StreamBatch.__module__ = "stocached.streams"  # where users find it
