"""Tar shards of pictures and labels, in the format of webdataset."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError, SampleIndexError, UnsupportedError
from .._common.local_file import MOST_OPEN, LocalFile
from .._common.numbers import index_of
from .._native import _image_header as native
from .._shards.braces import expanded
from .._shards.chosen_members import chosen_members, names_of, number_of, read_members
from .._shards.tar_index import Members, members_of
from .._shards.wildcards import matches
from .folder import Decoded
from .pipeline import PLACE, Files, files_of
from .samples import PICTURES

_PICTURES = ";".join(PICTURES)
_LABELS = "cls;json"
_MOST_BETWEEN = 16384  # bytes between a picture and its label that are read, so that one read has both


class Shards(Decoded):
    """dataset[i] is (picture, label), or the picture alone if samples have no label.

    pattern: a path, or paths, with braces and wildcards: "train-{000000..000012}.tar", "train-*.tar".
    picture: the fields that may have the picture, by the text after the first dot of a member's name. The first of
        these that a sample has counts.
    label: the same for labels: .cls has a whole number, .json gives what json.loads returns. "": samples have none.
    missing: "error", or "skip": leaves samples out that lack a picture or a label.
    transform, target_transform: are called with a picture, and with a label.
    decode: settings of `Decode`, such as size=224 or short_side=256.

    The rules for names are those of the server's source tar. If the server has kept an index of a shard, that is
    used; else the headers of the shard are read once. A sample is one read. Can be pickled as its transforms can. Any
    number of threads and forked children."""

    _of_errors = ("_files", "_stamps")  # the sizes and times of the shards say all

    def __init__(
        self,
        pattern: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        picture: str = _PICTURES,
        label: str = _LABELS,
        missing: str = "error",
        **decode: Any,
    ) -> None:
        super().__init__(transform, target_transform, decode)
        self.shards = paths_of(pattern)
        listed = [members_of(path) for path in self.shards]
        fields = {field for members in listed for field in members.fields}
        wanted = [names_of(picture), [name for name in names_of(label) if name in fields or label != _LABELS]]
        self._labelled = bool(wanted[1])
        parts = [
            _chosen(path, members, wanted[: 1 + self._labelled], number, missing)
            for number, (path, members) in enumerate(zip(self.shards, listed))
        ]
        self._stamps = [members.stamp for members in listed]
        self._files = [LocalFile(path, stamp) for path, stamp in zip(self.shards, self._stamps)]
        self._places = np.concatenate(parts) if parts else np.empty(0, PLACE)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int) -> tuple[Any, ...]:
        """The bytes of the file of a sample, and the other values of the sample."""
        k = index_of(index)
        if not -len(self) <= k < len(self):
            raise SampleIndexError(f"index {k} is out of range; the shards have {len(self)} samples")
        at, label_at, size, label_size, number, kind = self._places[k].item()
        shard = self._files[number]
        if not self._labelled:
            return (shard.read(at, size),)
        data, text = read_members(shard.read, [(at, size), (label_at, label_size)], _MOST_BETWEEN)
        try:
            label = json.loads(text) if kind == native.LABEL_JSON else number_of(text)
        except ValueError as error:
            raise InvalidError(f"{self._member(k, shard, label_at)}: no label: {error}") from None
        return data, self._target(label)

    def name(self, index: int) -> str:
        """The file of a sample, for errors."""
        number, at = self._places[index][["file", "at"]].item()
        try:
            return self._member(index, self._files[number], at)
        except (OSError, InvalidError):  # the bytes came from a cache, and the shard is gone
            return f"{self.shards[number]} (sample {index % len(self)})"

    def files(self) -> Files:
        """The files of all samples, for C."""
        if type(self).read is not Shards.read:
            raise UnsupportedError(f"{type(self).__name__} has a read of its own, which C cannot call: leave it out")
        return files_of(self, self.shards, self._make_files)

    def _make_files(self, shards: list[str]) -> Files:
        for k in sorted({0, len(self) // 2, len(self) - 1}) if self._labelled and len(self) else ():
            label: Any = 0
            with contextlib.suppress(OSError, InvalidError):  # who reads the sample gets the error
                _, label = self.read(k)
            if type(label) is not int:
                raise UnsupportedError(f"the label of sample {k} is a {type(label).__name__}, not a whole number")
        return Files.of_shards(shards, self._stamps, self._places, self._labelled, MOST_OPEN)

    def _member(self, index: int, shard: LocalFile, at: int) -> str:
        """The name of a member, as its header has it."""
        name = tarfile.TarInfo.frombuf(shard.read(at - 512, 512), "utf-8", "replace").name
        return f"{shard.path}: {name} (sample {index % len(self)})"

    def __repr__(self) -> str:
        return f"Shards({len(self)} samples in {len(self.shards)} shards, {self.decode})"


def _chosen(path: str, members: Members, wanted: list[list[str]], number: int, missing: str) -> npt.NDArray[Any]:
    """Rows for the samples of a shard."""
    chosen, complete = chosen_members(path, members, wanted, missing)
    rows = np.zeros(len(complete), PLACE)
    rows["file"] = number
    for k, (at, size) in enumerate((("at", "bytes"), ("label", "label_bytes"))[: len(wanted)]):
        rows[at], rows[size] = members.places[chosen[:, k]], members.sizes[chosen[:, k]]
        if at == "label":
            kinds = [native.LABEL_JSON if field == "json" else native.LABEL_TEXT for field in members.fields]
            rows["label_kind"] = np.array(kinds, np.uint32)[members.numbers[chosen[:, k]]]
    return rows[complete]  # type: ignore[no-any-return]


def paths_of(pattern: Any) -> list[str]:
    """The shards of a pattern, or of several, in their order. Index files do not count."""
    if not isinstance(pattern, (str, os.PathLike)):
        return [path for one in pattern for path in paths_of(one)]
    text = os.fspath(pattern)
    found: list[str] = []
    for path in [text] if os.path.exists(text) else expanded(text):
        found += matches(path) if re.search(r"[*?[]", path) and not os.path.exists(path) else [path]
    if not found or len(set(map(os.path.normpath, found))) < len(found):
        raise InvalidError(f"{text!r} matches no file" if not found else f"{text!r} names a shard twice")
    return found
