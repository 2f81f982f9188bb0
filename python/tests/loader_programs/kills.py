"""Reads epochs while workers are killed at random moments: kills.py rows|cached|batches KILLS. Prints kills, restarts and epochs."""

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


def kill(parent: int, kills: int, done) -> None:
    """A process of its own, so that the moments have nothing to do with what the loader does."""
    chance = random.Random(kills)
    while done.value < kills:
        time.sleep(chance.uniform(0, 0.06))
        workers = [pid for pid in children(parent) if pid != os.getpid()]
        if len(workers) < WORKERS and (not workers or chance.random() < 0.8):
            continue  # mostly: on a busy machine one sample could cost five workers by chance, which is an error
        victim = chance.choice(workers)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
        while lives(victim):
            time.sleep(0.001)
        done.value += 1


def stack(samples):
    return np.stack(samples)


def main() -> None:
    way, kills = sys.argv[1], int(sys.argv[2])
    context = multiprocessing.get_context("fork")
    done = context.Value("i", 0, lock=False)
    killer = context.Process(target=kill, args=(os.getpid(), kills, done), daemon=True)
    killer.start()
    settings = {"batches": {"collate_fn": stack}, "cached": {"size": 4_600_000}, "rows": {}}[way]  # the cache takes a part of them
    loader = stocached.Loader(
        Numbers(SAMPLES, seconds=0.002), BATCH, shuffle=True, seed=1, num_workers=WORKERS, persistent_workers=True, restart_workers=True,
        multiprocessing_context=context, **settings,
    )  # fmt: skip
    epochs = 0
    while done.value < kills or epochs < 2:
        wanted = loader.sampler.order.epoch(epochs).indices().tolist()
        assert read(loader) == wanted, f"epoch {epochs} is not what it should be"
        epochs += 1
        assert done.value >= kills or killer.is_alive()
    killer.join(10)
    restarts = loader._kept.pool.restarts
    pids = loader._kept.pool.pids
    loader.close()
    assert not any(map(lives, pids))
    print(done.value, restarts, epochs)


if __name__ == "__main__":
    main()
