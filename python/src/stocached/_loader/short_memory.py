"""Warnings of caches that have room for samples, and no memory or disk for them."""

from __future__ import annotations

import os

from .. import _native
from .._cache.cache import Cache
from .._cache.stats import Stats, stats_of_file
from .._common.errors import FormatError
from .._common.warning import warn_user

_PART = 16  # with less room than this part of a cache, sets may be refused for another reason
_SAMPLES = 64  # samples of the mean size: as much room, where samples differ in size
_FILL = 4  # a fill takes at most this part of the free memory


def warn(caches: list[Cache], said: set[str]) -> None:
    """Warns if sets have found no memory, or no place on a disk, or if a disk fails or its file is lost; of each once, by `said`. Servers
    watch the caches that they fill."""
    for cache in caches:
        advice, spare = (
            "Free memory, which `stocached top` shows, or give size= what there is",
            _native.spare(cache._handle),
        )
        looks = [(cache.stats(), "memory is short", repr(cache), _free(cache.path, spare), advice)]
        if cache._disk is not None:
            advice, path = "Free space, or give disk= what there is", cache._disk.path
            of_file = stats_of_file(cache._disk)
            looks.append((of_file, "the disk is full", path, _free(path), advice))
            error = None if said & {"lost", "the disk fails"} else cache._disk.look()
            if isinstance(error, FormatError):
                said.add("lost")
                warn_user(
                    f"{error}: what this program stores there is lost when it ends. Start it again to have the file made again"
                )
            elif (error is not None or of_file.passed) and "the disk fails" not in said:
                said.add("the disk fails")
                why = f"{of_file.passed} reads and writes of {path} failed" if of_file.passed else error
                warn_user(
                    f"the disk fails: {why}. Its samples are loaded again, each time. `dmesg` says why; give disk_dir= a "
                    "folder on a disk that works"
                )
        for stats, what, where, free, advice in looks:
            room = _room(stats)
            if what not in said and room and free < max(room, _FILL * stats.ready_bytes // stats.ready):
                said.add(what)
                warn_user(
                    f"{what}: {stats.full + stats.evicted} times a sample found no place, and {where} has room "
                    f"for {room / 2**20:.1f} MiB more. What is not kept is loaded each time. {advice}"
                )


def _free(path: str | None, spare: int = -1) -> float:
    """The bytes that caches may still take, by the spare memory, and where the file of a cache lies. -1: not known."""
    free = spare if spare >= 0 else float("inf")
    if path is not None:
        try:
            place = os.statvfs(os.path.dirname(path))
        except (FileNotFoundError, NotADirectoryError):  # another program has taken the folder away
            return float("inf")
        if place.f_blocks:  # 0: a tmpfs without a limit
            free = min(free, place.f_bavail * place.f_frsize)
    return free


def _room(stats: Stats) -> int:
    """The bytes for which a cache has room, if sets have been refused, or samples have gone; else 0. Slots that are not
    full, and one sample larger than the rest, leave room too."""
    if not stats.full + stats.evicted or stats.clears or not stats.ready:
        return 0
    room = stats.segment_bytes - stats.allocated_bytes
    least = _SAMPLES * stats.ready_bytes // stats.ready if stats.variable else 0
    return room if room >= max(stats.segment_bytes // _PART, least) else 0
