"""Warnings that name the line of the user's program."""

from __future__ import annotations

import sys
import warnings


def warn_user(text: str) -> None:
    """Warns at the line that has called this package, however deep inside it this call is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "stocached":
        level, frame = level + 1, frame.f_back
    warnings.warn(f"stocached: {text}", stacklevel=level)
