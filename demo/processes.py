"""The memory of a tree of processes, with shared pages counted once, and its processor time."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")  # a second


def tree(root: int) -> dict[int, list[str]]:
    """The process and all its living descendants: the fields of /proc/<pid>/stat from the third
    on."""
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue  # ended since the listing
            fields = stat.rpartition(")")[2].split()  # the name before the bracket may have spaces and brackets
            stats[int(entry)] = fields
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = {}, [root]
    while todo:
        pid = todo.pop()
        found[pid] = stats[pid]
        todo += children.get(pid, [])
    return found


def pss_bytes(root: int) -> int:
    """Proportional set size of the tree: a page that n processes share counts 1/n for each. A
    process that ends during the count counts 0."""
    total = 0
    for pid in tree(root):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def cpu_seconds(root: int) -> float:
    """User and system time of the tree's living processes so far. That of this process is exact, others count in
    hundredths of a second."""
    found = tree(root)
    own = time.process_time() if found.pop(os.getpid(), None) else 0.0
    return own + sum(int(fields[11]) + int(fields[12]) for fields in found.values()) / TICKS
