"""Worker processes: those with a pipe to the parent, how they end, and how they are ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from . import spawn

_GRACE = 0.3  # seconds that a worker has to end by itself: it may be in the middle of a sample
_AFTER_SIGTERM = 0.2
_AFTER_SIGKILL = 0.3
_EXIT_CODE = 0.5  # seconds that a fork server has to send it


class PipedProcess:
    """A started worker process, and the parent's end of a pipe to it."""

    def __init__(
        self, context: Any, target: Callable[..., None], arguments: Sequence[Any], name: str, others: Sequence[PipedProcess], sent: tuple[str, str]
    ) -> None:
        """target: is called with the worker's end of the pipe, a list of pipes for `enter`, and the
        arguments. others: the workers started before. sent: what the arguments hold, and the
        parameter by which users choose the start method, for the message if they cannot be
        pickled."""
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        method = context.get_start_method()
        inherited = [*(other.pipe for other in others), self.pipe] if method == "fork" else []
        self.process = context.Process(target=target, args=(theirs, inherited, *arguments), name=name, daemon=True)
        try:
            with spawn.explained(method, *sent):
                self.process.start()
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()


def enter(inherited: Sequence[Connection]) -> None:
    """In a worker process with a pipe, first of all. inherited: the parent's ends of pipes that a
    fork has left here. Open, they would hide that the parent has closed its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent acts on Ctrl-C, and ends its workers
    for pipe in inherited:
        pipe.close()


def is_alive(process: Any) -> bool:
    """False: its exit code is known, or no part of this program can learn it any more."""
    if not process.is_alive():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        # With SIGCHLD ignored, or if the program waits for all children, multiprocessing does not
        # hear of the end. A fork server does, and sends the exit code a moment later.
        process.join(_EXIT_CODE)
        return False
    return True


def end(processes: Sequence[Any]) -> None:
    """Waits until they have ended by themselves, which they were told to; those that do not get
    SIGTERM, then SIGKILL. Takes 0.8 s at most."""
    left = list(processes)
    for patience, stronger in ((_GRACE, "terminate"), (_AFTER_SIGTERM, "kill"), (_AFTER_SIGKILL, "")):
        until = time.monotonic() + patience
        for process in left:
            process.join(max(0.0, until - time.monotonic()))
        left = [process for process in left if is_alive(process)]
        for process in left:
            if stronger:
                getattr(process, stronger)()


def how_it_ended(code: int, verb: str = "ended") -> str:
    """What became of a process, by its exit code."""
    if code >= 0:
        return f"{verb} with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"
