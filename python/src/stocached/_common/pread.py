"""Reads of a part of a file, without its position, so that threads and forked children may share the descriptor."""

from __future__ import annotations

import os


def pread(descriptor: int, at: int, size: int, path: str) -> bytes:
    """These bytes of a file; fewer where it ends. OSError has the path."""
    try:
        data = os.pread(descriptor, size, at)
        while len(data) < size and (more := os.pread(descriptor, size - len(data), at + len(data))):
            data += more  # one call reads 2 GiB at most
    except OSError as error:
        error.filename = path
        raise
    return data
