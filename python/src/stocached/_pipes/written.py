"""What .write() has put into files, as a dataset of the items."""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError, SchemaError
from .._common.one_line import one_line
from .._datasets.structure import Structure
from .._files.block_storage import BlockStorage
from .._files.dataset import PreparedDataset
from .._files.description import FORMAT as BLOCK_FORMAT
from .._files.description import NAME, file_name
from .._files.tar_storage import TarStorage
from .._files.tar_writer import FORMAT as TAR_FORMAT
from .._files.tar_writer import shard_name
from .._samples import dtypes
from .._samples.schema import Field
from .._samples.tree import Tree, kind_of

NOTE = "items"  # of a dataset in block files: how its samples become items
_BEGINS = 100  # bytes of dataset.json, which have the format
_CONTAINERS: dict[str, type] = {"dict": dict, "tuple": tuple, "list": list}


def described(value: Any, path: str = "") -> Any:
    """How an item is put together, as JSON has it: ["dict", {name: ...}], ["tuple", [...]], or [kind, dtype]."""
    kind = type(value).__name__
    if type(value) is dict:
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise InvalidError(f".write(): {wrong!r} is a key of an item, and keys are texts; change it with .map()")
        return [kind, {key: described(inner, f"{path}{key}.") for key, inner in value.items()}]
    if type(value) in (tuple, list):
        return [kind, [described(inner, f"{path}{k}.") for k, inner in enumerate(value)]]
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


class Written(PreparedDataset):
    """The items that .write() has put into block files. Tensors come as arrays."""

    def __init__(self, folder: str, form: str) -> None:
        self._block = BlockStorage(folder)
        super().__init__(self._block)
        self._form = form

    @functools.cached_property
    def _made(self) -> tuple[Structure, list[Field]]:
        fields = list(self._block.reader.fields)
        return Structure(Tree(_sample_of(json.loads(self._form))), fields), fields

    def __getitem__(self, index: int) -> Any:
        structure, fields = self._made
        return structure.sample(super().__getitem__(index), fields)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        structure, fields = self._made
        return [structure.sample(sample, fields) for sample in super().__getitems__(indices)]

    def __repr__(self) -> str:
        return f"<items of a pipe in {self.storage!r}: {len(self):,}>"


class WrittenMembers(PreparedDataset):
    """The items that .write(format="tar") has put into shards, without "__key__"."""

    def __getitem__(self, index: int) -> Any:
        return _decoded(super().__getitem__(index))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return list(map(_decoded, super().__getitems__(indices)))


# The endings of members whose values are no bytes, as webdataset has them.
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
            _value_of(name, data)
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


def _decoded(members: dict[str, bytes]) -> dict[str, Any]:
    return {name: _value_of(name, data) for name, data in members.items()}


def _value_of(name: str, data: bytes) -> Any:
    """The value of a member. Raises ValueError."""
    ending = str(name).rpartition(".")[2]
    if ending in _TEXTS:
        return data.decode()
    if ending in _NUMBERS:
        return int(data)
    if ending in _OTHERS:
        return json.loads(data)
    return np.load(io.BytesIO(data), allow_pickle=False) if ending in _ARRAYS else data


def written_in(folder: str) -> Any:
    """What a folder of block files or tar shards holds. Raises NotPreparedError, CorruptError, VersionError."""
    if os.path.isfile(os.path.join(folder, shard_name(0))):
        return WrittenMembers(TarStorage(folder))
    storage = BlockStorage(folder)
    form = storage.load_dataset_info().notes.get(NOTE)
    return PreparedDataset(storage) if form is None else Written(folder, form)


def is_written(folder: str) -> bool:
    """Whether .write() or stocached.prepare has made the files of a folder."""
    try:
        with open(os.path.join(folder, NAME), "rb") as file:
            begins = file.read(_BEGINS)  # others write files of this name too
    except OSError:
        return False
    first = (file_name(0), BLOCK_FORMAT), (shard_name(0), TAR_FORMAT)
    return any(os.path.isfile(os.path.join(folder, name)) and f'"{form}"'.encode() in begins for name, form in first)
