"""The rows of arrays, as all formats of arrays give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError
from .._common.one_line import one_line, printable

_SHOWN = 6  # arrays in an error


def common_length(path: str, shapes: Mapping[str, tuple[int, ...] | None]) -> int:
    """How many rows all arrays of a file have. Raises InvalidError."""
    lengths = {name: shape[0] if shape else -1 for name, shape in shapes.items()}
    if not lengths:
        raise InvalidError(f"{printable(path)} has no arrays; {_instead(path)}")
    longest = max(lengths.values())
    if 0 <= longest == min(lengths.values()):
        return longest
    said = [f"{printable(name)} has {'one value' if length < 0 else f'{length:,}'}" for name, length in lengths.items()]
    more = f", and there are {len(said) - _SHOWN:,} more" if len(said) > _SHOWN else ""
    some = [name for name, length in lengths.items() if length == longest >= 0]
    raise InvalidError(
        f"{printable(path)}: an item is a row of all arrays, so they need one length: {', '.join(said[:_SHOWN])}{more}. "
        + (f"Choose some, as columns={one_line(some, 200)}; " if some else "Choose others; ")
        + _instead(path)
    )


def _instead(path: str) -> str:
    return 'kind="dir" gives the bytes of files' if "://" in path else 'format="paths" gives the paths of files'


def rows_of(values: npt.NDArray[Any], texts: bool) -> list[Any]:
    """Each row: numbers and arrays of NumPy in the machine's byte order, str, bytes, and dicts of structs. texts: whether the
    bytes of strings are UTF-8. Raises UnicodeDecodeError."""
    kind = values.dtype
    if kind.names is not None:
        columns = [rows_of(values[name], texts) for name in kind.names]
        return [dict(zip(kind.names, row)) for row in zip(*columns)] if columns else [{} for _ in values]
    if kind.kind in "SUO" or kind.type is np.void:
        return [_plain(value, texts and kind.kind != "V") for value in values.tolist()]
    if not kind.isnative:
        values = values.astype(kind.newbyteorder("="))
    return list(values)


def _plain(value: Any, texts: bool) -> Any:
    if isinstance(value, list):
        return [_plain(each, texts) for each in value]
    if isinstance(value, bytes):
        return value.decode() if texts else value
    if isinstance(value, np.ndarray):  # a ragged row
        return rows_of(value, texts) if value.dtype.kind in "SUOV" else value
    return value


def type_of(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    """What a row has, for `Elements`."""
    kind = {"S": "bytes", "U": "text", "O": "values"}.get(dtype.kind) or dtype.newbyteorder("=")
    return f"{kind}{list(shape[1:]) or ''}"
