"""What a cache has done so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Stats(Mapping[str, Any]):
    """Counters of all clients since the cache was created, dead ones included, and its state now. Members are keys as well: `stats["hits"]`.

    The counters are added up one by one while others count, so they belong to no single instant. Reads of read-only clients are not in them."""

    samples: int  # of the dataset
    slots: int  # 0 in a variable-size cache
    variable: bool
    segment_bytes: int = 0  # the most that the segment can take
    limit_bytes: int = 0  # asked for at creation, 0: none
    hits: int = 0  # samples found by get and gather
    misses: int = 0  # samples asked for and not there, those without a slot included
    stored: int = 0  # samples stored, overwrites included
    exists: int = 0  # sets of a sample that was there already
    busy: int = 0  # races lost
    full: int = 0  # sets refused for lack of room
    out: int = 0  # sets of a sample that has no slot
    stored_bytes: int = 0
    recovered: int = 0  # claims of dead clients taken back
    aborted: int = 0  # claims given up by their own client
    lost: int = 0  # publishes refused, always 0 unless something is broken
    retried: int = 0  # copies thrown away because the sample changed underneath
    corrupt: int = 0  # words, lengths or checksums that cannot be
    passed: int = 0  # samples outside the schema that went uncached
    ready: int = 0  # samples in the cache now
    ready_bytes: int = 0
    arena_next_bytes: int = 0  # variable size: allocated so far
    arena_lost_bytes: int = 0  # variable size: allocated, but of no sample any more; clear() gets them back
    clients_live: int = 0
    clients_dead: int = 0
    allocated_bytes: int = 0  # memory that the segment has taken
    clears: int = 0

    @property
    def hit_rate(self) -> float:
        """Hits among the samples asked for, 0.0 if none was."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    @property
    def cached_fraction(self) -> float:
        return self.ready / self.samples

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in _KEYS

    def __iter__(self) -> Iterator[str]:
        return iter(_KEYS)

    def __len__(self) -> int:
        return len(_KEYS)


_KEYS = (*(field.name for field in fields(Stats)), "hit_rate", "cached_fraction")
