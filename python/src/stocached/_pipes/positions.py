"""A pipe as a dataset whose samples are the positions of epochs, and the order that reads them.

The index of a sample is its position, with the number of the epoch in the bits from 40 on: workers get nothing else."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.errors import InvalidError
from .._datasets.tally import current
from .._order.epoch import Epoch, Shard
from .._order.order import Order
from .counting import Chain
from .stage import Stage
from .visits import Epochs

_BITS = 40  # an epoch has at most so many positions (docs/spec/order.md)
_EPOCHS = 2**23


class Positions:
    """seed: of the loader."""

    in_python = "a pipe with mix, zip or weights"  # why no native worker reads it

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage, self._seed = stage, seed
        self._epochs = Epochs(stage, seed)

    def __len__(self) -> int:
        return len(self._stage)

    def sources(self) -> list[Any]:
        return self._stage.sources()

    def __getitem__(self, index: int) -> Any:
        epoch, position = divmod(int(index), 2**_BITS)
        visit, reading, stage = self._epochs.visits(epoch).at(position), current().reading, self._stage
        read = functools.partial(reading.call, stage.number, stage.measured.item) if reading.on else stage.item
        item = read(visit, self._seed)
        if stage.noter is not None:
            stage.noter.note(visit)
        return item


@dataclass(frozen=True)
class PositionsOrder:
    """samples: positions of an epoch. seed: of the loader. visits: names what determines the visits."""

    samples: int
    seed: int
    visits: str
    chain: Chain | None = field(default=None, compare=False)  # the chain for the stats

    def epoch(self, number: int) -> Epoch:
        if number >= _EPOCHS:
            raise InvalidError(f"epoch {number}: such a pipe has epochs 0 to {_EPOCHS - 1}")
        return _Epoch(self, number)

    def _open(self, number: int) -> _native.Epoch:
        return Order(self.samples, "sequential")._open(number)

    def __repr__(self) -> str:
        return f"Pipe(items={self.samples}, visits={self.visits}, seed={self.seed})"


class _Epoch(Epoch):
    def shard(
        self, rank: int, world_size: int, *, ends: Literal["uneven", "pad", "drop"] = "uneven", start: int = 0
    ) -> Shard:
        return _Shard(self, rank, world_size, ends=ends, start=start)

    def __reduce__(self) -> tuple[Any, ...]:
        return PositionsOrder.epoch, (self.order, self.number)


class _Shard(Shard):
    def indices(self, first: int = 0, count: int | None = None) -> npt.NDArray[np.int64]:
        return super().indices(first, count) + (self.epoch.number << _BITS)
