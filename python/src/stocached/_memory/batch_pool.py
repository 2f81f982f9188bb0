"""The batch pool: memory for batches, reused when no array of a batch exists any more
(docs/spec/workers.md)."""

from __future__ import annotations

import ctypes
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .._common import sizes
from . import mapping
from .batch_reserve import BatchReserve
from .shared_file import SharedFile

Raw = npt.NDArray[np.uint8]
_PAGE = 4096
_MOST_ADDRESSES = 4096
_MIN_BATCHES = 3  # batches that exist at a time if the training loop keeps none


class Mark(Protocol):
    """A moment in the work of a device."""

    def reached(self) -> bool: ...

    def wait(self) -> None: ...


class Device(Protocol):
    """A device that reads batches by itself, also after the program has dropped them."""

    def register(self, memory: Raw) -> Raw:
        """The same memory, which the device can read as long as this array exists. Else
        RuntimeError."""
        ...

    def mark(self) -> Mark:
        """A mark after all work that the device has now."""
        ...


def _none() -> None:
    """In place of a weak reference to nothing."""


class Lease:
    """The memory of one batch. Every array and tensor of the batch refers to it, slices and views
    included. When the last of them is gone, the memory returns to the batch pool.

    The base of a slice of a slice is the first array, in NumPy. That array's base is the lease, so
    the lease outlives all slices."""

    __slots__ = ("__array_struct__", "__weakref__", "_give_back", "_memory", "number")

    def __init__(self, number: int, memory: Raw, struct: Any, give_back: Callable[[int], None]) -> None:
        """struct: of the memory, as NumPy describes it. One is made for each buffer, not for each batch."""
        self.number, self._memory, self._give_back = number, memory, give_back
        self.__array_struct__ = struct

    def array(self) -> Raw:
        """The memory as bytes. Call it once: the lease lives as long as this array and all made of
        it."""
        return np.asarray(self)

    def __del__(self) -> None:
        if hasattr(self, "_give_back"):  # false if Ctrl-C stopped the constructor
            self._give_back(self.number)


