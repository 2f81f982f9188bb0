"""TFRecord files, and the values of the records that are a tf.train.Example."""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.checksum import crc32c
from .._common.errors import BadSampleError, InvalidError
from .._common.one_line import one_line, printable
from .._common.varint import varint_at
from .._shards.tar_index import compressed_by, unpack
from .kept_index import Indexed, OpenFile, OpenObject, Starts, starts_of
from .lines import check_columns

_RULE = b"tfrecord".ljust(16)
_HEAD = struct.Struct("<QI")  # the head of a record: the length of its data, and a checksum of that
_LENGTH = struct.Struct("<Q")
_MORE = _HEAD.size + 4  # bytes of a record besides its data, which have a checksum too


class Records(Indexed):
    """Each element is the bytes of a record."""

    what, addresses = "record", True

    def __init__(self, where: Any) -> None:
        super().__init__(where, starts_of(where, _RULE, _made))

    def __getitem__(self, k: int) -> Any:
        return self._record(k)

    def _record(self, k: int) -> bytes:
        begin, size = self._place(k)
        whole = self._file.read(begin, size)
        if size < _MORE or not _is_head(whole[: _HEAD.size], size - _MORE):
            raise BadSampleError("the checksum of its length is wrong: the file is damaged")
        data = whole[_HEAD.size : -4]
        if _masked(data) != int.from_bytes(whole[-4:], "little"):
            raise BadSampleError("its checksum is wrong: the file is damaged")
        return data


class TfRecord(Records):
    """Each element is the features of a record, a dict. One value is itself; others are an array, or a list of bytes.

    columns: the features that are wanted; None: all."""

    def __init__(self, where: Any, columns: Sequence[str] | None = None) -> None:
        check_columns(columns)
        super().__init__(where)
        self._columns = columns if columns is None else [*columns]

    def __getitem__(self, k: int) -> dict[str, Any]:
        data = self._record(k)
        try:
            places = _features(data)
            wanted = places if self._columns is None else {name: places[name] for name in self._columns}
            return {name: _value(data, *place) for name, place in wanted.items()}
        except KeyError as error:
            raise BadSampleError(f"it has no feature {error}; it has {one_line([*places], 400)}") from None
        except ValueError as error:
            raise BadSampleError(f'no tf.train.Example: {error}; format="records" gives its bytes') from None


# ------------------------------------------------------------ places


def _masked(data: bytes) -> int:
    """The checksum, as these files have it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _is_head(data: bytes, length: int | None = None) -> bool:
    """Whether a record, of this length, begins so."""
    if len(data) < _HEAD.size:
        return False
    said, checksum = _HEAD.unpack_from(data)
    return length in (None, said) and _masked(data[: _LENGTH.size]) == checksum


def _made(file: OpenFile | OpenObject) -> Starts:
    starts, at, length, size = array("Q"), 0, 0, file.stamp[0]
    while at < size:
        begin, piece = at, file.pread(file.piece if length < file.piece else _HEAD.size, at)
        if not at:
            _check(file.path, piece)
        last = len(piece) - _HEAD.size
        while at - begin <= last:
            (length,) = _LENGTH.unpack_from(piece, at - begin)
            if at + _MORE + length > size:
                raise _damaged(file, [*starts, at])
            starts.append(at)
            at += _MORE + length
        if begin == at:
            raise _damaged(file, [*starts, at])
    return np.append(np.frombuffer(starts, np.uint64), np.uint64(size))


def _check(path: str, head: bytes) -> None:
    """The length of the first record. Other files have none."""
    if _is_head(head):
        return
    zlib = len(head) > 1 and head[0] == 0x78 and (head[0] << 8 | head[1]) % 31 == 0
    packing = compressed_by(head) or ("zlib" if zlib else "")
    raise InvalidError(
        f"{printable(path)} is compressed with {packing}, so no record of it can be read by itself; "
        + unpack(printable(path), "pigz" if zlib else packing)
        if packing
        else f"{printable(path)} is no TFRecord file: it does not begin with the length of a record and its checksum; "
        "correct its name, or give format="
    )


def _damaged(file: OpenFile | OpenObject, starts: list[int]) -> InvalidError:
    """starts: where records may begin, up to one that does not fit."""
    for number, at in enumerate(starts):
        head = file.pread(_HEAD.size, at)
        if len(head) == _HEAD.size and not _is_head(head):
            return InvalidError(
                f"{printable(file.path)}: the length of record {number} (byte {at:,}) is damaged; copy it again"
            )
    return InvalidError(
        f"{printable(file.path)} ends in the middle of record {len(starts) - 1} (byte {starts[-1]:,}): was the program that wrote it "
        "stopped? Copy or write it again"
    )


# ------------------------------------------------------------ values

_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}  # how a field is written
_FEW = 40  # bytes
_KINDS = {1: "bytes", 2: "float", 3: "int64"}  # lists of a feature


def _fields(data: bytes, at: int, end: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, how it is written, begin, end. most: of numbers."""
    while at < end:
        key, at = varint_at(data, at, end)
        number, how = key >> 3, key & 7
        if how == _BYTES:
            length, at = varint_at(data, at, end)
            stop = at + length
        else:
            stop = varint_at(data, at, end)[1] if how == _VARINT else at + _FIXED.get(how, end)
        if not 1 <= number <= most or stop > end:
            raise ValueError(f"field {number} at byte {at:,} is none")
        yield number, how, at, stop
        at = stop


