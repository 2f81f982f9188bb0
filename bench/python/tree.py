"""Processor time and memory of a process and its descendants."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
from demo.processes import TICKS, pss_bytes, tree

__all__ = ["pss_bytes", "rest", "used"]


def used(root: int) -> float:
    """Processor seconds so far. Living processes count by their clocks; processes that have ended and were waited
    for count in ticks of 10 ms."""
    seconds = 0.0
    for pid, fields in tree(root).items():
        with contextlib.suppress(OSError):
            seconds += time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid computes it
            seconds += (int(fields[13]) + int(fields[14])) / TICKS
    return seconds


def rest(root: int) -> None:
    """Waits, at most 5 seconds, until they are idle. A loader may begin its next epoch by itself,
    and slow down the next measurement."""
    quiet, before = 0, used(root)
    for _ in range(250):
        time.sleep(0.02)
        now = used(root)
        quiet = quiet + 1 if now - before < 0.001 else 0
        before = now
        if quiet == 2:
            return
