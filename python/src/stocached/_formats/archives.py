"""Zip archives: the directory is read once, and each member by a read of its own."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .._common.errors import BadSampleError, InvalidError
from .._common.one_line import printable
from .._memory.texts import SharedBytes, Texts
from .local_file import opened

_END = struct.Struct("<4s4H2LH")  # the end of the central directory
_END_64_PLACE, _END_64 = struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_ENTRY, _LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_COMMENT, _NONE = 1 << 16, 0xFFFFFFFF
_ENCRYPTED, _UTF_8 = 0x2041, 0x800  # bits of flags
_STORED, DEFLATED = 0, 8
_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 98: "ppmd", 99: "AES"}
_MOST_RATIO = 1032  # the most that deflate shrinks data
_MOST_AT_ONCE = 64 << 20  # bytes of a member that go into memory of this size
_MORE = 64  # bytes of a member's own header beyond its name that come with the first read
_FIELDS = struct.Struct("<3QL2H")  # a member: at, packed, size, crc, method, flags
_NEW_BYTES = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
_new_bytes: Callable[[None, int], bytes] = _NEW_BYTES(("PyBytes_FromStringAndSize", ctypes.pythonapi))  # to be filled


class Zip:
    """Each element is a member: its bytes under its ending, and "__key__". Folders and hidden files do not count."""

    addresses = True

    def __init__(self, path: Any) -> None:
        self._file = opened(path)
        self._size = self._file.size
        members, names = directory(self._file, self._size, False)
        lengths = np.fromiter(map(len, names), np.uint64, len(names))
        self.names = Texts.joined("", "surrogateescape", [(b"".join(names), lengths)])
        self._shared = SharedBytes.of_array(
            np.frombuffer(b"".join(_FIELDS.pack(*member) for member in members), np.uint8)
        )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, k: int) -> dict[str, Any]:
        name = self.names[k]
        stem, ending = os.path.splitext(name)
        return {"__key__": stem, ending[1:].lower() or "data": self.data(k, name)}

    def data(self, k: int, name: str | None = None) -> bytes:
        """The bytes of a member. name: its own, if known. Raises BadSampleError."""
        at, packed, size, crc, method, flags = _FIELDS.unpack_from(self._shared.array, _FIELDS.size * k)
        own = os.fsencode(self.names[k] if name is None else name)
        data = self._file.read(at, min(head_bytes(own) + packed, self._size - at))
        begin = begin_of(data, at, own, method, flags)
        if begin + packed > len(data):
            data = self._file.read(at, begin + packed)
        data = data[begin : begin + packed]
        if method == DEFLATED:
            if size <= _MOST_AT_ONCE and (inflate := _inflate()) is not None:
                made = _new_bytes(None, size)
                if inflate(data, len(data), made, size) == crc:
                    return made
            unpack = zlib.decompressobj(-15)
            try:
                data = unpack.decompress(data, size + 1)
            except zlib.error as error:
                raise BadSampleError(f"it does not unpack: {error}") from None
        if len(data) != size:
            raise BadSampleError(f"it has {len(data):,} bytes, and the directory says {size:,}")
        if zlib.crc32(data) != crc:
            raise BadSampleError("its checksum is wrong: the file is damaged")
        return data

    def spans(self, k: int) -> list[tuple[int, int]]:
        """The part of the file that a member takes: place and bytes."""
        at, packed, *_ = _FIELDS.unpack_from(self._shared.array, _FIELDS.size * k)
        return [(at, min(head_bytes(os.fsencode(self.names[k])) + packed, self._size - at))]

    def name(self, k: int) -> str:
        return f"member {printable(self.names[k])}"


@functools.cache
def _inflate() -> Any:
    try:
        from .._native import _image_header as native  # its inflate takes three quarters of zlib's time
    except (ImportError, OSError):
        return None
    return native.inflate


def directory(file: Any, size: int, hidden: bool) -> tuple[list[tuple[int, ...]], list[bytes]]:
    """The members, as _FIELDS has them, and their names. hidden: also of hidden files. Raises InvalidError for a damaged one."""
    first = max(0, size - _END.size - _COMMENT)
    tail = file.read(first, size - first)
    count, length, at, end = _end(file, first, tail)
    before = end - length - at  # bytes before the archive, such as a program that unpacks it
    if not (0 <= length <= end and before >= 0 and count * _ENTRY.size <= length):
        raise _no_zip(file, f"its directory of {count:,} members cannot have {length:,} bytes at byte {at:,}")
    begin = end - length
    data = tail[begin - first :][:length] if begin >= first else file.read(begin, length)
    members, names, place, number = list[tuple[int, ...]](), list[bytes](), 0, 0
    while place < length:
        try:
            magic, _, _, flags, method, _, _, crc, packed, whole, *lengths, _, _, _, start = _ENTRY.unpack_from(
                data, place
            )
        except struct.error:
            magic = b""
        if magic != b"PK\1\2":
            raise _no_zip(file, f"member {number} of {count:,} is not in its directory")
        place += _ENTRY.size
        name = data[place : place + lengths[0]]
        extra = data[place + lengths[0] : place + lengths[0] + lengths[1]]
        place += sum(lengths)
        number += 1
        if _NONE in (packed, whole, start):
            whole, packed, start = _wide(extra, [whole, packed, start])
        start += before
        if start + _LOCAL.size + packed > end or (method == DEFLATED and whole > _MOST_RATIO * packed + _MORE):
            raise _no_zip(
                file,
                f"member {printable(os.fsdecode(name))} cannot have {whole:,} bytes, packed {packed:,} at byte {start:,}",
            )
        if name.endswith(b"/") or (not hidden and b"/." in b"/" + name.removeprefix(b"./")):
            continue
        members.append((start, packed, whole, crc, method, flags))
        names.append(_name(name, flags))
    if (number - count) % 65536:  # old programs count no further
        raise _no_zip(file, f"its directory has {number:,} members, and its end says {count:,}")
    return members, names


def head_bytes(name: bytes) -> int:
    """A read of so many bytes nearly always has a member's own header."""
    return _LOCAL.size + len(name) + _MORE


