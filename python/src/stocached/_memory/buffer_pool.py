"""Arrays that are reused when the program has dropped them.

The C library returns large blocks to the kernel at each free. So a new array above about 100 kB
costs a page fault for every 4 kB, often more time than the copy into it. A BufferPool keeps a few
of its arrays. It reuses an array when the reference count says that only the pool refers to it.
Tensors and views over an array refer to it, so an array in use is never reused, and no caller gives
arrays back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np
import numpy.typing as npt

_PER_POOL = 64 * 1024**2  # the most bytes that a pool keeps
# Batch sizes whose arrays are kept: of training, of testing, and of the last batches of an epoch.
_BATCH_SIZES = 4


class BufferPool:
    """Arrays of one kind. Many threads may call `take`: a thread that checks an array refers to it,
    so other threads see it in use.

    The interpreter may switch threads between any two steps here, and Python 3.10 also right after
    a return. So a thread that checks an array refers to its pair too. Without this, another thread
    could replace the pair in the pool: the count would lack the pool's reference, and an array in
    use would look idle. `take` returns a new pair: a reference to the pool's pair would not show in
    the array's count."""

    def __init__(self, make: Callable[[], npt.NDArray[Any]], nbytes: int) -> None:
        self._make = make
        self._most = _PER_POOL // max(nbytes, 1) if _counts_are_exact() else 0
        self._kept: list[tuple[npt.NDArray[Any], int]] = []  # a ring, given out in turn
        self._at = 0  # position of the array given out last

    def take(self) -> tuple[npt.NDArray[Any], int]:
        """An array and its address. Its bytes are undefined."""
        kept, at = self._kept, self._at
        if kept:
            pair = kept[at]  # given out last: if it is idle, it is in the processor's cache
            array, address = pair
            if getrefcount(array) == _IDLE:
                return array, address
            at = at + 1 if at + 1 < len(kept) else 0
            pair = kept[at]  # else the one given out longest ago
            array, address = pair
            if getrefcount(array) == _IDLE:
                self._at = at
                return array, address
        array = self._make()
        address = array.ctypes.data
        if len(kept) < self._most:
            kept.insert(at, (array, address))
        elif kept:
            kept[at] = (array, address)  # the old array now belongs to the program alone
        self._at = at
        return array, address


class SampleBuffers(BufferPool):
    """Bytes of single samples. An unpickled pool is empty."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(lambda: np.empty(nbytes, np.uint8), nbytes)
        self._nbytes = nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleBuffers, (self._nbytes,)


class BatchBuffers:
    """Arrays for whole batches of samples of fixed size. An unpickled pool is empty."""

    def __init__(self, fields: tuple[Any, ...]) -> None:
        """fields: of a cache."""
        self._fields = fields
        self._pools: dict[int, list[BufferPool]] = {}  # by size of a batch

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchBuffers, (self._fields,)

    def take(self, n: int) -> list[npt.NDArray[Any]]:
        """For each field an array of n rows."""
        pools = self._pools.get(n)
        if pools is None:
            if len(self._pools) == _BATCH_SIZES:
                self._pools.clear()
            pools = self._pools[n] = [_batches(field, n) for field in self._fields]
        return [pool.take()[0] for pool in pools]


def _batches(field: Any, n: int) -> BufferPool:
    shape, dtype = (n, *field.shape), field.dtype
    return BufferPool(lambda: np.empty(shape, dtype), n * field.bytes)


def _counts_are_exact() -> bool:
    """Whether reference counts are exact. An interpreter without the GIL has no exact counts, and
    the compiler of Python 3.14 may omit references that the code shows."""
    jit = getattr(sys, "_jit", None)
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)()) and not (jit is not None and jit.is_enabled())


def _idle() -> int:
    """The reference count that `take` reads of an idle array. Versions of the interpreter add
    different numbers of references."""
    kept = [(bytearray(1), 0)]
    array, address = kept[0]
    return getrefcount(array) if address == 0 else 0


_IDLE = _idle()
