"""Loaders deal global batches to the nodes whose caches own the samples. The ranks of all nodes run here in
one process, each node with a cache of its own."""

from __future__ import annotations

import datetime
import itertools
import pickle
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from stocached import Cache, InvalidError, Loader, Order, State, _native
from stocached._cache import disk
from stocached._loader import affinity
from stocached._order.nodes import Deal, Owners
from stocached.order import Node

SAMPLES = 7 * 13 + 5


class Numbers:
    """Counts the loads of each sample."""

    def __init__(self, samples: int = SAMPLES, values: int = 16) -> None:
        self.samples, self.values, self.loads = samples, values, Counter[int]()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        self.loads[index] += 1
        return np.full(self.values, index, np.int64)


def job(
    nodes: list[Node], *, samples: int = SAMPLES, batch_size: int = 7, slots: int = SAMPLES, **settings
) -> list[Loader]:
    """A loader for each rank. The ranks of a node share a cache."""
    loaders = []
    for node in nodes:
        cache = Cache.create(samples=samples, shape=(16,), dtype=np.int64, slots=node.capacity or slots)
        for _ in range(node.ranks):
            arguments: dict[str, Any] = {"shuffle": True, "seed": 3, "cache": cache, "affinity": nodes, **settings}
            arguments |= {"rank": len(loaders), "world_size": sum(node.ranks for node in nodes)}
            loaders.append(Loader(Numbers(samples), batch_size, **arguments))
    return loaders


def read(loaders: list[Loader], batches: int | None = None) -> list[list[list[int]]]:
    """The samples of each batch of each rank, read side by side."""
    iterators = [iter(loader) for loader in loaders]
    steps = []
    while batches is None or len(steps) < batches:
        step = [next(iterator, None) for iterator in iterators]
        if step[0] is None:
            assert step == [None] * len(step), "a rank has more batches"
            break
        for batch in step:
            assert (batch == batch[:, :1]).all()
        steps.append([batch[:, 0].tolist() for batch in step])
    return steps


def together(step: list[list[int]]) -> list[int]:
    """The samples of a global batch."""
    return sorted(itertools.chain.from_iterable(step))


JOBS = [
    [Node(), Node()],
    [Node(ranks=3), Node(ranks=1)],
    [Node("b", 2, 60), Node("a", 1, 10), Node("c", 2, 40)],
]


@pytest.mark.parametrize(
    ("nodes", "ends", "workers"),
    [*((nodes, ends, 0) for nodes in JOBS for ends in ("pad", "drop")), (JOBS[1], "pad", 1)],
    ids=str,
)
def test_global_batches_are_those_of_the_plain_order(nodes, ends, workers):
    dealt = job(nodes, ends=ends, num_workers=workers, worker="thread" if workers else None)
    plain = [
        Loader(Numbers(), 7, shuffle=True, seed=3, ends=ends, rank=rank, world_size=len(dealt))
        for rank in range(len(dealt))
    ]
    assert [len(loader) for loader in dealt] == [len(loader) for loader in plain]
    for _ in range(2):
        steps, wanted = read(dealt), read(plain)
        assert len(steps) == len(wanted) == len(dealt[0])
        for step, other in zip(steps, wanted):
            assert [len(batch) for batch in step] == [len(batch) for batch in other]
            assert together(step) == together(other)
    for loader in dealt:
        loader.close()


def test_nodes_read_and_keep_what_they_own():
    nodes = [Node("a", 1, 1000), Node("b", 1, 667), Node("c", 1, 667)]
    loaders = job(nodes, samples=2000, batch_size=128, ends="drop")
    owners = Owners(nodes, 2000)
    for _ in range(3):
        read(loaders)
    for number, loader in enumerate(loaders):
        there = np.flatnonzero(loader.cache.states() == State.READY)
        kept = np.unpackbits(np.frombuffer(owners.keep(number, nodes[number].capacity), np.uint8), bitorder="little")
        owned = np.flatnonzero(owners.find(np.arange(2000)) == number)
        assert len(there) > 600
        assert kept.sum() == nodes[number].capacity * 65536 // 2000
        if number:  # it has no room for copies of others
            assert np.isin(there, owned).mean() > 0.99
        before = loader.stats()
        read(loaders)
        assert (loader.stats() - before).hit_rate > 0.9


