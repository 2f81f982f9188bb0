"""What the stages of a pipe have counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class StageStats:
    """Counters of a cache in a pipe. Members are elements. All programs that share the cache count."""

    stage: str  # as `print(pipe)` shows it
    hits: int  # elements that the cache had
    misses: int  # elements that it did not have

    def __sub__(self, before: StageStats) -> StageStats:
        return StageStats(self.stage, self.hits - before.hits, self.misses - before.misses)


class CountsStages(ABC):
    """A dataset that reads caches itself. The counters of the loader do not have them."""

    @abstractmethod
    def stage_stats(self) -> tuple[StageStats, ...]:
        """Of each cache that is open, since it was made."""
