"""One epoch of an order, and the part of it that one rank reads: docs/spec/order.md."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common import errors
from .._common.errors import InvalidError, SampleIndexError
from .._common.numbers import number_of, whole

ENDS = ("uneven", "pad", "drop")

_CHUNK = 4096  # indices that iterators compute at a time


class EpochSource(Protocol):
    """An Order, a WeightedOrder or a MixedOrder."""

    @property
    def samples(self) -> int: ...

    def _open(self, number: int) -> _native.Epoch: ...


class Epoch:
    """The order of one epoch. Immutable: any number of threads and forked children may use it. Its
    iterator gives the samples one by one.

    order, number: its order, and the number of the epoch."""

    def __init__(self, order: EpochSource, number: int) -> None:
        self.order = order
        self.number = whole("epoch", number)
        self._epoch = order._open(self.number)
        weakref.finalize(self, _native.epoch_close, self._epoch)
        self._length = int(_native.epoch_length(self._epoch))

    def __len__(self) -> int:
        """Positions: the samples of an Order, the draws of a WeightedOrder, the length of a
        MixedOrder."""
        return self._length

    def __repr__(self) -> str:
        return f"<stocached.Epoch {self.number} of {self.order}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Epoch, (self.order, self.number)

    def at(self, position: int) -> int:
        """The sample at a position. Raises SampleIndexError."""
        return self._checked(_native.epoch_at(self._epoch, self._within(position, "position", self._length)))

    def position(self, index: int) -> int:
        """The position of a sample: the inverse of `at`. Raises SampleIndexError. Raises
        UnsupportedError for a WeightedOrder and a MixedOrder, where a sample may have several
        positions or none."""
        return self._checked(_native.epoch_position(self._epoch, self._within(index, "index", self.order.samples)))

    def indices(self, first: int = 0, count: int | None = None, step: int = 1) -> npt.NDArray[np.int64]:
        """The samples at positions first, first + step, ..., at most `count` of them."""
        first, step = whole("first", first), whole("step", step, 1)
        count = None if count is None else whole("count", count)
        there = max(0, (self._length - first + step - 1) // step)
        rows = np.empty(there if count is None else min(count, there), np.int64)
        if rows.size:
            self._checked(_native.epoch_fill(self._epoch, rows.ctypes.data, rows.size, first, min(step, 2**64 - 1)))
        return rows

    def shard(
        self, rank: int, world_size: int, *, ends: Literal["uneven", "pad", "drop"] = "uneven", start: int = 0
    ) -> Shard:
        """The shard of one rank: of the positions from `start` on, each `world_size`-th, from the
        `rank`-th on. See Shard."""
        return Shard(self, rank, world_size, ends=ends, start=start)

    def __iter__(self) -> Iterator[int]:
        for first in range(0, self._length, _CHUNK):
            yield from self.indices(first, _CHUNK).tolist()

    def _within(self, value: int, what: str, end: int) -> int:
        value = number_of(value)
        if not 0 <= value < end:
            raise SampleIndexError(f"{what} {value} is not in 0..{end - 1}")
        return value

    def _checked(self, result: int) -> int:
        if result == _native.EUNSUPPORTED:
            raise errors.UnsupportedError(f"{self!r}: a sample may have several positions, or none")
        if result < 0:
            raise errors.make(result, f"{self!r} cannot be asked", 0)
        return int(result)


class Shard:
    """The samples that one rank reads of an epoch, from position `start` on: each `world_size`-th
    sample, from the `rank`-th on. So the ranks advance together, and their place is one position.
    Any other number of ranks can continue there: `epoch.shard(rank, world_size,
        start=shard.position(read))`. Immutable. It is a
    sampler too: it has a length, and its iterator gives the samples one by one.

    ends: for samples that do not divide by `world_size`. "uneven": some ranks get one more. "pad":
        ranks with one less begin the epoch again, so that all have the same number. "drop": the last
        samples are left out.
    real: the number of its first samples that no other rank reads and that do not repeat: all of
        them, or with "pad" perhaps all but the last.

    Raises InvalidError for impossible numbers."""

    def __init__(
        self,
        epoch: Epoch,
        rank: int,
        world_size: int,
        *,
        ends: Literal["uneven", "pad", "drop"] = "uneven",
        start: int = 0,
    ) -> None:
        if ends not in ENDS:
            raise InvalidError(f"ends={ends!r} is none of {', '.join(ENDS)}")
        self.epoch = epoch
        self.rank, self.world_size = whole("rank", rank), whole("world_size", world_size)
        self.start, self.ends = whole("start", start), ends
        if not self.rank < self.world_size:
            raise InvalidError(f"rank={rank} is not in 0..world_size-1, world_size={world_size}")
        if self.start > len(epoch):
            raise InvalidError(f"start={start} is after the end of the epoch, which has {len(epoch)} positions")
        self._shard = _native.Shard(
            ctypes.sizeof(_native.Shard), self.rank, self.world_size, self.start, ENDS.index(ends), 0, 0, 0
        )
        errors.called(_native.epoch_shard, epoch._epoch, self._shard)
        self.real = int(self._shard.real)

    def __len__(self) -> int:
        return int(self._shard.samples)

    def __repr__(self) -> str:
        return (
            f"<stocached.Shard {self.rank} of {self.world_size} from {self.start}, ends {self.ends}, of {self.epoch!r}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Shard, ends=self.ends, start=self.start), (self.epoch, self.rank, self.world_size)

    def indices(self, first: int = 0, count: int | None = None) -> npt.NDArray[np.int64]:
        """Its samples from the `first`-th on, at most `count` of them."""
        first, count = whole("first", first), None if count is None else whole("count", count)
        there = max(0, len(self) - first)
        rows = np.empty(there if count is None else min(count, there), np.int64)
        if rows.size:
            result = _native.epoch_fill_shard(
                self.epoch._epoch, ctypes.byref(self._shard), rows.ctypes.data, rows.size, first
            )
            if result != rows.size:
                raise errors.make(result, f"{self!r} cannot be asked", 0)
        return rows

    def batches(self, batch_size: int, drop_last: bool = False) -> int:
        """The number of batches of `batch_size`; the last one may have fewer samples. With
        `drop_last`: the number that every rank can fill, the same for all ranks. So no rank waits
        for another that has no more."""
        batch_size = whole("batch_size", batch_size, 1)
        if not drop_last:
            return -(-len(self) // batch_size)
        each = len(self) if self.ends == "pad" else (len(self.epoch) - self.start) // self.world_size
        return each // batch_size

    def position(self, read: int) -> int:
        """The position of the epoch after each rank has read `read` samples: the `start` to
        continue from."""
        read = whole("read", read)
        return min(self.start + read * self.world_size, len(self.epoch))

    def __iter__(self) -> Iterator[int]:
        for first in range(0, len(self), _CHUNK):
            yield from self.indices(first, _CHUNK).tolist()
