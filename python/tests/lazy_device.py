"""A device that does no work before the program waits for it. No real device can be worse for
memory that it reads from."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np


class LazyDevice:
    """Takes copies in order, like a CUDA stream, and knows which memory it may read. Belongs to the
    process that makes it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.done = 0  # number of finished pieces of work
        self.marks = 0
        self.registered: dict[int, int] = {}  # lengths by address
        self.most_registered = 0
        self.refuses_from = 1 << 62  # number of registrations before it refuses one
        self._pid = os.getpid()

    # ------------------------------------------------------------ what the batch pool asks of it

    def register(self, memory: Any) -> Any:
        assert os.getpid() == self._pid, "a forked child must not call a driver"
        if len(self.registered) >= self.refuses_from:
            raise RuntimeError("out of pages")
        return np.asarray(_Registered(self, memory))

    def mark(self) -> Mark:
        self.marks += 1
        return Mark(self, len(self.work))

    # ------------------------------------------------------------ what a training loop asks of it

    def copy(self, source: Any, to: list[Any]) -> None:
        """Appends a copy of the array to a list, later. As with CUDA, the device keeps no reference
        to the array: it copies the bytes that are there then."""
        assert self.reads(source), "not pinned"
        interface = dict(source.__array_interface__)
        keeper = type("Raw", (), {"__array_interface__": interface})  # has only its address
        self.work.append(lambda: to.append(np.array(keeper())))

    def reads(self, array: Any) -> bool:
        address = array.__array_interface__["data"][0]
        return any(
            first <= address and address + array.nbytes <= first + length for first, length in self.registered.items()
        )

    def run(self, until: int | None = None) -> None:
        until = len(self.work) if until is None else until
        while self.done < until:
            self.work[self.done]()
            self.done += 1


class Mark:
    def __init__(self, device: LazyDevice, place: int) -> None:
        self._device, self._place = device, place

    def reached(self) -> bool:
        return self._device.done >= self._place

    def wait(self) -> None:
        self._device.run(self._place)


class _Registered:
    def __init__(self, device: LazyDevice, memory: Any) -> None:
        self._device, self._memory, self._address = device, memory, memory.ctypes.data
        device.registered[self._address] = memory.nbytes
        device.most_registered = max(device.most_registered, len(device.registered))
        self.__array_interface__ = dict(memory.__array_interface__)

    def __del__(self) -> None:
        if os.getpid() == self._device._pid:
            self._device.run()  # like cudaHostUnregister, which waits until the device is idle
            del self._device.registered[self._address]
