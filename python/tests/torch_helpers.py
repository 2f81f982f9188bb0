"""For tests marked `torch`."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

try:
    import torch
except ImportError:  # the tests are then only collected and counted
    torch = None  # type: ignore[assignment]

__all__ = ["Squares", "quiet", "torch"]

# Warnings of the DataLoader and of torch itself must not fail our tests.
TORCH_WARNINGS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
    pytest.mark.filterwarnings("ignore:.*suggested max number of worker.*"),
    pytest.mark.filterwarnings("ignore:.*number of workers.*"),
]


def quiet(make: Any) -> Any:
    """Calls a function, and drops what it prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return make()


class Squares:
    """A dataset that counts its loads in a list, and returns an image and a label."""

    def __init__(self, n: int = 40, shape: tuple[int, ...] = (3, 8, 8)) -> None:
        self.n, self.shape, self.loads = n, shape, []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.loads.append(index)
        return torch.full(self.shape, index % 251, dtype=torch.uint8), index * index
