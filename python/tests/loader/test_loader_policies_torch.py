"""The policy that loaders take for torch's samplers."""

from __future__ import annotations

import pytest
from torch_helpers import TORCH_WARNINGS, torch

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
    from stocached.torch import DataLoader

    dataset = torch.utils.data.TensorDataset(torch.zeros(100, 100_000, dtype=torch.uint8))
    loader = DataLoader(dataset, 10, sampler=sampler(), size="8MiB")
    assert loader.cache.slots < 100
    assert loader.cache.policy == policy
    loader.close()
