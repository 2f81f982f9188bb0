"""For tests marked `torch`."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from torch_marks import TORCH_WARNINGS
from warm import Warm

try:
    import torch

    from stocached.torch import CachedDataset, DataLoader, SourceDataset
except ImportError:  # the tests are then only collected and counted
    torch = CachedDataset = DataLoader = SourceDataset = None  # type: ignore[assignment, misc]

__all__ = [
    "TORCH_WARNINGS",
    "CachedDataset",
    "DataLoader",
    "SourceDataset",
    "Squares",
    "Warm",
    "quiet",
    "run_alone",
    "run_ranks",
    "torch",
]


def quiet(make: Any) -> Any:
    """Calls a function, and drops what it prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return make()


def run_ranks(
    warm: Warm, program: Path, arguments: Callable[[int], list[object]], ranks: int = 2
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a program that imports torch as two processes beside each other, or more. arguments: those of each rank."""
    with ThreadPoolExecutor(ranks) as pool:

        def run(rank: int) -> subprocess.CompletedProcess[str]:
            return warm.run(program, program.parent, os.environ, timeout=300, arguments=arguments(rank))

        return list(pool.map(run, range(ranks)))


def run_alone(
    warm: Warm, folder: Path, code: str, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program that imports torch, in `folder`. The caller looks at the exit status."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(code))
    return warm.run(program, folder, os.environ | environment, timeout=240, arguments=arguments)


class Squares:
    """A dataset that counts its loads in a list, and returns an image and a label."""

    def __init__(self, n: int = 40, shape: tuple[int, ...] = (3, 8, 8)) -> None:
        self.n, self.shape, self.loads = n, shape, []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.loads.append(index)
        return torch.full(self.shape, index % 251, dtype=torch.uint8), index * index
