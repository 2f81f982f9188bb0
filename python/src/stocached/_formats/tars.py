"""Tar shards: the members of a sample are an item."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import BadSampleError, InvalidError
from .._common.local_file import LocalFile
from .._common.one_line import one_line, printable
from .._image.decoded_members import decoded_item
from .._memory.texts import SharedBytes, Texts
from .._shards.chosen_members import chosen_members, names_of, number_of, read_members
from .._shards.tar_index import members_of

_KEY = "__key__"  # the key of an item
_BETWEEN = 1 << 16  # bytes between the members of a sample that are read, so that one read has all


class Tar:
    """Each element is a sample of a shard: the bytes of its members, under their endings, and "__key__".

    fields: the members of an item, in this order; "jpg;png" is the first of these that a sample has. Of one field, an item
        is its value. int64: the fields that hold a whole number as text. missing: of samples that lack a field: "error" or
        "skip". These are keys of a source of tar shards (docs/spec/sources.md)."""

    def __init__(
        self, path: str, fields: list[str] | None = None, int64: list[str] | None = None, missing: str = "error"
    ) -> None:
        members = members_of(path)
        keys, self._file = members.keys(), LocalFile(path)
        rows = np.stack([members.places, members.sizes, members.numbers], 1)
        starts = members.starts
        self._fields, self._keyed = members.fields, fields is None
        if fields is not None:
            names = [names_of(one) for one in _texts("fields", fields)]
            self._fields = [one[0] for one in names]
            if len(set(self._fields)) < len(self._fields):
                raise InvalidError(f"fields={one_line(fields)}: each field once")
            chosen, complete = chosen_members(path, members, names, missing)
            rows = rows[chosen[complete].ravel()]
            rows[:, 2] = np.tile(np.arange(len(names)), len(rows) // len(names))
            keys = [key for key, whole in zip(keys, complete.tolist()) if whole]
            starts = np.arange(len(keys) + 1) * len(names)
        elif missing != "error":
            raise InvalidError(f"missing={missing!r} needs fields=, the names of the members that each item has")
        elif _KEY in self._fields:
            member = int(np.argmax(members.numbers == self._fields.index(_KEY)))
            key = keys[int(np.searchsorted(starts, member, "right")) - 1]
            raise InvalidError(
                f"{printable(path)}: sample {printable(os.fsdecode(key))} has a member named {_KEY}, as the key of an item: "
                "name the members to read in fields="
            )
        self._numbers = (
            {one.lower().removeprefix(".") for one in _texts("int64", int64)} if int64 is not None else set()
        )
        if keys and not self._numbers <= set(self._fields):
            raise InvalidError(
                f"{printable(path)}: int64={one_line(int64)}, and its fields are {one_line(self._fields)}"
            )
        lengths = np.fromiter(map(len, keys), np.uint64, len(keys))
        self._keys = Texts.joined("", "surrogateescape", [(b"".join(keys), lengths)])
        self._starts, self._rows = SharedBytes.of_array(starts), SharedBytes.of_array(rows)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, k: int) -> Any:
        item = self._item(k)
        if self._keyed:
            return {_KEY: self._keys[k], **item}
        return item if len(item) > 1 else item[self._fields[0]]

    def _item(self, k: int) -> dict[str, Any]:
        """The fields of an item. Raises BadSampleError."""
        item: dict[str, Any] = {**self._read(k)}
        for name in self._numbers & item.keys():
            try:
                item[name] = number_of(item[name])
            except ValueError:
                raise BadSampleError(f"{printable(name)}: no whole number of 64 bits: {one_line(item[name])}") from None
        return item

    def _read(self, k: int) -> dict[str, bytes]:
        """The bytes of the members of a sample."""
        begin, end = self._starts.array.view(np.int64)[k : k + 2].tolist()
        rows = self._rows.array.view(np.int64).reshape(-1, 3)[begin:end].tolist()
        values = read_members(self._file.read, [(at, size) for at, size, _ in rows], _BETWEEN)
        return {self._fields[field]: value for (_, _, field), value in zip(rows, values)}

    def name(self, k: int) -> str:
        return f"sample {printable(self._keys[k])}"

    @property
    def picture_fields(self) -> tuple[str, ...] | None:
        """As `FileBytes.picture_fields`."""
        if self._keyed:
            return None
        first, *others = self._fields
        if len(others) > 1 or self._numbers != set(others):
            return None
        return (first, *others) if others else ()

    def picture_places(self, file: int) -> npt.NDArray[Any]:
        """Where the members of each sample lie, for C. file: the number of this shard."""
        from .._image.pipeline import PLACE  # needs the library for pictures
        from .._native import _image_header as native

        rows = self._rows.array.view(np.int64).reshape(len(self), len(self._fields), 3)
        places = np.zeros(len(self), PLACE)
        places["file"], places["at"], places["bytes"] = file, rows[:, 0, 0], rows[:, 0, 1]
        if len(self._fields) == 2:
            places["label"], places["label_bytes"] = rows[:, 1, 0], rows[:, 1, 1]
            places["label_kind"] = native.LABEL_TEXT
        return places


class DecodedTar(Tar):
    """The same with decoded values, also of one field as a dict."""

    def __getitem__(self, k: int) -> dict[str, Any]:
        return decoded_item(self._keys[k] if self._keyed else None, self._item(k).items())


def _texts(name: str, given: Any) -> list[str]:
    if (
        not isinstance(given, (list, tuple))
        or not given
        or not all(isinstance(one, str) and one.strip(";") for one in given)
    ):
        raise InvalidError(f"{name}={one_line(given)}: give a list of names, such as {name}=['cls']")
    return list(given)
