"""Programs of tests, forked from a process that has imported us. The import takes 0.3 processor seconds, and a fork a tenth
of that. What the interpreter's own start or an import does is for other tests: helpers.python."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from warm import Warm

FOLDER = Path(__file__).parent / "loader_programs"


@functools.cache
def _warm(pid: int) -> Warm:
    warm = Warm(sys.executable, ["numpy", "stocached"])
    atexit.register(lambda: warm.close() if os.getpid() == pid else None)
    return warm


def run(program: Path, *arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Works like subprocess.run. It captures the output as text."""
    return _warm(os.getpid()).run(program, Path.cwd(), os.environ, timeout, arguments)


class Program:
    """Works like subprocess.Popen with a pipe for the output, and a file for errors. program: a file, or its text."""

    def __init__(self, program: Path | str, *arguments: object, **environment: str) -> None:
        self.stderr = tempfile.NamedTemporaryFile("r")  # noqa: SIM115
        self._text = tempfile.NamedTemporaryFile("w")  # noqa: SIM115
        if isinstance(program, str):
            self._text.write(program)
            self._text.flush()
            program = Path(self._text.name)
        environment = {**os.environ, **environment}
        self._started = _warm(os.getpid()).start(program, Path.cwd(), environment, arguments, Path(self.stderr.name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._started, name)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        output = self.stdout.read()
        with self:
            self.wait(timeout)
            return output, self.stderr.read()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self.stdout.close()
        self.stderr.close()
        self._text.close()
