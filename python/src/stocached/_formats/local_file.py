"""A file that several threads and processes read. Those at addresses have the same `path`, `size`, `stamp` and `read`."""

from __future__ import annotations

import io
import os
from typing import Any, Protocol

from .._common.errors import BadSampleError
from .._common.pread import pread

_MOST_OPEN = 256  # that stay open in a process; of more files, each read opens its own
_open = [0]  # how many do


class File(Protocol):
    """What formats read. Any number of threads."""

    path: str

    @property
    def size(self) -> int: ...

    def read(self, at: int, size: int) -> bytes: ...


def opened(where: Any) -> File:
    """The file of a path. where: a path, or a file."""
    return LocalFile(where) if isinstance(where, str) else where


class LocalFile:
    """The first read opens it. Reads have their own offsets, so threads and forked children share it."""

    _descriptor: int | None = None

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def size(self) -> int:
        return os.path.getsize(self.path)

    def read(self, at: int, size: int) -> bytes:
        """Raises BadSampleError if the file ends before."""
        if self._descriptor is not None:
            return self._read(self._descriptor, at, size)
        opened = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self._read(opened, at, size)
        finally:
            if not self._keep(opened):
                os.close(opened)

    def _keep(self, opened: int) -> bool:
        if _open[0] >= _MOST_OPEN or vars(self).setdefault("_descriptor", opened) != opened:
            return False  # another thread may have been first
        _open[0] += 1
        return True

    def _read(self, descriptor: int, at: int, size: int) -> bytes:
        data = pread(descriptor, at, size, self.path)
        if len(data) < size:
            raise BadSampleError(f"the file ends at byte {at + len(data):,}, in the middle of this element")
        return data

    def __del__(self, close: Any = os.close, count: list[int] = _open) -> None:
        if self._descriptor is not None:
            close(self._descriptor)
            count[0] -= 1

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalFile, (self.path,)


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
