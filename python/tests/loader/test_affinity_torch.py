"""Ranks of torch.distributed agree on their nodes, and train as with the plain order."""

from __future__ import annotations

import json
import os
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from served import until
from test_affinity import Store
from torch_helpers import DataLoader, SourceDataset, run_ranks

from stocached import Cache, State
from stocached._loader import affinity
from stocached._loader.gather import Gatherer
from stocached._order.nodes import Owners
from stocached.order import Node

pytestmark = pytest.mark.torch

START = """
    import json, os, sys, torch, torch.distributed as dist
    from stocached import InvalidError
    from stocached.torch import DataLoader

    rank, ranks, node, store, name, kind = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:7]
    os.environ["STOCACHED_NODE"] = node
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)

    class Images(torch.utils.data.Dataset):
        def __len__(self): return 500
        def __getitem__(self, k):
            return torch.full((3, 8, 8), k % 251, dtype=torch.uint8), torch.tensor(k)
"""

TRAIN = """
    def train(epochs, **settings):
        torch.manual_seed(0)
        model = torch.nn.Linear(192, 2)
        if kind == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
        weight = next(model.parameters())
        # fork: from Python 3.14 on, the default would import this program, which has no guard, in its fork server
        loader = DataLoader(Images(), 16, shuffle=True, seed=5, num_workers=1, persistent_workers=True,
                            multiprocessing_context="fork", **settings)
        steps, hits = [], []
        for epoch in range(epochs):
            before = loader.stats()
            for images, labels in loader:
                model.zero_grad()
                torch.nn.functional.cross_entropy(model(images.flatten(1) / 255.0), labels % 2).backward()
                whole = weight.grad if kind == "ddp" else weight.grad.full_tensor()
                steps.append((labels.tolist(), whole.clone()))
            hits.append((loader.stats() - before).hit_rate)
        loader.close()
        return steps, hits

    plain, _ = train(2)
    dealt, hits = train(3, name=name, affinity="node")
    assert len(plain) * 3 == len(dealt) * 2
    differences = [float((a - b).abs().max()) for (_, a), (_, b) in zip(plain, dealt)]
    print(json.dumps({"plain": [labels for labels, _ in plain], "dealt": [labels for labels, _ in dealt[: len(plain)]],
                      "off": max(differences), "size": float(plain[0][1].abs().max()), "hits": hits}))
    dist.destroy_process_group()
"""


def run(warm, tmp_path: Path, code: str, nodes: list[str], names: list[str], kind: str = "ddp") -> list[str]:
    """What each rank prints. nodes, names: of the node and the cache of each rank. kind: of parallel training."""
    program = tmp_path / "rank.py"
    program.write_text(textwrap.dedent(START) + textwrap.dedent(code))
    done = run_ranks(
        warm,
        program,
        lambda rank: [rank, len(nodes), nodes[rank], tmp_path / "store", names[rank], kind],
        len(nodes),
    )
    for rank in done:
        assert rank.returncode == 0, rank.stderr
    return [rank.stdout for rank in done]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_gradients_agree_with_the_plain_order(warm_ranks, cache_name, tmp_path, kind):
    """Two ranks on one node, and one on another."""
    names = [f"{cache_name}-a", f"{cache_name}-a", f"{cache_name}-b"]
    try:
        results = [json.loads(text) for text in run(warm_ranks, tmp_path, TRAIN, ["a", "a", "b"], names, kind)]
    finally:
        remove(names)
    for step in range(len(results[0]["plain"])):
        plain, dealt = ([result[kind][step] for result in results] for kind in ("plain", "dealt"))
        assert [len(batch) for batch in plain] == [len(batch) for batch in dealt]
        assert sorted(sum(plain, [])) == sorted(sum(dealt, []))  # noqa: RUF017
        assert results[0]["off"] < 1e-5 * max(results[0]["size"], 1)
    assert results[0]["size"] > 0
    assert any(results[0]["plain"][k] != results[0]["dealt"][k] for k in range(5)), "nothing was dealt"
    assert all(result["hits"][2] > 0.85 for result in results), [result["hits"] for result in results]


