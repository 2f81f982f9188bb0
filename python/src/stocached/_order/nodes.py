"""Which node of a job reads which sample of a global batch: docs/spec/order.md, "Nodes"."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common import errors
from .._common.errors import InvalidError
from .._common.numbers import whole
from .epoch import ENDS, Epoch


@dataclass(frozen=True)
class Node:
    """One machine of a job.

    name: 1 to 255 bytes, unlike all others; "" for all nodes: their numbers. ranks: of the job on this
        node. capacity: samples that its cache holds, with a disk behind it; 0: unknown, then no capacity counts."""

    name: str = ""
    ranks: int = 1
    capacity: int = 0


class Owners:
    """Which node of a job owns a sample. Its memory does not grow with the dataset. Immutable: any
    number of threads and forked children may use it.

    nodes: in the order of their ranks. samples: of the dataset. Raises InvalidError."""

    def __init__(self, nodes: Sequence[Node], samples: int) -> None:
        self.nodes, self.samples = tuple(nodes), whole("samples", samples)
        n = len(self.nodes)
        names = None
        if any(node.name for node in self.nodes):
            names = (ctypes.c_char_p * n)(*(_name(node.name) for node in self.nodes))
        ranks = (ctypes.c_uint64 * n)(*(whole("ranks", node.ranks) for node in self.nodes))
        capacities = (ctypes.c_uint64 * n)(*(whole("capacity", node.capacity) for node in self.nodes))
        settings = _native.Nodes(ctypes.sizeof(_native.Nodes), n, names, ranks, capacities)
        self._owners = _native.Owners()
        errors.called(_native.owners_open, settings, self.samples, self._owners)
        weakref.finalize(self, _native.owners_close, self._owners)

    @property
    def world_size(self) -> int:
        """The ranks of all nodes."""
        return sum(node.ranks for node in self.nodes)

    def node_of(self, rank: int) -> tuple[int, int]:
        """The number of a rank's node, and of its first rank. Raises InvalidError."""
        rank, first = whole("rank", rank), 0
        for number, node in enumerate(self.nodes):
            if 0 <= rank - first < node.ranks:
                return number, first
            first += node.ranks
        raise InvalidError(f"rank={rank} is not in 0..{first - 1}, the ranks of {len(self.nodes)} nodes")

    def find(self, indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The number of the node that owns each sample; -1: no node does."""
        wanted = np.ascontiguousarray(indices, np.int64)
        nodes = np.empty(wanted.shape, np.int64)
        _native.owners_find(
            self._owners, wanted.ctypes.data, nodes.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)), wanted.size
        )
        return nodes

    def quota(self, node: int) -> int:
        """How many of the 65,536 buckets a node owns."""
        return self._checked(_native.owners_quota(self._owners, whole("node", node)))

    def keep(self, node: int, capacity: int = 0) -> bytes:
        """The buckets that the cache of a node keeps: those that the node owns, and copies of others if
        it has room for more. Bucket b is bit `b % 8` of byte `b // 8`.

        capacity: samples that the cache holds; 0: unknown, it keeps all."""
        kept = (ctypes.c_uint8 * _native.KEPT_BYTES)()
        self._checked(_native.owners_keep(self._owners, whole("node", node), whole("capacity", capacity), kept))
        return bytes(kept)

    def __repr__(self) -> str:
        return f"<stocached.Owners of {self.samples} samples, {len(self.nodes)} nodes>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Owners, (self.nodes, self.samples)

    def _checked(self, result: int) -> int:
        if result < 0:
            raise errors.make(result, f"{self!r} has no such node", 0)
        return int(result)


class Deal:
    """Global batches of an epoch, dealt to the ranks of nodes: each rank reads the samples that its node
    owns, if the batch has enough of them. It stands for one rank, as a `Shard` does, and has the same
    samples in each global batch of all ranks. Immutable.

    rank: of the job. batch_size: samples of a rank in a batch. ends: "pad" or "drop". start: the
        position where all ranks begin.
    world_size: ranks of all nodes. node, local_rank: of this rank.
    batches_in_all: global batches; the last one may have fewer samples.
    digest: equal on all ranks that deal alike.

    Raises InvalidError, also for ends="uneven": each rank gets the same number of samples."""

    def __init__(
        self,
        epoch: Epoch,
        owners: Owners,
        rank: int,
        batch_size: int,
        *,
        ends: Literal["uneven", "pad", "drop"] = "pad",
        start: int = 0,
    ) -> None:
        if ends not in ("pad", "drop"):
            raise InvalidError(
                f'ends={ends!r}: all ranks of a global batch get the same number of samples; give "pad" or "drop"'
            )
        self.epoch, self.owners, self.ends = epoch, owners, ends
        self.rank, self.batch_size = whole("rank", rank), whole("batch_size", batch_size)
        self.start = whole("start", start)
        self.world_size = owners.world_size
        self.node, first = owners.node_of(rank)
        self.local_rank, self.local_world_size = rank - first, owners.nodes[self.node].ranks
        self._deal = _native.Deal(
            ctypes.sizeof(_native.Deal), self.batch_size, self.start, ENDS.index(ends), 0, 0, 0, 0, 0
        )
        errors.called(_native.epoch_deal, epoch._epoch, owners._owners, self._deal)
        self.batches_in_all, self.digest = int(self._deal.batches), int(self._deal.digest)

    def __len__(self) -> int:
        """Samples of this rank."""
        return int(self._deal.samples)

    def __repr__(self) -> str:
        return f"<stocached.Deal to rank {self.rank} of {self.world_size} on {len(self.owners.nodes)} nodes, from {self.start}, of {self.epoch!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Deal, ends=self.ends, start=self.start), (self.epoch, self.owners, self.rank, self.batch_size)

    def batch(self, number: int) -> npt.NDArray[np.int64]:
        """The samples of a global batch: one row for each rank."""
        if not 0 <= whole("number", number) < self.batches_in_all:
            raise InvalidError(f"batch {number} is not in 0..{self.batches_in_all - 1}")
        each = min(self.batch_size, len(self) - number * self.batch_size)
        rows = np.empty((self.world_size, each), np.int64)
        filled = _native.epoch_fill_deal(
            self.epoch._epoch, self.owners._owners, ctypes.byref(self._deal), number, rows.ctypes.data, rows.size
        )
        if filled != rows.size:
            raise errors.make(filled, f"{self!r} cannot be asked", 0)
        return rows

    def node_batch(self, number: int) -> npt.NDArray[np.int64]:
        """The samples of a global batch that this rank's node reads: one row for each of its ranks."""
        first = self.rank - self.local_rank
        return self.batch(number)[first : first + self.local_world_size]

    def read_elsewhere(self, number: int) -> npt.NDArray[np.int64]:
        """This rank's part of the samples of a global batch that its node owns and other nodes read."""
        rows, first = self.batch(number), self.rank - self.local_rank
        others = np.delete(rows, np.s_[first : first + self.local_world_size], axis=0).ravel()
        mine: npt.NDArray[np.int64] = others[self.owners.find(others) == self.node]
        return mine[self.local_rank :: self.local_world_size]

    def batches(self, batch_size: int, drop_last: bool = False) -> int:
        """The number of batches of this rank. Raises InvalidError for another batch_size than its own."""
        if batch_size != self.batch_size:
            raise InvalidError(f"batch_size={batch_size}: global batches are dealt by {self.batch_size} samples a rank")
        return len(self) // batch_size if drop_last else self.batches_in_all

    def position(self, read: int) -> int:
        """The position of the epoch after each rank has read `read` samples: the `start` to
        continue from, with these or other nodes. `read` is a multiple of the batch size, or all."""
        read = whole("read", read)
        return min(self.start + read * self.world_size, len(self.epoch))

    def __iter__(self) -> Iterator[int]:
        for number in range(self.batches_in_all):
            yield from self.batch(number)[self.rank].tolist()


def _name(name: str) -> bytes:
    if "\0" in name:
        raise InvalidError(f"the name {name!r} of a node must not contain NUL")
    return name.encode()


Node.__module__ = "stocached.order"  # where users find it
