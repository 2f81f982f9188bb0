"""The order of an epoch, compared with the vectors that Go and C are also tested with."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import order_document
import pytest

from stocached import InvalidError, Order, SampleIndexError, UnsupportedError
from stocached._order.concatenation import Concatenation
from stocached._order.epoch import ENDS
from stocached._order.indices import IndexSet
from stocached._order.nodes import Node, Owners
from stocached._order.order import KINDS, STOPS, MixedOrder, WeightedOrder

VECTORS = Path(__file__).resolve().parents[3] / "order" / "testdata" / "order.txt"


def read_vectors() -> dict[str, list[tuple[list[int], list[str]]]]:
    """Lines by kind: the numbers before the last colon, and the words after it."""
    lines: dict[str, list[tuple[list[int], list[str]]]] = {"order": [], "shard": [], "weighted": [], "mixed": []}
    for line in VECTORS.read_text().splitlines():
        if not line.startswith(("#", "deal ")):  # test_nodes.py reads those
            settings, results = line.split(":")
            word, *numbers = settings.split() if settings[0].isalpha() else ["order", *settings.split()]
            lines[word].append(([int(number) for number in numbers], results.split()))
    return lines


LINES = read_vectors()


def order_of(numbers: list[int]) -> Order:
    kind, samples, seed, window, block = numbers
    return Order(samples, KINDS[kind], seed, window, block)


def check_indices(results: list[str], n: int, indices) -> None:
    digest, *pairs = results
    with np.errstate(over="ignore"):
        first = (indices(0, 20000) + 1).astype(np.uint64)
        assert int((first * np.arange(1, len(first) + 1, dtype=np.uint64)).sum()) == int(digest)
    for pair in pairs:
        k, index = map(int, pair.split("="))
        assert indices(k, 1).tolist() == [index]
        assert len(indices(k, 2)) == min(2, n - k)


def test_vectors():
    assert {kind: len(lines) for kind, lines in LINES.items()} == {
        "order": 180,
        "shard": 147,
        "weighted": 41,
        "mixed": 24,
    }


def test_vectors_of_orders():
    for numbers, pairs in LINES["order"]:
        epoch = order_of(numbers[:5]).epoch(numbers[5])
        for pair in pairs:
            position, index = map(int, pair.split("="))
            assert epoch.at(position) == index
            assert epoch.position(index) == position
            assert epoch.indices(position, 1).tolist() == [index]


def test_vectors_of_shards():
    for numbers, (samples, real, *results) in LINES["shard"]:
        number, rank, ranks, start, ends = numbers[5:]
        shard = order_of(numbers[:5]).epoch(number).shard(rank, ranks, ends=ENDS[ends], start=start)
        assert (shard._shard.samples, shard.real) == (int(samples), int(real))
        check_indices(results, int(samples), shard.indices)


def weights_of(pattern: int, samples: int) -> np.ndarray:
    i = np.arange(samples, dtype=np.uint64)
    if pattern == 0:
        return np.ones(samples)
    if pattern == 1:
        return ((i + np.uint64(1)) % np.uint64(7)).astype(float)
    if pattern == 2:
        return np.ldexp(1.0, -(i % np.uint64(70)).astype(int))
    if pattern == 3:
        with np.errstate(over="ignore"):
            i = (i ^ (i >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            i = (i ^ (i >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((i ^ (i >> np.uint64(31))) >> np.uint64(11)).astype(float) / 2**53
    if pattern == 4:
        return 5e-324 * ((i + np.uint64(1)) % np.uint64(3)).astype(float)
    return np.where(i == 0, 1.7e308, 1.0)


def test_vectors_of_weights():
    for (samples, seed, draws, pattern, number), (positions, *results) in LINES["weighted"]:
        epoch = WeightedOrder(samples, weights_of(pattern, samples), seed, draws or None).epoch(number)
        assert len(epoch) == int(positions)
        check_indices(results, len(epoch), epoch.indices)


def test_vectors_of_mixes():
    for (seed, stop, length, number, datasets, *each), (positions, *results) in LINES["mixed"]:
        rows = [each[d * 6 : d * 6 + 6] for d in range(datasets)]
        mix = MixedOrder([order_of(row[:5]) for row in rows], [row[5] for row in rows], seed, STOPS[stop], length)
        epoch = mix.epoch(number)
        assert len(epoch) == int(positions)
        check_indices(results, len(epoch), epoch.indices)


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
def test_invalid_orders(order, number, message):
    with pytest.raises(InvalidError, match=message):
        order.epoch(number)


def test_invalid_positions():
    epoch = Order(5).epoch(0)
    for value in (-1, 5):
        with pytest.raises(SampleIndexError, match=rf"position {value} is not in 0\.\.4"):
            epoch.at(value)
        with pytest.raises(IndexError, match=rf"index {value} is not in 0\.\.4"):
            epoch.position(value)
    for arguments in ({"first": -1}, {"step": 0}, {"count": -1}):
        with pytest.raises(InvalidError, match=next(iter(arguments)) + "="):
            epoch.indices(**arguments)


MIX = MixedOrder([Order(100), Order(37, "blocks", window=2, block=5), Order(20, "sequential")], [5, 2, 1], stop="all")
ANY = [Order(103), Order(103, "blocks", 5, window=4, block=10), WeightedOrder(5, [1, 2, 3, 0, 4], draws=103), MIX]


@pytest.mark.parametrize("order", ANY, ids=str)
@pytest.mark.parametrize("ends", ENDS)
def test_ranks_share_an_epoch(order, ends):
    epoch = order.epoch(3)
    whole = epoch.indices().tolist()
    assert list(epoch) == whole
    assert [epoch.at(p) for p in range(len(epoch))] == whole
    for start in (0, 1, len(epoch) // 2, len(epoch) - 1, len(epoch)):
        left = len(epoch) - start
        for ranks in (1, 2, 3, 8, 300):
            shards = [epoch.shard(rank, ranks, ends=ends, start=start) for rank in range(ranks)]
            for rank, shard in enumerate(shards):
                rows = shard.indices().tolist()
                assert rows[: shard.real] == whole[start + rank :: ranks][: shard.real]
                first = start + rank
                assert rows == [whole[p % len(epoch)] for p in range(first, first + len(shard) * ranks, ranks)]
                assert list(shard) == rows
                assert len(rows) == len(shard)
                assert shard.indices(1, 2).tolist() == rows[1:3]
                assert pickle.loads(pickle.dumps(shard)).indices().tolist() == rows
            lengths = {len(shard) for shard in shards}
            assert lengths == ({-(-left // ranks)} if ends == "pad" else {left // ranks} if ends == "drop" else lengths)
            assert sum(shard.real for shard in shards) == (left // ranks * ranks if ends == "drop" else left)
            for size in (1, 3, 10):
                assert len({shard.batches(size, drop_last=True) for shard in shards}) == 1  # no rank waits for another
                for shard in shards:
                    assert shard.batches(size) == -(-len(shard) // size)
                    assert shard.batches(size, drop_last=True) * size <= len(shard)


def test_invalid_shards():
    epoch = Order(5).epoch(0)
    for arguments, message in [
        ({"rank": 2, "world_size": 2}, "rank=2 is not in 0..world_size-1, world_size=2"),
        ({"rank": 0, "world_size": 0}, "world_size=0"),
        ({"rank": -1, "world_size": 2}, "rank=-1 is not a whole number"),
        ({"rank": 0.0, "world_size": 2}, r"rank=0\.0 is not a whole number"),
        ({"rank": 0, "world_size": 1, "start": 6}, "start=6 is after the end of the epoch, which has 5 positions"),
        ({"rank": 0, "world_size": 1, "ends": "even"}, "ends='even' is none of uneven, pad, drop"),
        ({"rank": 0, "world_size": 2**63}, "rank: 0 of 9223372036854775808"),
    ]:
        with pytest.raises(InvalidError, match=message):
            epoch.shard(**arguments)
    shard = epoch.shard(0, 1)
    for call in (
        lambda: shard.indices(-1),
        lambda: shard.indices(0, -1),
        lambda: shard.batches(0),
        lambda: shard.position(-1),
        lambda: epoch.at(True),
        lambda: epoch.position(np.True_),
        lambda: IndexSet(range(5), 5).local(True),
        lambda: Owners([Node()], 5).node_of(True),
    ):
        with pytest.raises(InvalidError):
            call()
    assert shard.indices(5).size == 0
    assert shard.position(100) == 5
    assert epoch.position(np.int64(epoch.at(np.uint8(3)))) == IndexSet(range(5), 5).local(np.int32(3)) == 3


def test_weights_are_kept():
    weights = np.random.default_rng(2).random(50) ** 4
    order = WeightedOrder(50, weights.tolist(), seed=5, draws=200_000)
    epoch = order.epoch(0)
    with pytest.raises(UnsupportedError, match="several positions"):
        epoch.position(1)
    assert (pickle.loads(pickle.dumps(epoch)).indices(0, 100) == epoch.indices(0, 100)).all()
    assert order == pickle.loads(pickle.dumps(order))
    assert order != WeightedOrder(50, weights, seed=6, draws=200_000)
    # the number of draws does not change them
    assert (WeightedOrder(50, weights, 5).epoch(0).indices() == epoch.indices(0, 50)).all()
    weights[:] = 0  # it kept a copy
    assert order.weights.sum() > 0
    assert not order.weights.flags.writeable
    early = epoch.indices(0, 10).tolist()
    del order
    assert epoch.indices(0, 10).tolist() == early


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, [1, 2]), r"weights have the shape \(2,\), of 3 samples"),
        ((2, [[1, 2]]), r"weights have the shape \(1, 2\)"),
        ((0, []), "weights: 0 are not in 1"),
        ((2, [0, 0.0]), "all 2 are 0"),
        ((2, [1, -1e-9]), "weight 1 is -1e-09"),
        ((2, [float("nan"), 1]), "weight 0 is nan"),
        ((2, [1, float("inf")]), "weight 1 is inf"),
        ((2, ["a", "b"]), "weights are numbers"),
        ((2, [1, 1], 0, 0), "draws=0"),
        ((2, [1, 1], -1), "seed=-1"),
    ],
    ids=str,
)
def test_invalid_weights(arguments, message):
    with pytest.raises(InvalidError, match=message):
        WeightedOrder(*arguments)


def test_too_many_draws():
    with pytest.raises(InvalidError, match="draws: 1099511627777"):
        WeightedOrder(1, [1], draws=2**40 + 1).epoch(0)


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (MixedOrder([], []), "0 orders and 0 ratios"),
        (MixedOrder([Order(1)], [1, 2]), "1 orders and 2 ratios"),
        (MixedOrder([Order(1), Order(0)], [1, 2]), "dataset 1: samples: 0"),
        (MixedOrder([Order(1)], [0]), "ratio 0 of dataset 0"),
        (MixedOrder([Order(1)], [-1]), r"ratios\[0\]=-1"),
        (MixedOrder([Order(1), Order(1)], [0.5, 0.0]), r"ratios\[1\]=0\.0 is not a finite number above 0"),
        (MixedOrder([Order(1), Order(1)], [0.5, float("nan")]), r"ratios\[1\]=nan"),
        (MixedOrder([Order(1), Order(1)], [2**30, 2**30]), "ratio 1073741824 of dataset 1"),
        (MixedOrder([Order(1)], [1], stop="last"), "stop='last' is none of first, all, length"),  # type: ignore[arg-type]
        (MixedOrder([Order(1)], [1], length=5), "length: 5"),
        (MixedOrder([Order(1)], [1], stop="length"), "length: 0"),
        (MixedOrder([WeightedOrder(1, [1])], [1]), "dataset 0: WeightedOrder"),  # type: ignore[list-item]
        (MixedOrder([Order(10), Order(2**40 - 10)], [2**29, 1], stop="all"), "until all datasets have been read"),
    ],
    ids=str,
)
def test_invalid_mixes(mix, message):
    with pytest.raises(InvalidError, match=message):
        mix.epoch(0)


def test_concatenated_datasets():
    both = Concatenation([0, 3, 0, 2])
    assert len(both) == 5
    assert [both.locate(i) for i in range(5)] == [(1, 0), (1, 1), (1, 2), (3, 0), (3, 1)]
    assert [both.index(*both.locate(i)) for i in range(5)] == [0, 1, 2, 3, 4]
    assert both == Concatenation(iter([0, 3, 0, 2])) == pickle.loads(pickle.dumps(both))
    for wrong in (-1, 5):
        with pytest.raises(SampleIndexError, match=r"index (-1|5) is not in 0\.\.4"):
            both.locate(wrong)
    for wrong in ((0, 0), (1, 3), (4, 0), (-1, 0)):
        with pytest.raises(SampleIndexError, match="there is no sample"):
            both.index(*wrong)
    for sizes in ([], [0], [-1], [2**40, 1], [1.5]):
        with pytest.raises(InvalidError):
            Concatenation(sizes)


def test_document_says_what_the_library_does():
    """Makes the vectors from the document alone."""
    for numbers, pairs in LINES["order"]:
        kind, samples, seed, window, block, number = numbers
        if kind > 1 and samples > 1000:
            continue  # the document's function walks through all windows
        for pair in pairs:
            position, index = map(int, pair.split("="))
            assert order_document.index_at(kind, samples, seed, window, block, number, position) == index
    for (samples, seed, _, pattern, number), (_, _, *pairs) in LINES["weighted"]:
        if samples > 1000:
            continue
        at = order_document.draws(weights_of(pattern, samples).tolist(), seed, number)
        for pair in pairs:
            position, index = map(int, pair.split("="))
            assert at(position) == index
    mixes = []
    for (seed, stop, length, number, datasets, *each), (positions, _, *pairs) in LINES["mixed"]:
        if int(positions) > 3000:
            continue
        rows = [each[d * 6 : d * 6 + 6] for d in range(datasets)]
        mix = order_document.Mix([row[:5] for row in rows], [row[5] for row in rows], seed, stop, length)
        assert mix.length == int(positions)
        for pair in pairs:
            position, index = map(int, pair.split("="))
            assert mix.at(number, position) == index
        mixes.append(stop)
    assert {stop: mixes.count(stop) for stop in mixes} == {0: 7, 1: 5, 2: 8}


def test_random_settings_follow_the_document():
    random = np.random.default_rng(4)
    for _ in range(40):
        rows, ratios = [], []
        for _ in range(random.integers(1, 12)):
            kind = int(random.integers(4))
            samples = int(random.choice([1, 2, 5, 100, 256, 257, 1000] if kind > 1 else [1, 3, 256, 257, 10**5, 2**35]))
            window, block = (int(random.integers(1, 400)), int(random.integers(1, 50)))
            rows.append(
                [kind, samples, int(random.integers(2**63)), window if kind > 1 else 0, block if kind == 3 else 0]
            )
            ratios.append(int(random.integers(1, random.choice([3, 1000, 2**27]))))
        seed = int(random.integers(2**63))
        epoch = MixedOrder([order_of(row) for row in rows], ratios, seed, "length", 2**40).epoch(0)
        document = order_document.Mix(rows, ratios, seed, 2, 0)
        for position in random.integers(2**40, size=20).tolist():
            document.turns, document.counts = [document.turn(position)], [0] * len(rows)
            assert document.at(0, 0) == epoch.at(position), (rows, ratios, seed, position)
        weights = random.choice([0.0, 1.0, 5e-324, random.random()], 30) * 10.0 ** random.integers(0, 300, 30)
        weights[int(random.integers(30))] = 1.0
        at = order_document.draws(weights.tolist(), seed, 5)
        draws = WeightedOrder(30, weights, seed, 2**40).epoch(5)
        for position in random.integers(2**40, size=20).tolist():
            assert at(position) == draws.at(position), (weights, seed, position)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.uint8])
def test_numbers_of_numpy_are_as_those_of_python(kind):
    three = kind(3)
    for numpys, pythons in (
        (Order(kind(40), "windows", seed=three, window=three), Order(40, "windows", seed=3, window=3)),
        (MixedOrder([Order(4)], [three], three, "length", three), MixedOrder([Order(4)], [3], 3, "length", 3)),
        (MixedOrder([Order(4)], [np.float64(0.5)]), MixedOrder([Order(4)], [0.5])),
    ):
        assert numpys == pythons
        assert repr(numpys) == repr(pythons)  # in states of loaders
        assert numpys.epoch(three).indices().tolist() == pythons.epoch(3).indices().tolist()
