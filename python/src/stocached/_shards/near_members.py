"""Members of a sample that lie near each other come by one read."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def read_members(read: Callable[[int, int], bytes], members: Sequence[tuple[int, int]], between: int) -> list[bytes]:
    """read: takes a place and bytes, as do members. between: the most bytes of others that are read too."""
    first, last = min(at for at, _ in members), max(at + size for at, size in members)
    if last - first > sum(size for _, size in members) + between:
        return [read(at, size) for at, size in members]
    data = read(first, last - first)
    return [data[at - first : at - first + size] for at, size in members]
