"""Which threads of this process load samples, so that one of them can load alone. Then only its
draws move the global generators.

`enter` and `leave` stand around each load, and cost a fraction of a microsecond. They may be
nested. A thread that waits here or in `paused` draws nothing, and does not count as loading.

A load may itself wait for other threads that load, such as those of a loader inside the dataset. So
threads that start while one loads alone do not wait for it, and other threads wait only until a
timeout. No thread waits for a worker thread of a closed loader, whose load may hang for ever."""

from __future__ import annotations

import functools
import operator
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, TypeVar

from .._common import threads

_T = TypeVar("_T")
_changed = threading.Condition()
_loads: dict[int, int] = {}  # by thread: its nested loads
_slow: set[int] = set()  # threads whose loads did not end when another thread waited to load alone
_alone: Alone | None = None
_timeout = 10.0  # seconds that other threads wait for the one that loads alone
# The same after a thread has waited in vain.
_SHORT_TIMEOUT = 0.1


class Alone:
    """A thread that loads alone, or waits until it can."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.others = threads.running()  # threads that wait for this one
        # A thread that started during this load loads too, or one of a closed loader.
        self.joined = not threads.abandoned().isdisjoint(_loads)
        self.disturbed = False  # a thread loads too, after its timeout


def enter() -> None:
    """This thread begins a load. Waits while another thread loads alone."""
    me = get_ident()
    _loads[me] = _loads.get(me, 0) + 1
    if _alone is not None:  # read after the write of _loads; `alone` does the reverse
        _go_on(me, _stop(me))


def leave() -> None:
    me = get_ident()
    depth = _loads.get(me, 0) - 1
    if depth > 0:
        _loads[me] = depth
        return
    _loads.pop(me, None)  # gone in a child that the load has forked
    _slow.discard(me)
    if _alone is not None:
        with _changed:
            _changed.notify_all()


def run(load: Callable[[], _T]) -> _T:
    """The result of `load`."""
    enter()
    try:
        return load()
    finally:
        leave()


def item(dataset: Any, index: int) -> Any:
    """dataset[index]"""
    return run(functools.partial(without_stop_iteration, operator.getitem, dataset, index))


def without_stop_iteration(function: Callable[..., _T], *arguments: Any) -> _T:
    """Calls a function of the dataset, and returns its result. The last argument is an index, or several. A StopIteration
    becomes a RuntimeError, as it would end the loop of the caller in silence."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError(f"the dataset raised StopIteration({error}) for index {arguments[-1]!r:.100}") from error


@contextmanager
def paused() -> Iterator[None]:
    """Within it this thread waits for another thread that loads."""
    me = get_ident()
    depth = _stop(me)
    try:
        yield
    finally:
        _go_on(me, depth)


@contextmanager
def alone(timeout: float) -> Iterator[Alone | None]:
    """Within it no other thread loads. It waits until their loads end, and then other threads wait.

    Gives None if their loads do not end within `timeout` seconds; then they continue. For a load
    that has taken so long before, it waits only a moment."""
    global _alone
    me = get_ident()
    if _alone is not None and _alone.thread == me:
        yield _alone
        return
    end = time.monotonic() + timeout
    depth, mine = _stop(me), None
    try:
        with _changed:
            if _changed.wait_for(lambda: _alone is None, timeout):
                mine = _alone = Alone()
                left = end - time.monotonic()
                hung = not _slow.isdisjoint(_awaited())
                if not _changed.wait_for(lambda: not _awaited(), _SHORT_TIMEOUT if hung else left):
                    mine = None
                    _slow.update(_awaited())
                    _give_up()
        yield mine
    finally:
        if mine is not None:
            with _changed:
                _give_up()
        _go_on(me, depth)


def _awaited() -> set[int]:
    """The threads that load and were not abandoned."""
    return _loads.keys() - threads.abandoned() if _loads else set()


def _give_up() -> None:
    global _alone
    _alone = None
    _changed.notify_all()


def _stop(me: int) -> int:
    """This thread no longer counts as loading. Returns the number of its nested loads."""
    depth = _loads.pop(me, 0)
    if depth and _alone is not None:
        with _changed:
            _changed.notify_all()
    return depth


def _go_on(me: int, depth: int) -> None:
    global _timeout
    if not depth:
        return
    with _changed:
        now = _alone
        if now is not None and me not in now.others:
            now.joined = True
        elif now is not None and now.thread != me and not _changed.wait_for(lambda: _alone is None, _timeout):
            _timeout = _SHORT_TIMEOUT
            if _alone is not None:
                _alone.disturbed = True
        _loads[me] = depth


def _forget() -> None:
    """A forked child has one thread, and no load of its parent."""
    global _changed, _alone
    _changed, _alone = threading.Condition(), None
    _loads.clear()
    _slow.clear()


os.register_at_fork(after_in_child=_forget)
