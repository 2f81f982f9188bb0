"""Memory that a cache leaves free for batches."""

from __future__ import annotations

import os
import weakref
from typing import Any

from .. import _native

_SHARE = 4  # a quarter of the free memory


class BatchReserve:
    """Keeps memory free for the batches of a loader: fills of its cache, by any process, do not
    take it.

    Without a reserve, fills take all memory above the floor, and the kernel kills a process when
    batches need more. A reserve belongs to a loader; the loader's batch pools begin and end with its
    epochs."""

    def __init__(self, handle: Any, ahead: int, ahead_bytes: int, epochs: int) -> None:
        self._handle = weakref.ref(handle)  # a cache that is closed frees its memory while the loader lives
        self._ahead, self._ahead_bytes, self._epochs = ahead, ahead_bytes, epochs
        self._pid = os.getpid()
        self._bytes = -1  # for all batches; -1: not known yet
        self._taken = 0  # bytes of these that batches have now

    def begin(self, buffer_bytes: int, most: int) -> int:
        """How many buffers of this size a new batch pool may have: at most `most`, fewer if memory is
        short."""
        if self._pid != os.getpid():
            return most
        ahead = min(self._ahead, max(self._ahead_bytes // buffer_bytes, 1))
        batches = min(ahead * self._epochs + 3, most)  # 3: the training loop holds some too
        if self._bytes < 0:
            handle = self._handle()
            spare = 0 if handle is None else _native.spare(handle)
            self._bytes = min(batches * buffer_bytes, max(spare, 0) // _SHARE)
        self._taken = 0
        self._set()
        return most if self._bytes >= batches * buffer_bytes else self._bytes // buffer_bytes

    def take(self, count: int) -> None:
        """Batches have taken `count` more bytes; a negative count frees bytes."""
        self._taken += count
        self._set()

    def _set(self) -> None:
        handle = self._handle()
        if handle is not None and self._pid == os.getpid():
            _native.hold(handle, max(self._bytes - self._taken, 0))

    def holds(self, handle: Any) -> bool:
        """Whether it is of this handle."""
        return self._handle() is handle

    # Arguments with defaults, because modules may be empty at exit.
    def __del__(self, hold: Any = _native.hold, getpid: Any = os.getpid) -> None:
        handle = self._handle()
        if handle is not None and self._pid == getpid() and self._bytes > 0:
            hold(handle, 0)


_holds: weakref.WeakKeyDictionary[Any, BatchReserve] = weakref.WeakKeyDictionary()


def reserve_of(context: Any) -> BatchReserve | None:
    """The reserve of a loader, which its cached dataset identifies; None without a cache."""
    cached, cache = context.cached, getattr(context.cached, "cache", None)
    if cache is None or cache.read_only:
        return None
    if cached not in _holds or not _holds[cached].holds(cache._handle):
        _holds[cached] = BatchReserve(
            cache._handle, context.ahead, context.ahead_bytes, 1 if context.follow is None else 2
        )
    return _holds[cached]
