"""The ring: memory for batches that is used again when nobody sees a batch any more (docs/spec/workers.md)."""

from __future__ import annotations

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
_LEAST = 3  # batches that a training loop which keeps none needs memory for


class Mark(Protocol):
    """A moment in the work of a device."""

    def reached(self) -> bool: ...

    def wait(self) -> None: ...


class Device(Protocol):
    """What reads batches by itself, and goes on with that when the program has forgotten them."""

    def register(self, memory: Raw) -> Raw:
        """The same memory, which the device may read from for as long as the array lives. Raises RuntimeError if it may not."""
        ...

    def mark(self) -> Mark:
        """Behind all work that it was given until now."""
        ...


def _none() -> None:
    """In place of a weak reference to nothing."""


class Lease:
    """The memory of one batch. Every array and tensor of the batch refers to it, slices and views included; with the last of them it goes back to the ring.

    NumPy lets a slice refer to the array that was sliced first instead of what lies between; that array has the lease as its base, so the lease outlives it."""

    __slots__ = ("__array_interface__", "__weakref__", "_give_back", "_memory", "number")

    def __init__(self, number: int, memory: Raw, address: int, give_back: Callable[[int], None]) -> None:
        self.number, self._memory, self._give_back = number, memory, give_back
        self.__array_interface__: dict[str, Any] = {"version": 3, "typestr": "|u1", "shape": (memory.size,), "data": (address, False)}

    def array(self) -> Raw:
        """All of it as bytes. To be called once: the lease lives as long as this array and whatever is made of it."""
        return np.asarray(self)

    def __del__(self) -> None:
        if hasattr(self, "_give_back"):  # Ctrl-C did not stop the constructor
            self._give_back(self.number)


