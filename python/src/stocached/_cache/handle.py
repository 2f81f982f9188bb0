"""Handles: an attached client and the memory that it maps. Each lives as long as the program uses
it.

A Handle closes when its last user has dropped it; a call in another thread is a user too. The map
of the payload ends when the last array over it is gone, which may be long after the handle. The
cycle collector does not see NumPy arrays, so it cannot free the map of an array that still exists.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common import errors
from .._common.array_addresses import interface_of
from .._common.errors import CacheNotFoundError, CachePermissionError, FingerprintError, FormatError
from . import fetch_calls

_PAGE = os.sysconf("SC_PAGESIZE")


class PayloadMap:
    """The read-only map of a payload. Arrays made by `array` refer to it; the last of them unmaps
    it.

    It has the array interface and no buffer protocol, so NumPy cannot make an array over it
    writable."""

    __slots__ = ("__array_interface__", "address", "length", "owned")

    def __init__(self, address: int, length: int) -> None:
        self.address, self.length = address, length
        self.owned = False  # the handle owns the map until it closes

    def array(self, *, writable: bool = False) -> npt.NDArray[np.uint8]:
        """The payload as bytes. `writable` changes only the array's flag: a store still kills the
        process."""
        self.__array_interface__ = interface_of(self.address, self.length, writable=writable)
        return np.asarray(self)

    def __del__(self, munmap: Any = _native.munmap, page: int = _PAGE, finalizing: Any = sys.is_finalizing) -> None:
        if self.owned and not finalizing():  # at exit the kernel unmaps everything, after the last use
            munmap(self.address, -(-self.length // page) * page)


class Handle(_native.Cache):  # type: ignore[misc]
    """An attached client: the `stoc_cache *` that calls take. Closes when the last reference is
    gone."""

    value: int | None  # the pointer
    payload: PayloadMap | None = None
    replaced = ""  # what a new segment says of one of another version whose place it has taken

    def adopt(self) -> Handle:
        """Call it once, after the library has set the pointer."""
        info = self.info()
        if info.payload and info.payload_bytes:
            self.payload = PayloadMap(info.payload, info.payload_bytes)
        return self

    def info(self) -> _native.Info:
        info = _native.Info(struct_bytes=ctypes.sizeof(_native.Info))
        self.check(_native.info(self, info))
        return info

    def fields(self, count: int) -> list[_native.Field]:
        made = [_native.Field() for _ in range(count)]
        for k, field in enumerate(made):
            self.check(_native.field(self, k, field))
        return made

    def keep(self, kept: bytes | None) -> None:
        """From now on it stores only samples of these buckets, as `Owners.keep` returns them. None: all samples."""
        buckets = None if kept is None else (ctypes.c_uint8 * _native.KEPT_BYTES).from_buffer_copy(kept)
        self.check(_native.keep(self, buckets))

    def check(self, code: int, index: int = 0, size: int = 0) -> int:
        """The result of a call; raises the exception of a negative code."""
        if code < 0:
            raise self.error(code, index, size)
        return code

    def error(self, code: int, index: int = 0, size: int = 0) -> errors.StocachedError:
        text = ctypes.create_string_buffer(1024)
        _native.explain(self, code, max(min(index, 2**63 - 1), -(2**63)), size, text, len(text))
        return errors.make(code, text.value.decode(errors="replace"))

    def __del__(self, close: Any = _native.close_keep_payload, pointer_to: Any = _native.Cache) -> None:
        if self.value is None:
            return
        pointer = pointer_to(self.value)
        self.value = None  # a finalizer that still uses this handle gets ECLOSED, not freed memory
        if self.payload is not None:
            self.payload.owned = True
        close(pointer)


def create(name: str | None, options: _native.Options) -> Handle:
    handle = Handle()
    options.struct_bytes, options.open_flags = ctypes.sizeof(options), _native.OPEN_KIND_PYTHON
    if _native.create(None if name is None else os.fsencode(name), options, handle, error := _native.Error()) < 0:
        raise errors.from_struct(error)
    handle.replaced = error.message.decode(errors="replace")
    return handle.adopt()


def attach(
    name_or_path: str, *, read_only: bool = False, fingerprint: str | None = None, uuid: bytes | None = None
) -> Handle:
    """By name or path. uuid: refuses another segment that has replaced this one since."""
    handle, expected = Handle(), None if fingerprint is None else fingerprint.encode()
    flags = _native.OPEN_KIND_PYTHON | (_native.OPEN_READ_ONLY if read_only else 0)
    errors.called(_native.open, os.fsencode(name_or_path), flags, expected, handle)
    handle.adopt()
    if uuid is not None and bytes(handle.info().uuid) != uuid:
        raise FormatError(
            f"{name_or_path} is another cache than the one that was pickled; it was removed and created again since"
        )
    return handle


def dial(
    name: str,
    wait: int,
    meanwhile: Callable[[], None],
    *,
    read_only: bool = False,
    fingerprint: str | None = None,
    sockets_dir: str | None = None,
) -> Handle:
    """Attaches through the server, which passes the memory of a cache that this process cannot see.

    wait: milliseconds, after which it raises NoServerError or CacheTimeoutError. meanwhile: of `fetch_calls.ask`. Raises
    CacheNotFoundError when the server has no cache of this name. sockets_dir: of the server; None: as `data_socket`."""
    handle, folder = Handle(), None if sockets_dir is None else os.fsencode(sockets_dir)
    flags = _native.OPEN_KIND_PYTHON | (_native.OPEN_READ_ONLY if read_only else 0)
    fetch_calls.ask(
        lambda options, error: _native.dial(os.fsencode(name), folder, flags, options, handle, error),
        wait,
        meanwhile=meanwhile,
    )
    have = handle.adopt().info().fingerprint.decode(errors="replace")
    if fingerprint is not None and have != fingerprint:
        raise FingerprintError(
            f"cache {name} of the server holds {have!r}, not {fingerprint!r}; attach to another one, or serve it with other data"
        )
    return handle


def data_socket() -> str:
    """The path of a server's socket, by the rule of the library (docs/spec/control.md)."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    default = f"{runtime}/stocached" if runtime.startswith("/") else f"/tmp/stocached-{os.getuid()}"
    return f"{os.environ.get('STOCACHED_SOCKETS_DIR') or default}/data.sock"


def attach_process(pid: int, fd: int, uuid: bytes, *, read_only: bool = False) -> Handle:
    """Attaches to a cache without a name through the process that pickled it and has it open."""
    path = f"/proc/{pid}/fd/{fd}"
    hint = "give the cache a name (name=), which every process can open"
    try:
        # Check the type first: opening a FIFO or a tape drive has effects. O_NONBLOCK: the file may
        # change in between.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FormatError(f"{path} is no cache any more; {hint}")
        own = os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise CacheNotFoundError(
            f"process {pid}, which pickled this unnamed cache, has closed it or is gone; keep it open, or {hint}"
        ) from None
    except PermissionError:
        raise CachePermissionError(
            f"process {pid}, which pickled this unnamed cache, does not let others open its files; {hint}"
        ) from None
    handle = Handle()
    try:
        flags = _native.OPEN_KIND_PYTHON | (_native.OPEN_READ_ONLY if read_only else 0)
        errors.called(_native.open_fd, own, flags, uuid, handle)
    finally:
        os.close(own)
    return handle.adopt()
