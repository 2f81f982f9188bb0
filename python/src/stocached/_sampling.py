"""Which samples a loader reads next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ._epoch import Shard

if TYPE_CHECKING:
    from .order import AnyOrder


class OrderSampler:
    """The samples of one rank in an order of ours, as a sampler that any loader takes.

    The epoch is that of `set_epoch`, 0 before; `start` is the position from which all ranks go on, for one epoch."""

    def __init__(self, order: AnyOrder, rank: int = 0, world_size: int = 1, ends: Literal["uneven", "pad", "drop"] = "uneven") -> None:
        self.order, self.rank, self.world_size, self.ends = order, rank, world_size, ends
        self.epoch = 0
        self.start = 0
        self.shard()  # raises InvalidError now

    def shard(self) -> Shard:
        return self.order.epoch(self.epoch).shard(self.rank, self.world_size, ends=self.ends, start=self.start)

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.start = epoch, 0

    def __len__(self) -> int:
        return len(self.order.epoch(self.epoch).shard(self.rank, self.world_size, ends=self.ends))

    def __iter__(self) -> Iterator[int]:
        return iter(self.shard())


def batches_of(shard: Shard, batch_size: int, drop_last: bool) -> Iterator[npt.NDArray[np.int64]]:
    """The indices of one batch after the other."""
    chunk = max(1, 4096 // batch_size)
    count = shard.batches(batch_size, drop_last)
    for first in range(0, count, chunk):
        many = shard.indices(first * batch_size, min(chunk, count - first) * batch_size)
        for at in range(0, many.size, batch_size):
            yield many[at : at + batch_size]


def listed(wanted: Any) -> Any:
    """The indices of a batch, which a sampler may give in anything that can be iterated over, as what can be iterated over again."""
    return wanted if isinstance(wanted, (list, tuple)) or hasattr(wanted, "__array__") else list(wanted)


class Batcher:
    """Batches of what a sampler gives, as torch's BatchSampler makes them."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        batch: list[Any] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
