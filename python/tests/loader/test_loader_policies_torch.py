"""The policy that loaders take for torch's samplers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from helpers import Of
from torch_helpers import TORCH_WARNINGS, CachedDataset, DataLoader, torch

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


@pytest.mark.parametrize(
    ("sampler", "policy"),
    [
        (lambda: torch.utils.data.WeightedRandomSampler([1.0] * 99 + [50.0], 100), "lfu"),
        (lambda: torch.utils.data.WeightedRandomSampler([1.0] * 100, 100, replacement=False), "cost"),
        (lambda: torch.utils.data.RandomSampler(range(100), replacement=True), "cost"),
        (lambda: None, "cost"),
    ],
    ids=["weights", "weights, each once", "all alike", "none"],
)
def test_weights_with_replacement_keep_what_is_read_most(sampler, policy):
    dataset = torch.utils.data.TensorDataset(torch.zeros(100, 100_000, dtype=torch.uint8))
    loader = DataLoader(dataset, 10, sampler=sampler(), size="8MiB")
    assert loader.cache.slots < 100
    assert loader.cache.policy == policy
    loader.close()


def one_in_eight_waits(index: int) -> Any:
    """One sample in eight waits for its source."""
    time.sleep(0.03 if index % 8 == 3 else 0.0)
    return torch.full((4000,), index, dtype=torch.uint8)


@pytest.mark.parametrize("depth", [1, 2])
def test_samples_of_a_subset_have_costs_of_their_own(depth):
    """torch gives each Subset __getitems__, which loads one sample after the other."""
    dataset: Any = Of(one_in_eight_waits, 80)
    for _ in range(depth):
        dataset = torch.utils.data.Subset(dataset, range(80))
    cached = CachedDataset(dataset, size=4_300_000 + 40 * 4096)
    assert cached.cache.policy == "cost", "the default of a cache for a part of the samples"
    list(torch.utils.data.DataLoader(cached, 8))
    costs = cached.cache.costs().reshape(-1, 8)
    slow = ~(costs[:, 3] <= 2 * np.nanmedian(costs, axis=1))  # nan: far longer than the others
    assert slow.sum() >= 7, costs  # there are 10 batches
