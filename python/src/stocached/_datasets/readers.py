"""Who reads caches outside a loader, such as the iterator of a pipe. A loader that is closed frees a cache when they have
ended."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

Caches = Callable[[], list[Any]]

ending = threading.RLock()  # no cache is closed while another thread may take it
on_end: list[Callable[[], None]] = []  # called when somebody has ended
_reading: dict[object, tuple[list[Any], Caches]] = {}


def _forget() -> None:
    """In a forked child, where a thread of the parent may have held the lock."""
    global ending
    ending = threading.RLock()
    _reading.clear()


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def reading(caches: Caches) -> Iterator[None]:
    """Keeps the caches open. caches: gives those that exist now."""
    key = object()
    with ending:
        _reading[key] = caches(), caches
    try:
        yield
    finally:
        with ending:
            _reading.pop(key, None)
        for call in on_end:
            call()


def read() -> list[Any]:
    """The caches that somebody reads. The caller has the lock."""
    return [cache for known, caches in list(_reading.values()) for cache in (*known, *caches())]
