"""The tracks of a timeline: their names, and their numbers in a file (docs/spec/trace.md)."""

from __future__ import annotations

from collections.abc import Iterable

LOOP = "training loop"
TRANSFER = "transfer"
GATHER = "gather"
SERVER = "server"


def worker(number: int) -> str:
    """The track of a worker."""
    return f"worker {number}"


def gatherer(number: int) -> str:
    """The track of a thread that gathers."""
    return GATHER if number == 0 else f"{GATHER} {number}"


def track_numbers(tracks: Iterable[str]) -> list[int]:
    """The numbers of tracks in a file: those of docs/spec/trace.md, or from 5000 on. No two are
    equal."""
    taken: set[int] = set()
    numbers = []
    other = 5000
    for track in tracks:
        number = _number(track)
        if number is None or number in taken:
            number, other = other, other + 1
        taken.add(number)
        numbers.append(number)
    return numbers


def _number(track: str) -> int | None:
    if (fixed := {LOOP: 1, TRANSFER: 2, GATHER: 3, SERVER: 8}.get(track)) is not None:
        return fixed
    kind, _, digits = track.rpartition(" ")
    if not (digits.isascii() and digits.isdigit()) or digits != str(int(digits[:9])):
        return None
    number = int(digits)
    if kind == "worker" and number < 4900:
        return 10 + number
    if kind == GATHER and 1 <= number <= 4:
        return 3 + number
    return None
