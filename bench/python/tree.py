"""Processor time and memory of a process and its descendants."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def members(root: int) -> list[int]:
    """The process and its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def used(root: int) -> float:
    """Processor seconds so far. Living processes count by their clocks; processes that have ended and were waited
    for count in ticks of 10 ms."""
    seconds = 0.0
    for pid in members(root):
        fields = _stat(pid)
        with contextlib.suppress(OSError):
            seconds += time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid computes it
            if fields is not None:
                seconds += (int(fields[13]) + int(fields[14])) * _TICK
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


def share(root: int) -> int:
    """PSS of all of them, in bytes: a page counts once, even if several map it."""
    total = 0
    for pid in members(root):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) << 10
    return total
