"""A program that reads a dataset through a cache in memory and one on a disk. Arguments: folder, log of loads, and the
settings of the loader as JSON. It prints, for each epoch, its stats as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from loader_datasets import Numbers, check
from processes import until

from stocached import Loader, _native

SAMPLES = 240
READY = 2  # STOC_STATE_READY


class Logged(Numbers):
    """Notes each load, after the constructor of the loader has looked at a few samples."""

    log: str | None = None

    def __getitem__(self, index: int):
        made = super().__getitem__(index)
        if self.log is not None:
            with open(self.log, "a") as file:  # one write of a few bytes at the end: never mixed
                file.write(f"{index}\n")
        return made


def main() -> None:
    folder, log, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    epochs = settings.pop("epochs", 1)
    dataset = Logged(SAMPLES)
    loader = Loader(
        dataset, 8, shuffle=True, seed=3, fingerprint="numbers", disk="64MiB", disk_dir=folder, allow_random=True,
        **{"size": "4400KB", **settings},
    )  # fmt: skip
    dataset.log = log
    before, disk = loader.stats(), loader.cache._disk.handle
    for _ in range(epochs):
        seen = [index for batch in loader for index in check(batch)]
        # Each process writes in the background what it has loaded.
        until(lambda: all(_native.state(disk, i) == READY for i in seen), "the writes of all processes")
        now = loader.stats()
        stats, before = now - before, now
        counts = {name: getattr(stats, name) for name in ("disk_hits", "disk_misses", "disk_writes", "disk_poisoned")}
        print(json.dumps({"seen": len(set(seen)), "hits": stats.hits, "misses": stats.misses, **counts}), flush=True)
    if "KILL" in os.environ:
        os.kill(os.getpid(), 9)


if __name__ == "__main__":
    main()
