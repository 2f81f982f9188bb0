"""What the processes of a program share about the samples that they put into one cache: how many,
which, and whether one is random."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .._common.errors import CacheTimeoutError, NoServerError
from .._memory.shared_error import SharedError
from .._memory.shared_file import SharedFile

_FIRST, _MOST = 32, 256
_GAP = 33, 63  # samples between two choices: 33, and fewer than 63 more; 64 on average
_HEADER = 4096
_NUMBERS = 64  # bytes of the header, for numbers; the rest is for an error
_PAGE = os.sysconf("SC_PAGESIZE")


class _Choice:
    """Chooses the samples that are checked: the first 32 of all processes, then 1 in 64, up to 256.

    The numbers are not exact if several processes count at the same moment, which does no harm."""

    def __init__(self, chosen: memoryview) -> None:
        """chosen: the number of chosen samples, which the processes share."""
        self._chosen = chosen
        self._left = 0  # samples of this process before the next choice
        self._first = True  # this process has not yet seen that the first 32 are chosen

    def __call__(self) -> bool:
        self._left -= 1
        return self._left < 0 and self._next()

    def _next(self) -> bool:
        chosen = self._chosen[0]
        # Gaps that follow no period: the dataset may have one.
        self._left = 0 if chosen + 1 < _FIRST else _GAP[0] + (chosen * 0x9E3779B1 >> 7) % _GAP[1]
        if chosen >= _MOST or (chosen >= _FIRST and self._first):
            self._first = False
            return False
        self._chosen[0] = chosen + 1
        return True


class Fills:
    """Shared with forked children, and with processes that unpickle it while this one lives. A
    process that unpickles it later starts with an empty one."""

    def __init__(self, samples: int = 0) -> None:
        """samples: of the dataset, to remember which were stored; 0: do not remember."""
        self._file = SharedFile("fills", size=_HEADER + -(-samples // _PAGE) * _PAGE)
        self._map()

    def _map(self) -> None:
        memory = self._file.map(0, os.fstat(self._file.fd).st_size).data
        numbers = memory[:_NUMBERS].cast("q")
        self.compared = _Choice(numbers[:1])  # chooses stored samples that are loaded again and compared
        self.drew = _Choice(numbers[1:2])  # chooses samples whose load has moved a generator
        self.error = SharedError(memory[_NUMBERS:_HEADER])  # a random sample: no process stores any more
        self._which = memory[_HEADER:]

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self._file.__reduce__(), "samples": len(self._which)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        opened, arguments = state["file"]
        try:
            self._file = opened(*arguments)
        except NoServerError:  # the process that pickled it is gone
            self.__init__(state["samples"])  # type: ignore[misc]
        else:
            self._map()

    def add(self, index: int) -> None:
        """Notes that this program has stored a sample."""
        if self._which:
            self._which[index] = 1

    def take_back(self, cache: Any, made: bool) -> str:
        """Removes the stored samples from the cache, or all samples if this program has made the
        cache.
        Returns a sentence about it."""
        if made:
            ready = cache.stats().ready
            try:
                cache.clear()
            except CacheTimeoutError as error:
                return f"The cache could not be cleared: {error}."
            return f"The cache was cleared, of {ready} samples." if ready else ""
        stored: list[int] = np.flatnonzero(np.frombuffer(self._which, np.uint8)).tolist()
        if not stored:
            return ""
        left = cache._remove(stored)
        text = f"The {len(stored) - left} samples that this program had stored were removed from the cache."
        return text + (f" {left} are being filled by others and stay." if left else "")
