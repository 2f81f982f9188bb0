"""Where the lines of a file begin. The index of a large file is made once, and kept beside the file or in the user's cache
folder. It counts while the file has the same size, time and bytes at 64 places."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import errno
import io
import os
import struct
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.checksum import crc32c
from .._common.errors import InvalidError
from .._common.one_line import printable
from .._common.processors import processors
from .._image.tar_index import COMPRESSED, indexes_of, stamp_of
from .local_file import AsRaw

Starts = npt.NDArray[np.uint64]
_HEAD = struct.Struct(
    "<8sII16sqqIIQ"
)  # magic, version, checksum of the rest, rule, bytes, time, checksum of places, 0, lines
_MAGIC, _VERSION = b"stoc-lin", 1
_KEPT = 16 << 20  # bytes of a file from which on its index is kept; others take 10 ms
_PIECE = 1 << 20  # which stays in a processor's cache
_STRIP = 8 << 20  # bytes of a thread, at least
_AHEAD = 2  # bytes after a piece that say whether its last line is blank, and as many before it
_PLACES, _PLACE = 64, 256
_HEAD_BYTES = 64 << 10  # of a file at an address
_LF, _CR, _QUOTE = 10, 13, 34
_UTF_8, _OTHERS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")  # byte order marks


@dataclass(frozen=True)
class Rule:
    """How lines are told. blank: whether blank ones count. delimiter: of fields, if quoted ones may have line breaks."""

    blank: bool
    delimiter: str | None = None

    def name(self) -> bytes:
        return f"{int(self.blank)} {self.delimiter!a}".encode()[:16].ljust(16)


class _Local:
    """A file of this machine."""

    threads = min(processors(), 8)

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self.path = descriptor, path

    @property
    def stamp(self) -> tuple[int, int]:
        return stamp_of(os.fstat(self._descriptor))

    def pread(self, size: int, at: int) -> bytes:
        return os.pread(self._descriptor, size, at)

    def into(self, view: memoryview, at: int) -> int:
        return os.preadv(self._descriptor, [view], at)

    def sampled(self) -> int:
        """A checksum of some places."""
        places = np.linspace(0, max(0, self.stamp[0] - _PLACE), _PLACES).astype(np.int64).tolist()
        return crc32c(b"".join(self.pread(_PLACE, at) for at in places))

    def mode(self) -> int:
        return os.fstat(self._descriptor).st_mode & 0o666

    def indexes(self) -> list[str]:
        return indexes_of(self.path, "lines")


class _Remote:
    """An object at an address. Its tag tells changes, so nothing of it is read for that."""

    threads = 16

    def __init__(self, file: Any) -> None:
        self._file, self.path, self.stamp = file, file.path, file.stamp
        self._head = self.now(_HEAD_BYTES, 0)  # which is asked for several times

    def pread(self, size: int, at: int) -> bytes:
        return self._head[at : at + size] if min(at + size, self.stamp[0]) <= len(self._head) else self.now(size, at)

    def now(self, size: int, at: int) -> bytes:
        size = min(size, self.stamp[0] - at)
        return self._file.now(at, size) if size > 0 else b""

    def into(self, view: memoryview, at: int) -> int:
        view[:] = self.pread(len(view), at)
        return len(view)

    def sampled(self) -> int:
        return 0

    def mode(self) -> int:
        return 0o600

    def indexes(self) -> list[str]:
        return indexes_of(self.path, "lines")[1:] if self.stamp[1] else []


def starts_of(where: Any, rule: Rule) -> Starts:
    """Where each line begins, and the end of the file. where: a path, or a file at an address. Raises InvalidError, OSError."""
    if not isinstance(where, str):
        return _starts_of(_Remote(where), rule)
    descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _starts_of(_Local(descriptor, where), rule)
    except OSError as error:
        error.filename = error.filename or where
        raise
    finally:
        os.close(descriptor)


def _starts_of(file: _Local | _Remote, rule: Rule) -> Starts:
    stamp = file.stamp
    _check(file)
    if stamp[0] < _KEPT:
        return _made(file, stamp[0], rule)
    places = file.sampled()
    for index in file.indexes():
        found = _kept(index, stamp, rule, places)
        if found is not None:
            return found
    made = _made(file, stamp[0], rule)
    if file.stamp == stamp:  # else who reads a line gets an error
        _keep(file, made, stamp, rule, places)
    return made


def _check(file: _Local | _Remote) -> None:
    head, name = file.pread(8, 0), printable(file.path)
    for magic, program in COMPRESSED.items():
        if head.startswith(magic):
            raise InvalidError(
                f"{name} is compressed with {program}, so no line of it can be read by itself; unpack it"
            )
    if head[:2] in _OTHERS:
        raise InvalidError(f"{name} is UTF-16, and lines are UTF-8; write iconv -f utf-16 -t utf-8 {name} > new-file")


# ------------------------------------------------------------ kept


def _kept(index: str, stamp: tuple[int, int], rule: Rule, places: int) -> Starts | None:
    """None: there is none of the file as it is."""
    try:
        with open(index, "rb") as file:
            magic, version, checksum, of, size, time, sampled, _, lines = _HEAD.unpack(file.read(_HEAD.size))
            if (magic, version, of, (size, time), sampled) != (_MAGIC, _VERSION, rule.name(), stamp, places):
                return None
            if os.fstat(file.fileno()).st_size != _HEAD.size + 8 * (lines + 1):
                return None
            starts = np.fromfile(file, "<u8", lines + 1)
    except (OSError, ValueError, struct.error):
        return None
    whole = len(starts) == lines + 1 and crc32c(starts) == checksum
    return starts if whole and starts[-1] == size and (starts[:-1] < starts[1:]).all() else None


def _keep(file: _Local | _Remote, starts: Starts, stamp: tuple[int, int], rule: Rule, places: int) -> None:
    """In the first place that takes it, or in none."""
    head = _HEAD.pack(_MAGIC, _VERSION, crc32c(starts), rule.name(), *stamp, places, 0, len(starts) - 1)
    for index in file.indexes():
        folder, name = os.path.split(os.path.abspath(index))
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", delete=False) as made:
                try:
                    made.write(head)
                    made.write(starts.data)
                    made.flush()
                    os.fchmod(made.fileno(), file.mode())
                    os.replace(made.name, index)
                except BaseException:
                    os.unlink(made.name)
                    raise
            return


# ------------------------------------------------------------ made


def _made(file: _Local | _Remote, size: int, rule: Rule) -> Starts:
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


def _in_threads(file: _Local | _Remote, size: int, rule: Rule) -> list[Starts]:
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


def _pieces(file: _Local | _Remote, begin: int, end: int, size: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
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


def _of_fields(file: _Local | _Remote, size: int, delimiter: int, first: int) -> list[Starts] | None:
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


def _exact(of: _Local | _Remote, delimiter: str, first: int) -> list[int]:
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
                f"{printable(of.path)}: csv does not read the record at byte {begin:,}: {error}; correct its quotation marks, or give "
                'delimiter= or format="text"'
            ) from None
    return starts
