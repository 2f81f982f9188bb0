"""Worker processes that tests start: what they do. Imported by processes that are spawned, so it imports little."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from stocached._workers.processes import Owner, Start, WorkerProcess, start_context


class Team(Owner):
    def __init__(self, target, *arguments, number=1, method="fork", piped=True):
        super().__init__()
        start = Start(start_context(method), target, "a number and a function", "the_method", piped)
        self._start_all(WorkerProcess(start, k, *arguments) for k in range(number))
        self.workers = self._workers


def end_at_once(status):
    os._exit(status)


def die(pipe, number):
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)  # pytest's faulthandler has handlers
    os.kill(os.getpid(), number)


def sleep(pipe):
    time.sleep(100)


def echo(pipe):
    """Sends back what it gets, until the parent closes the pipe."""
    while True:
        try:
            pipe.send(pipe.recv())
        except EOFError:
            return


def touch_at_the_end(pipe, folder):
    """Makes a file when the parent has closed the pipe."""
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        pipe.recv()
    Path(folder, str(os.getpid())).touch()


def refuse_to_end(pipe):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send("ready")
    time.sleep(100)


def close_the_pipe(pipe):
    pipe.close()
    time.sleep(100)
