"""Shards of MosaicML Streaming. A sample is read by itself; of a compressed shard, all are."""

from __future__ import annotations

import bz2
import contextlib
import decimal
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import BadSampleError, InvalidError, StocachedError, UnsupportedError
from .._common.one_line import one_line, printable
from .._memory.texts import SharedBytes, Texts
from .._prepared import zstd
from .lines import chosen_columns
from .local_file import File, opened

INDEX = "index.json"
_MOST_INDEX = 256 << 20  # bytes; a larger file is none
Decode = Callable[[bytes], Any]


class Shard:
    """Each element is a sample, a dict of its columns. columns: the names of those that are read; None: all."""

    addresses = True

    def __init__(self, where: Any, columns: Sequence[str] | None = None) -> None:
        self._file, path = opened(where), str(where)
        starts, config = _head(path, self._file.read, self._file.size)
        self._columns = _Columns(path, config, columns)
        self.item_columns = self._columns.names
        self._shared = SharedBytes.of_array(starts)

    def __len__(self) -> int:
        return len(self._shared.array) // 4 - 1

    def __getitem__(self, k: int) -> dict[str, Any]:
        return self._columns.sample(self._file.read(*self.spans(k)[0]))

    def spans(self, k: int) -> list[tuple[int, int]]:
        """The part of the file that a sample takes: place and bytes."""
        begin, end = struct.unpack_from("<2I", self._shared.array, 4 * k)
        return [(begin, end - begin)]

    def name(self, k: int) -> str:
        return f"sample {k}"


class _Packed:
    """A compressed shard. Its element is the list of its samples."""

    def __init__(self, where: Any, entry: _Entry, columns: Sequence[str] | None) -> None:
        path = str(where)
        if entry.packing not in _UNPACK:
            raise InvalidError(
                f"{printable(path)} is compressed with {one_line(entry.packing)}; {', '.join(_UNPACK)} are read"
            )
        self._file, self._entry = opened(where), entry
        self._columns = _Columns(path, entry.config, columns)
        self.item_columns = self._columns.names
        self.counts, self.item_bytes = [entry.samples], entry.raw.bytes
        with contextlib.suppress(ValueError):
            self._unpack(b"")  # what it needs may be missing

    def __len__(self) -> int:
        return 1

    def __getitem__(self, k: int) -> list[dict[str, Any]]:
        entry = self._entry
        data = self._file.read(0, entry.packed.bytes)
        for name, wanted in entry.packed.hashes.items():
            if hashlib.new(name, data).hexdigest() != wanted:
                raise BadSampleError(f"its {name} is not that of {INDEX}: the file is damaged")
        try:
            data = self._unpack(data)
            if len(data) != entry.raw.bytes:
                raise ValueError(f"there are other than the {entry.raw.bytes:,} bytes that {INDEX} says")
            starts, _ = _head(self._file.path, lambda at, size: data[at : at + size], len(data))
        except ValueError as error:
            raise BadSampleError(f"it does not unpack: {error}") from None
        places = starts.tolist()
        return [self._columns.sample(data[begin:end]) for begin, end in pairwise(places)]

    def spans(self, k: int) -> list[tuple[int, int]]:
        return [(0, self._entry.packed.bytes)]

    def _unpack(self, data: bytes) -> bytes:
        try:
            return _UNPACK[self._entry.packing](data, self._entry.raw.bytes)
        except (UnsupportedError, ImportError):
            extra = "zstd" if self._entry.packing == "zstd" else "parquet"
            raise UnsupportedError(
                f"{printable(self._file.path)} is compressed with {self._entry.packing}; run: pip install stocached[{extra}]"
            ) from None
        except (OSError, zlib.error, MemoryError) as error:
            raise ValueError(str(error) or f"no memory for {self._entry.raw.bytes:,} bytes") from None

    def name(self, k: int) -> str:
        return "its samples"


class _Info:
    """A file as the index has it."""

    def __init__(self, info: Any) -> None:
        """Raises LookupError, TypeError, ValueError, AttributeError."""
        self.name, self.bytes = str(info["basename"]), _count(info["bytes"])
        if not self.name or os.path.isabs(self.name) or ".." in self.name.split("/"):
            raise ValueError
        known = hashlib.algorithms_guaranteed  # xxhash is none
        self.hashes = {
            name: digest for name, digest in info["hashes"].items() if name in known and not name.startswith("shake")
        }


class _Entry:
    """A shard as the index has it."""

    def __init__(self, entry: Any) -> None:
        """Raises as _Info."""
        self.samples, self.raw = _count(entry["samples"]), _Info(entry["raw_data"])
        self.packed = self.raw if entry.get("zip_data") is None else _Info(entry["zip_data"])
        self.packing = (entry.get("compression") or "").partition(":")[0]
        self.config = {name: entry[name] for name in _CONFIG}


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError
    return number