class BatchPool:
    """Buffers of equal size, given out as leases. They lie in shared memory, where worker processes
    find them by number, or in memory of this process.

    With a device, buffers are registered with it, and reused only after the device has read them.
    `take` sets a mark when it first sees that a lease has ended, and waits for the mark. So the
    thread that gives work to the device sets the marks, and no finalizer calls a driver.

    One thread at a time may call `take` and `buffer`. Leases may end in any thread at any moment,
    also in the garbage collector."""

    def __init__(self, max_bytes: int, *, shared: bool = True, device: Device | None = None) -> None:
        """max_bytes: of all buffers together; further batches come in ordinary memory. shared:
        with other processes."""
        self.file = SharedFile("pool") if shared else None
        self.buffer_bytes = 0
        self._max_bytes = max_bytes
        self.max_buffers = max_bytes  # given out at a time; known after `resize`
        self._other: Callable[[], BatchPool | None] = _none
        self.reserve: BatchReserve | None = None  # keeps memory free for buffers
        self._start(device)

    def _start(self, device: Device | None) -> None:
        self._device, self._registers = device, device is not None
        self._buffers: dict[int, tuple[Raw, int, Any]] = {}  # their addresses, and what leases need
        # The same by number, for C, which does not change its place; None: not mapped here yet.
        self.addresses = (ctypes.c_void_p * _MOST_ADDRESSES)()
        self._idle: deque[int] = deque()  # the last of them is most likely in the processor's cache
        self._released: deque[int] = deque()  # leases have ended, but the device may still read
        self._marked: deque[tuple[Mark, list[int]]] = deque()  # the same with their marks, the oldest first
        self._made = 0
        self._without_memory: set[int] = set()  # buffers that may have no memory yet
        self._warned = False
        self._short = False  # memory is short: fewer buffers than the limit allows

    def __getstate__(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "buffer_bytes": self.buffer_bytes,
            "max_buffers": self.max_buffers,
            "_max_bytes": self._max_bytes,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._other, self.reserve = _none, None
        self._start(None)

    def enter_worker(self) -> None:
        """A forked worker calls it: only its parent may use the device and the memory mapped for
        it."""
        if self._device is not None:
            self._start(None)

    def resize(self, buffer_bytes: int) -> None:
        """Call it once, before the first `take`."""
        self.buffer_bytes = -(-max(buffer_bytes, 1) // _PAGE) * _PAGE
        self.max_buffers = max(self._max_bytes // self.buffer_bytes, 1)
        if self.reserve is not None:
            allowed = max(self.reserve.begin(self.buffer_bytes, self.max_buffers), _MIN_BATCHES)
            self._short = allowed < self.max_buffers
            self.max_buffers = min(self.max_buffers, allowed)

    @property
    def shared(self) -> bool:
        return self.file is not None

    def share_limit(self, other: BatchPool) -> None:
        """Two batch pools share one limit: their leases count together. If one batch pool needs more buffers,
        the other frees the memory of its idle buffers."""
        self._other, other._other = weakref.ref(other), weakref.ref(self)

    def buffer(self, number: int) -> Raw:
        """The memory of a buffer, in this process or a worker."""
        return self._buffer(number)[0]

    def _buffer(self, number: int) -> tuple[Raw, int, Any]:
        known = self._buffers.get(number)
        if known is None:
            length = self.buffer_bytes
            memory = mapping.private(length) if self.file is None else self.file.map(number * length, length)
            mapping.keep_from_dumps(memory)
            if self._registers:
                memory = self._registered(memory)
            known = self._buffers[number] = memory, memory.ctypes.data, memory.__array_struct__
            if number < len(self.addresses):
                self.addresses[number] = known[1]
        return known

    def _registered(self, memory: Raw) -> Raw:
        assert self._device is not None
        try:
            return self._device.register(memory)
        except RuntimeError as error:
            self._registers = False
            warnings.warn(
                f'stocached: memory for batches cannot be pinned in place, so batches are copied into pinned memory, as with pin_memory="copy": {error}',
                stacklevel=2,
            )
            return memory

    def take(self) -> Lease | None:
        """A buffer with undefined bytes. None if the limit is reached, with a warning the first
        time. It waits for the device before it returns None."""
        if self._device is not None:
            self._collect_read(self._device)
        other = self._other()
        out = self._made - len(self._idle) + (0 if other is None else other._made - len(other._idle))
        if out >= self.max_buffers and self._marked:
            mark, numbers = self._marked.popleft()
            mark.wait()
            self._idle.extend(numbers)
            out -= len(numbers)
        if out >= self.max_buffers:
            if not self._warned:
                self._warned = True
                if other is not None:
                    other._warned = True
                self._warn(out)
            return None
        if self._idle:
            number = self._idle.pop()
            if number in self._without_memory:  # a batch takes its memory now
                self._without_memory.discard(number)
                self._take_memory(self.buffer_bytes)
            return self._lease(number)
        if other is not None:
            other.free_idle()
        number, self._made = self._made, self._made + 1
        self._without_memory.add(number)
        if self.file is not None:
            self.file.grow(self._made * self.buffer_bytes)
        return self._lease(number)

    def _collect_read(self, device: Device) -> None:
        """Makes the buffers idle that the device has read. Leases that end after the mark wait for
        the next call."""
        released = len(self._released)
        if released:
            self._marked.append((device.mark(), [self._released.popleft() for _ in range(released)]))
        while self._marked and self._marked[0][0].reached():
            self._idle.extend(self._marked.popleft()[1])

    def _take_memory(self, count: int) -> None:
        if self.reserve is not None:
            self.reserve.take(count)

    def free_idle(self) -> None:
        """Frees the memory of idle buffers until they are taken again."""
        for number in list(self._idle):
            if number not in self._without_memory:
                self._without_memory.add(number)
                self._take_memory(-self.buffer_bytes)
            if self.file is None:
                mapping.forget(self._buffer(number)[1], self.buffer_bytes)
            else:
                self.file.punch(number * self.buffer_bytes, self.buffer_bytes)

    def _lease(self, number: int) -> Lease:
        memory, _, struct = self._buffer(number)
        return Lease(number, memory, struct, self._idle.append if self._device is None else self._released.append)

    def _warn(self, made: int) -> None:
        size, slower = sizes.show_size(self.buffer_bytes), "Further batches come in ordinary memory, which is slower."
        if self._short:
            text = (
                f"memory is short, so only {made} batches of {size} fit at a time, and all of them are in use. {slower} Copy batches that you keep, make the "
                "batches or the cache smaller, or give the program more memory"
            )
        elif self.max_buffers < _MIN_BATCHES:
            text = (
                f"pool_bytes={self._max_bytes} holds {made} batches of {size}, and {_MIN_BATCHES} are needed: one that the training loop has, "
                f"one that it gets, and one that a worker fills. {slower} Raise it to {_MIN_BATCHES * self.buffer_bytes} or more"
            )
        else:
            text = (
                f"the {made} batches of {size} in the pool are all in use, so the program keeps batches. {slower} Copy batches that you keep, "
                f"or raise pool_bytes={self._max_bytes}"
            )
        warnings.warn(f"stocached: {text}", stacklevel=2)
