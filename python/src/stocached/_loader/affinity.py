"""`affinity=` of loaders: each global batch is dealt to the nodes whose caches own its samples
(docs/spec/order.md, Nodes)."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .._cache.attachment import Attachment
from .._common.errors import InvalidError, UnsupportedError
from .._common.numbers import whole
from .._order.epoch import Shard
from .._order.nodes import Deal, Node, Owners

AffinityNodes = Literal["node"] | Sequence[Node]

_TIMEOUT = 300.0  # seconds that a rank waits for the others to begin their first epoch

_numbers = itertools.count()  # numbers of the loaders with affinity in this process; alike on all ranks


def check_affinity(affinity: Any, local_world_size: int | None) -> None:
    """Raises InvalidError."""
    if isinstance(affinity, str) or affinity is None:
        if affinity not in (None, "node"):
            raise InvalidError(f'affinity={affinity!r}; it must be "node", or a stocached.order.Node for each node')
    elif not isinstance(affinity, Sequence) or not affinity or not all(isinstance(node, Node) for node in affinity):
        raise InvalidError(f'affinity={affinity!r:.100}; it must be "node", or a stocached.order.Node for each node')
    if local_world_size is not None:
        whole("local_world_size", local_world_size, 1)
        if affinity != "node":
            raise InvalidError('local_world_size= is for affinity="node"; nodes in a list say their ranks themselves')


class Affinity:
    """Deals the epochs of one loader. The first epoch finds out which nodes the job has, and how much
    their caches hold. If torch.distributed is initialised, ranks exchange this through its store, and each
    epoch compares the digests of all ranks."""

    def __init__(self, nodes: AffinityNodes, local_world_size: int | None, batch_size: int, drop_last: bool) -> None:
        self._wanted, self._batch_size, self._drop_last = nodes, batch_size, drop_last
        self._local_world_size = local_world_size
        self._owners: Owners | None = None
        self._number, self._meetings, self._epochs = next(_numbers), 0, 0
        self._found = -1  # the epoch, of _epochs, in which this rank found that it differs from another one
        self._unasked: tuple[Deal, Shard, Any] | None = None  # what was dealt ahead, with the store
        self.dealt = 0  # epochs of this loader

    def deal(self, shard: Shard, cache: Attachment, ahead: bool) -> Deal | Shard:
        """The deal of an epoch for the rank of a shard. One rank alone reads its shard. The cache keeps what
        its node owns first. ahead: the program has not asked for the epoch, and `asked_for` compares it.

        Raises InvalidError, which names the setting in which ranks differ."""
        if shard.world_size == 1:
            return shard
        store = _store(shard.world_size)
        if self._owners is None or self._owners.world_size != shard.world_size:
            nodes = self._nodes(shard, cache, store)  # nodes of all ranks, if they have a store
            self._owners = Owners(nodes, shard.epoch.order.samples)
            if self._owners.world_size != shard.world_size:
                raise InvalidError(
                    f"affinity=: the nodes have {self._owners.world_size} ranks together, and world_size={shard.world_size}"
                )
            self._keep(self._owners.node_of(shard.rank)[0], cache)
        assert shard.ends != "uneven"  # the loader has checked
        deal = Deal(shard.epoch, self._owners, shard.rank, self._batch_size, ends=shard.ends, start=shard.start)
        self._unasked = (deal, shard, store) if ahead and store is not None else None
        if store is not None and not ahead:
            self._agree(deal, shard, store)
        self.dealt += 1
        return deal

    def asked_for(self) -> None:
        """The program asks for the epoch that was dealt ahead. An epoch that is dropped instead is not compared: other
        ranks may not have dropped it, and ranks count their epochs. Raises InvalidError as `deal`."""
        if self._unasked is not None:
            unasked, self._unasked = self._unasked, None
            self._agree(*unasked)

    def _keep(self, node: int, cache: Attachment) -> None:
        """Has the cache and the disk cache of a node prefer the samples that the node owns."""
        assert self._owners is not None
        if not cache.read_only and (held := _held(cache)):
            cache._keep(self._owners.keep(node, held))
        if cache._disk is not None and (capacity := _capacity(cache)):
            cache._disk.keep(self._owners.keep(node, capacity))

    def _nodes(self, shard: Shard, cache: Attachment, store: Any) -> Sequence[Node]:
        if self._wanted != "node":
            return self._wanted
        local = self._local_world_size or int(os.environ.get("LOCAL_WORLD_SIZE") or 0)
        if store is None:
            if not local:
                raise InvalidError(
                    f'affinity="node" with world_size={shard.world_size}: the ranks of each node are not known. Give local_world_size=, or '
                    "affinity=[Node(ranks=...), ...] if nodes differ, or call torch.distributed.init_process_group() first"
                )
            if rest := shard.world_size % local:
                nodes = ", ".join(
                    [f"Node(ranks={local})"] * min(shard.world_size // local, 2) + [f"Node(ranks={rest})"]
                )
                raise InvalidError(
                    f'affinity="node": world_size={shard.world_size} is not a multiple of local_world_size={local}, so nodes differ in their '
                    f"ranks. Give affinity= a Node for each node, such as [{nodes}], or correct local_world_size= (or LOCAL_WORLD_SIZE)"
                )
            return [Node(ranks=local)] * (shard.world_size // local)
        told = {
            "node": os.environ.get("STOCACHED_NODE") or socket.gethostname(),
            "local_world_size": local,
            "capacity": _capacity(cache),
            "cache": cache.uuid.hex(),
            "settings": self._settings_of(shard),
        }
        key, self._meetings = f"affinity/{self._number}/{self._meetings}", self._meetings + 1
        store.set(f"{key}/{shard.rank}", json.dumps(told))
        if shard.rank == 0:
            everyone = [f"{key}/{rank}" for rank in range(shard.world_size)]
            try:
                _wait(store, everyone, "some ranks have")
                all_told = [json.loads(store.get(name)) for name in everyone]
                for one in all_told[1:]:
                    _compare(all_told[0]["settings"], one["settings"])
                answer: Any = grouped(all_told)
            except InvalidError as error:
                answer = str(error)
            store.set(f"{key}/nodes", json.dumps(answer))
        _wait(store, [f"{key}/nodes"], "rank 0 has")
        answer = json.loads(store.get(f"{key}/nodes"))
        if isinstance(answer, str):
            raise InvalidError(answer)
        return [Node(*node) for node in answer]

    def _settings_of(self, shard: Shard) -> dict[str, Any]:
        """What all ranks must have in common, as JSON has it, and the rank."""
        return {
            "epoch": shard.epoch.number,
            "position": shard.start,
            "batch_size=": self._batch_size,
            "drop_last=": self._drop_last,
            "ends=": shard.ends,
            **_settings(shard.epoch.order),
            "rank": shard.rank,
        }

    def _agree(self, deal: Deal, shard: Shard, store: Any) -> None:
        """Compares this rank's epoch with that of the rank that began it first. It waits for no rank, because
        a rank may begin an epoch ahead of the others. A rank that was ahead of one that differs learns it when it
        begins the next epoch."""
        before, key = self._epochs - 1, f"affinity/{self._number}/epoch/{self._epochs}"
        self._epochs += 1
        if self._found != before and store.check([last := f"affinity/{self._number}/epoch/{before}/differ"]):
            raise InvalidError(_text(store.get(last)))
        mine = {
            **self._settings_of(shard),
            "affinity=": repr(deal.owners.nodes)[:1000],
            "digest": f"{deal.digest:016x}",
        }
        try:
            _compare(json.loads(store.compare_set(key, "", json.dumps(mine))), mine)
        except InvalidError as error:
            self._found = before + 1
            store.set(f"{key}/differ", str(error))
            raise


def _compare(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Raises InvalidError if two ranks differ."""
    for setting, what in mine.items():
        if setting != "rank" and theirs.get(setting) != what:
            raise InvalidError(
                f"affinity=: ranks {theirs['rank']} and {mine['rank']} differ in {setting}: {theirs.get(setting)} and {what}. All ranks need "
                "the same settings, and begin the same epochs"
            )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _settings(order: Any) -> dict[str, Any]:
    """The settings of an order, by the names that a user gives them."""
    named = {
        "kind of order (shuffle=, order=)": getattr(order, "kind", type(order).__name__),
        "the number of samples": order.samples,
    }
    for setting in ("seed", "window", "block", "draws", "ratios", "stop", "length"):
        if hasattr(order, setting):
            value = getattr(order, setting)
            named[f"{setting}="] = list(value) if isinstance(value, tuple) else value  # as JSON has it
    return {**named, "order=": repr(order)[:1000]}  # it has a number for weights


