"""A training program that ends, or is ended, in the middle of an epoch: endings.py WORKERS METHOD
ENDING. First it prints the numbers of its process and of its workers.

ENDING: wait (for a signal, in next()), persistent (the same with persistent workers), busy (for a
signal, in the loop's body), end, exit, os._exit, error (with an iterator alive), gather (end while
hits are gathered in the background).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from loader_datasets import Asleep, Numbers, check
from processes import children, raises, until

import stocached


def main() -> None:
    os.setpgid(0, 0)  # Ctrl-C reaches this process and its workers
    workers, method, ending = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if ending == "gather":
        gather()
        return
    settings = {"worker": "thread"} if method == "thread" else {"multiprocessing_context": method}
    loader = stocached.Loader(
        Asleep(100, awake=4), 2, num_workers=workers, persistent_workers=ending == "persistent", **settings
    )
    global batches  # alive until the interpreter ends
    batches = iter(loader)
    assert check(next(batches)) == [0, 1]
    assert check(next(batches)) == [2, 3]
    pool = batches._runtime.pool
    until(lambda: all(pool.task_queue.held(k) for k in range(workers)), "every worker is in the middle of a sample")
    tell = threading.Timer(0.3, print, [os.getpid(), *pool.pids], {"flush": True})
    tell.start()
    if ending in ("wait", "persistent", "busy"):
        interrupted(loader, ending)  # it writes when it waits
    tell.join()
    if ending == "exit":
        for _ in range(3):
            sys.exit(7)
    elif ending == "os._exit":
        os._exit(8)
    elif ending == "error":
        raise ValueError("something is wrong")


def interrupted(loader, ending: str) -> None:
    global batches
    start = time.monotonic()
    try:
        if ending == "busy":
            time.sleep(60)
        else:
            next(batches)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    else:
        raise AssertionError(f"no KeyboardInterrupt in {time.monotonic() - start} s")
    if ending == "busy":
        return
    with raises(stocached.ClosedError, match="KeyboardInterrupt"):  # and not that the epoch is over
        next(batches)
    state = loader.state_dict()
    assert state["position"] == 4, state
    if ending == "persistent":  # a notebook: the cell is run again
        batches = iter(loader)
        assert check(next(batches)) == [0, 1]
        batches.close()
        loader.close()
        assert children(os.getpid()) == []


def gather() -> None:
    global batches
    loader = stocached.Loader(Numbers(2000), 100, size="64MiB", prefetch_factor=None)
    for _ in loader:
        pass
    print(os.getpid(), flush=True)
    batches = iter(loader)
    for _ in range(1 + os.getpid() % 7):
        check(next(batches))


if __name__ == "__main__":
    main()
