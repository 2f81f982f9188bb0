"""Notices of all processes that share a cached dataset: samples that were not cached, and the error
that the cache holds other data.

Workers write notices into shared memory. The process that made the dataset warns once for all of
them; every process raises the error."""

from __future__ import annotations

import atexit
import fcntl
import os
import threading
import weakref
from typing import Any

import numpy as np

from .._common.ranks import rank_of, ranks_here
from .._common.threads import for_each
from .._common.warning import warn_user
from .._memory.shared_error import SharedError
from .._memory.shared_file import SharedFile

# Loads that were not cached for one reason, and the first sample.
_RECORD = np.dtype([("count", "u8"), ("first", "i8"), ("text", "S240")])
_RECORDS = 31  # reasons; the last record counts all further ones
_PAGE = 4096  # bytes, for the error


_said_private = False


def say_if_private(rank: int | None = None, world_size: int | None = None, local: int | None = None) -> None:
    """Warns once if the ranks of a job make a cache each, as they have no name for one. One rank of a machine says it.
    rank, world_size, local: of `ranks_here`."""
    global _said_private
    ranks = ranks_here(rank, world_size, local)
    if _said_private or ranks < 2 or os.environ.get("LOCAL_RANK", "0") != "0" or rank_of(rank, world_size)[0] % ranks:
        return
    _said_private = True
    known = "run on this machine" if local or os.environ.get("LOCAL_WORLD_SIZE") else "may run on this machine"
    warn_user(
        f"{ranks} ranks of this job {known}, and each makes a private cache: together they take {ranks} times the memory, "
        'and load samples again. To share one cache, give size= a name too: name="my-dataset"'
    )


class Notices:
    """Forked or unpickled processes share it."""

    def __init__(self) -> None:
        self._file = SharedFile("notices", size=_PAGE + _RECORDS * _RECORD.itemsize)
        self._pid = os.getpid()
        self.advice = ""  # for samples whose shapes differ from those of the cache
        self.deferred = False  # the caller warns later, at the end of an epoch
        self._warned = False
        self._map()

    def _map(self) -> None:
        memory = self._file.map(0, _PAGE + _RECORDS * _RECORD.itemsize)
        self.error = SharedError(memory[:_PAGE].data)  # the cache holds other data
        self._records = memory[_PAGE:].view(_RECORD)
        self._renew_lock()
        _all.add(self)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_file": self._file,
            "_pid": self._pid,
            "advice": self.advice,
            "deferred": self.deferred,
            "_warned": self._warned,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    # ------------------------------------------------------------ samples that went uncached

    def passed(self, index: int, reason: str, *, shape: bool) -> None:
        """Notes a sample that was loaded and does not fit the cache. shape: only its shape
        differs."""
        text = f"{'s' if shape else 'o'}{reason}".encode()[: _RECORD["text"].itemsize]
        with self._lock:
            fcntl.lockf(self._file.fd, fcntl.LOCK_EX)
            try:
                at = next(
                    (k for k, row in enumerate(self._records) if not row["count"] or row["text"] == text), _RECORDS - 1
                )
                row = self._records[at]
                if not row["count"]:
                    row["first"], row["text"] = index, text
                row["count"] += 1
            finally:
                fcntl.lockf(self._file.fd, fcntl.LOCK_UN)
        if not self.deferred:
            self.warn()

    def warn(self) -> None:
        """Warns of samples that were not cached so far: once, and only in the process that made the
        dataset."""
        if self._warned or not self._records[0]["count"] or os.getpid() != self._pid:
            return
        self._warned = True
        rows = self._records[self._records["count"] > 0]
        reasons = [(int(row["count"]), row["text"].decode(errors="replace")) for row in rows]
        shown = "; ".join(
            f"{text[1:]}" if len(reasons) == 1 else f"{count} times {text[1:]}"
            for count, text in sorted(reasons, reverse=True)[:5]
        )
        loads = sum(count for count, _ in reasons)
        which = (
            f"sample {rows[0]['first']}"
            if loads == 1
            else f"sample {rows[0]['first']} and others ({loads} loads so far)"
        )
        shapes = any(text[0] == "s" for _, text in reasons)
        advice = self.advice if shapes else "To have them cached, make them like the others in the dataset"
        warn_user(f"{which} went uncached and will be loaded each time: {shown}. {advice}. stats().passed counts them")

    def __del__(self) -> None:
        if hasattr(self, "_records"):
            self.warn()


_all: weakref.WeakSet[Notices] = weakref.WeakSet()
os.register_at_fork(after_in_child=for_each(_all, Notices._renew_lock))
atexit.register(for_each(_all, Notices.warn))