class Ring:
    """Buffers of equal size, given out as leases: in shared memory, where workers that are processes see them by number, or in this process's own.

    With a device, buffers are registered with it, and used again when it has read them as well: behind a mark that is set when `take` first sees that a
    lease has ended. That is later than its end, in the thread that gives the device its work, and no finalizer calls a driver.

    `take` and `buffer` are for one thread at a time; leases may end in any thread, at any moment, in the garbage collector as well."""

    def __init__(self, most: int, *, shared: bool = True, device: Device | None = None) -> None:
        """most: bytes of all buffers together, beyond which batches come in plain memory. shared: with other processes."""
        self.file = SharedFile("ring") if shared else None
        self.buffer_bytes = 0
        self.most = self._limit = most  # buffers that may be out; bytes
        self._beside: Callable[[], Ring | None] = _none
        self.hold: BatchReserve | None = None  # on memory that buffers will need
        self._start(device)

    def _start(self, device: Device | None) -> None:
        self._device, self._registers = device, device is not None
        self._buffers: dict[int, tuple[Raw, int]] = {}  # with their addresses
        self._idle: deque[int] = deque()  # the one given back last is in the processor's cache, most likely
        self._released: deque[int] = deque()  # that the device may still read from
        self._marked: deque[tuple[Mark, list[int]]] = deque()  # and those behind a mark, the oldest first
        self._made = 0
        self._fresh: set[int] = set()  # whose memory nobody has written to yet, perhaps
        self._told = False
        self._short = False  # of memory: fewer buffers than were asked for

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file, "buffer_bytes": self.buffer_bytes, "most": self.most, "_limit": self._limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._beside, self.hold = _none, None
        self._start(None)

    def enter_worker(self) -> None:
        """To be called in a process that is forked to be a worker: the device is its parent's alone, and so is how memory is mapped that it reads."""
        if self._device is not None:
            self._start(None)

    def resize(self, buffer_bytes: int) -> None:
        """To be called before the first `take`, and never again."""
        self.buffer_bytes = -(-max(buffer_bytes, 1) // _PAGE) * _PAGE
        self.most = max(self._limit // self.buffer_bytes, 1)
        if self.hold is not None:
            allowed = max(self.hold.begin(self.buffer_bytes, self.most), _LEAST)
            self._short = allowed < self.most
            self.most = min(self.most, allowed)

    @property
    def shared(self) -> bool:
        return self.file is not None

    def share_limit(self, other: Ring) -> None:
        """Buffers of both that are out count together, and idle ones of either give their memory back when the other needs more."""
        self._beside, other._beside = weakref.ref(other), weakref.ref(self)

    def buffer(self, number: int) -> Raw:
        """The memory of a buffer, in whichever process."""
        return self._buffer(number)[0]

    def _buffer(self, number: int) -> tuple[Raw, int]:
        pair = self._buffers.get(number)
        if pair is None:
            length = self.buffer_bytes
            memory = mapping.private(length) if self.file is None else self.file.map(number * length, length)
            mapping.keep_from_dumps(memory)
            if self._registers:
                memory = self._registered(memory)
            pair = self._buffers[number] = memory, memory.ctypes.data
        return pair

    def _registered(self, memory: Raw) -> Raw:
        assert self._device is not None
        try:
            return self._device.register(memory)
        except RuntimeError as error:
            self._registers = False
            warnings.warn(
                f'stocached: memory for batches cannot be pinned where it lies, so batches are copied into pinned memory, as by pin_memory="copy": {error}',
                stacklevel=2,
            )
            return memory

    def take(self) -> Lease | None:
        """A buffer whose bytes are whatever they were. None: the limit is reached; warns the first time. Waits for the device rather than that."""
        if self._device is not None:
            self._take_back(self._device)
        beside = self._beside()
        out = self._made - len(self._idle) + (0 if beside is None else beside._made - len(beside._idle))
        if out >= self.most and self._marked:
            mark, numbers = self._marked.popleft()
            mark.wait()
            self._idle.extend(numbers)
            out -= len(numbers)
        if out >= self.most:
            if not self._told:
                self._told = True
                if beside is not None:
                    beside._told = True
                self._tell(out)
            return None
        if self._idle:
            number = self._idle.pop()
            if number in self._fresh:  # no longer: it was a batch's
                self._fresh.discard(number)
                self._take_memory(self.buffer_bytes)
            return self._lease(number)
        if beside is not None:
            beside.rest()
        number, self._made = self._made, self._made + 1
        self._fresh.add(number)
        if self.file is not None:
            self.file.grow(self._made * self.buffer_bytes)
        return self._lease(number)

    def _take_back(self, device: Device) -> None:
        """What the device has read. Leases that end after the mark was set are left for the next time."""
        released = len(self._released)
        if released:
            self._marked.append((device.mark(), [self._released.popleft() for _ in range(released)]))
        while self._marked and self._marked[0][0].reached():
            self._idle.extend(self._marked.popleft()[1])

    def _take_memory(self, count: int) -> None:
        if self.hold is not None:
            self.hold.take(count)

    def rest(self) -> None:
        """Gives the memory of idle buffers back, until they are taken again."""
        for number in list(self._idle):
            if number not in self._fresh:
                self._fresh.add(number)
                self._take_memory(-self.buffer_bytes)
            if self.file is None:
                mapping.forget(self._buffer(number)[1], self.buffer_bytes)
            else:
                self.file.punch(number * self.buffer_bytes, self.buffer_bytes)

    def _lease(self, number: int) -> Lease:
        memory, address = self._buffer(number)
        return Lease(number, memory, address, self._idle.append if self._device is None else self._released.append)

    def _tell(self, made: int) -> None:
        size, slower = sizes.show_size(self.buffer_bytes), "Further ones come in memory of their own, which is slower."
        if self._short:
            text = (
                f"memory is short, so there are {made} batches of {size} at a time, and all of them are in use. {slower} Copy what is to be kept, make the "
                "batches or the cache smaller, or give the program more memory"
            )
        elif self.most < _LEAST:
            text = (
                f"ring_bytes={self._limit} is room for {made} of the batches of {size}, and {_LEAST} are needed: of that which the training loop has, of that "
                f"which it gets, and of one that is made meanwhile. {slower} Raise it to {_LEAST * self.buffer_bytes} or more"
            )
        else:
            text = (
                f"the {made} batches of {size} that memory was set aside for are all in use, so somebody keeps batches. {slower} Copy what is to be "
                f"kept, or raise ring_bytes={self._limit}"
            )
        warnings.warn(f"stocached: {text}", stacklevel=2)
