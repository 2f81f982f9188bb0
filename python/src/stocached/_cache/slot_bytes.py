"""The bytes of slots, in any state of their samples: read, written and zeroed in place."""

from __future__ import annotations

import errno
import os

from .. import _native
from .._common.errors import CacheMemoryError, CacheTimeoutError
from .handle import Handle


def read(handle: Handle, slot: int, address: int, size: int) -> None:
    """Copies the bytes of a slot to an address: zeros if no client has ever written them."""
    handle.check(_native.peek(handle, slot, address, size), slot)


def write(handle: Handle, slot: int, address: int, size: int) -> None:
    """Writes a slot and leaves its state as it was.

    A READY sample is overwritten. An EMPTY one is claimed, written and aborted."""
    claim = _native.Claim()
    while True:
        if handle.check(_native.state(handle, slot), slot) == _native.STATE_READY:
            code = handle.check(_native.set(handle, slot, address, size, _native.OVERWRITE | _native.WAIT), slot)
        else:
            code = handle.check(_native.claim(handle, slot, size, _native.WAIT, claim), slot)
            if code == _native.EXISTS:
                continue  # another client has filled it since its state was read
            if code == _native.STORED:
                code = handle.check(_native.write(claim, 0, address, size), slot)
                handle.check(_native.abort(claim), slot)
        if code == _native.BUSY:
            raise CacheTimeoutError(f"another process has been filling slot {slot} for a minute; nothing was stored")
        if code == _native.FULL:
            raise CacheMemoryError(f"no memory is left for slot {slot} of {size} bytes; nothing was stored")
        return


def write_if_empty(handle: Handle, slot: int, address: int, size: int) -> None:
    """Writes a slot that is EMPTY, and leaves it EMPTY. Does nothing if a client has claimed or
    filled it."""
    claim = _native.Claim()
    if handle.check(_native.claim(handle, slot, size, 0, claim), slot) == _native.STORED:
        handle.check(_native.write(claim, 0, address, size), slot)
        handle.check(_native.abort(claim), slot)


def written(handle: Handle, slots: int, size: int) -> list[int]:
    """The slots that have memory, at least in part."""
    info = handle.info()
    start, end = int(info.payload_offset), int(info.payload_offset + slots * size)
    found: list[int] = []
    at = start
    while at < end:
        try:
            data = os.lseek(info.fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data up to the end
                break
            raise
        hole = min(os.lseek(info.fd, data, os.SEEK_HOLE), end)
        found.extend(range(max((data - start) // size, found[-1] + 1 if found else 0), -(-(hole - start) // size)))
        at = max(hole, data + 1)
    return found
