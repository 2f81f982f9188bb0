"""The batch pool's buffers as pinned memory: registered with CUDA, so that a device reads batches in
place while the program continues (docs/spec/workers.md)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Any

import numpy as np
import torch

from .._common.array_addresses import interface_of
from .batch_pool import Raw

_PORTABLE = 1  # cudaHostRegisterPortable of driver_types.h: pinned for all devices
_cuda: Any = torch.cuda  # Any: torch has no types for parts of it
_runtime: Any = torch._C._cudart if hasattr(torch._C, "_cudart") else None
_has_context: Any = getattr(torch._C, "_cuda_hasPrimaryContext", None)


class Cuda:
    """What the batch pool needs of CUDA, through torch. Only the thread that iterates calls it; memory
    may end in any thread."""

    def register(self, memory: Raw) -> Raw:
        """The same memory, pinned as long as this array, or one made of it, exists. RuntimeError if
        CUDA refuses it."""
        _cuda.init()
        address = memory.ctypes.data
        code = _runtime.cudaHostRegister(address, memory.size, _PORTABLE)
        if code != _runtime.cudaError.success:
            _forget_error()
            raise RuntimeError(f"cudaHostRegister of {memory.size} bytes: {_runtime.cudaGetErrorString(code)}")
        return np.asarray(_Registered(memory, address))

    def mark(self) -> Mark:
        """A mark after all work that the current streams have now."""
        return Mark()


class Mark:
    """A place in the current stream of each device that this process uses. All devices: a copy may
    run on one that is not the current device."""

    def __init__(self) -> None:
        self._events = [_cuda.current_stream(device).record_event() for device in _devices()]

    def reached(self) -> bool:
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        for event in self._events:
            event.synchronize()


class _Registered:
    """Memory that is unregistered before it is freed. Forked children must not call CUDA. At exit
    of the interpreter the driver is gone."""

    __slots__ = ("__array_interface__", "_address", "_memory", "_pid")

    def __init__(self, memory: Raw, address: int) -> None:
        self._memory, self._address, self._pid = memory, address, os.getpid()
        self.__array_interface__ = interface_of(address, memory.size)

    def __del__(self, getpid: Any = os.getpid, ends: Any = sys.is_finalizing) -> None:
        if getpid() == self._pid and not ends():
            _unregister(self._address)


def _unregister(address: int) -> None:
    """Waits until no device reads the memory, then unregisters it."""
    with contextlib.suppress(RuntimeError):  # a device that has failed reads nothing
        for device in _devices():
            _cuda.synchronize(device)
    if _runtime.cudaHostUnregister(address) != _runtime.cudaError.success:
        _forget_error()


def _devices() -> list[int]:
    """The devices that this process has a context on. A query for the stream of another device
    would make a context, of some hundred MB."""
    return [device for device in range(_cuda.device_count()) if _has_context(device)]


def _forget_error() -> None:
    """Clears the error that CUDA keeps, which would make a later call fail. torch exports the
    runtime's function, or has the runtime inside itself; then it is not found."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).cudaGetLastError()
