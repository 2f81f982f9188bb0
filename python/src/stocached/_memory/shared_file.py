"""Files in memory without a name, which a process shares with its workers. They hold a loader's
task queue, batch pool and overflow (docs/spec/workers.md)."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.errors import NoServerError, SystemCallError
from . import mapping

_PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE of linux/falloc.h
_fallocate = _native._bind(
    mapping.LIBC, "fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
)


class SharedFile:
    """A memfd. Forked children inherit it. A process that unpickles it opens it through the process
    that pickled it, which must be alive. The memory goes with the last process that has it."""

    def __init__(self, purpose: str, *, size: int = 0) -> None:
        self.fd = os.memfd_create(f"stocached-{purpose}", os.MFD_CLOEXEC)
        self._pid = os.getpid()
        os.ftruncate(self.fd, size)

    def __reduce__(self) -> tuple[Any, ...]:
        stat = os.fstat(self.fd)
        return _open, (type(self), os.getpid(), self.fd, stat.st_dev, stat.st_ino)

    def __del__(self, close: Any = os.close) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            close(fd)

    def grow(self, size: int) -> None:
        """Makes it at least `size` bytes long. Only one process may call this."""
        if os.fstat(self.fd).st_size < size:
            try:
                os.ftruncate(self.fd, size)
            except OSError as error:
                raise SystemCallError(f"the loader's shared memory cannot be {size} bytes: {error}") from error

    def punch(self, offset: int, length: int) -> None:
        """Frees the memory of a part, which then reads as zeros. Both are multiples of the page
        size."""
        _fallocate(self.fd, _PUNCH, offset, length)

    def map(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        """A part as bytes, mapped as long as this array, or one made of it, exists. offset: a
        multiple of the page size."""
        return mapping.of_file(self.fd, offset, length)


def _open(kind: type[SharedFile], pid: int, fd: int, device: int, inode: int) -> SharedFile:
    shared = kind.__new__(kind)
    try:
        shared.fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise NoServerError(
            f"process {pid}, whose loader this worker belongs to, is gone or does not let others open its memory: {error}"
        ) from None
    shared._pid = os.getpid()
    stat = os.fstat(shared.fd)
    if (stat.st_dev, stat.st_ino) != (device, inode):
        raise NoServerError(f"process {pid}, whose loader this worker belongs to, has closed it")
    return shared
