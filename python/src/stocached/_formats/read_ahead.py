"""Elements that threads read before the training loop asks for them. Only what leaves the interpreter to others is worth it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from .._common.background import Background
from .._common.threads import Latch

_MOST = 8 << 20  # bytes that wait for the training loop: what was read long ago is in no processor's cache
_LONGEST = 4096  # elements that were told, and are not read


class ReadAhead:
    """Of one process. read: of an element."""

    def __init__(self, read: Callable[[int], Any], threads: int) -> None:
        self._read, self.pid, self.threads = read, os.getpid(), threads
        self._lock = threading.Lock()
        self._told, self._begun = deque[_Element](maxlen=_LONGEST), deque[_Element]()
        self._bytes, self._idle = 0, [Background() for _ in range(threads)]

    def tell(self, elements: Iterable[tuple[int, int]]) -> None:
        """They are asked for soon, in this order. Each with its bytes in memory, about."""
        with self._lock:
            self._told.extend(_Element(*each) for each in elements)
        self._go_on()

    def take(self, number: int) -> Any:
        """What `read` gave; None: no thread has begun it, or it got an error. What was told before it is not asked for any
        more."""
        with self._lock:
            begun = self._pop(self._begun, number)
            if begun is None:
                self._pop(self._told, number)
        self._go_on()
        if begun is None:
            return None
        begun.there.wait()
        return begun.value

    def _pop(self, elements: deque[_Element], number: int) -> _Element | None:
        """Drops all up to this one, if it is there."""
        if all(each.number != number for each in elements):
            return None
        while True:
            element = elements.popleft()
            self._bytes -= element.bytes if elements is self._begun else 0
            if element.number == number:
                return element

    def _go_on(self) -> None:
        with self._lock:
            some = len(self._told) if self._bytes < _MOST else 0
            woken, self._idle = self._idle[:some], self._idle[some:]
        for background in woken:
            background.put(functools.partial(self._work, background))

    def _work(self, background: Background) -> None:
        """Reads an element, and puts itself again: a fork waits for it."""
        with self._lock:
            if not self._told or self._bytes >= _MOST:
                self._idle.append(background)
                return
            element = self._told.popleft()
            self._begun.append(element)
            self._bytes += element.bytes
        with contextlib.suppress(Exception):  # who asks for it reads it, and gets the error
            element.value = self._read(element.number)
        element.there.set()
        background.put(functools.partial(self._work, background))


class _Element:
    def __init__(self, number: int, nbytes: int) -> None:
        self.number, self.bytes, self.there = number, nbytes, Latch()
        self.value: Any = None
