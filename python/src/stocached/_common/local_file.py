"""A file of this machine that several threads and processes read. Reads have their own offsets, so they share its descriptor."""

from __future__ import annotations

import os
from typing import Any

from .errors import BadSampleError, InvalidError

MOST_OPEN = 256  # files that stay open in a process; of more, each read opens its own
_open = [0]  # how many do


def stamp_of(status: os.stat_result) -> tuple[int, int]:
    """What changes with a file: its bytes, and the time of its last change."""
    return status.st_size, status.st_mtime_ns


def pread(descriptor: int, at: int, size: int, path: str) -> bytes:
    """These bytes of a file; fewer where it ends. OSError has the path."""
    try:
        data = os.pread(descriptor, size, at)
        while len(data) < size and (more := os.pread(descriptor, size - len(data), at + len(data))):
            data += more  # one call reads 2 GiB at most
    except OSError as error:
        error.filename = path
        raise
    return data


class LocalFile:
    """The first read opens it. Can be pickled. stamp: that it must keep; None: whatever it has."""

    _descriptor: int | None = None

    def __init__(self, path: str, stamp: tuple[int, int] | None = None) -> None:
        self.path, self._stamp = path, stamp

    @property
    def size(self) -> int:
        return os.path.getsize(self.path)

    def read(self, at: int, size: int) -> bytes:
        """Raises BadSampleError if the file ends before, InvalidError if it has another stamp."""
        if self._descriptor is not None:
            return self._read(self._descriptor, at, size)
        opened, kept = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC), False
        try:
            data = self._read(opened, at, size)
            kept = self._keep(opened)
            return data
        finally:
            if not kept:
                os.close(opened)

    def _keep(self, opened: int) -> bool:
        if _open[0] >= MOST_OPEN or vars(self).setdefault("_descriptor", opened) != opened:
            return False  # another thread may have been first
        _open[0] += 1
        return True

    def _read(self, descriptor: int, at: int, size: int) -> bytes:
        data = pread(descriptor, at, size, self.path)
        # After the read, so that no bytes are used that another program wrote during it.
        if self._stamp is not None and stamp_of(os.fstat(descriptor)) != self._stamp:
            raise InvalidError(f"{self.path} has changed since its members were listed; make the dataset again")
        if len(data) < size:
            raise BadSampleError(f"the file ends at byte {at + len(data):,}, in the middle of this element")
        return data

    def __del__(self, close: Any = os.close, count: list[int] = _open) -> None:
        if self._descriptor is not None:
            close(self._descriptor)
            count[0] -= 1

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalFile, (self.path, self._stamp)
