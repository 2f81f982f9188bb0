"""Arrays that are used again when nobody holds them any more.

A fresh array of more than some 100 kB costs a page fault for every 4 kB of it, often more than the
copy it was made for, because the C library gives large blocks back to the kernel each time. A
BufferPool keeps a few of its arrays, and hands one out anew once its reference count says that the
pool alone still has it. Tensors and views over an array hold it, so what somebody still sees is
never handed out; nobody has to give anything back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from sys import getrefcount
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

_PER_POOL = 64 * 1024**2  # bytes that are kept at most
_BATCH_SIZES = 4  # whose arrays are kept for the next batch: those of training and testing, and the last ones of an epoch


class BufferPool:
    """Arrays of one kind. `take` may be called by many threads: whoever looks at an array holds it,
    and so the others see it in use.

    Threads may change places between any two steps here, and Python 3.10 lets them right after a
    return. So whoever looks at an array holds its pair as well: without it the count lacks the
    pool's reference once another thread has put another pair in its place, and an array in use
    looks idle. And what is returned is a new pair: the one that is kept can be held by its taker
    without the array's count showing it."""

    def __init__(self, make: Callable[[], npt.NDArray[Any]], nbytes: int) -> None:
        self._make = make
        self._most = _PER_POOL // max(nbytes, 1) if _counts_are_exact() else 0
        self._kept: list[tuple[npt.NDArray[Any], int]] = []  # a ring, handed out in turn
        self._at = 0  # of the last one

    def take(self) -> tuple[npt.NDArray[Any], int]:
        """An array and its address. Its bytes are whatever they were."""
        kept, at = self._kept, self._at
        if kept:
            pair = kept[at]  # the last one: if it is free, it is in the processor's cache
            array, address = pair
            if getrefcount(array) == _IDLE:
                return array, address
            at = at + 1 if at + 1 < len(kept) else 0
            pair = kept[at]  # else the one that has been out for longest
            array, address = pair
            if getrefcount(array) == _IDLE:
                self._at = at
                return array, address
        array = self._make()
        address = array.ctypes.data
        if len(kept) < self._most:
            kept.insert(at, (array, address))
        elif kept:
            kept[at] = (array, address)  # the array that was there belongs to whoever holds it
        self._at = at
        return array, address


class SampleBuffers(BufferPool):
    """Bytes of single samples. A pickled one starts anew."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(lambda: np.empty(nbytes, np.uint8), nbytes)
        self._nbytes = nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleBuffers, (self._nbytes,)


class Column(Protocol):
    """What `Batches` needs to know of a field of fixed size."""

    @property
    def shape(self) -> tuple[int | None, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def bytes(self) -> int: ...


class BatchBuffers:
    """Arrays for whole batches of samples of fixed size. A pickled one starts anew."""

    def __init__(self, fields: tuple[Column, ...]) -> None:
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


def _batches(field: Column, n: int) -> BufferPool:
    shape, dtype = cast("tuple[int, ...]", (n, *field.shape)), field.dtype
    return BufferPool(lambda: np.empty(shape, dtype), n * field.bytes)


def _counts_are_exact() -> bool:
    """Not so in an interpreter without the GIL, nor under a compiler (3.14), which may drop
    references that the code shows."""
    jit = getattr(sys, "_jit", None)
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)()) and not (jit is not None and jit.is_enabled())


def _idle() -> int:
    """The reference count that `take` sees of an array that nobody else holds: how many the
    interpreter itself adds differs between versions."""
    kept = [(bytearray(1), 0)]
    array, address = kept[0]
    return getrefcount(array) if address == 0 else 0


_IDLE = _idle()
