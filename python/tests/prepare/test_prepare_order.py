"""Index sets, splits and the block sampler."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections import Counter

import numpy as np
import pytest
from helpers import python

from stocached import CorruptError, InvalidError, Order, SampleIndexError, VersionError
from stocached._common.checksum import crc32c
from stocached.prepare import BlockSampler, IndexSet, Split, split

# ------------------------------------------------------------ index sets


def test_local_and_global():
    some = IndexSet([40, 7, 99, 0], 100)
    assert len(some) == 4
    assert list(some) == [40, 7, 99, 0]
    assert [some[k] for k in range(-4, 4)] == [40, 7, 99, 0] * 2
    assert [some.local(index) for index in some] == [0, 1, 2, 3]
    assert 7 in some
    assert 8 not in some
    assert "7" not in some
    for wrong in (4, -5):
        with pytest.raises(SampleIndexError, match=f"local index {wrong} is out of range; the set has 4"):
            some[wrong]
    for wrong in (8, 100, -1, 10**20):
        with pytest.raises(SampleIndexError, match="not in the set"):
            some.local(wrong)
    assert repr(some) == "<stocached.prepare.IndexSet of 4 of 100 samples>"


def test_against_a_dictionary():
    random = np.random.default_rng(0)
    for _ in range(50):
        n = int(random.integers(1, 400))
        chosen = random.permutation(n)[: random.integers(0, n + 1)]
        some, places = IndexSet(chosen, n), {int(index): k for k, index in enumerate(chosen)}
        wanted = random.integers(-5, n + 5, 100)
        found = [some.local(index) if index in some else None for index in wanted]
        assert found == [places.get(int(index)) for index in wanted]
        for again in (
            IndexSet.from_dict(json.loads(json.dumps(some.to_dict()))),
            pickle.loads(pickle.dumps(some)),
            IndexSet(iter(chosen.tolist()), n),
        ):
            assert again == some
            assert hash(again) == hash(some)
    assert IndexSet([1, 2], 3) != IndexSet([2, 1], 3)
    assert IndexSet([1, 2], 3) != IndexSet([1, 2], 4)


@pytest.mark.parametrize(
    ("indices", "text"),
    [([1, 10], "index 10 is not in 0..9"), ([-1], "index -1"), ([1, 3, 1], "index 1 comes twice"), ([0.5], "float64")],
)
def test_invalid_index_sets(indices, text):
    with pytest.raises(InvalidError, match=text):
        IndexSet(indices, 10)


def test_index_sets_are_immutable():
    some = IndexSet(given := np.arange(5), 5)
    given[0] = 4
    assert some[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        some.indices[0] = 3


def test_an_index_set_as_it_is_written():
    """Files that users have stay readable."""
    # the format does not fix which bytes zlib writes
    steps = base64.b64encode(zlib.compress(np.array([3, 1, -2], "<i8").tobytes(), 0)).decode()
    crc = f"{crc32c(np.array([3, 4, 2], '<i8').tobytes()):08x}"
    written = {"format": "stocached-indices", "version": 1, "samples": 10, "count": 3, "indices": steps, "crc32c": crc}
    assert IndexSet.from_dict(written) == IndexSet([3, 4, 2], 10)
    made = IndexSet([3, 4, 2], 10).to_dict()
    assert {**made, "indices": steps} == written
    assert zlib.decompress(base64.b64decode(made["indices"])) == zlib.decompress(base64.b64decode(steps))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"version": 2}, VersionError), ({"format": "x"}, VersionError), ({"count": 4}, CorruptError), ({"samples": 5}, CorruptError),
        ({"crc32c": "00000000"}, CorruptError),
        ({"indices": "!"}, CorruptError), ({"indices": "AAAA"}, CorruptError), ({"indices": 3}, CorruptError), ({"samples": "x"}, CorruptError),
    ],
)  # fmt: skip
def test_damaged_index_sets(change, kind):
    said = IndexSet([3, 9, 2], 10).to_dict()
    with pytest.raises(kind):
        IndexSet.from_dict({**said, **change})
    with pytest.raises(VersionError):
        IndexSet.from_dict("x")
    del said["indices"]
    with pytest.raises(CorruptError):
        IndexSet.from_dict(said)


# ------------------------------------------------------------ splits


def test_a_split_is_what_the_guide_says():
    """Follows the specification step by step, not the code."""
    n, seed = 1000, 12
    made = split(n, 0.2, 37, seed=seed)
    order = [Order(n, "shuffled", seed).epoch(2**64 - 1).at(k) for k in range(n)]
    assert list(made.validation) == sorted(order[:200])
    assert list(made.test) == sorted(order[200:237])
    assert list(made.train) == sorted(order[237:])


def test_splits_stay_the_same():
    made = split(20, 0.25, 3, seed=7)
    assert (list(made.validation), list(made.test)) == (VALIDATION, TEST)
    made = split(12, 3, labels=list("aaaabbbbbbcc"), seed=1)
    assert list(made.validation) == BY_CLASS


VALIDATION, TEST, BY_CLASS = [2, 3, 7, 14, 16], [0, 5, 10], [0, 5, 8]


@pytest.mark.parametrize("classes", [None, 1, 3, 50])
@pytest.mark.parametrize(("validation", "test"), [(0.1, 0.1), (0.5, 0.25), (1, 1), (0, 0), (0.0, 5), (333, 0.333)])
def test_parts_are_the_dataset(classes, validation, test):
    n = 997
    labels = None if classes is None else np.random.default_rng(0).integers(0, classes, n) ** 2
    made = split(n, validation, test, seed=3, labels=labels)
    assert sorted([*made.train, *made.validation, *made.test]) == list(range(n))
    for part, wanted in ((made.validation, validation), (made.test, test)):
        assert len(part) == (wanted if isinstance(wanted, int) else int(wanted * n + 0.5))
        assert list(part) == sorted(part)
    assert made == split(n, validation, test, seed=3, labels=labels)
    assert Split.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    if validation == 0.1:
        assert made != split(n, validation, test, seed=4, labels=labels)


def test_classes_have_their_share():
    random = np.random.default_rng(1)
    labels = np.array(["cat", "dog", "emu", "yak"])[random.choice(4, 2003, p=[0.7, 0.2, 0.095, 0.005])]
    made = split(2003, 0.15, 0.1, labels=labels)
    sizes = Counter(labels.tolist())
    for part, share in ((made.validation, 0.15), (made.test, 0.1)):
        there = Counter(labels[part.indices].tolist())
        for name, size in sizes.items():
            assert abs(there[name] - share * size) <= 1, (name, there, sizes)


def test_classes_are_split_apart_from_each_other():
    """Two classes of one size must not be split in the same way."""
    labels = np.arange(400) // 200
    made = split(400, 0.5, labels=labels)
    first, second = (made.validation.indices[labels[made.validation.indices] == k] % 200 for k in range(2))
    assert len(first) == len(second) == 100
    assert 30 < len(set(first.tolist()) & set(second.tolist())) < 70


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0,), "samples=0"), ((10, 10), "none is left"), ((10, 0.9, 0.1), "none is left"), ((10, -1), "validation=-1"), ((10, 11), "validation=11"),
        ((10, 1.5), "no point"), ((10, True), "validation=True"), ((10, "a"), "validation='a'"), ((10, 0.1, float("nan")), "test=nan"),
    ],
)  # fmt: skip
def test_invalid_splits(arguments, text):
    with pytest.raises(InvalidError, match=text):
        split(*arguments)


def test_invalid_labels():
    for labels in ([1, 2], np.zeros((10, 2)), [object()] * 10):
        with pytest.raises(InvalidError, match="labels have shape"):
            split(10, labels=labels)


def test_a_split_is_the_same_in_another_process():
    code = """
        from stocached.prepare import split
        made = split(300, 0.2, 0.1, seed=9, labels=[k % 3 for k in range(300)])
        print(made.validation.checksum(), made.test.checksum())
    """
    made = split(300, 0.2, 0.1, seed=9, labels=[k % 3 for k in range(300)])
    assert python(code).stdout.split() == [str(made.validation.checksum()), str(made.test.checksum())]


# ------------------------------------------------------------ sampler


@pytest.mark.parametrize(
    ("n", "block", "window"), [(1, 1, 1), (10, 3, 2), (1000, 7, 5), (5000, 64, 8), (5000, 10_000, 1), (300, 1, 300)]
)
def test_the_order_of_a_whole_dataset_is_that_of_the_document(n, block, window):
    sampler = BlockSampler(n, block, window=window, seed=4)
    for epoch in (0, 1, 2**40):
        sampler.set_epoch(epoch)
        assert list(sampler) == Order(n, "blocks", 4, window, block).epoch(epoch).indices().tolist()
        assert len(sampler) == n
    assert list(BlockSampler(n, block, False)) == list(range(n))


def test_some_indices_go_through_the_same_order():
    chosen = split(500, 0.3, seed=1).train
    order = Order(len(chosen), "blocks", 4, 3, 16).epoch(2).indices()
    for indices in (chosen, list(chosen), chosen.indices):
        sampler = BlockSampler(indices, 16, window=3, seed=4)
        sampler.set_epoch(2)
        assert list(sampler) == chosen.indices[order].tolist()
        assert all(type(index) is int for index in sampler)


@pytest.mark.parametrize("ends", ["uneven", "pad", "drop"])
@pytest.mark.parametrize("n", [1, 5, 12, 101])
@pytest.mark.parametrize("world_size", [1, 2, 4, 7])
def test_ranks_are_the_dataset(n, world_size, ends):
    ranks = [BlockSampler(n, 3, window=2, rank=rank, world_size=world_size, ends=ends) for rank in range(world_size)]
    given = [list(rank) for rank in ranks]
    assert [len(rank) for rank in ranks] == list(map(len, given))
    counts = Counter(index for rank in given for index in rank)
    if ends == "uneven":
        assert counts == Counter(range(n))
    else:
        assert len({len(rank) for rank in given}) == 1
        each = -(-n // world_size) if ends == "pad" else n // world_size
        assert sum(counts.values()) == each * world_size
    if ends == "drop":
        assert set(counts.values()) <= {1}


def test_another_number_of_ranks_goes_on():
    n = 103
    whole = Order(n, "blocks", 0, 4, 5).epoch(3).indices().tolist()
    for before in (1, 2, 3):
        for read in range(0, n // before + 1, 5):
            ranks = [BlockSampler(n, 5, window=4, rank=rank, world_size=before) for rank in range(before)]
            seen = []
            for rank in ranks:
                rank.set_epoch(3)
                seen += [index for index, _ in zip(rank, range(read))]
            states = [rank.state_dict(given=read) for rank in ranks]
            assert all(state == states[0] for state in states)
            for after in (1, 2, 4):
                rest = []
                for rank in range(after):
                    sampler = BlockSampler(n, 5, window=4, rank=rank, world_size=after)
                    sampler.load_state_dict(json.loads(json.dumps(states[0])))
                    sampler.set_epoch(3)  # changes nothing
                    left = len(sampler)
                    mine = list(sampler)
                    assert len(mine) == left
                    rest += mine
                assert sorted(seen + rest) == sorted(whole)


def test_states():
    sampler = BlockSampler(20, 4, window=2)
    assert sampler.state_dict()["position"] == 0
    sampler.set_epoch(5)
    passing = iter(sampler)
    first = [next(passing) for _ in range(7)]
    state = sampler.state_dict()
    assert (state["epoch"], state["position"]) == (5, 7)
    rest = list(passing)
    assert sampler.state_dict()["position"] == 20
    again = BlockSampler(20, 4, window=2)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert list(again) == rest
    assert sorted(first + rest) == list(range(20))
    assert len(list(again)) == 20  # the next pass is complete
    again.load_state_dict(state)
    again.set_epoch(6)
    assert len(list(again)) == 20  # another epoch, from its start


def test_states_of_another_order_are_refused():
    state = BlockSampler(20, 4, window=2).state_dict()
    for other, text in [
        (BlockSampler(21, 4, window=2), "samples is 21 here and 20 there"),
        (BlockSampler(20, 5, window=2), "block is 5"),
        (BlockSampler(20, 4, window=3), "window is 3"),
        (BlockSampler(20, 4, window=2, seed=1), "seed is 1"),
        (BlockSampler(20, 4, False), "kind is sequential"),
        (BlockSampler(range(1, 21), 4, window=2), "indices_crc32c"),
    ]:
        with pytest.raises(InvalidError, match=text):
            other.load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "named", "text"),
    [
        ((0,), {}, "indices=0"), (([],), {}, "shape"), (([[1]],), {}, "shape"), (([0.5],), {}, "dtype"), ((10, 0), {}, "block"),
        ((10,), {"rank": 1}, "rank=1"), ((10,), {"world_size": 0}, "world_size"), ((10,), {"ends": "x"}, "ends='x'"),
        ((10,), {"seed": -1}, "seed=-1"), ((10, 1, True, 0), {}, "window"),
    ],
)  # fmt: skip
def test_invalid_samplers(arguments, named, text):
    with pytest.raises(InvalidError, match=text):
        BlockSampler(*arguments, **named)


@pytest.mark.torch
def test_in_torch_s_loader(tmp_path):
    import torch.utils.data
    from prepared import FIELDS, Made, sample

    from stocached.prepare import BlockStorage, PreparedDataset, prepare

    storage = BlockStorage(tmp_path / "d", block_bytes=4096)
    prepare(Made(100), storage)
    chosen = split(100, 0.2, labels=storage.load_field("label")).train
    dataset = PreparedDataset(storage, chosen)
    sampler = BlockSampler(len(dataset), storage.block_samples(), window=2)
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=workers)
        assert len(loader) == 10
        batches = list(loader)
        assert [tuple(batch["image"].shape) for batch in batches] == [(8, 3, 5, 5)] * 10
        order = [chosen[k] for k in sampler]
        images = torch.cat([batch["image"] for batch in batches]).numpy()
        assert np.array_equal(images, np.stack([sample(FIELDS, k)["image"] for k in order]))
