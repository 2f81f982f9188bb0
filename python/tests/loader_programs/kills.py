"""Reads epochs while workers are killed at random moments: kills.py rows|cached|evicting|batches KILLS.
Prints kills, restarts and epochs."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from loader_datasets import Numbers, read
from processes import children, lives

import stocached

SAMPLES, BATCH, WORKERS = 200, 10, 3
IN_VAIN = 3  # the largest number of kills since the last batch; after more of them the loader gives up, as it should


def kill(parent: int, kills: int, done, batches) -> None:
    """A separate process, so that the moments do not depend on what the loader does."""
    chance = random.Random(kills)
    seen, since = -1, 0
    while done.value < kills:
        time.sleep(chance.uniform(0, 0.06))
        if batches.value != seen:
            seen, since = batches.value, 0
        if since == IN_VAIN:
            continue
        workers = [pid for pid in children(parent) if pid != os.getpid()]
        if len(workers) < WORKERS and (not workers or chance.random() < 0.8):
            # mostly, because on a busy machine one sample could cost five workers by chance, which
            # is an error
            continue
        victim = chance.choice(workers)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
        while lives(victim):
            time.sleep(0.001)
        since += 1
        done.value += 1


def counted(loader, batches):
    for batch in loader:
        batches.value += 1
        yield batch


def main() -> None:
    way, kills = sys.argv[1], int(sys.argv[2])
    context = multiprocessing.get_context("fork")
    done, batches = (context.Value("i", 0, lock=False) for _ in range(2))
    killer = context.Process(target=kill, args=(os.getpid(), kills, done, batches), daemon=True)
    # the cache holds a part of the samples
    settings = {
        "batches": {"collate_fn": np.stack},
        "cached": {"size": 4_600_000},
        "evicting": {"size": 4_400_000, "policy": "random"},
        "rows": {},
    }[way]
    loader = stocached.Loader(
        Numbers(SAMPLES, seconds=0.002), BATCH, shuffle=True, seed=1, num_workers=WORKERS, persistent_workers=True, restart_workers=True,
        multiprocessing_context=context, **settings,
    )  # fmt: skip
    killer.start()  # after the looks of the constructor: nothing replaces the process that looks
    epochs, last = 0, False
    while epochs < 2 or not last:
        if done.value >= kills:
            last = True
            time.sleep(0.3)  # longer than the loader goes without a check, so that it sees the last kills too
        wanted = loader.sampler.order.epoch(epochs).indices().tolist()
        assert read(counted(loader, batches)) == wanted, f"epoch {epochs} has wrong samples"
        epochs += 1
        assert done.value >= kills or killer.is_alive()
    killer.join(10)
    restarts = loader._executor.kept.restarts
    pids = loader._executor.kept.pids
    loader.close()
    assert not any(map(lives, pids))
    print(done.value, restarts, epochs)


if __name__ == "__main__":
    main()
