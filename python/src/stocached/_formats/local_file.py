"""A file that several threads and processes read. Those at addresses have the same `path`, `size`, `stamp` and `read`."""

from __future__ import annotations

import io
import os
from typing import Any, Protocol

from .._common.local_file import LocalFile


class File(Protocol):
    """What formats read. Any number of threads."""

    path: str

    @property
    def size(self) -> int: ...

    def read(self, at: int, size: int) -> bytes: ...


def opened(where: Any) -> File:
    """The file of a path. where: a path, or a file."""
    return LocalFile(where) if isinstance(where, str) else where


class AsRaw(io.RawIOBase):
    """What has pread(size, at), as a file of Python with a place of its own, for one thread."""

    def __init__(self, of: Any, size: int) -> None:
        self._of, self._size, self._at = of, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self._size - self._at))
        if wanted:
            buffer[:wanted] = self._of.pread(wanted, self._at)
        self._at += wanted
        return wanted
