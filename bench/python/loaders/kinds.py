"""The kinds of subjects."""

from __future__ import annotations

import importlib
from typing import Any

# kind: (module, class). Only the subject's own process imports the module and what it needs.
KINDS = {
    "stocached": ("ours", "Ours"),
    "stocached-first": ("ours", "First"),
    "gather": ("ours", "Gather"),
    "loop": ("ours", "Loop"),
    "torch": ("torches", "Torch"),
    "torch-first": ("torches", "First"),
    "decode": ("torches", "Decode"),
    "work": ("torches", "Work"),
    "bare": ("torches", "Bare"),
    "streams": ("streams", "Ours"),
    "streams-torch": ("streams", "Torch"),
    "streams-torch-side-by-side": ("streams", "TorchSideBySide"),
    "litdata": ("peers", "LitData"),
    "streaming": ("peers", "Streaming"),
    "webdataset": ("peers", "WebDataset"),
    "spdl": ("peers", "Spdl"),
    "grain": ("peers", "Grain"),
    "torchdata": ("peers", "TorchData"),
    "monai": ("peers", "Monai"),
    "datasets": ("peers", "Datasets"),
}


def make(kind: str, settings: dict[str, Any]) -> Any:
    module, name = KINDS[kind]
    return getattr(importlib.import_module(f"loaders.{module}"), name)(**settings)
