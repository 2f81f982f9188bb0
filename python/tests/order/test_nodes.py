"""The nodes of a job share global batches: the vectors of Go and C, the document, and what must hold."""

from __future__ import annotations

import functools
import itertools
import pickle

import numpy as np
import order_document
import pytest
from test_order import ANY, VECTORS, check_indices, order_of

from stocached import InvalidError, Order
from stocached._order.epoch import ENDS
from stocached._order.nodes import Deal, Owners
from stocached.order import Epoch, Node


def read_deals() -> list[tuple[list[int], list[Node], list[str]]]:
    """The lines of deals: the numbers of the order and the deal, the nodes, and the results."""
    deals = []
    for line in VECTORS.read_text().splitlines():
        if line.startswith("deal "):
            settings, results = line[5:].split(":")
            words = settings.split()
            numbers, nodes = [int(word) for word in words[:9]], words[10:]
            assert len(nodes) == 3 * int(words[9])
            each = [
                Node("" if name == "-" else name, int(ranks), int(capacity))
                for name, ranks, capacity in zip(nodes[::3], nodes[1::3], nodes[2::3])
            ]
            deals.append((numbers, each, results.split()))
    return deals


@functools.cache
def document(nodes: tuple[Node, ...], samples: int) -> order_document.Nodes:
    return order_document.Nodes(
        [node.name for node in nodes], [node.ranks for node in nodes], [node.capacity for node in nodes], samples
    )


def buckets(kept: bytes) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(kept, np.uint8), bitorder="little")).tolist())


