"""One batch of a stream."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


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


StreamBatch.__module__ = "stocached.streams"  # where users find it
