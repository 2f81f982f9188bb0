"""The place of a rank in an epoch without consecutive samples. A loader has it in place of a shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class Walk(ABC):
    @abstractmethod
    def state(self, between: dict[str, Any], ended: bool) -> dict[str, Any]:
        """The state of a loader at this place, or if the epoch has ended, at the start of the next one. between: the
        state of a loader between two epochs of any order."""

    @abstractmethod
    def resume(self, state: Any) -> None:
        """Continues from a state of this epoch."""

    def checked(self, state: Any) -> Mapping[str, Any] | None:
        """A state, if it has a form of its own. None: it has that of any order."""
        return None

    @abstractmethod
    def batches(self, batch_size: int, drop_last: bool) -> int:
        """How many there are. TypeError if that is not known."""
