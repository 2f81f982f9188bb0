"""What several test files need."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np


def pattern(index: int, size: int = 1000, salt: int = 0) -> np.ndarray:
    """Bytes that say which sample they are, all of them: a torn or swapped sample shows."""
    return np.random.default_rng((index, salt)).integers(0, 256, size, np.uint8)


def python(
    code: str, *arguments: Any, timeout: float = 240, check: bool = True, options: tuple[str, ...] = ("-W", "error")
) -> subprocess.CompletedProcess[str]:
    """Runs a program in an interpreter of its own, with every warning an error. Its output is in the failure message."""
    command = [sys.executable, *options, "-c", textwrap.dedent(code), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if check:
        assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert result.stderr == "", result.stderr
    return result


def checks_of(file: str) -> list[str]:
    """The functions check_... of a file beside this one, without importing what it imports."""
    lines = Path(__file__).with_name(file).read_text().splitlines()
    return [line.removeprefix("def ").partition("(")[0] for line in lines if line.startswith("def check_")]