DIFFER = """
    from stocached import Order
    from stocached.order import Node
    from stocached._order.order import MixedOrder, WeightedOrder
    same = {"batch_size": 16, "shuffle": True, "seed": 5, "name": name, "affinity": "node"}
    two = [Node("a", 1), Node("b", 1)]
    weights = [1.0] * 499 + [2.0]

    def at(epoch=0, batches=0):  # a state in the middle of an epoch
        alone = DataLoader(Images(), **{**same, "affinity": None}, rank=0, world_size=2)
        alone.set_epoch(epoch)
        state = alone.state_dict()
        if batches:
            begun = iter(alone)
            for _ in range(batches):
                next(begun)
            state = alone.state_dict()
        alone.close()
        return state

    def order(one): return {"shuffle": None, "seed": None, "order": one}

    # what rank 0 and rank 1 have beside `same`, a state, and the setting that the error names
    cases = [
        ({"batch_size": 8}, {}, "batch_size=: "),
        ({"seed": 6}, {}, "seed=: "),
        ({"shuffle": False}, {}, "kind of order (shuffle=, order=): "),
        ({"ends": "drop"}, {}, "ends=: "),
        ({"drop_last": True}, {}, "drop_last=: "),
        ({"affinity": two, "dataset": torch.utils.data.Subset(Images(), range(490)), "name": name + "-subset"},
         {"affinity": two}, "the number of samples: "),
        ({"state": at(epoch=3)}, {}, "epoch: "),
        ({"state": at(batches=2)}, {}, "position: "),
        ({"affinity": two}, {"affinity": [Node("a", 1), Node("c", 1)]}, "affinity=: "),
        ({"affinity": [Node("a", 1, 9), Node("b", 1, 7)]}, {"affinity": [Node("a", 1, 9), Node("b", 1, 6)]}, "affinity=: "),
        (order(Order(500, "windows", 5, window=10)), order(Order(500, "windows", 5, window=20)), "window=: "),
        (order(Order(500, "blocks", 5, window=2, block=10)), order(Order(500, "blocks", 5, window=2, block=20)), "block=: "),
        (order(WeightedOrder(500, weights, 5)), order(WeightedOrder(500, [1.0] * 500, 5)), "order=: "),
        (order(WeightedOrder(500, weights, 5, draws=90)), order(WeightedOrder(500, weights, 5, draws=80)), "draws=: "),
        (order(MixedOrder([Order(400), Order(100)], (3, 1))), order(MixedOrder([Order(400), Order(100)], (3, 2))), "ratios=: "),
        ({}, {}, None),
    ]
    for mine, other, setting in cases:
        given = {**same, **(other if rank else mine)}
        dataset, state = given.pop("dataset", Images()), given.pop("state", None)
        loader = DataLoader(dataset, **{key: value for key, value in given.items() if value is not None})
        if state is not None:
            loader.load_state_dict(state)
        try:
            batches = iter(loader)
            next(batches)
            print(json.dumps([setting, None]))
        except InvalidError as error:
            print(json.dumps([setting, str(error)]))
        dist.barrier()
        loader.close()
    loader = DataLoader(Images(), 16, shuffle=True, seed=5, size="8MiB", affinity="node", local_world_size=2)
    try:
        next(iter(loader))
    except InvalidError as error:
        print(error)
    dist.barrier()
    dist.destroy_process_group()
"""


def test_ranks_that_differ_stop(warm_ranks, cache_name, tmp_path):
    """Whatever the setting is in which two ranks differ, both stop, and name it. With a list of nodes, the rank that begins
    later does, and the other one when it begins its next epoch."""
    names = [cache_name, cache_name + "-subset"]
    try:
        outputs = run(warm_ranks, tmp_path, DIFFER, ["a", "a"], [cache_name, cache_name])
    finally:
        remove(names)
    lines = [text.splitlines() for text in outputs]
    assert len(lines[0]) == len(lines[1]) > 10
    for one, other in zip(*(map(json.loads, rank[:-1]) for rank in lines)):
        setting, errors = one[0], [text for text in (one[1], other[1]) if text is not None]
        if setting is None:
            assert errors == []
            continue
        listed = (
            setting == "affinity=: " or "number of samples" in setting
        )  # with a list of nodes no rank waits for others
        assert len(errors) == (1 if listed else 2), (setting, errors)
        assert all(f"differ in {setting}" in text for text in errors)
    for rank in lines:
        assert "the 2 ranks on a have caches of their own" in rank[-1]


