"""The order of an epoch, held against the vectors that Go and C are tested with as well."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from stocached import InvalidError, Order, SampleIndexError
from stocached.order import KINDS

VECTORS = Path(__file__).resolve().parents[2] / "loader" / "testdata" / "order.txt"


def test_vectors():
    orders = 0
    for line in VECTORS.read_text().splitlines():
        if line.startswith("#"):
            continue
        settings, pairs = line.split(":")
        kind, samples, seed, window, block, number = map(int, settings.split())
        epoch = Order(samples, KINDS[kind], seed, window, block).epoch(number)
        for pair in pairs.split():
            position, index = map(int, pair.split("="))
            assert epoch.at(position) == index
            assert epoch.position(index) == position
            assert epoch.indices(position, 1).tolist() == [index]
        orders += 1
    assert orders == 180


@pytest.mark.parametrize(
    "order",
    [Order(1000), Order(1000, "sequential"), Order(1003, "windows", 5, window=50), Order(1003, "blocks", 5, window=4, block=10), Order(7)],
    ids=str,
)
def test_an_epoch_has_every_sample_once(order):
    epoch = order.epoch(2)
    whole = epoch.indices()
    assert len(epoch) == order.samples
    assert whole.dtype == np.int64
    assert sorted(whole) == list(range(order.samples))
    ranks = [epoch.indices(rank, step=3) for rank in range(3)]
    assert [int(i) for k in range(len(ranks[0])) for rank in ranks for i in rank[k : k + 1]] == whole.tolist()
    assert pickle.loads(pickle.dumps(epoch)).indices().tolist() == whole.tolist()
    assert (order.kind == "sequential") == (order.epoch(3).indices().tolist() == whole.tolist())
    assert epoch.indices(order.samples).size == 0
    assert epoch.indices(2, count=3).tolist() == whole[2:5].tolist()


@pytest.mark.parametrize(
    ("order", "number", "message"),
    [
        (Order(0), 0, "samples: 0 is not in"),
        (Order(2**41), 0, "samples: 2199023255552"),
        (Order(5, "mixed"), 0, "kind='mixed' is none of sequential, shuffled"),  # type: ignore[arg-type]
        (Order(5, "windows"), 0, "window: 0"),
        (Order(5, "blocks", window=2), 0, "block: 0"),
        (Order(5, seed=-1), 0, "seed=-1"),
        (Order(5, seed=1.5), 0, "seed=1.5"),  # type: ignore[arg-type]
        (Order(5), -1, "epoch=-1"),
        (Order(5), 2**64, "epoch=18446744073709551616"),
    ],
    ids=str,
)
def test_orders_that_cannot_be(order, number, message):
    with pytest.raises(InvalidError, match=message):
        order.epoch(number)


def test_positions_that_are_none():
    epoch = Order(5).epoch(0)
    for value in (-1, 5):
        with pytest.raises(SampleIndexError, match=rf"position {value} is not in 0\.\.4"):
            epoch.at(value)
        with pytest.raises(IndexError, match=rf"index {value} is not in 0\.\.4"):
            epoch.position(value)
    for arguments in ({"first": -1}, {"step": 0}, {"count": -1}):
        with pytest.raises(InvalidError, match="first="):
            epoch.indices(**arguments)
