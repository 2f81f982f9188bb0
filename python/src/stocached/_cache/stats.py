"""What a cache has done so far."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from .. import _native
from . import disk
from .attachment import Attachment


@dataclass(frozen=True)
class Stats:
    """Counters of all clients since the cache was created, dead ones included, and its state now.

    The counters are added up one by one while other processes count, so they belong to no single
    instant. Reads of read-only clients are not counted."""

    samples: int  # samples of the dataset
    slots: int  # 0 in a variable-size cache
    variable: bool  # whether samples differ in size
    segment_bytes: int = 0  # the most that the segment can take
    limit_bytes: int = 0  # limit of the segment, as given at creation; 0: no limit
    hits: int = 0  # samples that get and gather found
    misses: int = 0  # samples that get and gather did not find, those without a slot included
    stored: int = 0  # samples stored, overwrites included
    exists: int = 0  # sets of a sample that was READY already
    busy: int = 0  # sets refused because another client was filling the sample, or a clear ran
    full: int = 0  # sets refused because no slot, extent or memory was free
    out: int = 0  # sets of a sample that can have no slot
    stored_bytes: int = 0  # bytes of the samples stored
    recovered: int = 0  # claims of dead clients that were reclaimed
    aborted: int = 0  # claims that their own client gave up
    lost: int = 0  # publishes refused: always 0, or the cache is damaged
    retried: int = 0  # copies made again because the sample changed during the copy
    corrupt: int = 0  # words, lengths or checksums that are impossible
    passed: int = 0  # samples outside the schema, which were not cached
    ready: int = 0  # samples in the cache now
    ready_bytes: int = 0  # bytes of these samples
    # variable size: allocated so far. In a cache that evicts: bytes of slots that are taken now
    arena_next_bytes: int = 0
    # of these, bytes that no sample has any more; clear() frees them. In a cache that evicts: unused ends, and slots
    # that are being filled
    arena_lost_bytes: int = 0
    clients_live: int = 0  # clients that are attached now
    clients_ended: int = 0  # records of clients that have ended
    allocated_bytes: int = 0  # memory that the segment takes now
    clears: int = 0  # how often the cache was emptied
    evicted: int = 0  # samples that went for others
    arena_free_bytes: int = 0  # in free slots of a variable-size cache that evicts
    # of the evicted, those of the last epoch: about as many reads as there are samples
    replaced: int = 0
    # of the disk cache behind this one, by all processes that have shared its file since it was out of use
    disk_hits: int = 0  # samples that the disk cache had
    disk_misses: int = 0  # samples that the disk cache did not have
    disk_writes: int = 0  # samples written to the disk cache
    disk_dropped: int = 0  # not written: the disk was slow, or another process wrote the sample
    disk_poisoned: int = 0  # samples whose checksum was wrong; they were removed
    disk_failed: int = 0  # reads and writes that the disk failed

    @property
    def hit_rate(self) -> float:
        """Hits of hits and misses; 0.0 without any."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    @property
    def cached_fraction(self) -> float:
        """The part of the samples that is in the cache now."""
        return self.ready / self.samples


def changes_of(cache: Attachment) -> tuple[int, int]:
    """`clears` and `stored` of the stats, in a fraction of the time. Raises ClosedError."""
    clears, stored = ctypes.c_uint64(), ctypes.c_uint64()
    cache._handle.check(_native.changes(cache._handle, clears, stored))
    return clears.value, stored.value


def _counters(handle: Any) -> dict[str, int]:
    native = _native.Stats(struct_bytes=ctypes.sizeof(_native.Stats))
    handle.check(_native.stats(handle, native))
    return {name: int(getattr(native, name)) for name, *_ in _native.Stats._fields_[1:]}


def stats_of_file(behind: disk.Disk) -> Stats:
    """Those of a disk cache, as of a cache in memory."""
    info = behind.handle.info()
    variable = bool(info.variable)
    return Stats(info.samples, info.slots, variable, info.segment_bytes, info.limit_bytes, **_counters(behind.handle))


def stats_of(cache: Attachment) -> Stats:
    counters = _counters(cache._handle)
    if cache._disk is not None:
        counters |= zip(disk.COUNTS, cache._disk.counts())
    return Stats(cache.samples, cache.slots, cache.variable, cache.segment_bytes, cache._limit_bytes, **counters)