def begin_of(data: bytes, at: int, name: bytes, method: int, flags: int) -> int:
    """Where the data of a member begin, after its own header at the begin of `data`. at: its place in the file, for errors.
    Raises BadSampleError."""
    if flags & _ENCRYPTED:
        raise BadSampleError("it is encrypted; make an archive without a password")
    if method not in (_STORED, DEFLATED):
        raise BadSampleError(
            f"it is compressed with {_METHODS.get(method, f'method {method}')}, and deflate is read; pack it again: zip -r"
        )
    magic, *_, length, extra = _LOCAL.unpack_from(data)
    if magic != b"PK\3\4":
        raise BadSampleError(f"there is no header of a member at byte {at:,}")
    own = data[_LOCAL.size : _LOCAL.size + length]
    if _name(own, flags) != name:
        raise BadSampleError(f"its own header names it {printable(os.fsdecode(own))}")
    return _LOCAL.size + int(length) + int(extra)


def _name(name: bytes, flags: int) -> bytes:
    return name if flags & _UTF_8 or name.isascii() else name.decode("cp437").encode()


def _end(file: Any, first: int, data: bytes) -> tuple[int, int, int, int]:
    """Members, bytes and place of the central directory, and where it ends. data: of the file, from `first` to its end."""
    at = last = data.rfind(b"PK\5\6", 0, max(0, len(data) - _END.size + 4))
    while at >= 0 and at + _END.size + _END.unpack_from(data, at)[-1] != len(data):
        at = data.rfind(b"PK\5\6", 0, at + 3)  # those bytes may be in the comment
    at = last if at < 0 else at  # other bytes may follow
    if at < 0:
        raise _no_zip(file, "it has no directory at its end: is the file whole?")
    _, disk, _, _, count, length, place, _ = _END.unpack_from(data, at)
    end = first + at
    if end >= _END_64_PLACE.size:
        magic, _, where, _ = _END_64_PLACE.unpack(file.read(end - _END_64_PLACE.size, _END_64_PLACE.size))
        if magic == b"PK\6\7":
            end -= _END_64_PLACE.size + _END_64.size
            if end < 0 or not (wide := _END_64.unpack(file.read(end, _END_64.size)))[0] == b"PK\6\6":
                raise _no_zip(file, f"its directory of 64 bits is not at byte {where:,}")
            disk, (count, length, place) = wide[4], wide[7:]
    if disk not in (0, 0xFFFF):
        raise _no_zip(file, "it is a part of several; join them: zip -s 0")
    return count, length, place, end


def _wide(extra: bytes, numbers: list[int]) -> list[int]:
    """Those of 32 bits that are full are in a field of their own."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        field = extra[4 : 4 + length]
        if kind == 1 and len(field) >= 8 * numbers.count(_NONE):
            wide = iter(struct.unpack_from(f"<{numbers.count(_NONE)}Q", field))
            return [next(wide) if number == _NONE else number for number in numbers]
        extra = extra[4 + length :]
    return numbers


def _no_zip(file: Any, why: str) -> InvalidError:
    return InvalidError(f"{printable(file.path)} is no zip archive that can be read: {why}")