class Listed:
    """The shards that the index of a folder lists. It is called as their class."""

    __name__, of, addresses = "Shard", Shard, True

    def __init__(self, index: str, shards: list[Any], files: Any) -> None:
        """files: of an address; None: of this machine. Raises InvalidError."""
        entries = list[_Entry]()
        for number, shard in enumerate(shards):
            try:
                entries.append(_Entry(shard))
            except (LookupError, TypeError, ValueError, AttributeError):
                raise InvalidError(f"{printable(index)}: shard {number} of it is {one_line(shard, 200)}") from None
        folder = os.path.dirname(index)
        raw = [os.path.join(folder, entry.raw.name) for entry in entries]
        packed = [os.path.join(folder, entry.packed.name) for entry in entries]
        there = os.path.exists if files is None else {*files.names}.__contains__
        self._packed = not all(map(there, raw))  # Streaming leaves some unpacked beside the others
        paths = packed if self._packed else raw
        missing = next((path for path in paths if not there(path)), None)
        if missing is not None:
            raise InvalidError(f"{printable(index)} lists {printable(missing)}, which is not there; copy it again")
        self.paths: Any = Texts.of_list(paths) if files is None else files.of_names(paths)
        self._entries = dict(zip(paths, entries))

    def __call__(self, where: Any, columns: Sequence[str] | None = None) -> Any:
        path, size = str(where), opened(where).size
        entry = self._entries[path]
        said = (entry.packed if self._packed else entry.raw).bytes
        if size != said:
            raise InvalidError(f"{printable(path)} has {size:,} bytes, and {INDEX} says {said:,}; copy it again")
        if self._packed:
            return _Packed(where, entry, columns)
        made = Shard(where, columns)
        if len(made) != entry.samples:
            raise InvalidError(f"{printable(path)} has {len(made):,} samples, and {INDEX} says {entry.samples:,}")
        return made


def listed(folder: str, files: Any = None) -> Listed | None:
    """files: of an address; None: of this machine. None: the folder has no index of Streaming. Raises InvalidError for one of
    other formats."""
    path = os.path.join(folder, INDEX)
    try:
        index: File = opened(path) if files is None else next(iter(files.of_names([path])))
        if index.size > _MOST_INDEX:
            return None
        made = json.loads(index.read(0, index.size))
        shards, version = made["shards"], made["version"]
        formats = sorted({str(shard["format"]) for shard in shards})
    except StocachedError:  # the address fails, not the file
        raise
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    if version != 2 or formats != ["mds"]:
        raise InvalidError(
            f"{printable(path)} lists shards of version {one_line(version)} and of {one_line(', '.join(formats))}; version 2 "
            f'of mds is read. Name other files themselves, such as "{os.path.join(printable(folder), "*.jsonl")}"'
        )
    return Listed(path, shards, files)


def _head(path: str, read: Callable[[int, int], bytes], size: int) -> tuple[npt.NDArray[np.uint32], Any]:
    """Where each sample begins, with the end of the last one; and the columns. Raises InvalidError."""
    count = int.from_bytes(read(0, 4), "little") if size >= 8 else 0
    first = 8 + 4 * count
    if first <= size:
        starts = np.frombuffer(read(4, first - 4), "<u4")
        if first <= starts[0] and starts[-1] == size and (starts[:-1] <= starts[1:]).all():
            try:
                return starts, json.loads(read(first, int(starts[0]) - first))
            except (ValueError, RecursionError):
                pass
    raise InvalidError(
        f"{printable(path)} is no MDS shard that can be read: its head, of {count:,} samples, and its {size:,} bytes do not go "
        "together; copy it again"
    )


# ------------------------------------------------------------ samples

_CONFIG = ("column_names", "column_encodings", "column_sizes")


class _Columns:
    """How a sample is written."""

    def __init__(self, path: str, config: Any, columns: Sequence[str] | None) -> None:
        """config: of a shard or of the index. Raises InvalidError."""
        try:
            names, encodings, sizes = (config[name] for name in _CONFIG)
            right = all(isinstance(text, str) for text in (*names, *encodings)) and len(set(names)) == len(names)
            self._sizes = [_count(size) or None if size is not None else None for size in sizes]
        except (LookupError, TypeError, ValueError):
            right = False
        if not right or not len(names) == len(encodings) == len(sizes):
            raise InvalidError(f"{printable(path)} does not say how its columns are written: {one_line(config, 200)}")
        self._given = f"<{self._sizes.count(None)}I"  # sizes that a sample begins with
        self._wanted = [
            (at, names[at], encodings[at], _decoder(path, names[at], encodings[at]))
            for at in chosen_columns(path, names, columns)
        ]
        self.names = [name for _, name, _, _ in self._wanted]

    def sample(self, data: bytes) -> dict[str, Any]:
        made, name, encoding = dict[str, Any](), "", ""
        try:
            given, places = iter(struct.unpack_from(self._given, data)), [struct.calcsize(self._given)]
            for size in self._sizes:
                places.append(places[-1] + (next(given) if size is None else size))
            if places[-1] != len(data):
                raise ValueError(f"the sample has {len(data):,} bytes, and its columns {places[-1]:,}")
            for at, name, encoding, decode in self._wanted:  # noqa: B007 - errors name it
                made[name] = decode(data[places[at] : places[at + 1]])
        except (ArithmeticError, LookupError, ValueError, RecursionError, struct.error) as error:
            of = f"column {name!r} is no {encoding}: " * bool(encoding)
            raise BadSampleError(f"{of}{error}") from None
        return made