def grouped(told: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """Name, ranks and capacity of each node, from what each rank said. The ranks of a node have consecutive
    numbers. Raises InvalidError."""
    nodes: list[tuple[str, int, int]] = []
    first = 0
    while first < len(told):
        one = told[first]
        ranks = one["local_world_size"]
        if not ranks:
            others = (rank for rank in range(first, len(told)) if told[rank]["node"] != one["node"])
            ranks = next(others, len(told)) - first
        group = told[first : first + ranks]
        if len(group) < ranks or any(
            (other["node"], other["local_world_size"]) != (one["node"], one["local_world_size"]) for other in group
        ):
            raise InvalidError(
                f'affinity="node": rank {first} says that its node has {ranks} ranks (local_world_size), and the ranks {first} to '
                f"{first + ranks - 1} of {len(told)} are not on one node; set local_world_size=, which is LOCAL_WORLD_SIZE where a launcher "
                "sets it, to the ranks of each rank's own node, and number ranks node by node"
            )
        if len({other["cache"] for other in group}) > 1:
            raise InvalidError(
                f'affinity="node": the {ranks} ranks on {one["node"]} have caches of their own, so no cache is that of the node. Give all of '
                "them one cache: name="
            )
        nodes.append((one["node"], ranks, min(other["capacity"] for other in group)))
        first += ranks
    if len({name for name, _, _ in nodes}) < len(nodes):  # several nodes of a test on one machine
        return [("", ranks, capacity) for _, ranks, capacity in nodes]
    return nodes


def _capacity(cache: Attachment) -> int:
    """Samples that a cache holds, with the disk behind it; 0: unknown, as they differ in size."""
    return _held(cache) if cache._disk is None else cache._disk.together(cache)


def _held(cache: Attachment) -> int:
    """As `_capacity`, without the disk of this process. A disk of the server has copies of what is in memory."""
    below = int(cache._handle.info().below) if cache.slots else 0
    return min(max(cache.slots, below), cache.samples)


def _store(world_size: int) -> Any:
    """The store of torch.distributed, for keys of ours; None if it is not initialised for this job."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() != world_size:
        return None
    try:
        store = distributed.distributed_c10d._get_default_store()
    except AttributeError:
        raise UnsupportedError(
            "this version of torch hides the store of torch.distributed, by which ranks agree on nodes; give affinity=[Node(...), ...]"
        ) from None
    return distributed.PrefixStore("stocached", store)


def _wait(store: Any, keys: list[str], who: str) -> None:
    try:
        store.wait(keys, datetime.timedelta(seconds=_TIMEOUT))
    except RuntimeError as error:
        raise InvalidError(
            f'affinity="node": {who} not begun to read this loader within {_TIMEOUT:.0f} s. All ranks of the job read it, and make their '
            "loaders with affinity= in the same sequence"
        ) from error
