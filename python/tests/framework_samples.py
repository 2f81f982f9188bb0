"""Samples for tests of loaders in training frameworks. Each contains its index, and whether it was
augmented."""

from __future__ import annotations

from typing import Any

import torch

N, BATCH = 23, 4
LIFT = 1000  # what augment= adds


class Samples(torch.utils.data.Dataset):
    """Counts how often each sample was loaded, in workers too."""

    def __init__(self, n: int = N) -> None:
        self.n = n
        self.loads = torch.zeros(n, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.loads[index] += 1
        return torch.full((3,), float(index)), index


class Lifted(Samples):
    """For torch's loader: samples as ours gives them with augment=."""

    def __getitem__(self, index: int) -> Any:
        return lift(super().__getitem__(index))


def lift(sample: Any) -> Any:
    return sample[0] + LIFT, sample[1]


def some(sample: Any) -> Any:
    """None, one or two items."""
    return [sample] * (int(sample[1]) % 3)


def once(sample: Any) -> Any:
    yield sample


def times_loaded(dataset: Samples) -> int:
    """How often each sample was loaded. Constructors load a few samples more often."""
    return int(dataset.loads[dataset.loads > 0].median())
