"""The members of a tar archive, as Go's archive/tar reads them for a server: source/tar/testdata/cases.json compares both.

Python's tarfile differs in small things: it ends at any header that it does not know, and reads long names whole."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from .._common.errors import InvalidError

BLOCK = 512
_MOST_SPECIAL = 1 << 20  # bytes of a long name, or of PAX records
_NO_DATA = b"123456"  # types of links, devices, folders and FIFOs
_OF_ALL = ("path", "size", "linkpath", "GNU.sparse.")  # PAX records that may not hold for all members
_NUMBER, _TIME = re.compile(rb"[+-]?[0-9]+"), re.compile(rb"[+-]?[0-9]+(\.[0-9]*)?")


class TarError(InvalidError):
    """An archive is damaged, or has what no shard has."""


@dataclass
class TarMember:
    name: str  # a byte that is not UTF-8 is a surrogate, as in names of files
    regular: bool
    at: int  # offset of its data
    size: int


def members_of_archive(file: BinaryIO, size: int) -> Iterator[TarMember]:
    """size: of the file. Raises TarError."""
    at, records, long_name = 0, dict[bytes, bytes](), b""
    special = False  # whether the last header was about the member after it
    while True:
        block = _read(file, at, 2 * BLOCK)
        if len(block) >= BLOCK and not block.strip(b"\0") and not special:
            return
        if not block and at == size:
            raise TarError("has no end mark: it was cut off, or its writer did not finish")
        block = block[:BLOCK]
        kind, name, bytes_ = _header(block)
        data, special = at + BLOCK, kind in b"xgLK"
        if not special:
            name, bytes_ = _with_records(name, bytes_, records)
            name = long_name or name
        if bytes_ < 0 and kind not in _NO_DATA:
            raise TarError(f"is damaged at {at}: a member has {bytes_} bytes; copy it again")
        if kind == b"S":
            raise TarError(f"has the sparse file {name.decode(errors='replace')!r}, whose data is not contiguous")
        end = data + (0 if kind in _NO_DATA else bytes_)
        if end > size:
            raise TarError(f"is truncated at {size} bytes, in the middle of a member; copy it again")
        at = end + -end % BLOCK
        if special:
            if bytes_ > _MOST_SPECIAL:
                raise TarError(f"is damaged at {data}: a name or its records have {bytes_} bytes; copy it again")
            text = _read(file, data, bytes_)
            if kind == b"L":
                long_name = text.partition(b"\0")[0]
            elif kind == b"x":
                records = _records(text, data)
            elif kind == b"g":
                _check_global(_records(text, data))
                records, long_name, special = {}, b"", False
            continue
        folder = kind == b"5" or (kind == b"\0" and name.endswith(b"/"))
        yield TarMember(name.decode(errors="surrogateescape"), kind in b"\x0007" and not folder, data, bytes_)
        records, long_name = {}, b""


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _header(block: bytes) -> tuple[bytes, bytes, int]:
    """Type, name and size."""
    if len(block) < BLOCK:
        raise TarError("is truncated: it ends in the middle of a header; copy it again")
    try:
        said, unsigned = _octal(block[148:156]), sum(block) - sum(block[148:156]) + 8 * ord(" ")
        if said != unsigned and said != unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
            raise ValueError
        size = _number(block[124:136])
        star = block[257:263] == b"ustar\0" and block[508:] == b"tar\0"
        posix, gnu = block[257:263] == b"ustar\0", block[257:265] == b"ustar  \0"
        for begin, end in [(100, 108), (108, 116), (116, 124), (136, 148)] + [(329, 337), (337, 345)] * (posix or gnu):
            _number(block[begin:end])
        for begin in (476, 488) if star else ():
            _number(block[begin : begin + 12])
    except ValueError:
        raise TarError("is no tar archive, or damaged: a header is wrong; copy it again") from None
    prefix = _text(block[345 : 476 if star else 500]) if posix or (gnu and _has_prefix(block)) else b""
    name = _text(block[:100])
    return block[156:157], prefix + b"/" + name if prefix else name, size


def _has_prefix(block: bytes) -> bool:
    """Whether a writer has put a prefix where GNU's format has times."""
    try:
        for begin in (345, 357):
            if block[begin]:
                _number(block[begin : begin + 12])
    except ValueError:
        return _text(block[345:500]).isascii()
    return False


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _octal(field: bytes) -> int:
    digits = _text(field.strip(b" \0"))
    if not digits:
        return 0
    if not re.fullmatch(rb"[0-7]+", digits):
        raise ValueError
    return int(digits, 8)


@functools.lru_cache(1024)  # members have the same mode, owner and time
def _number(field: bytes) -> int:
    """Octal digits, or with the first bit set a big-endian number of 63 bits and a sign."""
    if not field[0] & 0x80:
        return _octal(field)
    value = int.from_bytes(field, "big") - (1 << 8 * len(field) - 1)  # without the first bit
    if field[0] & 0x40:
        value -= 1 << 8 * len(field) - 1
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError
    return value


def _records(text: bytes, at: int) -> dict[bytes, bytes]:
    found = {}
    while text:
        digits, space, rest = text.partition(b" ")
        bytes_ = int(digits) - len(digits) - 1 if space and _NUMBER.fullmatch(digits) and len(digits) < 19 else 0
        record, end, text = (
            rest[: max(bytes_ - 1, 0)],
            rest[max(bytes_ - 1, 0) : max(bytes_, 0)],
            rest[max(bytes_, 0) :],
        )
        key, equals, value = record.partition(b"=")
        named = key in (b"path", b"linkpath", b"uname", b"gname")
        if bytes_ < 2 or end != b"\n" or not equals or not key or b"\0" in (value if named else key):
            raise TarError(f"is damaged at {at}: a PAX record is wrong; copy it again")
        found[key] = value
    return found


def _check_global(records: dict[bytes, bytes]) -> None:
    for key in records:
        if key.startswith(tuple(name.encode() for name in _OF_ALL)):
            raise TarError(f"has a global PAX header that sets {key.decode(errors='replace')} of all members")


def _with_records(name: bytes, size: int, records: dict[bytes, bytes]) -> tuple[bytes, int]:
    """Name and size of a member, if its PAX records change them."""
    if any(key.startswith(b"GNU.sparse.") for key in records):
        raise TarError(f"has the sparse file {name.decode(errors='replace')!r}, whose data is not contiguous")
    for key in b"size", b"uid", b"gid", b"mtime", b"atime", b"ctime":
        value = records.get(key)
        if value and not _whole(value, fraction=key.endswith(b"time")):
            what = f"the PAX record {key.decode()} of {name.decode(errors='replace')!r}"
            raise TarError(f"is damaged: {what} is no number; copy it again")
    return records.get(b"path") or name, int(records.get(b"size") or size)


def _whole(value: bytes, fraction: bool) -> bool:
    """Whether it is a number of 64 bits; with fraction, digits may follow it."""
    if not (_TIME if fraction else _NUMBER).fullmatch(value):
        return False
    return -(1 << 63) <= int(value.partition(b".")[0]) < 1 << 63
