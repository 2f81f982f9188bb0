"""Calls of the C library. Each thread has a worker of its own, which ends with the thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from .._common.errors import InvalidError
from .._native import _image_header as native
from .errors import DecodeError


class OtherKind(Exception):
    """A file is of a format that C leaves to Pillow."""


_KINDS: dict[int, type[Exception]] = {
    native.EINVAL: InvalidError,
    native.EMEMORY: MemoryError,
    native.EKIND: OtherKind,
}


class Memory:
    """A worker of the library: the memory and the decoder of one thread."""

    def __init__(self) -> None:
        self.handle = native.worker_new()
        if not self.handle:
            raise MemoryError("stocached.image: too little memory for a worker")
        self._process = os.getpid()

    def __del__(self, pid: Callable[[], int] = os.getpid, free: Callable[[Any], None] = native.worker_free) -> None:
        # In a forked child this may be the worker of another thread, which was in the middle of a call.
        if getattr(self, "_process", None) == pid():
            free(self.handle)


_here = threading.local()


def attempt(function: Callable[..., int], *arguments: Any) -> tuple[int, str]:
    """Calls a function of the library with the worker of this thread: its code, and what the library says of an error."""
    worker: Memory | None = getattr(_here, "worker", None)
    if worker is None:
        worker = _here.worker = Memory()
    code = function(worker.handle, *arguments)
    return code, (native.message(worker.handle) or b"").decode(errors="replace") if code else ""


def call(function: Callable[..., int], name: Any, *arguments: Any) -> None:
    """As `attempt`, but an error is raised. name: of the file, for the error."""
    code, message = attempt(function, *arguments)
    if code:
        kind = _KINDS.get(code)
        raise DecodeError(message, name) if kind is None else kind(f"{name}: {message}")
