"""Arrays of NumPy's npz and of safetensors, which are read row by row where they lie."""

from __future__ import annotations

import gc
import io
import json
import math
import os
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.errors import BadSampleError, InvalidError
from .._common.one_line import one_line, printable
from .._common.sizes import show_size
from .._memory.texts import SharedBytes
from .._samples.dtypes import BFLOAT16, NUMPY
from .._shards.tar_index import compressed_by, unpack
from .archives import DEFLATED, begin_of, directory, head_bytes
from .array_rows import common_length, rows_of, type_of
from .lines import chosen_columns
from .local_file import opened

_MOST_HELD = 1 << 30  # bytes of unpacked arrays of a process
_PIECE = 1 << 20  # bytes that are unpacked at a time
_MOST_HEADER = 16 << 20  # bytes of JSON
_NPY = 64 << 10  # bytes that have the header of an array
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "BF16": NUMPY[BFLOAT16], "F32": "<f4", "F64": "<f8", "C64": "<c8",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
}  # fmt: skip
_DIMENSIONS = 32  # the most that NumPy 1 has
_held = 0


@dataclass
class Array:
    """at: where it lies in the file, or in `held`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    at: int
    held: SharedBytes | None = None

    def __post_init__(self) -> None:
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self.row = (1, *self.shape[1:])

    def size(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class Arrays:
    """Each element is a row of all arrays, a dict. columns: the names of the arrays; None: all."""

    what, addresses = "", True

    def __init__(self, where: Any, columns: Sequence[str] | None = None) -> None:
        self._file = opened(where)
        self._size, path = self._file.size, self._file.path
        try:
            found = self._find()
        except BadSampleError as error:
            raise self._refused(error.reason) from None
        names = [*found]
        chosen = [names[at] for at in chosen_columns(path, names, columns)]
        self._arrays = {name: self._array(name, found[name]) for name in chosen}
        self.item_columns = chosen
        self.item_types = {name: type_of(array.dtype, array.shape) for name, array in self._arrays.items()}
        self._rows = common_length(path, {name: array.shape for name, array in self._arrays.items()})
        for name, array in self._arrays.items():
            if len(array.shape) > _DIMENSIONS:
                raise self._refused(f"it has {len(array.shape)} dimensions, and {_DIMENSIONS} are the most", name)
            if not array.row_bytes and self._rows > self._size:
                raise self._refused(f"its {self._rows:,} rows have no bytes", name)

    def _find(self) -> Mapping[str, Any]:
        """What the file says of each array."""
        raise NotImplementedError

    def _array(self, name: str, found: Any) -> Array:
        raise NotImplementedError

    def _refused(self, why: str, name: str | None = None) -> InvalidError:
        path = printable(self._file.path)
        if name is None:
            return InvalidError(f"{path} is no {self.what} that can be read: {why}")
        return InvalidError(f"{path}, array {printable(name)}: {why}; or leave it out by columns=")

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, k: int) -> dict[str, Any]:
        return {name: self._row(array, k) for name, array in self._arrays.items()}

    def _row(self, array: Array, k: int) -> Any:
        size = array.row_bytes
        at = array.at + k * size
        data = self._file.read(at, size) if array.held is None else array.held.array[at : at + size]
        # In memory of its own, which the program may change, as torch wants it.
        return rows_of(np.ndarray(array.row, array.dtype, bytearray(data)), texts=False)[0]

    def spans(self, k: int) -> list[tuple[int, int]]:
        """The parts of the file that a row takes: place and bytes."""
        arrays = (array for array in self._arrays.values() if array.held is None and array.row_bytes)
        return [(array.at + k * array.row_bytes, array.row_bytes) for array in arrays]

    def name(self, k: int) -> str:
        return f"row {k:,}"


class Npz(Arrays):
    """Stored arrays are read where they lie. Compressed ones, and those in Fortran's order, are unpacked into memory, which the
    workers share."""

    what = "npz archive"

    def _find(self) -> Mapping[str, Any]:
        found = zip(*directory(self._file, self._size, True))
        return {os.fsdecode(name)[:-4]: (*member, name) for member, name in found if name.endswith(b".npy")}

    def _array(self, name: str, found: Any) -> Array:
        at, packed, size, crc, method, flags, member = found
        try:
            begin = at + begin_of(
                self._file.read(at, min(head_bytes(member), self._size - at)), at, member, method, flags
            )
            if method == DEFLATED:
                self._hold(name, size)
                held = SharedBytes.of_pieces(self._unpacked(begin, packed, size, crc))
                array, fortran = _header(held.array[:_NPY].tobytes(), size)
                array = Array(array.dtype, array.shape, array.at, held)
            else:
                array, fortran = _header(self._file.read(begin, min(packed, _NPY)), packed)
                array = Array(array.dtype, array.shape, begin + array.at)
            if fortran:
                self._hold(name, array.size())
                array = self._turned(array)
        except BadSampleError as error:
            raise self._refused(error.reason, name) from None
        return array

    def _hold(self, name: str, size: int) -> None:
        global _held
        if _held + size > _MOST_HELD:
            gc.collect()  # pipes that nobody uses any more
        if _held + size > _MOST_HELD:
            path = printable(self._file.path)
            raise self._refused(
                f"it is compressed or in Fortran's order, so its {show_size(size)} would be unpacked into memory, and "
                f"{show_size(_MOST_HELD)} are the most of a program, which has {show_size(_held)}. Write it anew, and rows are "
                f'read where they lie: import numpy as np; np.savez("{path}", **{{name: np.ascontiguousarray(array) for name, '
                f'array in np.load("{path}").items()}})',
                name,
            )
        _held += size
        weakref.finalize(self, _let_go, size).atexit = False

    def _unpacked(self, begin: int, packed: int, size: int, crc: int) -> Iterator[bytes]:
        unpack, found, count = zlib.decompressobj(-15), 0, 0
        for at in range(begin, begin + packed, _PIECE):
            data = self._file.read(at, min(_PIECE, begin + packed - at))
            while data:
                try:
                    made = unpack.decompress(data, _PIECE)
                except zlib.error as error:
                    raise BadSampleError(f"it does not unpack: {error}") from None
                found, count, data = zlib.crc32(made, found), count + len(made), unpack.unconsumed_tail
                if count > size:
                    break
                yield made
        made = unpack.flush() if count < size else b""
        yield made
        if count + len(made) != size or zlib.crc32(made, found) != crc:
            raise BadSampleError("its size or its checksum is wrong: the file is damaged")

    def _turned(self, array: Array) -> Array:
        size = array.size()
        data = self._file.read(array.at, size) if array.held is None else array.held.array[array.at : array.at + size]
        made = np.ndarray(array.shape, array.dtype, data, order="F")
        return Array(array.dtype, array.shape, 0, SharedBytes.of_array(np.ascontiguousarray(made)))


def _let_go(size: int) -> None:
    global _held
    _held -= size


def _header(data: bytes, size: int) -> tuple[Array, bool]:
    """The array of a member, and whether it is in Fortran's order. size: of the member. Raises BadSampleError."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        shape, fortran, dtype = _HEADERS[version](file) if version in _HEADERS else ((), False, np.dtype("u1"))
    except Exception as error:  # NumPy parses it as a program
        raise BadSampleError(f"no header: {one_line(str(error))}") from None
    if version not in _HEADERS:
        raise BadSampleError(f"it has version {version[0]}.{version[1]} of the format, and 1.0 and 2.0 are read")
    if dtype.hasobject:
        raise BadSampleError("it has objects, which only pickle reads, and pickles run programs; save numbers or texts")
    array = Array(dtype, shape, file.tell())
    if min(shape, default=0) < 0 or array.at + array.size() > size:
        raise BadSampleError(f"its shape {shape} of {dtype} cannot be in {size:,} bytes")
    return array, fortran and sum(length != 1 for length in shape) > 1


