"""`loader.advise()`: what more memory would change. The command `stocached advise` computes it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._cache.cache import Cache
from .._common.errors import InvalidError, UnsupportedError


@dataclass(frozen=True)
class Advice:
    """What `stocached advise` says. str() is its text.

    numbers: what the command prints with --json (`stocached advise --help` explains it): sizes in
        bytes, times in seconds."""

    text: str
    numbers: dict[str, Any]

    def __str__(self) -> str:
        return self.text


def advise(cache: Cache | None, workers: int, step_seconds: float, source_share: float | None) -> Advice:
    """step_seconds: of all training steps of an epoch. source_share: of the loads, their waits for the source;
    None: unknown. Raises InvalidError, UnsupportedError."""
    if cache is None:
        raise InvalidError(
            "advise() needs measured loads, and this loader has no cache, which keeps them; give size=, or record a run with trace= and ask "
            "`stocached advise run.json`"
        )
    path = cache.path if cache.path is not None else f"/proc/{os.getpid()}/fd/{cache._handle.info().fd}"
    command = [_program(), "advise", path, "--workers", str(max(workers, 1)), "--step", f"{step_seconds:.9f}s"]
    if source_share is not None:
        command += ["--source-share", f"{source_share:.6f}"]
    text, numbers = _run(command), json.loads(_run([*command, "--json"]))
    return Advice(text + "".join(f"NOTE: {note}\n" for note in numbers["notes"]), numbers)


def _program() -> str:
    """The command of this installation, or the one on the PATH."""
    beside = Path(sys.executable).with_name("stocached")
    found = str(beside) if beside.exists() else shutil.which("stocached")
    if found is None:
        raise UnsupportedError(
            "advise() needs the command stocached, which is not on the PATH; the wheel of a release has it, and `make build` "
            "makes it in bin/"
        )
    return found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InvalidError(done.stderr.strip().removeprefix("stocached: ") or f"{command[0]} failed")
    return done.stdout
