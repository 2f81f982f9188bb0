"""Calls that ask a server to fill a cache, and the samples that it could not read
(docs/guides/server.md)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

from .. import _native
from .._common import errors
from .._common.errors import FetchError, FetchFailure
from .._common.numbers import seconds

_MOST = 2**32 - 1  # milliseconds: seven weeks
# enum stoc_remote
_KINDS = {
    6: "INDEX",
    7: "READ",
    8: "CHANGED",
    9: "DAMAGED",
    10: "NO_SLOT",
    11: "CANCELLED",
    12: "CLOSING",
    13: "INTERNAL",
    14: "INVALID",
    15: "BAD",
    16: "LOAD",
    17: "LOADING",
    18: "NO_MEMORY",
    19: "KIND",
}


class _Call:
    """The options of a call that may wait for a server. They are reused: making them takes longer
    than a fetch of a few samples."""

    def __init__(self) -> None:
        self.error = _native.Error()
        self.raised: BaseException | None = None  # by a signal handler
        self.meanwhile: Callable[[], None] | None = None
        self._watching = self._watch()
        next(self._watching)
        self.interrupted = _native.Interrupted(self._watching.send)
        self.options = _native.FetchOptions(
            struct_bytes=ctypes.sizeof(_native.FetchOptions),
            interrupted=self.interrupted,
        )

    def close(self) -> None:
        """Ends the generator. In a cycle it would take two garbage collections, and the frames of `raised` would live until
        then, with caches and loaders."""
        self._watching.close()
        self.raised = self.meanwhile = None

    def _watch(self) -> Generator[int, None, None]:
        """Runs when the library asks whether to end the call; yields the answer.

        Signal handlers run in the main thread's first steps in Python, and may raise. In a function
        they would raise before its first line, where it catches nothing; a generator is in its
        try."""
        answer = 0
        while True:
            try:
                while True:  # inside the try: the jump back is a step too
                    yield answer
                    answer = 0
                    if self.meanwhile is not None:
                        self.meanwhile()
            except GeneratorExit:
                return
            except BaseException as error:  # mostly KeyboardInterrupt; it cannot cross C, so `ask` raises it
                self.raised, answer = error, 1


_idle: list[_Call] = []


def ask(
    call: Callable[[_native.FetchOptions, _native.Error], int],
    wait: int,
    flags: int = 0,
    meanwhile: Callable[[], None] | None = None,
) -> tuple[int, Sequence[FetchFailure]]:
    """The result of a call that may wait for a server, and the samples that failed. Raises its
    errors. flags: more of FetchOptions. meanwhile: is called at least once a second of a wait.

    It counts no hits or misses: a gather has counted them before. wait: see `milliseconds`.
    Signal handlers run while it waits. An exception of theirs (KeyboardInterrupt) ends it at
    once."""
    try:
        mine = _idle.pop()
    except IndexError:  # no check before pop: another thread might pop in between
        mine = _Call()
    options, error = mine.options, mine.error
    options.timeout_ms, mine.raised, mine.meanwhile = wait, None, meanwhile
    options.flags = _native.FETCH_UNCOUNTED | flags
    try:
        try:
            result = call(options, error)
            failures = _failures(options) if options.failed else ()
        finally:
            if options.failed:  # a signal handler has raised in between
                _native.fetch_end(options, None, 0)
        if mine.raised is not None:
            raise mine.raised
    except BaseException:
        mine.close()  # it is not used again: its state is unknown now
        raise
    mine.meanwhile = None
    _idle.append(mine)
    if result < 0:
        raise errors.from_struct(error)
    return result, failures


def milliseconds(timeout: float | None) -> int:
    """A timeout as the library takes it. InvalidError."""
    if timeout is None:
        return 0
    return max(math.ceil(min(seconds("timeout", timeout) * 1000, _MOST)), 1)  # 0 would mean no timeout


def _failures(options: _native.FetchOptions) -> list[FetchFailure]:
    try:
        return [
            FetchFailure(f.position, f.index, _KINDS.get(f.code, f"code {f.code}"), f.message.decode(errors="replace"))
            for f in options.failures[: options.failed]
        ]
    finally:
        _native.fetch_end(options, None, 0)


def error(failures: Sequence[FetchFailure], out: Any, ok: Any) -> FetchError:
    """The exception for samples that could not be read."""
    first, more = failures[0], len(failures) - 1
    message = f"sample {first.index}: {first.kind}: {first.message}" + (f" (and {more} more)" if more else "")
    return FetchError(message, failures, out, ok)