def flat(deal: Deal, first: int, count: int) -> np.ndarray:
    """The samples of all batches, rank after rank in each."""
    size = deal.batch_size * deal.world_size
    batches = [
        deal.batch(number).ravel()
        for number in range(first // size, min((first + count - 1) // size + 1, deal.batches_in_all))
    ]
    return np.concatenate([*batches, np.empty(0, np.int64)])[first % size :][:count]


def test_vectors_of_deals():
    lines = read_deals()
    assert len(lines) == 20
    for (*numbers, number, batch_size, start, ends), nodes, (samples, batches, digest, *results) in lines:
        owners = Owners(nodes, numbers[1])
        deal = Deal(order_of(numbers).epoch(number), owners, 0, batch_size, ends=ENDS[ends], start=start)
        assert (len(deal), deal.batches_in_all, deal.digest) == (int(samples), int(batches), int(digest))
        for i, node in enumerate(nodes):
            quota, kept = map(int, results[2 * i : 2 * i + 2])
            assert owners.quota(i) == quota
            assert sum(bucket + 1 for bucket in buckets(owners.keep(i, node.capacity))) == kept
        check_indices(results[2 * len(nodes) :], len(deal) * owners.world_size, functools.partial(flat, deal))


def test_document_says_what_the_library_does():
    seen = 0
    for (*numbers, number, batch_size, start, ends), nodes, _ in read_deals():
        if numbers[1] > 2000:
            continue  # the document's windows are slow
        seen += 1
        epoch, owners = order_of(numbers).epoch(number), Owners(nodes, numbers[1])
        deal = Deal(epoch, owners, 0, batch_size, ends=ENDS[ends], start=start)
        book = document(tuple(nodes), numbers[1])
        assert [owners.quota(i) for i in range(len(nodes))] == book.quota
        everything = np.arange(numbers[1])
        assert owners.find(everything).tolist() == [
            node if node < len(nodes) else -1 for node in map(book.owner_of, everything.tolist())
        ]
        for i, node in enumerate(nodes):
            assert buckets(owners.keep(i, node.capacity)) == book.keep(i, node.capacity)
            assert owners.keep(i) == b"\xff" * 8192
        assert deal.digest == book.digest(epoch.at, len(epoch), number, batch_size, start, ends)
        for g in range(deal.batches_in_all):
            dealt = book.deal(epoch.at, len(epoch), batch_size, start, ENDS[ends] == "pad", g)
            assert deal.batch(g).tolist() == dealt
    assert seen == 15


JOBS = [[Node()], [Node(ranks=3), Node(ranks=1)], [Node("b", 2, 60), Node("a", 1, 10), Node("c", 2, 1000)]]


@pytest.mark.parametrize("order", ANY, ids=str)
@pytest.mark.parametrize("ends", ["pad", "drop"])
def test_global_batches_have_the_samples_of_the_plain_order(order, ends):
    epoch = order.epoch(3)
    for nodes in JOBS:
        owners = Owners(nodes, order.samples)
        ranks = owners.world_size
        for start in (0, len(epoch) // 2, len(epoch) - 1, len(epoch)):
            for batch_size in (1, 7, 64):
                plain = [epoch.shard(rank, ranks, ends=ends, start=start) for rank in range(ranks)]
                deals = [Deal(epoch, owners, rank, batch_size, ends=ends, start=start) for rank in range(ranks)]
                assert {len(deal) for deal in deals} == {len(plain[0])}
                assert len({deal.digest for deal in deals}) == 1
                for drop_last in (False, True):
                    assert deals[0].batches(batch_size, drop_last) == plain[0].batches(batch_size, drop_last)
                for g in range(deals[0].batches_in_all):
                    theirs = [shard.indices(g * batch_size, batch_size).tolist() for shard in plain]
                    assert sorted(deals[-1].batch(g).ravel().tolist()) == sorted(itertools.chain.from_iterable(theirs))
                rows = [list(deal) for deal in deals]
                assert {len(row) for row in rows} == {len(plain[0])}
                assert (
                    pickle.loads(pickle.dumps(deals[-1])).batch(0).tolist() == deals[0].batch(0).tolist()
                    if rows[0]
                    else True
                )
                assert deals[0].position(batch_size) == plain[0].position(batch_size)


def test_a_digest_tells_each_setting():
    def digest(order=None, number=0, nodes=None, batch=8, ends="pad", start=0):
        order, nodes = order or Order(1000, seed=1), nodes or [Node("a"), Node("b")]
        return Deal(Epoch(order, number), Owners(nodes, order.samples), 0, batch, ends=ends, start=start).digest

    changed = [
        digest(),
        digest(order=Order(1000, seed=2)),
        digest(order=Order(1001, seed=1)),
        digest(order=Order(1000, "windows", 1, window=10)),
        digest(number=1),
        digest(nodes=(Node("a"), Node("c"))),
        digest(nodes=(Node("b"), Node("a"))),
        digest(nodes=(Node("a", 2), Node("b", 2))),
        digest(nodes=(Node("a", 1, 700), Node("b", 1, 300))),
        digest(batch=9),
        digest(ends="drop"),
        digest(start=8),
    ]
    assert len(set(changed)) == len(changed)
    assert digest() == digest()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Owners([], 10), "0 nodes"),
        (lambda: Owners([Node()], 0), "0 samples"),
        (lambda: Owners([Node("a"), Node("a")], 10), "nodes 0 and 1 have the same name, a"),
        (lambda: Owners([Node("a"), Node()], 10), "a name of 0 bytes"),
        (lambda: Owners([Node("x" * 256)], 10), "a name of 256 bytes"),
        (lambda: Owners([Node("a\0b")], 10), "must not contain NUL"),
        (lambda: Owners([Node(ranks=0)], 10), "has 0 ranks"),
        (lambda: Owners([Node(ranks=-1)], 10), "ranks=-1"),
        (lambda: Owners([Node()], 10).quota(1), "has no such node"),
        (lambda: Owners([Node()], 10).keep(1), "has no such node"),
        (lambda: Owners([Node()], 10).node_of(1), r"rank=1 is not in 0\.\.0"),
        (lambda: Deal(Order(10).epoch(0), Owners([Node()], 10), 0, 4, ends="uneven"), 'give "pad" or "drop"'),
        (lambda: Deal(Order(10).epoch(0), Owners([Node()], 10), 0, 0), "batch: 0 samples"),
        (lambda: Deal(Order(10).epoch(0), Owners([Node()], 10), 0, 4, start=11), "from: 11 is after"),
        (lambda: Deal(Order(10).epoch(0), Owners([Node()], 10), 0, 4).batch(3), r"batch 3 is not in 0\.\.2"),
        (lambda: Deal(Order(10).epoch(0), Owners([Node()], 10), 0, 4).batches(5), "dealt by 4 samples"),
        (lambda: Deal(Order(10).epoch(0), Owners([Node()], 10), 0, 4).position(-1), "read=-1"),
    ],
)
def test_what_cannot_be(make, message):
    with pytest.raises(InvalidError, match=message):
        make()
