"""Warm processes."""

from __future__ import annotations

import os
import signal
import sys
import time

from warm import Warm


def test_close_does_not_wait_for_forked_processes() -> None:
    """A process that is forked from this one has the socket open too, such as a worker that a test has left behind."""
    began = time.monotonic()
    with Warm(sys.executable, ["json"]) as warm:
        warm.more(["csv"])
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
    try:
        assert time.monotonic() - began < 30
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
