"""Items of several files, as webdataset has them: 1.jpg, 1.json and 1.cls are one. They lie in folders, tar shards or zip
archives, and their values are decoded."""

from __future__ import annotations

import inspect
import itertools
import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import BadSampleError, InvalidError
from .._common.numbers import position_of
from .._common.one_line import one_line, printable
from .._common.reads_ahead import ReadsAhead
from .._common.remote_addresses import shown
from .._image.decoded_members import decoded, key_and_field
from .._image.decoding import bytes_of
from .._memory.texts import SharedBytes
from .archives import Zip
from .elements import Elements
from .registry import FORMATS, Format, of_ending
from .tars import DecodedTar

_MOST = 64  # files of an item
_PACKED = re.compile(r"\.(tar\.\w+|tgz)$", re.IGNORECASE)


def of_paths(paths: Any, text: str, format: str | None, options: dict[str, Any]) -> Any:
    """The items of the files that a text names. format, options: of the program; tar shards have some. Raises InvalidError."""
    first = str(paths[0])
    ending = os.path.splitext(first)[1].lower()
    archive, read = _ARCHIVES.get(ending), of_ending(first)
    alike = (archive or read) is not None and all(str(path).lower().endswith(ending) for path in paths)
    taken = {} if archive is None or not alike else inspect.signature(archive.load()).parameters
    given = [*["format="] * (format is not None), *(f"{name}=" for name in options if name not in taken)]
    if given:
        raise InvalidError(
            f"source({one_line(text)}, decode=True): {', '.join(given)} does not go with it; leave one out"
        )
    if alike and archive is not None:
        return Elements(archive, paths, options)
    if alike and read is not None:
        raise InvalidError(
            f"source({one_line(text)}): decode=True is for mixed files, tar shards and zip archives, and {read.name} is "
            "read without it; leave it out"
        )
    return Stems(paths, text)


class _Groups:
    """The files of each item, by their numbers."""

    def __init__(self, groups: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> None:
        """groups: of each file. numbers: of these files."""
        order = np.argsort(groups, kind="stable")
        starts = np.append(0, np.cumsum(np.bincount(groups)))
        self._length = len(starts) - 1
        self._shared = SharedBytes.of_array(np.concatenate([starts, numbers[order]]).astype(np.uint32))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, k: int) -> list[int]:
        array = self._shared.array.view(np.uint32)
        begin, end = array[k : k + 2].tolist()
        return array[self._length + 1 + begin : self._length + 1 + end].tolist()  # type: ignore[no-any-return]


def _grouped(names: Iterable[str], where: str) -> _Groups:
    """Names of one key are one item. Raises InvalidError."""
    keys, groups, numbers, fields = dict[str, int](), list[int](), list[int](), list[set[str]]()
    for number, name in enumerate(names):
        parts = key_and_field(name)
        if parts is None:
            continue
        key, field = parts
        group = keys.setdefault(key, len(keys))
        if group == len(fields):
            fields.append(set())
        if field in fields[group]:
            raise InvalidError(
                f"{where}: {printable(key)} has two files of the ending {printable(field)}, such as {printable(name)}; rename one"
            )
        fields[group].add(field)
        if len(fields[group]) > _MOST:
            raise InvalidError(
                f"{where}: {printable(key)} has more than {_MOST} files, such as {printable(name)}: what stands before the first "
                "dot of a name tells to which item a file belongs; rename them, without dots in this part"
            )
        groups.append(group)
        numbers.append(number)
    if not groups:
        raise InvalidError(f"{where} has no file of an item: names have a text before their first dot")
    return _Groups(np.array(groups, np.int64), np.array(numbers, np.int64))


def _ahead_of(paths: Any, groups: Any) -> Any:
    """What has whole files at an address read soon. groups: the files of each element."""
    tell: Any = getattr(paths, "tell", None)

    def ahead(indices: npt.NDArray[np.int64]) -> None:
        numbers = itertools.chain.from_iterable(np.atleast_1d(groups[k]).tolist() for k in indices.tolist())
        tell(map(paths.whole, numbers))

    return None if tell is None else ahead


class Stems(ReadsAhead):
    """Each element is the files of one stem: their values under their endings, and "__key__". Can be pickled. Any number of
    threads and forked children."""

    _of_errors = ("_groups", "_start")  # the paths say all

    def __init__(self, paths: Any, text: str) -> None:
        self.paths, self._start = paths, len(paths.folder)
        self._groups = _grouped(map(self._inner, map(str, paths)), f"source({one_line(shown(text))})")

    def _inner(self, path: str) -> str:
        if _PACKED.search(path):
            name = printable(path)
            raise InvalidError(
                f"{name} is compressed, so no member of it can be read by itself; unpack it, such as by gunzip -k {name}"
            )
        if os.path.splitext(path)[1].lower() in _ARCHIVES:
            raise InvalidError(
                f"{printable(path)} is an archive among other files: name archives by a pattern of their own, such as "
                f'"{printable(os.path.join(self.paths.folder or ".", "**", "*" + os.path.splitext(path)[1]))}"'
            )
        return path[self._start :]

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item: dict[str, Any] = {}
        for number in self._groups[position_of(index, len(self))]:
            path = self.paths[number]
            key, field = key_and_field(str(path)[self._start :]) or ("", "")
            item.setdefault("__key__", key)
            data = bytes_of(path) if isinstance(path, str) else path.read(0, path.size)
            try:
                item[field] = decoded(field, data)
            except BadSampleError as error:
                raise BadSampleError(error.reason, printable(str(path))) from None
        return item

    @property
    def ahead(self) -> Any:
        return _ahead_of(self.paths, self._groups)

    def name(self, index: int) -> str:
        """The first file of an item, for errors."""
        return printable(str(self.paths[self._groups[index % len(self)][0]]))

    def __repr__(self) -> str:
        return f"<{len(self):,} items of {len(self.paths):,} files>"


class Whole(ReadsAhead):
    """Each element is the bytes of a file at an address."""

    def __init__(self, paths: Any) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        file = self.paths[position_of(index, len(self))]
        return file.read(0, file.size)  # type: ignore[no-any-return]

    @property
    def ahead(self) -> Any:
        return _ahead_of(self.paths, range(len(self)))

    def name(self, index: int) -> str:
        """The file, for errors."""
        return printable(str(self.paths[index % len(self)]))


class ZipItems:
    """Each element is the members of one stem."""

    addresses = True

    def __init__(self, path: Any) -> None:
        self._zip = Zip(path)
        self._groups: Any = _grouped(self._zip.names, printable(str(path))) if len(self._zip) else []

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, k: int) -> dict[str, Any]:
        item: dict[str, Any] = {}
        for number in self._groups[k]:
            key, field = key_and_field(self._zip.names[number]) or ("", "")
            item.setdefault("__key__", key)
            try:
                item[field] = decoded(field, self._zip.data(number))
            except BadSampleError as error:
                raise BadSampleError(f"{self._zip.name(number)}: {error.reason}") from None
        return item

    def spans(self, k: int) -> list[tuple[int, int]]:
        """The parts of the file that an item takes: place and bytes."""
        return [span for number in self._groups[k] for span in self._zip.spans(number)]

    def name(self, k: int) -> str:
        return f"item {printable((key_and_field(self._zip.names[self._groups[k][0]]) or ('',))[0])}"


_ARCHIVES = {
    ".tar": Format("tar", FORMATS["tar"].endings, (), DecodedTar),
    ".zip": Format("zip", (".zip",), FORMATS["zip"].magic, ZipItems),
}
