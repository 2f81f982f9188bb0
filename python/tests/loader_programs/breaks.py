"""Leaves epochs in the middle, many times: breaks.py WAY TIMES. Everything that is left over is an
error. Prints the longest time that leaving took, in seconds, and how many bytes memory has
grown."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from loader_datasets import Numbers, check
from processes import children, descriptors, mappings, resident, until

import stocached

WARM = 30  # the largest number of epochs after which nothing may grow any more
GROWTH = 3 << 20  # bytes by which the allocator's arenas vary


FORK = {"multiprocessing_context": "fork"}  # the default before Python 3.14
SETTINGS = {
    "cached": {"size": "16MiB"},
    "persistent": {"num_workers": 2, "persistent_workers": True, **FORK},
    "batches": {"num_workers": 2, "persistent_workers": True, "collate_fn": np.stack, **FORK},
    "thread": {"num_workers": 2, "worker": "thread"},
    "threads": {"num_workers": 2, "worker": "thread", "persistent_workers": True, "size": "16MiB"},
    "fresh": {"num_workers": 2, **FORK},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
}


class Stopped(Exception):
    pass


def leave(loader, turn: int) -> None:
    """Leaves a loop in one of several ways."""
    way = turn % 4
    if way == 0:
        for k, batch in enumerate(loader):
            check(batch)
            if k == turn % 7:
                break
    elif way == 1:
        try:
            for k, batch in enumerate(loader):
                check(batch)
                if k == turn % 5:
                    raise Stopped
        except Stopped:
            pass
    elif way == 2:
        batches = iter(loader)
        cycle = [batches]
        cycle.append(cycle)
        check(next(batches))
        del batches, cycle
        gc.collect()
    else:
        batches = iter(loader)
        check(next(batches))
        batches.close()


def census() -> dict:
    gc.collect()
    return {
        "processes": len(children(os.getpid())),
        "threads": threading.active_count(),
        # A thread that has measured a load keeps its schedstat until it ends.
        "descriptors": [path for path in descriptors() if not path.endswith("/schedstat")],
        "mappings": len(mappings()),
    }


def main() -> None:
    way, times = sys.argv[1], int(sys.argv[2])
    warm = min(WARM, times)
    empty = census()
    loader = stocached.Loader(Numbers(400), 8, **SETTINGS[way])
    if way == "forkserver":  # Python keeps the fork server and the resource tracker
        leave(loader, 0)
        loader.close()
        empty = census()
    slowest = 0.0
    before, memory = None, 0
    for turn in range(warm + times):
        if turn == warm:
            until(lambda: threading.active_count() <= 3, "threads that gather end")
            before, memory = census(), resident()
        start = time.monotonic()
        leave(loader, turn)
        slowest = max(slowest, time.monotonic() - start)
    until(lambda: len(children(os.getpid())) == before["processes"], "ended workers have gone")
    after, grown = census(), resident() - memory
    # The number of mapped buffers and their threads varies, but it has a limit.
    assert after["processes"] == before["processes"], (before, after)
    assert set(after["descriptors"]) == set(before["descriptors"]), (before, after)
    assert len(after["descriptors"]) <= len(before["descriptors"]) + 2, (before, after)
    assert after["threads"] <= before["threads"] + 1, (before, after)
    assert after["mappings"] <= before["mappings"] + 4, (before, after)
    assert grown < GROWTH, f"memory has grown by {grown} bytes in {times} epochs"
    del loader
    gc.collect()
    until(lambda: threading.active_count() == 1, "all threads have ended")
    end = census()
    assert end == empty, f"not freed: {empty} became {end}"
    print(f"{slowest:.3f} {grown}")


if __name__ == "__main__":
    main()