class Store:
    """A stand-in for the store of torch.distributed, for ranks that are threads."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> str:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("timeout")

    def compare_set(self, key: str, expected: str, value: str) -> str:
        with self.changed:
            assert expected == ""
            return self.values.setdefault(key, value)


def test_the_capacity_of_a_node_counts_its_disk(tmp_path, monkeypatch):
    """Two nodes have memory for a ninth of the dataset each, and disks for more than the rest together."""
    store, samples, loaders, settings = Store(), 1000, [], {"affinity": "node", "local_world_size": 1}
    monkeypatch.setattr(affinity, "_store", lambda _: store)
    monkeypatch.setattr(affinity, "_TIMEOUT", 20)
    for rank in range(2):
        cache = Cache.create(samples=samples, shape=(512,), dtype=np.int64, slots=112)
        folder = tmp_path / str(rank)
        folder.mkdir()
        cache._disk = disk.open_behind(cache, (2 << 20) + 420 * 4096, folder, "numbers")
        assert 400 < cache._disk.slots <= 420
        loaders.append(
            Loader(Numbers(samples, 512), 50, shuffle=True, seed=3, cache=cache, rank=rank, world_size=2, **settings)
        )
        loaders[-1]._affinity._number = 0  # as if it were the first of its process

    def epoch() -> list[int]:
        """The loads of each node."""
        before = [loader.dataset.loads.total() for loader in loaders]
        with ThreadPoolExecutor(2) as ranks:  # iter() waits for the other rank
            assert [sum(map(len, batches)) for batches in ranks.map(list, loaders)] == [500, 500]
        assert all(loader.cache._disk.flush() for loader in loaders)
        return [loader.dataset.loads.total() - was for loader, was in zip(loaders, before)]

    loads = [epoch() for _ in range(3)]
    capacities = [node.capacity for node in loaders[0]._affinity._owners.nodes]
    assert capacities == [112 + loader.cache._disk.slots for loader in loaders]
    assert max(loads[2]) < 50, f"{loads} of 500 reads: the memory alone decided who owns what"


def test_the_rank_that_was_ahead_stops_too(monkeypatch):
    """Nobody waits for the second one, so the first one learns of it when it begins its next epoch."""
    store = Store()
    monkeypatch.setattr(affinity, "_store", lambda _: store)
    first, second = job([Node("a"), Node("b")])
    first._affinity._number = second._affinity._number = 0  # as in two processes
    iter(first)
    second.set_epoch(3)
    for loader in (second, first):
        with pytest.raises(InvalidError, match="ranks 0 and 1 differ in epoch: 0 and 3"):
            iter(loader)


def test_an_epoch_that_one_rank_begins_twice(monkeypatch):
    """Its cache was cleared after the rank had begun the epoch ahead. The ranks still compare the same epochs."""
    store = Store()
    monkeypatch.setattr(affinity, "_store", lambda _: store)
    first, second = job([Node("a"), Node("b")])
    first._affinity._number = second._affinity._number = 0  # as in two processes
    epochs = 0
    while first._next is None:  # it begins only hits ahead, and each epoch brings some more
        read([first, second])
        epochs += 1
        assert epochs < 20
    begun = first._next
    first.cache.clear()
    for _ in range(2):
        read([first, second])
    assert begun.ended, "the epoch was not dropped"
    for loader in (first, second):
        loader.set_epoch(epochs + 2 + (loader is second))
    iter(first)
    with pytest.raises(InvalidError, match=f"ranks 0 and 1 differ in epoch: {epochs + 2} and {epochs + 3}"):
        iter(second)


@pytest.mark.parametrize("before", range(4))
def test_another_number_of_nodes_continues(before):
    """Of 7 x 13 + 5 samples, from 3 nodes to 2 in the middle of an epoch."""
    three, two = job([Node(f"n{k}") for k in range(3)]), job([Node("n0", 2), Node("n1")], batch_size=5)
    seen = [index for step in read(three, before) for batch in step for index in batch]
    states = [loader.state_dict() for loader in three]
    assert states[0] == states[1] == states[2]
    assert states[0]["position"] == min(before * 21, SAMPLES)
    for loader in two:
        loader.load_state_dict(states[0])
    rest = read(two)
    seen += [index for step in rest for batch in step for index in batch]
    assert set(seen) == set(range(SAMPLES))
    assert len(seen) - SAMPLES < 3, "more repeats than padding asks for"
    assert [loader.state_dict()["epoch"] for loader in two] == [states[0]["epoch"] + 1] * 2 + [states[0]["epoch"] + 1]
    for loader in three:
        loader.close()


def test_one_rank_reads_the_plain_order():
    dealt = Loader(Numbers(), 7, shuffle=True, seed=3, size="8MiB", affinity="node")
    plain = Loader(Numbers(), 7, shuffle=True, seed=3)
    assert read([dealt]) == read([plain])


def test_names_and_not_their_order_decide():
    """The nodes come back in another order: the samples of each name stay."""
    nodes = [Node("a"), Node("b"), Node("c")]
    first = read(job(nodes))
    second = read(job(nodes[::-1]))
    by_name = [{index for step in steps for index in step[k]} for steps, k in ((first, 0), (second, 2))]
    assert len(by_name[0] & by_name[1]) / len(by_name[0]) > 0.75  # a third of them by chance


@pytest.mark.parametrize("short", [0, 4001], ids=["long", "short"])
def test_ranks_of_a_node_deal_ahead_and_share(monkeypatch, short):
    """In groups of 6 batches, each once; an iterator that was given up has dealt 9 of them ahead. An epoch of few samples is
    not worth it."""
    from stocached._loader import dealt_batches
    from stocached._order.nodes import Deal

    dealt: Counter[int] = Counter()
    monkeypatch.setattr(dealt_batches, "_SHORT", short)
    monkeypatch.setattr(dealt_batches, "_GROUP", 250)
    monkeypatch.setattr(dealt_batches, "_PATIENCE", 60)
    real = Deal.node_batch

    def counted(self, number):
        dealt[number] += 1
        return real(self, number)

    monkeypatch.setattr(Deal, "node_batch", counted)
    nodes = [Node("a", 4)]
    loaders = job(nodes, samples=4000, slots=4000, batch_size=10)
    plain = [Loader(Numbers(4000), 10, shuffle=True, seed=3, rank=rank, world_size=4) for rank in range(4)]
    for step, other in zip(read(loaders), read(plain)):
        assert together(step) == together(other)
    assert len(dealt) == 100
    every = sum(dealt.values())
    assert every >= 400 if short else every < 165, f"{every} of 100 batches; 400 alone"


def test_a_rank_deals_what_others_do_not(monkeypatch):
    """Three of four ranks of the node never come. The rank waits once for each of them."""
    from stocached._loader import dealt_batches

    monkeypatch.setattr(dealt_batches, "_SHORT", 0)
    monkeypatch.setattr(dealt_batches, "_GROUP", 250)
    owners = Owners([Node("a", 4), Node("b", 4)], 4000)
    deal = Deal(Order(4000, seed=8).epoch(0), owners, 1, 9, ends="pad")
    assert [rows.tolist() for rows in dealt_batches.dealt_batches(deal, False)] == [
        deal.batch(number)[1].tolist() for number in range(deal.batches_in_all)
    ]


def test_a_cache_in_another_process_keeps_the_same(cache_name):
    cache = Cache.create(cache_name, samples=100, shape=(4,), dtype=np.uint8)
    owners = Owners([Node("a", 1, 50), Node("b", 1, 50)], 100)
    cache._keep(owners.keep(0, 50))
    again = pickle.loads(pickle.dumps(cache))
    owned = owners.find(np.arange(100)) == 0
    assert 0 < owned.sum() < 100
    for index in range(100):
        handle = (cache, again)[index % 2]
        assert handle.put(index, np.zeros(4, np.uint8)).name == ("STORED" if owned[index] else "OUT")
        assert cache.get(index) is not None if owned[index] else cache.get(index) is None
    stranger = int(np.flatnonzero(~owned)[0])
    assert "this handle keeps only some samples" in str(cache._handle.error(_native.OUT, stranger))
    cache._keep(None)
    assert cache.put(stranger, np.zeros(4, np.uint8)).name == "STORED"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"affinity": "rank"}, "affinity='rank'; it must be \"node\""),
        ({"affinity": []}, 'it must be "node", or a stocached.order.Node for each node'),
        ({"affinity": [1]}, "a stocached.order.Node for each node"),
        ({"seed": None}, "give seed= or order="),
        ({"ends": "uneven"}, 'ends="uneven" with affinity='),
        ({"batch_size": None}, "give batch_size="),
        ({"size": None}, "this loader has no cache; give size= or name="),
        ({"local_world_size": 0}, "local_world_size=0"),
        ({"affinity": [Node(), Node()], "local_world_size": 1}, 'local_world_size= is for affinity="node"'),
    ],
)
def test_what_cannot_be(settings, message):
    arguments = {"batch_size": 4, "seed": 1, "size": "8MiB", "affinity": "node", "rank": 0, "world_size": 2} | settings
    with pytest.raises(InvalidError, match=message):
        Loader(Numbers(), **arguments)


@pytest.mark.filterwarnings("ignore:.*makes a private cache")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"world_size": 7, "local_world_size": 3},
            r"world_size=7 is not a multiple of local_world_size=3.*\[Node\(ranks=3\), Node\(ranks=3\), Node\(ranks=1\)\], or correct",
        ),
        ({"world_size": 2}, "with world_size=2: the ranks of each node are not known. Give local_world_size="),
        ({"world_size": 3, "affinity": [Node(), Node()]}, "the nodes have 2 ranks together, and world_size=3"),
        (
            {"world_size": 2, "affinity": [Node("a"), Node("a")]},
            "nodes 0 and 1 have the same name, a; give each node a name of its own",
        ),
    ],
)
def test_what_an_epoch_finds_out(settings, message, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    loader = Loader(Numbers(), 4, seed=1, size="8MiB", **({"affinity": "node", "rank": 0} | settings))
    assert len(loader) > 0
    with pytest.raises(InvalidError, match=message):
        next(iter(loader))


def test_ranks_are_grouped_by_node():
    from stocached._loader.affinity import grouped

    def told(node, local=0, capacity=10, cache=None):
        return {"node": node, "local_world_size": local, "capacity": capacity, "cache": cache or node}

    assert grouped([told("a"), told("a"), told("a"), told("b", capacity=5)]) == [("a", 3, 10), ("b", 1, 5)]
    assert grouped([told("a", 2), told("a", 2), told("b", 1)]) == [("a", 2, 10), ("b", 1, 10)]
    assert grouped([told("a", 1), told("a", 1, cache="x")]) == [("", 1, 10), ("", 1, 10)], "two nodes on one machine"
    for ranks, message in [
        ([told("a", 2)], "rank 0 says that its node has 2 ranks"),
        ([told("a", 2), told("b", 2)], "the ranks 0 to 1 of 2 are not on one node"),
        ([told("a", 2), told("a", 1)], "not on one node"),
        ([told("a"), told("a", cache="x")], "have caches of their own.*name="),
    ]:
        with pytest.raises(InvalidError, match=message):
            grouped(ranks)
