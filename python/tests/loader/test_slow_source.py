"""Pictures whose files come slowly: a file system in user space where this program may mount one, and pipes that are
fed piece by piece. All workers read them alike."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from native_samples import folder_of_small
from processes import limit, rest_of
from programs import FOLDER, Program


@pytest.fixture
def root(tmp_path) -> Path:
    return folder_of_small(tmp_path / "train", 24)


def begun(root: Path, kind: str, ways: str, worker: str) -> Program:
    return Program(FOLDER / "slow_source.py", root, kind, ways, worker)


def check_end(program: Program) -> None:
    output, error = rest_of(program, 240)
    if output.startswith("not permitted"):
        pytest.skip(output.strip())
    assert (program.returncode, output, error) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("kind", "worker"),
    [("fuse", "native"), ("fuse", "process"), ("pipes", "native"), ("pipes", "process"), ("pipes", "thread")],
)
def test_slow_files(root, kind, worker):
    program = begun(root, kind, "read,timeout,restart", worker)
    try:
        check_end(program)
    finally:
        program.kill()


@pytest.mark.parametrize(("kind", "worker"), [("fuse", "native"), ("pipes", "native"), ("pipes", "process")])
def test_interrupted_in_a_slow_file(root, kind, worker):
    program = begun(root, kind, "interrupt", worker)
    try:
        assert program.stdout is not None
        line = program.stdout.readline()
        if line.startswith("not permitted"):
            pytest.skip(line.strip())
        assert line == "ready\n", program.communicate()[1]
        time.sleep(0.4)
        start = time.monotonic()
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n"
        assert time.monotonic() - start < limit(1)
        check_end(program)
        assert time.monotonic() - start < limit(4)
    finally:
        program.kill()
