"""Memory that a cache leaves free for batches."""

from __future__ import annotations

import os
import weakref
from typing import Any

from .. import _native

_SHARE = 4  # a quarter of what there is


class BatchReserve:
    """Has the fills of a cache, by whichever process, leave memory free for the batches of a loader. Without it they take all that is above the floor, and
    the kernel kills when batches need more. It belongs to a loader, whose rings come and go with its epochs."""

    def __init__(self, handle: Any, ahead: int, ahead_bytes: int, epochs: int) -> None:
        self._handle, self._ahead, self._ahead_bytes, self._epochs = handle, ahead, ahead_bytes, epochs
        self._pid = os.getpid()
        self._bytes = -1  # for all batches; not known yet
        self._taken = 0  # of these, what batches have by now

    def begin(self, buffer_bytes: int, most: int) -> int:
        """For a ring that has no buffer yet: how many of this size it may have. That is fewer than `most` where memory is short."""
        if self._pid != os.getpid():
            return most
        ahead = min(self._ahead, max(self._ahead_bytes // buffer_bytes, 1))
        batches = min(ahead * self._epochs + 3, most)  # the training loop has some, too
        if self._bytes < 0:
            self._bytes = min(batches * buffer_bytes, max(_native.spare(self._handle), 0) // _SHARE)
        self._taken = 0
        self._set()
        return most if self._bytes >= batches * buffer_bytes else self._bytes // buffer_bytes

    def take(self, count: int) -> None:
        """Batches have so many bytes more; fewer if it is negative."""
        self._taken += count
        self._set()

    def _set(self) -> None:
        if self._pid == os.getpid():
            _native.hold(self._handle, max(self._bytes - self._taken, 0))

    def __del__(self, hold: Any = _native.hold, getpid: Any = os.getpid) -> None:  # modules may be empty by now, at the end of the interpreter
        if self._pid == getpid() and self._bytes > 0:
            hold(self._handle, 0)


_holds: weakref.WeakKeyDictionary[Any, BatchReserve] = weakref.WeakKeyDictionary()


def reserve_of(context: Any) -> BatchReserve | None:
    """That of a loader, by its cached dataset; None: it has none."""
    cached, cache = context.cached, getattr(context.cached, "cache", None)
    if cache is None or cache.read_only:
        return None
    if cached not in _holds:
        _holds[cached] = BatchReserve(cache._handle, context.ahead, context.ahead_bytes, 1 if context.follow is None else 2)
    return _holds[cached]
