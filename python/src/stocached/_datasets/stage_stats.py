"""What the stages of a pipe have counted."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class StageStats:
    """Counters of a stage of a pipe, over all workers.

    Exact are the items that workers have read. So they have some that are read ahead, and of a pipe without an index
    those of a batch that drop_last= leaves out; workers may have called the last functions for these. What is read
    again, after a resume or the death of a worker, does not count. Neither do looks at samples. Above .flat_map(count=)
    an item counts with the first item of its list, above a cache at each miss.

    Seconds and bytes are of a part of the items: of all, if an item takes long, else of as many as can be measured in
    1/200 of the time. The others take as long as those that were measured before them, but all together no longer than
    the worker worked. They have the mean bytes."""

    stage: str  # its line of `print(pipe)`
    items: int = 0  # items that it gave; a stage below .batch() gives batches
    seconds: float = 0.0  # its own, without those of the stages above, summed over workers
    bytes: int = 0  # bytes of the arrays in these items
    hits: int = 0  # elements that a cache had; all programs that share it count
    misses: int = 0  # elements that it did not have

    def __sub__(self, before: StageStats) -> StageStats:
        """Seconds and bytes are 0 where less is estimated now."""
        counts = [field.name for field in fields(self) if field.name != "stage"]
        return StageStats(self.stage, **{name: max(getattr(self, name) - getattr(before, name), 0) for name in counts})
