"""The processors of this machine."""

from __future__ import annotations

import os


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))
