"""Which members of a tar shard are the fields of its samples, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError
from .._common.one_line import one_line
from .tar_index import Members


def names_of(text: str) -> list[str]:
    """The names that a field may have: "jpg;png"."""
    return [name.removeprefix(".") for name in text.lower().split(";") if name]


def number_of(text: bytes) -> int:
    """A label, as a server reads it. Raises ValueError."""
    number = int(text)
    if b"_" in text or not -(2**63) <= number < 2**63:
        raise ValueError(f"no number of 64 bits: {one_line(text)}")
    return number


def chosen_members(
    path: str, members: Members, wanted: list[list[str]], missing: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """For each sample and wanted field the number of a member: the first of its names that the sample has. And which samples
    have all fields. Raises InvalidError for one that lacks a field, unless missing is "skip"."""
    if missing not in ("error", "skip"):
        raise InvalidError(f"missing={missing!r} is neither 'error' nor 'skip'")
    samples, several = len(members.starts) - 1, len(members.numbers)
    chosen, complete = np.zeros((samples, len(wanted)), np.int64), np.ones(samples, bool)
    for k, names in enumerate(wanted):
        ranks = np.array([names.index(field) if field in names else len(names) for field in members.fields], np.int64)
        of_members = ranks[members.numbers] * several + np.arange(several)
        best = np.minimum.reduceat(of_members, members.starts[:-1]) if samples else of_members
        has = best < len(names) * several
        if missing == "error" and not has.all():
            lacking = int(np.argmin(has))
            there = members.numbers[members.starts[lacking] : members.starts[lacking + 1]]
            raise InvalidError(
                f"{path}: sample {lacking} has none of the fields {';'.join(names)}; missing='skip' skips it. "
                f"It has {', '.join(members.fields[number] for number in there)}"
            )
        complete &= has
        chosen[:, k] = best % max(several, 1)
    return chosen, complete


def read_members(read: Callable[[int, int], bytes], members: Sequence[tuple[int, int]], between: int) -> list[bytes]:
    """Those that lie near each other come by one read. read: takes a place and bytes, as do members. between: the most bytes
    of others that are read too."""
    first, last = min(at for at, _ in members), max(at + size for at, size in members)
    if last - first > sum(size for _, size in members) + between:
        return [read(at, size) for at, size in members]
    data = read(first, last - first)
    return [data[at - first : at - first + size] for at, size in members]
