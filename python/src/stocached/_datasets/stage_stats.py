"""What the stages of a pipe have counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class StageStats:
    """Counters of a stage of a pipe, over all workers.

    Exact are the items, and hits and misses. Seconds and bytes are of a part of the items, taken for all: of all, if
    an item takes long, else of as many as can be measured in 1/200 of the time. What is read again, after a resume or
    the death of a worker, does not count. Neither do looks at samples."""

    stage: str  # its line of `print(pipe)`
    items: int = 0  # that it gave; a stage below .batch() gives batches
    seconds: float = 0.0  # its own, without those of the stages above, summed over workers
    bytes: int = 0  # of the arrays in these items
    hits: int = 0  # of a cache: elements that it had; all programs that share it count
    misses: int = 0  # elements that it did not have

    def __sub__(self, before: StageStats) -> StageStats:
        """Seconds and bytes are 0 where less is estimated now: the first items of a stage often take longest."""
        counts = [field.name for field in fields(self) if field.name != "stage"]
        return StageStats(self.stage, **{name: max(getattr(self, name) - getattr(before, name), 0) for name in counts})


class CountsStages(ABC):
    """A dataset that reads caches itself. The counters of the loader do not have them."""

    @abstractmethod
    def cache_counts(self) -> dict[int, tuple[int, int]]:
        """Hits and misses of each cache that is open, since it was made, by the number of its stage."""
