"""Memory from the kernel, as arrays. It is unmapped when the last array over it is gone."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.array_addresses import interface_of
from .._common.errors import SystemCallError

_FAILED = ctypes.c_void_p(-1).value
_HUGE = 2 << 20  # bytes of a huge page
LIBC = ctypes.CDLL(None, use_errno=True)
_mmap = _native._bind(
    LIBC,
    "mmap",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_munmap = _native._bind(LIBC, "munmap", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_madvise = _native._bind(LIBC, "madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def of_file(fd: int, offset: int, length: int) -> npt.NDArray[np.uint8]:
    """A part of a file, shared with other processes that map it. offset, length: multiples of the
    page size."""
    return _array(_map(length, mmap.MAP_SHARED, fd, offset), length)


def private(length: int) -> npt.NDArray[np.uint8]:
    """Memory of this process alone, in huge pages if the kernel gives them: copies into them are a
    tenth faster. length: a multiple of the page size."""
    if length < _HUGE:
        return _array(_map(length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0), length)
    longer = length + _HUGE
    first = _map(longer, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    address = -(-first // _HUGE) * _HUGE
    for start, end in ((first, address), (address + length, first + longer)):
        if end > start:
            _munmap(start, end - start)
    return _array(address, length)


def forget(address: int, length: int) -> None:
    """Frees the pages of private memory, which then reads as zeros. It takes an address, because an
    array has none any more while the interpreter ends."""
    _madvise(address, length, mmap.MADV_DONTNEED)


def keep_freed() -> None:
    """Has the C library keep up to 128 MiB that are free, in place of giving large blocks back at once: new pages cost
    more than copies into them. Only for processes of ours."""
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ and hasattr(LIBC, "mallopt"):
        for option, number in ((-1, 128 << 20), (-3, 32 << 20)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD at its greatest
            LIBC.mallopt(option, number)


@functools.cache
def keep_some_freed() -> None:
    """The same for a process of the program, which fills and frees batches and windows of many megabytes by turns: glibc
    keeps up to 64 MiB once a block of 32 MiB was freed. This one takes no pages."""
    with contextlib.suppress(MemoryError):  # under a limit of address space
        np.empty((32 << 20) - (1 << 16), np.uint8)


def keep_from_dumps(memory: npt.NDArray[np.uint8]) -> None:
    """Leaves memory out of core dumps: for a dump the kernel reads all of it, and would allocate
    the pages that are not used yet."""
    _madvise(memory.ctypes.data, memory.size, mmap.MADV_DONTDUMP)


def _map(length: int, flags: int, fd: int, offset: int) -> int:
    address = _mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
    if address is None or address == _FAILED:
        raise SystemCallError(
            f"the loader's memory cannot be mapped: {length} bytes at {offset}: {os.strerror(ctypes.get_errno())}"
        )
    return int(address)


def _array(address: int, length: int) -> npt.NDArray[np.uint8]:
    if length >= _HUGE:
        _madvise(address, length, mmap.MADV_HUGEPAGE)  # a failure only costs time
    return np.asarray(_Mapping(address, length))


class _Mapping:
    """Memory that is unmapped when the last array over it is gone. Python's mmap would keep a
    descriptor open for each, and a batch pool has many."""

    __slots__ = ("__array_interface__", "_address", "_length")

    def __init__(self, address: int, length: int) -> None:
        self._address, self._length = address, length
        self.__array_interface__ = interface_of(address, length)

    def __del__(self, unmap: Any = _munmap) -> None:
        if hasattr(self, "_length"):  # false if Ctrl-C stopped the constructor
            unmap(self._address, self._length)
