"""When a file was created, which Python's os.stat does not say on Linux."""

from __future__ import annotations

import ctypes
import os
import struct

_AT_FDCWD, _BTIME = -100, 0x800  # arguments of statx(2): which time is asked for
_MASK_AT, _TIME_AT, _BYTES = 0, 80, 256  # in struct statx


def born_ns(path: str) -> int:
    """Nanoseconds since 1970; 0 if the file system or the C library does not say."""
    statx = getattr(ctypes.CDLL(None), "statx", None)
    made = ctypes.create_string_buffer(_BYTES)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _BTIME, made) != 0:
        return 0
    (mask,), (seconds, nanoseconds) = (
        struct.unpack_from("<I", made, _MASK_AT),
        struct.unpack_from("<qI", made, _TIME_AT),
    )
    return int(seconds * 10**9 + nanoseconds) if mask & _BTIME else 0
