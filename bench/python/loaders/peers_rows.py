"""The part of the table about loaders of other projects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .process import Derived, Process, alternate, memory
from .rows import Run

PEERS = {
    "litdata": "LitData",
    "streaming": "mosaicml-streaming",
    "webdataset": "webdataset",
    "spdl": "SPDL",
    "grain": "Grain",
    "torchdata": "torchdata",
    "monai": "MONAI CacheDataset",
    "datasets": "HF datasets",
}


def peers(run: Run) -> None:
    """Everything local and warm, 2 workers."""
    n = run.n(1500, 200)
    at: dict[str, Any] = run.images(n) | {"workers": 2}
    ours = Process("stocached", "stocached", **at, epochs=4)
    others = [Process(name, kind, **at) for kind, name in PEERS.items()]
    stocaching = Process("stocaching + torch", "torch", **at)
    alternate(run.runs, ours, *others, stocaching)
    best = [min(other.value[k] for other in others) for k in range(run.runs)]
    run.emit("loader/peers", "196,608 bytes", [ours, *others, stocaching, Derived("the best of them", n, best)])


def peers_memory(run: Run) -> None:
    """PSS of each process tree after an epoch. Files that are read and not mapped lie in the page
    cache, and do not count."""
    n = run.n(1500, 200)
    at: dict[str, Any] = run.images(n) | {"workers": 2}
    kinds = {"stocached": "stocached"} | PEERS | {"torch": "stocaching + torch"}
    subjects = [Derived(name, n, [memory(Process(name, kind, **at)) / 1e6], "MB") for kind, name in kinds.items()]
    run.emit("loader/peers-memory", "196,608 bytes", subjects)


PARTS: dict[str, Callable[[Run], None]] = {"loader-peers": peers, "loader-peers-memory": peers_memory}
