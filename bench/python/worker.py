"""The worker processes that bench/measure/process.go describes."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import stocached


def hits(path: str, core: int, seed: int) -> None:
    os.sched_setaffinity(0, {core})
    cache = stocached.Cache.attach(path)
    get = cache.get
    order = np.random.default_rng(seed).permutation(cache.samples)
    pieces = [order[at : at + 256].tolist() for at in range(0, len(order) - 255, 256)] or [order.tolist()]
    print("ready", flush=True)
    for line in sys.stdin:
        start, window = map(int, line.split()[1:])
        while time.monotonic_ns() < start:
            pass
        before, views, at = time.thread_time_ns(), 0, 0
        while views == 0 or time.monotonic_ns() < start + window:
            piece = pieces[at % len(pieces)]
            for i in piece:
                get(i)
            views, at = views + len(piece), at + 1
        print(views, time.monotonic_ns() - start, time.thread_time_ns() - before, flush=True)


def memory(path: str) -> None:
    cache = stocached.Cache.attach(path)
    total = sum(int(cache.get(i).reshape(-1)[::1024].sum()) for i in range(cache.samples))
    if total < 0:
        raise RuntimeError("unsigned bytes add up to less than nothing")
    print("ready", flush=True)
    for _ in sys.stdin:
        print(_share(path), flush=True)


def _share(path: str) -> int:
    """PSS of the mappings of a file in this process, in bytes."""
    total, inside = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            words = line.split()
            if "-" in words[0] and len(words) >= 5:
                inside = words[-1] == path
            elif inside and words[0] == "Pss:":
                total += int(words[1]) * 1024
    return total
