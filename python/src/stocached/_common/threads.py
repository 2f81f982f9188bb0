"""Threads of ours end before the process forks: a child gets locks as other threads hold them at that moment, and Python 3.12 and later warn of it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

_LINGER = 0.05  # seconds
_STEP = 0.0001  # seconds


class Leader(Protocol):
    """Who has such a thread."""

    def before_fork(self) -> None:
        """Ends it, if it can without long waiting. Called in the thread that forks, which may be any."""

    def after_fork(self) -> None:
        """Goes on as before; called in the same thread, of the parent alone."""


_leaders: weakref.WeakSet[Leader] = weakref.WeakSet()


def keep_from_forks(leader: Leader) -> None:
    """Has its thread end before each fork from now on, as long as somebody has the leader."""
    _leaders.add(leader)


class Latch:
    """Like threading.Event, for one `set`. Event.wait is Python code: an exception in its middle, such as KeyboardInterrupt, becomes a RuntimeError about its
    lock. This waits in C."""

    __slots__ = ("_lock", "_set")

    def __init__(self) -> None:
        self._set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """To be called once."""
        self._set = True
        self._lock.release()

    def is_set(self) -> bool:
        return self._set

    def wait(self) -> None:
        with self._lock:  # and lets the next one in, who waits as well
            pass


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C takes effect after the block, not within it."""
    usual = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if usual is None:  # signals are handled in the main thread alone, and not in Python if the handler is not ours to know
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            signal.raise_signal(signal.SIGINT)


def start(thread: threading.Thread) -> None:
    """Starts it. Thread.start waits for the thread in Python code: an exception there, such as KeyboardInterrupt, leaves locks and the thread half-way."""
    with _without_interrupts():
        thread.start()


def join(thread: threading.Thread, timeout: float | None = None) -> None:
    """Waits for the end of a thread, that of the kernel's thread included: before Python 3.13 it comes a moment later, and forks look at it.
    timeout: seconds; None: as long as it takes. Does nothing for the current thread and for one that was not started."""
    if thread.ident is None or thread is threading.current_thread():
        return
    with contextlib.suppress(RuntimeError):  # the handler of another signal has raised in the middle of its start: it is about to begin
        thread.join(timeout)
    task, until = f"/proc/self/task/{thread.native_id}", time.monotonic() + _LINGER
    while not thread.is_alive() and os.path.exists(task) and time.monotonic() < until:
        time.sleep(_STEP)


def _before() -> None:
    for leader in list(_leaders):
        leader.before_fork()


def _after() -> None:
    for leader in list(_leaders):
        leader.after_fork()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_leaders.clear)
