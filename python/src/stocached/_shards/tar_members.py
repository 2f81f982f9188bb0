"""The values of members of tar shards, by the endings of their names, as webdataset has them."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from .._common.errors import SchemaError
from .._common.one_line import one_line

_TEXTS, _NUMBERS, _OTHERS, _ARRAYS = (
    {"txt", "text", "transcript"},
    {"cls", "cls2", "index", "inx", "id"},
    {"json", "jsn"},
    {"npy"},
)


def encoded_member(name: str, value: Any) -> bytes:
    """The bytes of a member. Raises SchemaError for a value that does not go with the name."""
    ending = str(name).rpartition(".")[2]
    if type(value) in (bytes, bytearray, memoryview):
        data = bytes(value)
        try:
            member_value(name, data)
        except ValueError as error:
            raise SchemaError(f"the member {name!r} of an item is no {ending}: {error}; give it another name") from None
        return data
    if ending in _TEXTS and isinstance(value, str):
        return value.encode()
    if ending in _NUMBERS and isinstance(value, (int, np.integer)):
        return b"%d" % value
    if ending in _ARRAYS and hasattr(value, "__array__"):
        made = io.BytesIO()
        np.save(made, np.asarray(value), allow_pickle=False)
        return made.getvalue()
    if ending in _OTHERS:
        return json.dumps(value).encode()
    raise SchemaError(
        f"the member {name!r} of an item is {one_line(value)}, of the type {type(value).__name__}; give bytes, or a text "
        "under txt, a whole number under cls, an array under npy, and other values under json"
    )


def member_value(name: str, data: bytes) -> Any:
    """The value of a member. Raises ValueError."""
    ending = str(name).rpartition(".")[2]
    if ending in _TEXTS:
        return data.decode()
    if ending in _NUMBERS:
        return int(data)
    if ending in _OTHERS:
        return json.loads(data)
    return np.load(io.BytesIO(data), allow_pickle=False) if ending in _ARRAYS else data
