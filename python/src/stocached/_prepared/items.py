"""Items of a pipe as samples of block files: what they are put together of, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError, SchemaError
from .._common.one_line import one_line
from .._samples import dtypes
from .._samples.schema import Field
from .._samples.structure import Structure
from .._samples.tree import Tree, kind_of

NOTE = "items"  # the note of a dataset that says the form of its items
_CONTAINERS: dict[str, type] = {"dict": dict, "tuple": tuple, "list": list}


def form_of(value: Any, path: str = "") -> Any:
    """How an item is put together, as JSON has it: ["dict", {name: ...}], ["tuple", [...]], or [kind, dtype]."""
    kind = type(value).__name__
    if type(value) is dict:
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise InvalidError(f".write(): {wrong!r} is a key of an item, and keys are texts; change it with .map()")
        return [kind, {key: form_of(inner, f"{path}{key}.") for key, inner in value.items()}]
    if type(value) in (tuple, list):
        return [kind, [form_of(inner, f"{path}{k}.") for k, inner in enumerate(value)]]
    try:
        kind, code = kind_of(value, path.rstrip("."))
    except SchemaError:
        kind = ""
    if not kind or dtypes.NAMES[code] == "bfloat16":
        raise InvalidError(
            f".write(): {path.rstrip('.') or 'the item'} is {one_line(value)}, of the type {type(value).__name__}"
            f"{' of ' + str(value.dtype) if hasattr(value, 'dtype') else ''}; items are arrays of numbers in the machine's byte "
            "order, numbers, texts and bytes, or dicts, tuples and lists of them; make such with .map()"
        )
    return ["array" if kind == "tensor" else kind, dtypes.NAMES[code]]


def _sample_of(form: Any) -> Any:
    """An item that is put together so."""
    kind, inside = form
    if kind == "dict":
        return {key: _sample_of(inner) for key, inner in inside.items()}
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](map(_sample_of, inside))
    if kind in ("array", "scalar"):
        array = np.zeros((), dtypes.NUMPY[dtypes.CODES[inside]])
        return array if kind == "array" else array[()]
    return {"bool": False, "int": 0, "float": 0.0, "complex": 0j, "str": "", "bytes": b""}[kind]


def structure_of(form: str, fields: Sequence[Field]) -> Structure:
    """Makes items of samples. form: as `form_of` says it, in JSON. fields: of the samples."""
    return Structure(Tree(_sample_of(json.loads(form))), list(fields))
