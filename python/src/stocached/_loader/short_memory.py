"""A warning of caches that have room for samples, and no memory or disk for them."""

from __future__ import annotations

from .._cache.cache import Cache
from .._cache.stats import Stats, stats_of_file
from .._common.warning import warn_user

_PART = 16  # of a cache: with less room than this part of it, sets may be refused for another reason
_SAMPLES = 64  # of the mean size: as much, where samples differ in size


def warned(caches: list[Cache]) -> bool:
    """Warns if sets have found no memory, or no place on a disk. Returns whether it did. Servers watch the caches that they
    fill."""
    for cache in caches:
        free = "Free memory, which `stocached top` shows, or give size= what there is"
        looks = [(cache.stats(), "memory is short", repr(cache), free)]
        if cache._disk is not None:
            free = "Free space, or give disk= what there is"
            looks.append((stats_of_file(cache._disk), "the disk is full", cache._disk.path, free))
        for stats, what, where, advice in looks:
            room = _room(stats)
            if room:
                warn_user(
                    f"{what}: {stats.full + stats.evicted} times a sample found no place, and {where} has room "
                    f"for {room / 2**20:.1f} MiB more. What is not kept is loaded each time. {advice}"
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
