"""Random loaders, and a plain model of what they give: the indices of each batch, by docs/spec/order.md."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import order_document

from stocached import Order
from stocached._order.order import MixedOrder, WeightedOrder
from stocached.order import Node

POLICIES = ("first-come", "first-indices", "cost", "lru", "clock", "random", "fifo", "lfu")
JOBS = ([Node("a"), Node("b", 2)], [Node("c", 2), Node("b", 1)], [Node("only", 3)])
AFFINE = 103  # samples: to make the table of a job's nodes takes a while


class Rows:
    """Sample i: its number, and bytes that follow from it."""

    def __init__(self, n: int, most: int, variable: bool) -> None:
        self.n, self.most, self.variable = n, most, variable

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.n:
            raise IndexError(index)
        length = 1 + index * 7919 % self.most if self.variable else self.most
        return {"index": np.int64(index), "bytes": np.full(length, (index * 31 + 7) % 251, np.uint8)}


def drawn(sample: Any, generator: np.random.Generator) -> Any:
    return sample | {"drawn": np.float64(generator.random())}


def listed(samples: list[Any]) -> Any:
    return {name: [sample[name] for sample in samples] for name in samples[0]}


@dataclass
class Case:
    """A job: an order, its ranks, and how they read it."""

    order: Any
    batch_size: int
    drop_last: bool
    world_size: int
    ends: str | None  # None: one rank
    nodes: list[Node] | None
    dataset: Any
    augment: Any
    settings: dict[str, Any] = field(default_factory=dict)  # arguments of all its loaders
    cache: dict[str, Any] = field(default_factory=dict)

    def given(self) -> dict[str, Any]:
        """Arguments of a loader for any rank."""
        ranks = {} if self.world_size == 1 else {"world_size": self.world_size, "ends": self.ends}
        nodes = {} if self.nodes is None else {"affinity": self.nodes}
        common = {"batch_size": self.batch_size, "drop_last": self.drop_last, "order": self.order}
        return {**common, "augment": self.augment, **ranks, **nodes, **self.settings}

    def batches(self, epoch: int, rank: int, start: int = 0) -> list[list[int]]:
        """The indices of each batch of a rank."""
        indices = self.order.epoch(epoch).indices().tolist()
        n, ranks, size = len(indices), self.world_size, self.batch_size
        left = n - start
        each = {"pad": -(-left // ranks), "drop": left // ranks}.get(
            self.ends or "", (left + ranks - 1 - rank) // ranks
        )
        full = (-(-left // ranks) if self.ends == "pad" else left // ranks) // size
        count = full if self.drop_last else -(-each // size)
        if self.nodes is not None:
            table = _table(tuple(self.nodes))
            deals = (table.deal(indices.__getitem__, n, size, start, self.ends == "pad", g) for g in range(count))
            return [deal[rank] for deal in deals]
        mine = [indices[(start + rank + k * ranks) % n] for k in range(each)]
        return [mine[k * size : (k + 1) * size] for k in range(count)]


@functools.cache
def _table(nodes: tuple[Node, ...]) -> order_document.Nodes:
    return order_document.Nodes([node.name for node in nodes], [node.ranks for node in nodes], [0] * len(nodes), AFFINE)


def order_of(random: random.Random, n: int) -> Any:
    seed = random.randrange(1 << 30)
    kind = random.choice(["sequential", "shuffled", "shuffled", "windows", "blocks", "weighted", "mixed"])
    if kind == "weighted":
        weights = [random.choice([0, 1, 1, 5]) for _ in range(n - 1)] + [1]
        return WeightedOrder(n, weights, seed, draws=random.choice([None, 1, n, 2 * n + 1]))
    if kind == "mixed" and n > 2:
        parts = [Order(n // 3, seed=1), Order(n - n // 3, "sequential")]
        stop = random.choice(["first", "all", "length"])
        return MixedOrder(parts, [2, 1], seed, stop, length=n if stop == "length" else 0)
    window = {"windows": {"window": 8}, "blocks": {"window": 2, "block": 5}}.get(kind, {})
    return Order(n, "shuffled" if kind == "mixed" else kind, seed, **window)


def case_of(random: random.Random, pictures: Any, folder: str) -> Case:
    """pictures: a dataset of pictures with their indices as labels. folder: for disk caches."""
    kind = random.choice(["rows", "rows", "variable", "pictures"])
    affine = kind != "variable" and random.random() < 0.2
    n = len(pictures) if kind == "pictures" else AFFINE if affine else random.choice([1, 2, 7, 33, 100, 257])
    affine = affine and n == AFFINE
    nodes = random.choice(JOBS) if affine else None
    world_size = sum(node.ranks for node in nodes) if nodes else random.choice([1, 1, 2, 3])
    ends = None if world_size == 1 else random.choice(["pad", "drop"] if nodes else ["pad", "drop", "uneven"])
    most = random.choice([8, 100, 3000])
    made = Case(
        order=Order(n, seed=random.randrange(99)) if nodes else order_of(random, n),
        batch_size=random.choice([1, 2, 5, 16, 64]),
        drop_last=random.random() < 0.3,
        world_size=world_size,
        ends=ends,
        nodes=nodes,
        dataset=pictures if kind == "pictures" else Rows(n, most, kind == "variable"),
        augment=None,
    )
    if kind == "variable":
        made.settings["collate_fn"] = listed
    if kind != "pictures" and random.random() < 0.5:
        made.augment = drawn
    if nodes or random.random() < 0.85:
        made.cache = _cache(random, kind, n, most, folder)
    return made


def _cache(random: random.Random, kind: str, n: int, most: int, folder: str) -> dict[str, Any]:
    policies = [policy for policy in POLICIES if kind == "rows" or policy != "first-indices"]
    cache = {"policy": random.choice(policies), "fingerprint": f"{random.random()}", "size": "16MiB"}
    if kind == "rows" and random.random() < 0.6:
        cache["size"] = 4_800_000 + n * (most + 60) // 2
    if kind == "variable":
        cache["variable"] = True
    if kind == "pictures":
        cache["store"] = random.choice(["decoded", "encoded"])
        if cache["store"] == "encoded":
            cache["policy"] = "first-come"
    if random.random() < 0.25:
        cache |= {"disk": "16MiB", "disk_dir": folder}
    return cache


def workers_of(random: random.Random, case: Case, *, kept: bool = True) -> dict[str, Any]:
    """How a loader of the case may make its samples, without another result."""
    workers = random.choice([0, 0, 1, 2, 3])
    if not workers:
        return {}
    native = [] if isinstance(case.dataset, Rows) else ["native", "native"]
    worker = random.choice(["process", "thread", None, *native])
    more = {"worker": worker, "prefetch_factor": random.choice([1, 2, 4]), "in_order": random.random() < 0.8}
    more["persistent_workers"] = kept and random.random() < 0.5
    more["restart_workers"] = worker == "process" and random.random() < 0.5
    return {"num_workers": workers, **more}
