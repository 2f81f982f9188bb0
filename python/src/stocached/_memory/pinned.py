"""The ring's buffers in pinned memory: registered with CUDA, so that a device reads batches where they lie while the program goes on (docs/spec/workers.md)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Any

import numpy as np
import torch

from .ring import Raw

_PORTABLE = 1  # cudaHostRegisterPortable of driver_types.h: pinned for all devices
_cuda: Any = torch.cuda  # in part without types, as what follows
_runtime: Any = torch._C._cudart if hasattr(torch._C, "_cudart") else None
_has_context: Any = getattr(torch._C, "_cuda_hasPrimaryContext", None)


class Cuda:
    """What the ring asks of CUDA, by way of torch. To be called by the thread that iterates; memory may end in any."""

    def register(self, memory: Raw) -> Raw:
        """The same memory, pinned for as long as the array, or one made of it, is referred to. Raises RuntimeError where CUDA does not take it."""
        _cuda.init()
        address = memory.ctypes.data
        code = _runtime.cudaHostRegister(address, memory.size, _PORTABLE)
        if code != _runtime.cudaError.success:
            _forget_error()
            raise RuntimeError(f"cudaHostRegister of {memory.size} bytes: {_runtime.cudaGetErrorString(code)}")
        return np.asarray(_Registered(memory, address))

    def mark(self) -> Mark:
        """Behind whatever was given to the current streams until now."""
        return Mark()


class Mark:
    """A place in the current stream of each device that this process uses: a copy to another one than the current may be under way as well."""

    def __init__(self) -> None:
        self._events = [_cuda.current_stream(device).record_event() for device in _devices()]

    def reached(self) -> bool:
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        for event in self._events:
            event.synchronize()


class _Registered:
    """Memory that is unregistered before it can go. CUDA is not to be called in forked children, and at the end of the interpreter the driver is gone."""

    __slots__ = ("__array_interface__", "_address", "_memory", "_pid")

    def __init__(self, memory: Raw, address: int) -> None:
        self._memory, self._address, self._pid = memory, address, os.getpid()
        self.__array_interface__: dict[str, Any] = {"version": 3, "typestr": "|u1", "shape": (memory.size,), "data": (address, False)}

    def __del__(self, getpid: Any = os.getpid, ends: Any = sys.is_finalizing) -> None:
        if getpid() == self._pid and not ends():
            _unregister(self._address)


def _unregister(address: int) -> None:
    """When no device reads from it any more."""
    with contextlib.suppress(RuntimeError):  # a device that has failed reads nothing
        for device in _devices():
            _cuda.synchronize(device)
    if _runtime.cudaHostUnregister(address) != _runtime.cudaError.success:
        _forget_error()


def _devices() -> list[int]:
    """Those that this process has a context on. To ask for the streams of others would make one, of some hundred MB."""
    return [device for device in range(_cuda.device_count()) if _has_context(device)]


def _forget_error() -> None:
    """CUDA keeps an error, and has an innocent call fail with it later. torch has loaded the runtime for everybody to see, or has it within itself."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).cudaGetLastError()
