"""Numbers of 7 bits a byte, the lowest first, as in protobuf and in the index of tars."""

from __future__ import annotations


def varint_at(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends. Raises ValueError if that is not before `end`, or after more than 10 bytes."""
    if at < end and data[at] < 0x80:  # most are short
        return data[at], at + 1
    number = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError(f"a number at byte {at:,} does not end")
