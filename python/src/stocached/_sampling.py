"""Which samples a loader reads next."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ._epoch import Shard
from ._numbers import whole
from ._ranks import rank_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from .order import AnyOrder

Ends = Literal["uneven", "pad", "drop"]

_DEEPEST = 8  # batch samplers within each other


class OrderSampler:
    """The samples of one rank in an order of ours, as a sampler that any loader takes.

    The epoch is that of `set_epoch`, 0 before; `start` is the position from which all ranks go on, for one epoch."""

    def __init__(self, order: AnyOrder, rank: int | None = None, world_size: int | None = None, ends: Ends | None = None) -> None:
        """rank, world_size: None: each use asks `rank_of`, as the program may initialise torch.distributed after it has made the loader.
        ends: None: "pad" if there are several ranks, else "uneven". Raises InvalidError."""
        self.order = order
        self._ranks, self._ends = (rank, world_size), ends
        self.epoch = 0
        self.start = 0
        if self._ranks == (None, None):
            order.epoch(0)  # raises InvalidError now
        else:
            self.shard()

    @property
    def rank(self) -> int:
        return rank_of(*self._ranks)[0]

    @property
    def world_size(self) -> int:
        return rank_of(*self._ranks)[1]

    @property
    def ends(self) -> Ends:
        return self._ends or ("pad" if self.world_size > 1 else "uneven")

    def shard(self, epoch: int | None = None) -> Shard:
        """The rank's part of an epoch. None: of the current one, from `start` on."""
        start, epoch = (self.start, self.epoch) if epoch is None else (0, epoch)
        return self.order.epoch(epoch).shard(self.rank, self.world_size, ends=self.ends, start=start)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration of loaders that read in this order is of that epoch."""
        self.begin(whole("epoch", epoch))
        for loader in list(vars(self).get("_loaders", {}).values()):
            loader._sampler_set_epoch(self.epoch)

    def again(self) -> Self:
        """A sampler of the same samples with an epoch of its own."""
        made = copy.copy(self)
        made.begin(0)
        return made

    def begin(self, epoch: int, start: int = 0) -> None:
        """Sets the epoch for the loader that calls this; tells no loader."""
        self.epoch, self.start = epoch, start

    def tell(self, loader: Any) -> None:
        """From now on `set_epoch` tells this loader."""
        vars(self).setdefault("_loaders", weakref.WeakValueDictionary())[id(loader)] = loader

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_loaders"}

    def __len__(self) -> int:
        return len(self.shard(self.epoch))

    def __iter__(self) -> Iterator[int]:
        return iter(self.shard())


def order_within(sampler: Any) -> OrderSampler | None:
    """This sampler if it is one of ours, or the one that a framework has put into batch samplers of its own; else None."""
    for _ in range(_DEEPEST):
        if sampler is None or isinstance(sampler, OrderSampler):
            return sampler
        inner = getattr(sampler, "sampler", None)
        sampler = getattr(sampler, "batch_sampler", None) if inner is None else inner
    return None


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
