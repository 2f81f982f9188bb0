"""A file that several threads and processes read."""

from __future__ import annotations

import os
from typing import Any

from .._common.errors import BadSampleError
from .._common.pread import pread

_MOST_OPEN = 256  # that stay open in a process; of more files, each read opens its own
_open = 0


class LocalFile:
    """The first read opens it. Reads have their own offsets, so threads and forked children share it."""

    _descriptor: int | None = None

    def __init__(self, path: str) -> None:
        self.path = path

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
        global _open
        if _open >= _MOST_OPEN or vars(self).setdefault("_descriptor", opened) != opened:
            return False  # another thread may have been first
        _open += 1
        return True

    def _read(self, descriptor: int, at: int, size: int) -> bytes:
        data = pread(descriptor, at, size, self.path)
        if len(data) < size:
            raise BadSampleError(f"the file ends at byte {at + len(data):,}, in the middle of this element")
        return data

    def __del__(self, close: Any = os.close) -> None:
        global _open
        if self._descriptor is not None:
            close(self._descriptor)
            _open -= 1

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalFile, (self.path,)
