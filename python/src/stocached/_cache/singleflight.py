"""One load of a sample at a time, for all threads of this process that miss it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .._checks import loading
from .._common.threads import Latch, for_each


class _Load:
    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done: Latch | None = None  # made by the first thread that waits; most loads have none
        self.ok = False
        self.value: Any = None


class SingleFlight:
    """Concurrent calls of `run` with one key share the value of one call of their function. If that
    call fails, the next thread calls its function.

    A forked child starts without the loads of its parent, as it does not have the parent's
    threads."""

    def __init__(self) -> None:
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()  # guards _loads
        self._loads: dict[int, _Load] = {}

    def run(self, key: int, function: Callable[[], Any]) -> Any:
        while True:
            with self._lock:
                load = self._loads.get(key)
                if load is None:
                    mine = self._loads[key] = _Load()
                    break
                if load.done is None:
                    load.done = Latch()
            if load.thread == threading.get_ident():
                return function()  # this thread is loading the same sample: a wait would never end
            with loading.paused():  # the thread that loads may have to wait until no other thread loads
                load.done.wait()
            if load.ok:
                return load.value
        try:
            mine.value = function()
            mine.ok = True
            return mine.value
        finally:
            with self._lock:
                self._loads.pop(key, None)  # gone in a child that `function` has forked
            if mine.done is not None:  # no thread finds the load any more, so none makes a latch now
                mine.done.set()


_all: weakref.WeakSet[SingleFlight] = weakref.WeakSet()
os.register_at_fork(after_in_child=for_each(_all, SingleFlight._reset))
