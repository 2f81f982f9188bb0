"""A training program that ends, or is ended, in the middle of an epoch: endings.py WORKERS METHOD
ENDING. First it prints the numbers of its process and of its workers.

METHOD: of multiprocessing, or thread; rows (of a pipe, with fork), streams (the class, with forkserver).
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

import stocached.streams


def main() -> None:
    os.setpgid(0, 0)  # Ctrl-C reaches this process and its workers
    workers, method, ending = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if ending == "gather":
        gather()
        return
    kept = {"num_workers": workers, "persistent_workers": ending == "persistent"}
    if method == "streams":
        loader = stocached.streams.Streams(range(2), 2, items, num_workers=2, multiprocessing_context="forkserver")
    elif method == "rows":
        rows = stocached.source(range(2)).flat_map(items).batch(2, rows=True)
        loader = stocached.Loader(rows, multiprocessing_context="fork", **kept)
    else:
        settings = {"worker": "thread"} if method == "thread" else {"multiprocessing_context": method}
        loader = stocached.Loader(SAMPLES, 2, **kept, **settings)
    global batches  # alive until the interpreter ends
    batches = iter(loader)
    assert taken(batches) == [0, 1]
    assert taken(batches) == [2, 3]
    pool = batches._source._pool if method == "streams" else batches._runtime
    until(
        lambda: all(pool.task_queue.held(k) for k in range(pool.job.workers)),
        "every worker is in the middle of a sample",
    )
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


SAMPLES = Asleep(100, awake=4)


def items(row: int):
    return (SAMPLES[k] for k in range(row, 100, 2))


def taken(batches) -> list[int]:
    batch = next(batches)
    return check(getattr(batch, "items", batch))


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
    assert state.get("position") == 4 or state["step"] == 2, state
    if ending == "persistent":  # a notebook: the cell is run again
        before = batches._runtime
        batches = iter(loader)
        assert batches._runtime is not before, "workers in the middle of a sample were kept"
        assert taken(batches) == [0, 1]
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
