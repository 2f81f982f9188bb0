"""A rank of demo.cluster: reads epochs of a served cache, and prints a line of JSON after each.

python -m demo.cluster_rank SETTINGS    JSON: cache, batch, epochs, step (seconds), affinity, state (a file),
    meeting (where the ranks meet, as in init_process_group)
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from stocached.torch import DataLoader, SourceDataset

SAVED_EVERY = 5  # steps between two checkpoints


def main(settings: dict[str, Any]) -> None:
    number, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=settings["meeting"], rank=number, world_size=ranks)
    rank = dist.get_rank()
    loader: DataLoader[Any] = DataLoader(
        SourceDataset(settings["cache"], timeout=60),
        settings["batch"],
        shuffle=True,
        seed=1,
        prefetch_bytes="64MiB",
        ends="drop",
        affinity="node" if settings["affinity"] else None,
    )
    state = Path(settings["state"])
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    weights, saved = torch.zeros(1000), loader.state_dict()
    for _ in range(saved["epoch"], settings["epochs"]):
        before, start = loader.stats(), time.monotonic()
        checksum = samples = 0
        for steps, batch in enumerate(loader, 1):
            checksum += sum(zlib.crc32(row[:64].numpy().tobytes()) for row in batch)
            time.sleep(settings["step"])
            dist.all_reduce(weights)  # as the gradients of a step: ranks run side by side
            samples += len(batch)
            if rank == 0 and steps % SAVED_EVERY == 0:
                save(state, loader.state_dict())
        if rank == 0:
            save(state, loader.state_dict())
        dist.barrier()
        stats = loader.stats() - before
        print(
            json.dumps(
                {
                    "rank": rank,
                    "epoch": loader.state_dict()["epoch"],
                    "seconds": time.monotonic() - start,
                    "samples": samples,
                    "hits": stats.hits,
                    "waited": stats.wait_seconds,
                    "checksum": checksum,
                }
            ),
            flush=True,
        )
    dist.destroy_process_group()


def save(path: Path, state: dict[str, Any]) -> None:
    """Replaces the file at once: the program may be killed at any time."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state))
    os.replace(new, path)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
