"""What a worker process sets up before it runs code of the user. seed: of all workers of a loader."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from . import worker_info


def numpy_worker(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Seeds the generators of Python and NumPy, and says which worker this process is."""
    random.seed(seed + worker)
    np.random.seed(np.random.SeedSequence((seed, worker)).generate_state(4))
    seed_torch = getattr(sys.modules.get("torch"), "manual_seed", None)
    if seed_torch is not None:  # the dataset may draw from it, and all workers would draw alike
        seed_torch(seed + worker)
    worker_info.enter(worker, workers, seed, dataset)


def torch_worker(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Does what torch's loader does in its workers."""
    import torch
    from torch.utils.data import _utils

    theirs: Any = _utils.worker  # without types
    torch.set_num_threads(1)
    random.seed(seed + worker)
    torch.manual_seed(seed + worker)
    np.random.seed(theirs._generate_state(seed, worker))
    theirs._worker_info = theirs.WorkerInfo(id=worker, num_workers=workers, seed=seed + worker, dataset=dataset)
