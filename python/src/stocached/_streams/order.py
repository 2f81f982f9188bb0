"""The files of a stream as the order of a loader: each epoch of a rank begins, or continues from a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._order.walk import Walk
from . import checkpoint
from .scheduler import State
from .settings import StreamSettings


@dataclass
class StreamWalk(Walk):
    """The place of the training loop in an epoch of a stream."""

    settings: StreamSettings
    at: State

    def resume(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues from a state, or the states of all ranks. InvalidError."""
        self.at = checkpoint.from_dicts(self.settings, state)

    def checked(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return checkpoint.to_dict(self.settings, checkpoint.from_dicts(self.settings, state))

    def state(self, between: Mapping[str, Any], ended: bool) -> dict[str, Any]:
        return checkpoint.to_dict(self.settings, self.settings.start(between["epoch"]) if ended else self.at)

    def batches(self, batch_size: int, drop_last: bool) -> int:
        """How many are left. Both are those of the settings."""
        return self.settings.steps(self.at)

    def __len__(self) -> int:
        return self.settings.steps(self.at) * self.settings.batch_size


@dataclass(frozen=True)
class StreamOrder:
    """make: the settings of a rank, of so many ranks. seed: of the loader. chain: of the stats."""

    make: Callable[[int, int], StreamSettings] = field(repr=False)
    seed: int
    chain: Any = field(default=None, compare=False, repr=False)
    _made: dict[tuple[int, int], StreamSettings] = field(default_factory=dict, init=False, compare=False, repr=False)

    def settings(self, rank: int, world_size: int) -> StreamSettings:
        """What epochs of this rank have in common. The program may begin torch.distributed between two of them."""
        if (rank, world_size) not in self._made:
            self._made.clear()
            self._made[rank, world_size] = self.make(rank, world_size)
        return self._made[rank, world_size]

    def epoch(self, number: int) -> _StreamEpoch:
        return _StreamEpoch(self, number)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_made": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@dataclass(frozen=True)
class _StreamEpoch:
    order: StreamOrder
    number: int

    def shard(self, rank: int, world_size: int, *, ends: str = "", start: int = 0) -> StreamWalk:
        """ends, start: what a sampler knows of other orders."""
        settings = self.order.settings(rank, world_size)
        return StreamWalk(settings, settings.start(self.number))
