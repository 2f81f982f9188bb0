"""Where the lines of a file begin."""

from __future__ import annotations

import csv
import ctypes
import errno
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.errors import InvalidError
from .._common.one_line import printable
from .._shards.tar_index import compressed_by, unpack
from . import kept_index
from .kept_index import OpenFile, OpenObject, Starts
from .local_file import AsRaw

_PIECE = 1 << 20  # which stays in a processor's cache
_STRIP = 8 << 20  # bytes of a thread, at least
_AHEAD = 2  # bytes after a piece that say whether its last line is blank, and as many before it
_LF, _CR, _QUOTE = 10, 13, 34
_UTF_8, _OTHERS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")  # byte order marks


@dataclass(frozen=True)
class Rule:
    """How lines are told. blank: whether blank ones count. delimiter: of fields, if quoted ones may have line breaks."""

    blank: bool
    delimiter: str | None = None

    def name(self) -> bytes:
        return f"{int(self.blank)} {self.delimiter!a}".encode()[:16].ljust(16)


def starts_of(where: Any, rule: Rule) -> Starts:
    """Where each line begins, and the end of the file. where: a path, or a file at an address. Raises InvalidError, OSError."""

    def make(file: OpenFile | OpenObject) -> Starts:
        _check(file)
        return _made(file, file.stamp[0], rule)

    return kept_index.starts_of(where, rule.name(), make)


def _check(file: OpenFile | OpenObject) -> None:
    head, name = file.pread(8, 0), printable(file.path)
    program = compressed_by(head)
    if program is not None:
        raise InvalidError(
            f"{name} is compressed with {program}, so no line of it can be read by itself; {unpack(name, program)}"
        )
    if head[:2] in _OTHERS:
        raise InvalidError(f"{name} is UTF-16, and lines are UTF-8; write iconv -f utf-16 -t utf-8 {name} > new-file")


# ------------------------------------------------------------ made


def _made(file: OpenFile | OpenObject, size: int, rule: Rule) -> Starts:
    first = len(_UTF_8) if file.pread(len(_UTF_8), 0) == _UTF_8 else 0
    if rule.delimiter is None:
        parts = _in_threads(file, size, rule)
    else:
        found = _of_fields(file, size, ord(rule.delimiter), first)
        if found is None:
            return np.array([*_exact(file, rule.delimiter, first), size], np.uint64)
        parts = found
    head = file.pread(_AHEAD, first)
    blank = head.startswith((b"\n", b"\r\n")) and not rule.blank
    begin = np.array([] if first >= size or blank else [first], np.uint64)
    return np.concatenate([begin, *parts, np.array([size], np.uint64)])


def _in_threads(file: OpenFile | OpenObject, size: int, rule: Rule) -> list[Starts]:
    count = min(file.threads, -(-size // _STRIP))
    ends = [size * k // max(count, 1) for k in range(count + 1)]

    def strip(begin: int, end: int) -> list[Starts]:
        room = np.empty(_PIECE, np.int64)
        return [
            _after(piece, _places(piece, _LF, room), at, size, rule.blank)
            for at, piece in _pieces(file, begin, end, size)
        ]

    if count <= 1:
        return strip(0, size)
    with ThreadPoolExecutor(count) as pool:
        return [*chain.from_iterable(pool.map(strip, ends, ends[1:]))]


def _pieces(
    file: OpenFile | OpenObject, begin: int, end: int, size: int
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Each piece of a part of a file, with _AHEAD bytes before and after it; beyond the ends of the file they are line breaks.
    The next piece has the same memory."""
    made = np.full(min(_PIECE, end - begin) + 2 * _AHEAD, _LF, np.uint8)
    for at in range(begin, end, _PIECE):
        length = min(_PIECE, end - at)
        before, more = min(at, _AHEAD), min(size - at - length, _AHEAD)
        wanted = made[_AHEAD - before : _AHEAD + length + more]
        if file.into(wanted.data, at - before) != len(wanted):
            raise OSError(errno.ESTALE, "it has changed while it was read; make the pipe again")
        made[_AHEAD + length + more :] = _LF
        yield at, made[: length + 2 * _AHEAD]


def _places(piece: npt.NDArray[np.uint8], byte: int, room: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where a byte stands in the own bytes of a piece."""
    own = piece[_AHEAD:-_AHEAD]
    into = room.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64))
    return room[: _native.find_byte(own.ctypes.data, own.size, byte, into)].copy()


def _after(piece: npt.NDArray[np.uint8], breaks: npt.NDArray[np.int64], at: int, size: int, blank: bool) -> Starts:
    """Where the lines after some line breaks begin. breaks: places in the piece, which begins at `at`."""
    if at + len(piece) - 2 * _AHEAD == size and len(breaks) and breaks[-1] == len(piece) - 2 * _AHEAD - 1:
        breaks = breaks[:-1]  # the last line ends there
    if not blank and len(breaks) and ((np.diff(breaks) <= 2).any() or piece[breaks[-1] + _AHEAD + 1] in (_LF, _CR)):
        first, second = piece[breaks + _AHEAD + 1], piece[np.minimum(breaks + _AHEAD + 2, len(piece) - 1)]
        breaks = breaks[(first != _LF) & ((first != _CR) | (second != _LF))]
    return (breaks + (at + 1)).view(np.uint64)


def _of_fields(file: OpenFile | OpenObject, size: int, delimiter: int, first: int) -> list[Starts] | None:
    """Where records with quoted fields begin, as csv has them. None: a quotation mark stands where only csv says what it means:
    not where a field begins or ends. So an even number of marks before a line break means that it is between records."""
    made, marks, room = list[Starts](), 0, np.empty(_PIECE, np.int64)
    for at, piece in _pieces(file, 0, size, size):
        breaks, quotes, lone = (_places(piece, byte, room) for byte in (_LF, _QUOTE, _CR))
        if (piece[lone + _AHEAD + 1] != _LF).any():  # in old files, it ends a line
            return None
        if len(quotes) or marks % 2:
            opening = quotes[marks % 2 :: 2]
            before = piece[opening + _AHEAD - 1]
            begins = (before == delimiter) | (before == _LF) | (before == _QUOTE) | (opening + at == first)
            if not begins.all():
                return None
            breaks = breaks[(np.searchsorted(quotes, breaks) + marks) % 2 == 0]
            marks += len(quotes)
        made.append(_after(piece, breaks, at, size, False))
    return made if marks % 2 == 0 else None


def _exact(of: OpenFile | OpenObject, delimiter: str, first: int) -> list[int]:
    """The same by csv itself, a few million records in a minute."""
    starts, at = list[int](), first

    def lines(file: io.TextIOWrapper) -> Iterator[str]:
        nonlocal at
        while line := file.readline():
            at += len(line)
            yield line

    raw = io.BufferedReader(AsRaw(of, of.stamp[0]), _PIECE)
    with io.TextIOWrapper(raw, encoding="latin-1", newline="") as file:  # a character is a byte
        file.read(first)
        reader = csv.reader(lines(file), delimiter=delimiter)
        begin = at
        try:
            for record in reader:
                if record:
                    starts.append(begin)
                begin = at
        except csv.Error as error:
            raise InvalidError(
                f"{printable(of.path)}: csv does not read the record at byte {begin:,}, up to line {reader.line_num:,}: {error}; "
                "correct its quotation marks, or give "
                'delimiter= or format="text"'
            ) from None
    return starts
