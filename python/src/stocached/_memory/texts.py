"""Very many texts in one buffer, which a process shares with its workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.numbers import position_of
from .._common.one_line import printable
from .shared_file import SharedFile

PIECE = 1 << 17  # texts that are Python's objects at a time
_SHARED = 1 << 20  # bytes from which on pickle names the memory, and copies no byte
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Texts:
    """texts[i] is a str. Text i is `folder` and bytes ends[i] to ends[i+1] of `data`, in UTF-8.

    Reads change no reference count of a text, so forked workers share all pages. Large ones are pickled as `SharedFile`
    is. Immutable. Any number of threads and forked children."""

    def __init__(self, folder: str, errors: str, data: SharedBytes, ends: SharedBytes) -> None:
        """errors: how UTF-8 shows bytes that are none."""
        self.folder = folder
        self._errors, self._parts = errors, (data, ends)
        self.data, self.ends = data.array, ends.array.view(np.uint64)
        self._bytes, self._ends = memoryview(self.data), memoryview(self.ends)  # quicker than arrays for one item

    @classmethod
    def of_list(cls, values: Sequence[Any]) -> Texts | None:
        """None: other values than str are among them."""
        if type(values[0]) is not str:
            return None
        folder = ""
        if os.sep in values[0]:
            try:
                folder = folder_of([min(values), max(values)])
            except TypeError:
                return None
        starts = range(0, len(values), PIECE)
        try:
            return cls.joined(folder, "surrogatepass", (_piece(values[k : k + PIECE], len(folder)) for k in starts))
        except TypeError:
            return None

    @classmethod
    def joined(cls, folder: str, errors: str, pieces: Iterable[tuple[bytes, npt.NDArray[Any]]]) -> Texts:
        """pieces: the bytes of some texts, without the folder, and the length of each text."""
        data, ends = SharedFile("texts"), SharedFile("texts")
        used, count = 0, 1
        _write(ends, bytes(8))
        for text, lengths in pieces:
            _write(data, text)
            _write(ends, (np.cumsum(lengths, dtype=np.uint64) + np.uint64(used)).tobytes())
            used, count = used + len(text), count + len(lengths)
        return cls(folder, errors, SharedBytes.of(data, used), SharedBytes.of(ends, 8 * count))

    def chosen(self, these: npt.NDArray[np.bool_]) -> Texts:
        """Some of the texts. these: which."""
        lengths = np.diff(self.ends)
        data = self.data[np.repeat(these, lengths.astype(np.int64))]
        return Texts.joined(self.folder, self._errors, [(data.tobytes(), lengths[these])])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> str:
        k = position_of(index, len(self))
        return self.folder + str(self._bytes[self._ends[k] : self._ends[k + 1]], "utf-8", self._errors)

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def name(self, index: int) -> str:
        """The text, for errors."""
        return printable(self[index])

    def __reduce__(self) -> tuple[Any, ...]:
        return Texts, (self.folder, self._errors, *self._parts)

    def __repr__(self) -> str:
        return f"<{len(self):,} texts>"


class SharedBytes:
    """array: read-only bytes. file: which they lie in, from its begin; None: they are this process's own."""

    def __init__(self, array: npt.NDArray[np.uint8], file: SharedFile | None) -> None:
        self.array: Any = array
        self.file = file
        array.flags.writeable = False

    @classmethod
    def of(cls, file: SharedFile, size: int) -> SharedBytes:
        """The first bytes of a file."""
        if size < _SHARED:
            return cls(np.frombuffer(os.pread(file.fd, size, 0), np.uint8).copy(), None)
        length = -(-size // _PAGE) * _PAGE
        file.grow(length)
        return cls(file.map(0, length)[:size], file)

    @classmethod
    def of_array(cls, values: npt.NDArray[Any]) -> SharedBytes:
        """A copy."""
        data = values.reshape(-1).view(np.uint8)
        if data.size < _SHARED:
            return cls(data.copy(), None)
        file = SharedFile("index")
        _write(file, data.data)
        return cls.of(file, data.size)

    @classmethod
    def of_pieces(cls, pieces: Iterable[bytes]) -> SharedBytes:
        file, size = SharedFile("index"), 0
        for piece in pieces:
            _write(file, piece)
            size += len(piece)
        return cls.of(file, size)

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            (SharedBytes, (self.array, None)) if self.file is None else (SharedBytes.of, (self.file, self.array.size))
        )


def folder_of(paths: list[str]) -> str:
    """The folder of all paths, with its slash. paths: the first and the last of them, or all."""
    common = os.path.commonprefix(paths)  # noqa: RUF071 - cut at a slash below
    return common[: common.rfind(os.sep) + 1]


def _piece(values: Sequence[Any], start: int) -> tuple[bytes, npt.NDArray[Any]]:
    if start:
        values = [value[start:] for value in values]
    text = "".join(values)  # TypeError for other values
    made = text.encode("utf-8", "surrogatepass")
    if len(made) > len(text):
        values = [value.encode("utf-8", "surrogatepass") for value in values]
    return made, np.fromiter(map(len, values), np.uint64, len(values))


def _write(file: SharedFile, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file.fd, view) :]
