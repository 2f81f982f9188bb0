"""Warm processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
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


def test_a_started_program_is_read_while_it_runs(tmp_path: Path) -> None:
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(
        "import json, os, sys, time\n"
        "print(*sys.argv[1:], os.environ['MORE'], flush=True)\n"
        "os.write(2, b'error\\n')  # in one piece: three programs write\n"
        "time.sleep(float(sys.argv[2]))\n"
        "sys.exit(3)\n"
    )
    with Warm(sys.executable, ["json"]) as warm:
        ended, left, killed = (
            warm.start(program, tmp_path, {"MORE": "more"}, ["an argument", seconds], log) for seconds in (0, 60, 60)
        )
        assert ended.wait(60) == ended.poll() == 3
        assert ended.stdout.read() == "an argument 0 more\n"
        ended.terminate()  # does nothing after the end
        for one, end, status in (
            (left, left.terminate, -signal.SIGTERM),
            (killed, lambda: killed.send_signal(signal.SIGKILL), -signal.SIGKILL),
        ):
            assert one.stdout.readline() == "an argument 60 more\n"
            assert one.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                one.wait(0.01)
            end()
            assert one.wait() == status
        assert log.read_text() == "error\n" * 3
