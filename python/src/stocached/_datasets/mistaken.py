"""What people give in place of a dataset, and what they should give."""

from __future__ import annotations

import sys
from typing import Any

from .._common.errors import InvalidError

# Of tables whose [index] gives something else than a sample: module and class, what it gives, and what to write.
_TABLES = (
    ("pandas", "DataFrame", "takes names, not positions", '.to_dict("records"), or .to_numpy()'),
    ("pandas", "Series", "takes names, not positions", ".to_list(), or .to_numpy()"),
    ("pyarrow", "Table", "gives columns, not rows", ".to_pylist(), or source() the name of a Parquet file of it"),
    ("pyarrow", "RecordBatch", "gives columns, not rows", ".to_pylist(), or source() the name of a Parquet file of it"),
    ("polars", "DataFrame", "gives tables, not rows", ".to_dicts(), or .to_numpy()"),
    ("h5py", "Group", "takes names, not positions", "one of its datasets, or source() the name of the file"),
)


def refuse(where: str, data: Any) -> None:
    """Raises InvalidError for a class, and for a table whose [index] gives no sample. where: who takes the dataset."""
    if isinstance(data, type) and not hasattr(type(data), "__getitem__"):  # an Enum has items
        raise InvalidError(f"{where}({data.__name__}): this is a class; give an object, {data.__name__}(...)")
    for module, name, gives, instead in _TABLES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(data, kind):
            raise InvalidError(f"{where}({type(data).__name__}): its [index] {gives}; give {instead}")
