"""The end of worker processes."""

import multiprocessing
import os

import pytest

from stocached._workers import processes

STATUS = 3


def end_at_once():
    os._exit(STATUS)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_process_that_is_not_alive_has_an_exit_code(method):
    """A fork server waits for its child, and sends the exit code afterwards. In between, the child
    has ended and has no exit code."""
    context = multiprocessing.get_context(method)
    for _ in range(20 if method == "forkserver" else 3):
        process = context.Process(target=end_at_once)
        process.start()
        while processes.is_alive(process):
            pass
        assert process.exitcode == STATUS
        process.join()