def remove(names: list[str]) -> None:
    for name in names:
        Path(f"/dev/shm/stocached-{os.geteuid()}/{name}").unlink(missing_ok=True)


def half(dataset, nodes, workers=0):
    """The loader of the first of two nodes."""
    given = {"shuffle": True, "seed": 1, "rank": 0, "world_size": 2, "affinity": nodes, "ends": "drop"}
    return DataLoader(dataset, 20, num_workers=workers, **given)


def test_a_server_stores_what_its_node_keeps(server):
    """The server sends the samples of other nodes, stores none of them, and reads none ahead. Here one node of
    two reads."""
    server.records(400, size="4500kB")
    dataset = SourceDataset(server.name, timeout=60)
    nodes = [Node("a", 1, dataset.cache.slots), Node("b", 1, dataset.cache.slots)]
    assert 100 < nodes[0].capacity < 400
    for workers in (0, 2):
        loads = half(dataset, nodes, workers)
        for _ in range(2):
            assert sum(len(batch) for batch in loads) == 200
        loads.close()
        kept = np.frombuffer(Owners(nodes, 400).keep(0, nodes[0].capacity), np.uint8)
        index = np.arange(400, dtype=np.uint64)
        there = np.flatnonzero(Cache.attach(server.path).states() == State.READY)
        assert len(there) > 100
        assert kept_of(kept, index)[there].all(), "the server has stored samples that the node does not keep"


def test_a_disk_of_the_server_counts(server, tmp_path, monkeypatch):
    """The node owns as much as the tier `disk` of its server holds, and memory and disk keep that."""
    store = Store()
    monkeypatch.setattr(affinity, "_store", lambda _: store)
    server.records(4000, size="5MB", tiers=[{"kind": "disk", "dir": str(tmp_path), "size": (2 << 20) + (1500 << 10)}])
    cache = Cache.attach(server.path)
    below = int(cache._handle.info().below)
    assert cache.slots + 500 < below < 2000
    told = affinity._capacity(SourceDataset(server.name).cache)
    assert told == below
    nodes = [affinity.Node("a", 1, below), affinity.Node("b", 1, 4000)]
    loads = half(SourceDataset(server.name), nodes)
    assert sum(len(batch) for batch in loads) == 2000
    kept = np.frombuffer(Owners(nodes, 4000).keep(0, below), np.uint8)
    there = np.flatnonzero(cache.states() == State.READY)
    assert len(there) > cache.slots // 2
    assert kept_of(kept, np.arange(4000, dtype=np.uint64))[there].all()
    loads.close()


@pytest.mark.parametrize("late", [False, True])
def test_the_first_epoch_brings_what_a_node_owns_and_others_read(server, late, monkeypatch):
    """In the first epoch other nodes read some of what a node owns. Its server reads these samples too, so the second
    epoch finds them. late: the thread that asks for them begins when the epoch has ended."""
    ended, prefetch = threading.Event(), Gatherer.prefetch
    if late:
        monkeypatch.setattr(Gatherer, "prefetch", lambda *given: ended.wait(60) and prefetch(*given))
    server.records(4000)
    nodes = [Node("a", 1), Node("b", 1)]
    owned = np.flatnonzero(Owners(nodes, 4000).find(np.arange(4000)) == 0)
    loads = half(SourceDataset(server.name), nodes)
    assert sum(len(batch) for batch in loads) == 2000
    ended.set()
    cache = Cache.attach(server.path)
    until(lambda: (cache.states()[owned] == State.READY).all())
    loads.close()


def kept_of(kept, index):
    """Whether the bucket of each sample is kept."""
    with np.errstate(over="ignore"):
        x = index + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bucket = (x ^ (x >> np.uint64(31))) % np.uint64(65536)
    return (kept[(bucket // 8).astype(int)] >> (bucket % 8).astype(np.uint8)) & 1
