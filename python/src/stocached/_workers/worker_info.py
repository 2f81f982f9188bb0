"""Which worker of a loader this process is."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WorkerInfo:
    """As that of torch. id: 0 to num_workers - 1. seed: that its random numbers began with.
    dataset: its own copy."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None  # the worker that this process is


def get_worker_info() -> WorkerInfo | None:
    """In a worker process of a loader, torch's own included: which one it is. None everywhere else,
    in threads as workers too.

    An iterable dataset needs it to give each worker another part of itself."""
    if _info is not None:
        return _info
    utils = getattr(sys.modules.get("torch"), "utils", None)
    data = getattr(utils, "data", None)
    theirs = None if data is None else data.get_worker_info()
    return None if theirs is None else WorkerInfo(theirs.id, theirs.num_workers, theirs.seed, theirs.dataset)


def enter(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """This process is that worker from now on; seed: of all workers."""
    global _info
    _info = WorkerInfo(worker, workers, seed + worker, dataset)
