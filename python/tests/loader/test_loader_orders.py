"""Loaders with orders that are not permutations of the dataset: draws by weight, and mixes of
several datasets."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stocached import Loader, Order, StateError
from stocached._order.order import MixedOrder, WeightedOrder

N = 53
ORDERS = {
    "weighted": lambda: WeightedOrder(N, np.arange(N) + 1.0, seed=3, draws=80),
    "mixed": lambda: MixedOrder([Order(30, seed=1), Order(23, seed=2)], [2, 1], stop="all"),
    "in steps": lambda: MixedOrder([Order(30, seed=1), Order(23, seed=2)], [0.6, 0.4], stop="length", length=40),
    "blocks": lambda: Order(N, "blocks", seed=1, block=8, window=2),
}


def loader(name, **settings):
    return Loader(np.arange(N), 4, order=ORDERS[name](), ends="uneven", **{"rank": 0, "world_size": 1, **settings})


def read(batches):
    return [int(index) for batch in batches for index in batch]


@pytest.mark.parametrize("name", list(ORDERS))
def test_another_number_of_ranks_goes_on_after_every_batch(name):
    wanted = Counter(ORDERS[name]().epoch(0).indices().tolist())
    for stop in range(4):
        seen = []
        for rank in range(3):
            before = loader(name, rank=rank, world_size=3)
            batches = iter(before)
            seen += read(next(batches) for _ in range(stop))
        for rank in range(2):
            after = loader(name, rank=rank, world_size=2)
            after.load_state_dict(before.state_dict())
            seen += read(after)
        assert Counter(seen) == wanted


def test_a_state_of_other_weights_is_refused():
    before = loader("weighted")
    next(iter(before))
    state = before.state_dict()
    loader("weighted").load_state_dict(state)
    for weights, draws in ((np.arange(N) + 2.0, 80), (np.arange(N) + 1.0, 81)):
        other = Loader(np.arange(N), 4, order=WeightedOrder(N, weights, seed=3, draws=draws))
        with pytest.raises(StateError, match="the state is of WeightedOrder"):
            other.load_state_dict(state)


def test_the_first_real_samples_of_padded_ranks_are_the_dataset():
    seen = []
    for rank in range(4):
        loads = Loader(np.arange(N), 4, shuffle=True, seed=1, rank=rank, world_size=4)
        samples = read(loads)
        assert len(samples) == -(-N // 4)
        seen += samples[: loads.sampler.shard().real]
    assert sorted(seen) == list(range(N))
