"""Forks in the middle of an epoch: forks.py WAY. The child may not use the iterator, may begin its
own, and ends in each possible way. The parent continues."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from loader_datasets import Numbers, check, read
from processes import children, lives, raises

import stocached

warnings.filterwarnings("ignore", category=DeprecationWarning)  # Python 3.12 and later warns of forks while threads run


# the default before Python 3.14; a forked child cannot use its parent's fork server
FORK = {"multiprocessing_context": "fork"}
SETTINGS = {
    "cached": {"size": "16MiB"},
    "fresh": {"num_workers": 2, **FORK},
    "batches": {"num_workers": 2, "persistent_workers": True, "collate_fn": np.stack, **FORK},
    "thread": {"num_workers": 2, "worker": "thread", "size": "16MiB"},
}
ENDS = [["return", "os._exit"], ["exit", "error"]]  # in each epoch


def child(loader, batches, end: str) -> None:
    with raises(stocached.ClosedError, match="iterate over the loader again"):
        next(batches)
    if end in ("return", "exit"):
        for _ in range(2):
            assert sorted(read(loader)) == list(range(80))
        loader.close()
        assert children(os.getpid()) == []
    batches.close()
    if end == "error":
        del batches
        loader.close()
        raise KeyError("of the child")
    if end == "os._exit":
        os._exit(0)
    sys.exit(0)


def main() -> None:
    loader = stocached.Loader(Numbers(80), 4, shuffle=True, seed=3, **SETTINGS[sys.argv[1]])
    for epoch, ends in enumerate(ENDS):
        got, batches, forks = [], iter(loader), iter(ends)
        for number, batch in enumerate(batches):
            got += check(batch)
            end = next(forks, None) if number % 3 == 0 else None
            if end is None:
                continue
            pid = os.fork()
            if pid == 0:
                if end == "error":
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                try:
                    child(loader, batches, end)
                except AssertionError:
                    traceback.print_exc()
                    os._exit(99)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == (1 if end == "error" else 0), (end, status)
        assert got == loader.sampler.order.epoch(epoch).indices().tolist()
    pool = loader._executor.kept if loader._executor.kept is not None else None
    pids = pool.pids if pool is not None else []
    assert all(map(lives, pids))
    loader.close()
    assert not any(map(lives, pids))
    assert children(os.getpid()) == []
    print("whole")


if __name__ == "__main__":
    main()