def _messages(data: bytes, at: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
    for number, how, begin, stop in _fields(data, at, end, most):
        if how != _BYTES:
            raise ValueError(f"field {number} at byte {begin:,} is no message")
        yield number, begin, stop


def _features(data: bytes) -> dict[str, tuple[int, int]]:
    """Where the value of each feature lies."""
    made = dict[str, tuple[int, int]]()
    for number, begin, end in _messages(data, 0, len(data), 2):
        if number == 2:
            raise ValueError("it is a SequenceExample")
        for _, at, stop in _messages(data, begin, end, 1):
            name, place = "", (stop, stop)
            for part, first, last in _messages(data, at, stop, 2):
                if part == 1:
                    name = data[first:last].decode()
                else:
                    place = first, last
            made[name] = place
    return made


def _value(data: bytes, begin: int, end: int) -> Any:
    """None: it has none."""
    kind, pieces = 0, list[bytes]()
    for number, at, stop in _messages(data, begin, end, 3):
        if number != kind:  # the last kind counts
            kind, pieces = number, []
        for _, how, first, last in _fields(data, at, stop, 1):
            pieces.append(data[first:last])
            if how != _BYTES and (kind, how) not in ((2, 5), (3, _VARINT)):
                raise ValueError(f"a {_KINDS[kind]} at byte {first:,} is none")
    if kind == 0:
        return None
    if kind == 1:
        return pieces[0] if len(pieces) == 1 else pieces
    values = np.frombuffer(b"".join(pieces), "<f4").copy() if kind == 2 else _varints(b"".join(pieces))
    return values[0] if len(values) == 1 else values


def _few(data: bytes) -> npt.NDArray[np.int64]:
    """`_varints`, for which NumPy takes longer."""
    numbers, at = [], 0
    while at < len(data):
        number, at = varint_at(data, at, len(data))
        numbers.append(number & 2**64 - 1)
    return np.array(numbers, np.uint64).view(np.int64)


def _varints(data: bytes) -> npt.NDArray[np.int64]:
    if len(data) <= _FEW:
        with contextlib.suppress(ValueError):  # raised below
            return _few(data)
    given = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(given < 0x80)
    if len(ends) == len(given):
        return given.astype(np.int64)
    if not len(ends) or ends[-1] != len(given) - 1:
        raise ValueError("the last of its numbers does not end")
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() > 10:
        raise ValueError("one of its numbers has more than 10 bytes")
    starts = ends + 1 - lengths
    shifts = (np.arange(len(given)) - np.repeat(starts, lengths)) * 7
    parts = (given & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)
