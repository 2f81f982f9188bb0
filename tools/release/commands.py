"""Runs the commands that make packages. None of them asks a question."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools"


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Runs a command. If it fails, its output is the error."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"stocached: {' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout
