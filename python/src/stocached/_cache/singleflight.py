"""One load for each sample at a time, however many threads of this process ask for it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .._checks import loading
from .._common.threads import Latch


class _Load:
    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done: Latch | None = None  # made by the first thread that waits: few loads have one
        self.ok = False
        self.value: Any = None


class SingleFlight:
    """Concurrent calls of `run` with one key share the value of a single call of their function. One that fails hands the turn to the next.

    A forked child starts without the loads of its parent, whose threads it has not got."""

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
                return function()  # asked for from within its own load: waiting would be for ever
            with loading.paused():  # the thread that we wait for may have to load alone
                load.done.wait()
            if load.ok:
                return load.value
        try:
            mine.value = function()
            mine.ok = True
            return mine.value
        finally:
            with self._lock:
                self._loads.pop(key, None)  # may be gone: a fork happened within `function`
            if mine.done is not None:  # nobody finds it any more to make one
                mine.done.set()


_all: weakref.WeakSet[SingleFlight] = weakref.WeakSet()


def _forget() -> None:
    for once in list(_all):
        once._reset()


os.register_at_fork(after_in_child=_forget)
