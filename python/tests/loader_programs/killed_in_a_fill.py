"""Reads three epochs for each of several steps of a fill. A worker is killed at that step of the fill of sample 21:
killed_in_a_fill.py FOLDER KIND POINT... KIND: fixed, variable, or a policy that evicts; then the cache has space for
10 samples. chains: a variable-size cache that evicts.

The C library must be the one with fault points. Prints a line for each step: the step, restarts, hits of the second
epoch, and reclaimed claims. An error names the step."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from loader_datasets import Numbers, read

import stocached

SAMPLES, VICTIM = 40, 21


class Faulty(Numbers):
    """The first process that loads the victim is killed when it stores this sample."""

    def __init__(self, point: str, note: Path) -> None:
        super().__init__(SAMPLES)
        self.point, self.note, self.parent = point, note, os.getpid()

    def __getitem__(self, index: int) -> np.ndarray:
        if index == VICTIM and os.getpid() != self.parent and not self.note.exists():
            self.note.touch()
            os.environ["STOCACHED_FAULT"] = f"{self.point}=kill"
        return super().__getitem__(index)


def main() -> None:
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    for point in sys.argv[3:]:
        try:
            killed_at(point, kind, folder / point)
        except BaseException:
            print(f"killed at {point}:", file=sys.stderr)
            raise


def killed_at(point: str, kind: str, note: Path) -> None:
    dataset = Faulty(point, note)
    settings = {
        "fixed": {"size": "16MiB"},
        "variable": {"size": "16MiB", "variable": True},
        "chains": {"size": 4_200_000 + 12 * 4000, "variable": True, "policy": "random"},
    }.get(kind, {"size": 4_200_000 + 10 * 4000, "policy": kind})
    loader = stocached.Loader(
        dataset,
        4,
        num_workers=2,
        restart_workers=True,
        persistent_workers=True,
        multiprocessing_context="fork",
        **settings,
    )
    assert read(loader) == list(range(SAMPLES))
    assert note.exists()
    before = loader.stats().hits
    assert read(loader) == list(range(SAMPLES))
    hits = loader.stats().hits - before
    assert loader.cache.verify() == []
    # Otherwise the claims of the dead worker wait for the new one, which may not have had a task yet.
    loader.cache.recover()
    assert read(loader) == list(range(SAMPLES))
    print(point, loader._executor.kept.restarts, hits, loader.cache.stats().recovered)
    if kind not in ("fixed", "variable"):
        check_slots(loader.cache, dataset, chains=kind == "chains")
    loader.close()


def check_slots(cache: stocached.Cache, dataset: Faulty, chains: bool) -> None:
    """Checks that each slot has a sample after sets that first take the slots that are free."""
    cache.recover()
    for index in range(SAMPLES):
        cache.put(index, dataset[index])
    stats = cache.stats()
    assert stats.evicted > 0
    if chains:  # each slot that is taken is one of a sample, and all samples have the same length
        stride, length = cache._slot_stride, stats.ready_bytes // stats.ready
        assert stats.arena_next_bytes == -(-length // stride) * stride * stats.ready
        assert stats.arena_free_bytes < -(-length // stride) * stride
    else:
        assert stats.ready == cache.slots


if __name__ == "__main__":
    main()
