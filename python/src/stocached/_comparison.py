"""Samples of a filled cache are compared with those of the dataset in the background, where nothing else says whether it has changed.

A thread of the program does it, on a copy of the dataset's objects: what a load changes in them, such as a file that it opens, is seen by nobody else. It
never loads at the same time as the program does in this process, and it stands still while the process forks."""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import _threads
from ._probe import is_own

SAMPLES = 32
_PATIENCE = 10.0  # seconds that a fork, or the end of the program, waits for the sample that is being loaded
_LARGE = 1000  # entries of a list that holds data rather than objects that load it
_TURN = 0.05  # seconds between two looks whether the thread is to end


class Comparison:
    """Calls `compare` for one index after the other, until it answers False. An index that it fails for counts as compared; if it fails for all, `failed` is
    called with the last error."""

    def __init__(self, indices: list[int], compare: Callable[[int], bool], failed: Callable[[Exception], None]) -> None:
        self._left, self._compare, self._failed = indices, compare, failed
        self._compared = 0
        self._pid = os.getpid()
        self._loading = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._done = False
        _threads.keep_from_forks(self)
        _all.add(self)
        self.after_fork()

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Around a load of the program's own: in this process no other one goes on meanwhile."""
        if self._done or os.getpid() != self._pid:
            yield
        else:
            with self._loading:
                yield

    def wait(self) -> None:
        """For the end of it."""
        if self._thread is not None:
            _threads.join(self._thread)

    def _work(self) -> None:
        while self._left and not self._stop.is_set():
            if self._loading.acquire(timeout=_TURN):
                try:
                    self._compare_one(self._left.pop())
                finally:
                    self._loading.release()
        self._done = not self._left

    def _compare_one(self, index: int) -> None:
        try:
            if not self._compare(index):
                self._left.clear()
            self._compared += 1
        except Exception as error:
            if not self._left and not self._compared:
                self._failed(error)

    def before_fork(self) -> None:
        if self._thread is not None:
            self._stop.set()
            _threads.join(self._thread, _PATIENCE)
            self._thread = None

    def after_fork(self) -> None:
        if not self._done:
            self._stop.clear()
            self._thread = threading.Thread(target=self._work, daemon=True, name="stocached compare")
            self._thread.start()

    def end(self) -> None:
        self._left.clear()
        self.before_fork()
        self._done = True


def private_copy(value: Any, made: dict[int, Any] | None = None) -> Any:
    """A dataset whose objects, lists and dicts are copies, as far as they are of the program's own code; all else is shared with the original."""
    made = {} if made is None else made
    if id(value) in made:
        return made[id(value)]
    kind = type(value)
    if kind in (list, dict, tuple) and len(value) > _LARGE:
        return value
    if kind in (list, dict):
        copied = made[id(value)] = value.copy()
        for key in range(len(value)) if kind is list else value:
            copied[key] = private_copy(value[key], made)
        return copied
    if kind is tuple:
        return tuple(private_copy(item, made) for item in value)
    if not is_own(value) or isinstance(value, threading.local):  # a local one is the thread's own anyway
        return value
    try:
        copied = made[id(value)] = copy.copy(value)
        for name, item in vars(copied).items():
            vars(copied)[name] = private_copy(item, made)
    except Exception:  # of a class that cannot be copied
        return value
    return copied


def say_once(cache: str | None, reason: str) -> None:
    """Warns that only some samples are compared: once a program, and of the ranks of a machine in the first one."""
    global _said
    if not _said and os.environ.get("LOCAL_RANK", "0") == "0":
        _said = True
        warnings.warn(
            f"stocached: cache {cache!r} was filled before, and whether the dataset has changed since then cannot be told for certain ({reason}). "
            f"{SAMPLES} samples are compared in the background; fingerprint= makes it certain",
            stacklevel=2,
        )


_said = False
_all: weakref.WeakSet[Comparison] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for comparison in list(_all):
        comparison.end()
