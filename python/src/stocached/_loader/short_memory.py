"""A warning of caches that have room for samples, and no memory."""

from __future__ import annotations

import warnings

from .._cache.cache import Cache
from .._cache.stats import Stats

_PART = 16  # of a cache: with less room than this part of it, sets may be refused for another reason
_SAMPLES = 64  # of the mean size: as much, where samples differ in size


def warned(caches: list[Cache]) -> bool:
    """Warns if sets have found no memory. Returns whether it did. Servers watch the caches that they fill."""
    for cache in caches:
        stats = cache.stats()
        room = _room(stats)
        if room:
            warnings.warn(
                f"stocached: memory is short: {stats.full + stats.evicted} times a sample found none, and {cache!r} has room "
                f"for {room / 2**20:.1f} MiB more. What it does not keep is loaded each time. Free memory, which `stocached top` "
                "shows, or give size= what there is",
                stacklevel=3,
            )
            return True
    return False


def _room(stats: Stats) -> int:
    """The bytes for which a cache has room, if sets have been refused, or samples have gone, for lack of memory; else 0."""
    if not stats.full + stats.evicted or stats.clears or not stats.ready:
        return 0
    room = stats.segment_bytes - stats.allocated_bytes
    least = _SAMPLES * stats.ready_bytes // stats.ready if stats.variable else 0
    return room if room >= max(stats.segment_bytes // _PART, least) else 0
