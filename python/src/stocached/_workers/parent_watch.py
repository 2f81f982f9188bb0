"""The process that a worker works for, and ends with."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import threading
import time

_POLL_INTERVAL = 0.25  # seconds between two checks where the kernel cannot tell us


class Parent:
    """Made in the parent, and inherited by or pickled for its workers."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def end_with(self) -> None:
        """In a worker: from now on it ends when its parent does, in whatever sample it is by then. A thread waits for that; PR_SET_PDEATHSIG would take the end
        of the thread that has started the worker for it, and would see the process that forkserver starts."""
        threading.Thread(target=self._watch, args=(os.getppid() == self.pid,), daemon=True, name="stocached parent").start()

    def _watch(self, direct: bool) -> None:
        with contextlib.suppress(OSError, AttributeError):  # Linux before 5.3, a sandbox, or it is gone
            gone = select.poll()
            gone.register(os.pidfd_open(self.pid))
            if self._alive(direct):  # else its number may be another's by now
                gone.poll()
                os._exit(1)
        while self._alive(direct):
            time.sleep(_POLL_INTERVAL)
        os._exit(1)

    def _alive(self, direct: bool) -> bool:
        if direct:
            return os.getppid() == self.pid
        parent = multiprocessing.parent_process()  # of forkserver; forked siblings would keep it alive for each other
        return parent is not None and parent.is_alive()
