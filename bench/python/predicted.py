"""Which samples a loader loads in each epoch, with a cache of some slots: what `bench/cmd/predict` compares with the
simulator. It reads its settings as JSON, and writes a list of samples for each epoch, and the seed of
the cache's policy."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stocached import Cache, Loader

BYTES = 64


class Samples:
    """Counts its loads in shared memory, as workers may be processes."""

    def __init__(self, seconds: NDArray[np.float64], epochs: int) -> None:
        import mmap

        self._seconds = seconds
        self.memory = mmap.mmap(-1, 1 + epochs * len(seconds))  # the epoch, and which samples it loaded

    def __len__(self) -> int:
        return len(self._seconds)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        self.memory[1 + self.memory[0] * len(self) + index] = 1
        if self._seconds[index]:
            time.sleep(self._seconds[index])
        return np.full(BYTES, index % 251, np.uint8)


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    times, epochs = np.array(asked["times"]), asked["epochs"]
    samples = Samples(times / 0.01 * asked["load"], epochs)
    more: dict[str, Any] = {"collate_fn": lambda batch: batch} if asked["own"] else {}
    if asked["workers"]:
        more |= {"num_workers": asked["workers"], "persistent_workers": True, "worker": asked["kind"]}
    with Cache.create(
        samples=len(samples), shape=BYTES, dtype="uint8", policy=asked["policy"], slots=asked["slots"]
    ) as cache:
        policy_seed = int.from_bytes(cache.uuid[:8], "little")
        # The constructor loads some samples; no epoch counts these, but they are in the cache.
        loader = Loader(samples, asked["batch"], shuffle=True, seed=asked["seed"], cache=cache, **more)
        samples.memory[1 : 1 + len(samples)] = bytes(len(samples))
        for epoch in range(epochs):
            samples.memory[0] = epoch
            for batch in loader:
                del batch
        loader.close()
    read = np.frombuffer(bytes(samples.memory), np.uint8)[1:].reshape(epochs, len(samples))
    told = {"loads": [np.flatnonzero(loads).tolist() for loads in read], "seed": policy_seed}
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
