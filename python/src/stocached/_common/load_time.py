"""What a load costs: its wall time, less the time in which its thread waited for a processor.

A wait for the source counts. With thread workers, the time in which other threads hold the
interpreter's lock counts too: it cannot be told apart."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from typing import Any

QUICK = 50_000  # ns: work that took less hardly waited for a processor, and asking takes 2.5 us


class _Schedule:
    """The file schedstat of the thread that opens it. It says how long the thread was runnable and
    did not run."""

    known, until = 0, 0  # the last answer, and when it is old

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1  # this kernel has none

    def delay(self) -> int:
        """Nanoseconds."""
        self.until = monotonic_ns() + QUICK
        self.known = int(os.pread(self._fd, 64, 0).split()[1]) if self._fd >= 0 else 0
        return self.known

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


_threads = threading.local()  # .schedule: of each thread


def _schedule() -> _Schedule:
    schedule: _Schedule | None = getattr(_threads, "schedule", None)
    if schedule is None:
        schedule = _threads.schedule = _Schedule()
    return schedule


def _at_one_moment() -> tuple[int, int, int]:
    """The time, the processor time of this thread, and how long it has been runnable without a processor. A thread
    often loses its processor in a call for its time. Then the numbers do not fit, and this asks again."""
    schedule = _schedule()
    for _ in range(4):
        now, thread, delay = monotonic_ns(), thread_time_ns(), schedule.delay()
        if monotonic_ns() - now < QUICK:
            break
    return now, thread, delay


def idle_ns() -> int:
    """A clock that goes on while this thread has no processor and does not ask for one: while it waits for a disk,
    for the network or for a lock. Only differences count."""
    now, thread, delay = _at_one_moment()
    return now - thread - delay


def delay_ns() -> int:
    """How long this thread has been runnable without a processor. The answer may be 50 us old."""
    schedule = _schedule()
    return schedule.known if monotonic_ns() < schedule.until else schedule.delay()


def _forget() -> None:
    """The thread of a forked child is another one."""
    global _threads
    _threads = threading.local()


os.register_at_fork(after_in_child=_forget)


class LoadTime:
    """Measures a load, for `Cache.put(cost=)`:

        with LoadTime() as load:
            value = read_and_decode(i)
        cache.put(i, value, cost=load.seconds)

    seconds: what the load cost; None before its end, and if it raised."""

    seconds: float | None = None

    def __enter__(self) -> LoadTime:
        now, _, delay = _at_one_moment()
        self._began = now - delay
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        if error is None:
            now, _, delay = _at_one_moment()
            self.seconds = max(now - delay - self._began, 1) / 1e9


LoadTime.__module__ = "stocached"  # where users find it


class TimedLoad:
    """A load whose first call is measured if its cost is wanted.

    seconds: what that call cost; None: it is not wanted, or there was none."""

    seconds: float | None = None

    def __init__(self, load: Callable[[], Any], wanted: bool) -> None:
        self._load, self._wanted = load, wanted

    def __call__(self) -> Any:
        if not self._wanted or self.seconds is not None:
            return self._load()
        with LoadTime() as time:
            loaded = self._load()
        self.seconds = time.seconds
        return loaded