# Of an encoding, the number in a sample, and the type.
_TYPES = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8", 65: "<i8", 66: "<f8",
}  # fmt: skip
_NAMED = {np.dtype(code).name: code for code in _TYPES.values()}
_PIXELS = {
    "L": ("u1", 1), "LA": ("u1", 2), "RGB": ("u1", 3), "RGBA": ("u1", 4), "CMYK": ("u1", 4), "YCbCr": ("u1", 3),
    "HSV": ("u1", 3), "I": ("<i4", 1), "I;16": ("<u2", 1), "F": ("<f4", 1),
}  # fmt: skip


def _decoder(path: str, name: str, encoding: str) -> Decode:
    """Raises InvalidError."""
    made = _DECODERS.get(encoding) or _array_decoder(encoding)
    if made is None:
        why = (
            "pickled, and a pickle may run any program"
            if encoding == "pkl"
            else f"of {one_line(encoding)}, which is not known"
        )
        raise InvalidError(f"{printable(path)}: column {name!r} is {why}; name others in columns=, or write it as json")
    return made


def _array_decoder(encoding: str) -> Decode | None:
    """Of "ndarray", "ndarray:TYPE" or "ndarray:TYPE:SIZE,SIZE"."""
    kind, *given = encoding.split(":")
    try:
        shape = [*map(int, given[1].split(","))] if len(given) > 1 else None
    except ValueError:
        return None
    if kind != "ndarray" or len(given) > 2 or (given and given[0] not in _NAMED) or min(shape or [1]) < 1:
        return None
    return partial(_array, _NAMED[given[0]] if given else None, shape)


def _array(dtype: str | None, shape: list[int] | None, data: bytes) -> npt.NDArray[Any]:
    at = 0
    if dtype is None:
        dtype, at = _TYPES[data[0]], 1
    if shape is None:
        sizes = np.frombuffer(data, f"<u{1 << (data[at] & 3)}", data[at] >> 2, at + 1)
        at, shape = at + 1 + sizes.nbytes, sizes.tolist()
    return np.array(np.frombuffer(data, dtype, offset=at).reshape(shape))  # a copy that the program may change


def _pixels(data: bytes) -> npt.NDArray[Any]:
    width, height, length = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + length].decode()
    if mode not in _PIXELS:
        raise ValueError(f"its mode is {one_line(mode)}, and {', '.join(_PIXELS)} are read")
    dtype, bands = _PIXELS[mode]
    pixels = np.frombuffer(data, dtype, offset=12 + length)
    return np.array(pixels.reshape([height, width, bands] if bands > 1 else [height, width]))


def _list(decode: Decode, at: int, data: bytes) -> list[Any]:
    """at: bytes before the number of values."""
    (count,) = np.frombuffer(data, "<u4", 1, at).tolist()
    sizes = np.frombuffer(data, "<u4", count, at + 4)
    places = [at + 4 + sizes.nbytes]
    for size in sizes.tolist():
        places.append(places[-1] + size)
    if places[-1] != len(data):
        raise ValueError(f"it has {len(data):,} bytes, and its values {places[-1]:,}")
    return [decode(data[begin:end]) for begin, end in pairwise(places)]


def _number(dtype: str, data: bytes) -> Any:
    (value,) = np.frombuffer(data, dtype)
    return value


def _whole(data: bytes) -> int:
    return int(_number("<i8", data))


def _decimal(data: bytes) -> decimal.Decimal:
    return decimal.Decimal(data.decode())


_DECODERS: dict[str, Decode] = {
    **{name: partial(_number, code) for name, code in _NAMED.items()},
    **dict.fromkeys(("bytes", "jpeg", "png"), bytes),
    **{name: partial(_list, bytes, 0) for name in ("jpeg_array", "jpegarray")},
    **{f"list[{name}]": partial(_list, bytes, 4) for name in ("jpeg", "png")},
    "str": bytes.decode, "int": _whole, "str_int": int, "str_float": float, "str_decimal": _decimal, "json": json.loads,
    "pil": _pixels, "list[pil]": partial(_list, _pixels, 4),
}  # fmt: skip


# ------------------------------------------------------------ compressed


def _gunzip(data: bytes, size: int) -> bytes:
    return zlib.decompressobj(31).decompress(data, size + 1)


def _bunzip2(data: bytes, size: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, size + 1)


def _of_pyarrow(name: str, data: bytes, size: int) -> bytes:
    import pyarrow

    return bytes(pyarrow.Codec(name).decompress(data, decompressed_size=size, asbytes=True))


# Each raises ValueError, OSError, zlib.error, or what says that a package is missing; more bytes than `size` are none or wrong.
_UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    "gz": _gunzip, "bz2": _bunzip2, "zstd": zstd.decompress,
    "br": partial(_of_pyarrow, "brotli"), "snappy": partial(_of_pyarrow, "snappy"),
}  # fmt: skip
