"""Orders compared with torch's equivalents: samplers of a DataLoader, DistributedSampler,
WeightedRandomSampler, ConcatDataset."""

from __future__ import annotations

import numpy as np
import pytest
from torch_helpers import TORCH_WARNINGS, torch

from stocached import Order
from stocached._order.concatenation import Concatenation
from stocached._order.order import MixedOrder, WeightedOrder

if torch is not None:  # otherwise these are only collected
    data = torch.utils.data

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


@pytest.mark.parametrize("drop", [False, True])
def test_ranks_as_in_distributed_sampler(drop):
    """Without a shuffle: the same samples for each rank, also with padding for many ranks."""
    for samples in (1, 2, 7, 10, 100, 101):
        dataset = data.TensorDataset(torch.arange(samples))
        epoch = Order(samples, "sequential").epoch(0)
        for ranks in (1, 2, 3, 8, 150):
            for rank in range(ranks):
                theirs = list(data.DistributedSampler(dataset, ranks, rank, shuffle=False, drop_last=drop))
                ours = epoch.shard(rank, ranks, ends="drop" if drop and samples % ranks else "pad")
                if drop and samples < ranks:
                    assert not len(ours)  # torch repeats samples there, although it should drop them
                    continue
                assert list(ours) == theirs
                assert len(ours) == len(theirs)


def test_a_shard_is_a_sampler_and_weights_are_as_torch_s():
    weights = torch.arange(10, dtype=torch.float32)
    order = WeightedOrder(10, weights, seed=3, draws=20_000)
    loader = data.DataLoader(data.TensorDataset(torch.arange(10)), batch_size=100, sampler=order.epoch(0).shard(1, 2))
    ours = torch.cat([batch for (batch,) in loader])
    assert ours.tolist() == order.epoch(0).indices()[1::2].tolist()
    theirs = torch.tensor(list(data.WeightedRandomSampler(weights, 10_000, generator=torch.Generator().manual_seed(1))))
    a, b = torch.bincount(ours, minlength=10).double(), torch.bincount(theirs, minlength=10).double()
    assert a[0] == b[0] == 0
    chi = float(((a - b)[1:] ** 2 / (a + b)[1:]).sum())
    assert abs(chi - 8) / 4 < 5


def test_a_mix_reads_a_concat_dataset():
    sizes = [40, 25, 7]
    dataset = data.ConcatDataset(
        [data.TensorDataset(torch.full((n,), d), torch.arange(n)) for d, n in enumerate(sizes)]
    )
    mix = MixedOrder([Order(n) for n in sizes], [3, 2, 1], stop="all")
    epoch = mix.epoch(0)
    concatenation = Concatenation(sizes)
    assert len(concatenation) == len(dataset)
    batches = list(data.DataLoader(dataset, batch_size=12, sampler=epoch))
    datasets, local = zip(*map(concatenation.locate, epoch))
    assert torch.cat([batch[0] for batch in batches]).tolist() == list(datasets)
    assert torch.cat([batch[1] for batch in batches]).tolist() == list(local)
    assert len(set(epoch)) == len(dataset)
    for first, _ in batches[:-1]:  # a batch has its share of each dataset, except for samples at its ends
        assert np.abs(np.bincount(first, minlength=3) - np.array([6, 4, 2])).max() <= 3
