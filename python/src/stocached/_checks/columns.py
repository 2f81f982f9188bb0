"""What tables and columns of pandas and pyarrow consist of: names, and arrays of NumPy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def _is(value: Any, module: str, *names: str) -> bool:
    kinds = (getattr(sys.modules.get(module), name, None) for name in names)
    return isinstance(value, tuple(kind for kind in kinds if kind is not None))


def is_table(value: Any) -> bool:
    """Whether a value is a table or a column."""
    return _is(value, "pandas", "DataFrame", "Series", "Index") or _is(
        value, "pyarrow", "Table", "RecordBatch", "ChunkedArray", "Array"
    )


def columns_of(value: Any) -> list[Any]:
    """The parts of a table or column, which may be tables and columns themselves."""
    if _is(value, "pandas", "DataFrame"):
        return [value.columns, value.index, *(value.iloc[:, k].to_numpy() for k in range(value.shape[1]))]
    if _is(value, "pandas", "Series"):
        return [value.name, value.index, value.to_numpy()]
    if _is(value, "pandas", "Index"):
        return [list(value.names), value.to_numpy()]
    if _is(value, "pyarrow", "Table", "RecordBatch"):
        return [value.schema.names, *value.columns]
    if _is(value, "pyarrow", "ChunkedArray"):
        return list(value.chunks)
    buffers = [None if buffer is None else np.frombuffer(buffer, np.uint8) for buffer in value.buffers()]
    return [str(value.type), value.offset, len(value), getattr(value, "dictionary", None), *buffers]
