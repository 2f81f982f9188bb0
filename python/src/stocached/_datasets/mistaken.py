"""What people give in place of a dataset, and what they should give."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

from .._common.errors import InvalidError
from .._common.one_line import one_line

# Of tables whose [index] gives something else than a sample: module and class, what it gives, and what to write.
_TABLES = (
    ("pandas", "DataFrame", "takes names, not positions", '.to_dict("records"), or .to_numpy()'),
    ("pandas", "Series", "takes names, not positions", ".to_list(), or .to_numpy()"),
    ("pyarrow", "Table", "gives columns, not rows", ".to_pylist(), or source() the name of a Parquet file of it"),
    ("pyarrow", "RecordBatch", "gives columns, not rows", ".to_pylist(), or source() the name of a Parquet file of it"),
    ("polars", "DataFrame", "gives tables, not rows", ".to_dicts(), or .to_numpy()"),
    ("h5py", "Group", "takes names, not positions", "one of its datasets, or source() the name of the file"),
    ("numpy.lib.npyio", "NpzFile", "takes names, not positions", "one of its arrays, or source() the name of the file"),
)
_OF_PYTHON = "builtins", "itertools", "_io", "_csv"  # an iterator of the program may begin anew with each __iter__
IN_PLACE_OF_AN_ITERATOR = (
    "give a list of it, or source(f, parts=1) with a function: f(0) gives the items, such as a generator"
)
_NEED_ONE = "source", "Loader", "CachedDataset"  # torch's loader may be made with None
_BY_NAME = "its [index] takes names, not positions"


def refuse(where: str, data: Any) -> None:
    """Raises InvalidError for what is no dataset, or whose [index] gives no sample. where: who takes the dataset."""
    found = _instead(where, data)
    if found is not None:
        shown = data.__name__ if isinstance(data, type) else one_line(data)
        raise InvalidError(f"{where}({shown}): {found[0]}; {found[1]}")


def _instead(where: str, data: Any) -> tuple[str, str] | None:
    """What is wrong with it, and what to give; None: nothing is known to be wrong."""
    if isinstance(data, (str, bytes, os.PathLike)):
        of_files = f"source({one_line(os.fsdecode(data))})"
        if where == "source":
            return "source() takes it as a str", f"for the samples of files, write {of_files}"
        return "a text or a path is no dataset", f"for the samples of files, write {where}({of_files}, ...)"
    if isinstance(data, type) and not hasattr(type(data), "__getitem__"):  # an Enum has items
        return "this is a class", f"give an object, {data.__name__}(...)"
    if inspect.isroutine(data):
        return (
            "this is a function",
            "give what it returns, or source(f, parts=n) with a function that gives the items of part k",
        )
    if where == "Loader" and hasattr(data, "__next__") and type(data).__module__ in _OF_PYTHON:
        return "this is an iterator, which has nothing left after one epoch", IN_PLACE_OF_AN_ITERATOR
    if getattr(data, "shape", None) == ():
        return "this has no dimension, so there are no samples in it", "give a list, or an array of samples"
    for module, name, gives, instead in _TABLES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(data, kind):
            return f"its [index] {gives}", f"give {instead}"
    if isinstance(data, dict) and data and all(hasattr(value, "features") for value in data.values()):
        return _BY_NAME, f"give one of its datasets, such as d[{next(iter(data))!r}]"  # a DatasetDict of Hugging Face
    if isinstance(data, dict) and type(data).__getitem__ is dict.__getitem__ and (where == "source" or 0 not in data):
        return (
            _BY_NAME,
            "of a dict of columns, give source(range(n)).map(lambda row: {name: d[name][row] for name in d})",
        )
    without = not any(hasattr(data, name) for name in ("__getitem__", "__iter__", "__len__"))
    if without and (data is not None or where in _NEED_ONE):
        return "this has neither len() and [index] nor an iterator", "give a list, an array, a dataset, or source(...)"
    return None
