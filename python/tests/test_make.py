"""The Makefile on unusual machines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_make_compiles_where_ccache_cannot_write(tmp_path: Path) -> None:
    """As for a user whose home is missing or not writable."""
    made = tmp_path / "made.o"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "CCACHE", "XDG"))}
    paths = environment["PATH"].split(":")  # a make around this test may use ccache
    environment["PATH"] = ":".join(path for path in paths if path != "/usr/lib/ccache")
    command = ["make", "-s", f"--eval=one: ; @cc -c -o {made} -x c /dev/null", "one"]
    done = subprocess.run(command, cwd=ROOT, env=environment | {"HOME": "/proc/none"}, capture_output=True, text=True)
    assert made.exists(), done.stderr
