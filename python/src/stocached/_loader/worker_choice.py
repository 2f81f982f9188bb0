"""Says why the workers of a dataset of pictures are processes, if the loader chose them."""

from __future__ import annotations

import logging
import sys
from typing import Any

_log = logging.getLogger("stocached")
_said: set[str] = set()
_DEEP = 4  # datasets within each other

APART = "worker_init_fn= and multiprocessing_context= are for processes: leave them out"


def say_why(dataset: Any, augment: Any, why: str) -> None:
    """Logs a warning, once in a program for each reason. Datasets that native workers never read get none."""
    folder, steps = sys.modules.get("stocached._image.folder"), sys.modules.get("stocached._image.steps")
    for _ in range(_DEEP):  # of a Subset or CachedDataset
        dataset = dataset if getattr(dataset, "served", False) else getattr(dataset, "dataset", dataset)
    served = getattr(dataset, "served", False)
    ours = steps and isinstance(augment, steps.Step) if served else folder and isinstance(dataset, folder.Decoded)
    if not ours or why in _said:
        return
    _said.add(why)
    _log.warning('workers are processes, which take more time than native ones: %s. worker="process" hides this', why)
