"""The part of the table about loaders of other projects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .process import Derived, Process, alternate, median, memory
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
    """Everything local and warm. Each of the others runs with 0 and with 2 workers, and the faster one counts."""
    n = run.n(1500, 200)
    at: dict[str, Any] = run.images(n) | {"epochs": 4}
    ours = Process("stocached", "stocached", **at, workers=2)
    pairs = [
        [Process(name, kind, **at, workers=workers) for workers in (0, 2)]
        for kind, name in (PEERS | {"torch": "stocaching + torch"}).items()
    ]
    alternate(run.runs, ours, *(one for pair in pairs for one in pair))
    workers = [min((0, 1), key=lambda k: median(pair[k].value)) for pair in pairs]
    others = [pair[k] for pair, k in zip(pairs, workers)]
    best = [min(other.value[k] for other in others) for k in range(run.runs)]
    alone = ", ".join(other.name for other, k in zip(others, workers) if k == 0)
    run.emit(
        "loader/peers",
        "196,608 bytes",
        [ours, *others, Derived("the best of them", n, best)],
        note=f"stocached with 2 workers, the others with 0 or 2, whichever was faster; with 0: {alone or 'none'}",
    )


def peers_memory(run: Run) -> None:
    """PSS of each process tree after an epoch. Files that are read and not mapped lie in the page
    cache, and do not count."""
    n = run.n(1500, 200)
    at: dict[str, Any] = run.images(n) | {"workers": 2}
    kinds = {"stocached": "stocached"} | PEERS | {"torch": "stocaching + torch"}
    subjects = [Derived(name, n, [memory(Process(name, kind, **at)) / 1e6], "MB") for kind, name in kinds.items()]
    run.emit("loader/peers-memory", "196,608 bytes", subjects)


PARTS: dict[str, Callable[[Run], None]] = {"loader-peers": peers, "loader-peers-memory": peers_memory}
