"""The command `stocached`, which some calls run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from .errors import UnsupportedError


def program(what: str) -> str:
    """The path of the command of this installation, or else of the one on the PATH. what: needs it. UnsupportedError."""
    beside = Path(sys.executable).with_name("stocached")
    found = str(beside) if beside.is_file() else shutil.which("stocached")
    if found is None:
        raise UnsupportedError(
            f"{what} needs the command stocached, which is not on the PATH; the wheel of a release has it, and in a clone "
            "`go install ./cmd/stocached` installs it"
        )
    return found