class Safetensors(Arrays):
    """Numbers that NumPy lacks are their bits."""

    what = "safetensors file"

    def _find(self) -> Mapping[str, Any]:
        head = self._file.read(0, min(8, self._size))
        if len(head) < 8:
            raise BadSampleError(f"it has {self._size} bytes; copy or write it again")
        packing, length = compressed_by(head), int.from_bytes(head, "little")
        if packing is not None:
            raise BadSampleError(f"it is compressed with {packing}; {unpack(printable(self._file.path), packing)}")
        if length > min(_MOST_HEADER, self._size - 8):
            raise BadSampleError(f"its header cannot have {length:,} bytes: the file has {self._size:,}")
        try:
            header = json.loads(self._file.read(8, length))
            header.pop("__metadata__", None)
            found = {
                name: (each["dtype"], tuple(each["shape"]), begin, after)
                for name, each in header.items()
                for begin, after in [each["data_offsets"]]
            }
            numbers = [number for _, shape, *ends in found.values() for number in (*shape, *ends)]
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError("a shape or an offset is no whole number")
            end = 0
            for name, (*_, begin, after) in sorted(found.items(), key=lambda item: item[1][2:]):
                if begin != end or after < begin:
                    raise ValueError(
                        f"{printable(name)} lies from byte {begin:,} to {after:,}, and the one before ends at {end:,}"
                    )
                end = after
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise BadSampleError(f"no header: {error!r:.300}") from None
        if 8 + length + end != self._size:
            raise BadSampleError(f"its arrays end at byte {8 + length + end:,}, and the file has {self._size:,}")
        return {
            name: (dtype, shape, 8 + length + begin, after - begin)
            for name, (dtype, shape, begin, after) in found.items()
        }

    def _array(self, name: str, found: Any) -> Array:
        dtype, shape, at, size = found
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise self._refused(f"its type {one_line(dtype)} is none of {', '.join(_DTYPES)}", name)
        array = Array(np.dtype(_DTYPES[dtype]), shape, at)
        if array.size() != size:
            raise self._refused(f"its shape {shape} of {dtype} does not have {size:,} bytes", name)
        return array
