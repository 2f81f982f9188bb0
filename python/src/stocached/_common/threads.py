"""The threads of the process. Ours end before it forks: a child would inherit the locks that they
hold at that moment, and Python 3.12 and later warn of a fork with threads."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

_LINGER = 0.05  # seconds
_STEP = 0.0001  # seconds
_T = TypeVar("_T")


class Leader(Protocol):
    """An object that has such a thread."""

    def before_fork(self) -> None:
        """Ends the thread, unless that takes long. Called in the thread that forks, which may be
        any."""

    def after_fork(self) -> None:
        """Continues as before. Called in the same thread, only in the parent."""


def running() -> frozenset[int]:
    """The threads of the process. Garbage collection is off during the call: if it frees a
    threading.local in there, Python before 3.12.3 waits for ever (its issue 106883)."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return frozenset(sys._current_frames())
    finally:
        if collects:
            gc.enable()


_abandoned: set[threading.Thread] = set()


def abandon(thread: threading.Thread) -> None:
    """The owner of this thread is closed. It does not wait for the thread's end, which may never
    come."""
    _abandoned.add(thread)


def abandoned() -> set[int]:
    """The threads that were abandoned and have not ended yet."""
    for thread in _abandoned.copy():
        if not thread.is_alive():
            _abandoned.discard(thread)
    return {thread.ident for thread in _abandoned.copy() if thread.ident is not None}


def for_each(objects: Iterable[_T], call: Callable[[_T], object]) -> Callable[[], None]:
    """A function, for forks and the end of the program, that makes this call for each of the objects that are there then."""

    def calls() -> None:
        for each in list(objects):
            call(each)

    return calls


_leaders: weakref.WeakSet[Leader] = weakref.WeakSet()


def keep_from_forks(leader: Leader) -> None:
    """Ends the leader's thread before each fork from now on, as long as the leader exists."""
    _leaders.add(leader)


class Latch:
    """Like threading.Event, for one `set`. It waits in C. Event.wait is Python code:
    KeyboardInterrupt in its middle becomes a RuntimeError about its lock."""

    __slots__ = ("_lock", "_set")

    def __init__(self) -> None:
        self._set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Call it once."""
        self._set = True
        self._lock.release()

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """timeout: seconds; None: no limit. Returns whether it is set."""
        if timeout is None:
            with self._lock:  # at its end the next waiting thread gets the lock
                pass
        elif self._lock.acquire(timeout=timeout):
            self._lock.release()
        return self._set


_ending: list[int] = []  # the thread that ends the program


def at_exit(close: Callable[[], None]) -> Callable[[], None]:
    """As atexit.register, for a function that closes what daemon threads may use. No other threads are left then."""

    def ends() -> None:
        _ending.append(threading.get_ident())
        close()

    atexit.register(ends)
    return close


def stop_if_program_ends() -> None:
    """A daemon thread goes no further when the program ends: what it reads from is being closed, and its errors would be
    printed. It waits here until the process is gone."""
    if _ending and threading.get_ident() not in _ending:
        never = threading.Lock()
        never.acquire()
        never.acquire()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C takes effect after the block, not inside it."""
    usual = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if usual is None:  # not the main thread, or the handler is not Python's: no exception can come
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
    """Starts a thread. Thread.start waits in Python code: KeyboardInterrupt in it would leave locks
    and the thread half started."""
    with _without_interrupts():
        thread.start()


def join(thread: threading.Thread, timeout: float | None = None) -> None:
    """Waits until a thread ends, in the kernel too. Before Python 3.13 the kernel's thread ends a
    moment later, and a fork counts it. timeout: seconds; None: no limit. Does nothing for the
    current thread and for a thread that was not started."""
    if thread.ident is None or thread is threading.current_thread():
        return
    with contextlib.suppress(RuntimeError):  # another signal's handler has raised during its start: it begins soon
        thread.join(timeout)
    task, until = f"/proc/self/task/{thread.native_id}", time.monotonic() + _LINGER
    while not thread.is_alive() and os.path.exists(task) and time.monotonic() < until:
        time.sleep(_STEP)


os.register_at_fork(
    before=for_each(_leaders, lambda leader: leader.before_fork()),
    after_in_parent=for_each(_leaders, lambda leader: leader.after_fork()),
    after_in_child=_leaders.clear,
)
