"""Loaders of other projects, everything local and cached. `make setup-peers` installs them."""

from __future__ import annotations

from typing import Any

import sets
from harness import Process, Run

PEERS = {
    "LitData": "peers.LitData",
    "mosaicml-streaming": "peers.Streaming",
    "webdataset": "peers.WebDataset",
    "SPDL": "peers.Spdl",
    "Grain": "peers.Grain",
    "torchdata": "peers.TorchData",
    "MONAI CacheDataset": "peers.Monai",
    "HF datasets": "peers.Datasets",
    "torch + stocaching": "torches.Torch",
}


def settings(run: Run) -> dict[str, Any]:
    return {"n": run.n(1500, 200), "shape": sets.IMAGE, "batch": 64, "folder": run.folder}


def hits(run: Run) -> None:
    at = settings(run) | {"epochs": run.n(4, 1)}
    run.measure(
        "Everything cached, samples of 196,608 bytes",
        Process("ours, 2 workers", "ours.Ours", **at, workers=2),
        *(Process(f"{name}, {w} workers", kind, **at, workers=w) for name, kind in PEERS.items() for w in (0, 2)),
    )


def memory(run: Run) -> None:
    at = settings(run) | {"workers": 2}
    run.say("\n### Memory of all processes after an epoch, 2 workers\n\n| | MB |\n|---|--:|")
    for name, kind in ({"ours": "ours.Ours"} | PEERS).items():
        run.say(f"| {name} | {Process(name, kind, **at).memory():.0f} |")


CASES = {"hits": hits, "memory": memory}
