"""Where the members of a tar shard lie: the rules of source/tar, and the index files of `stocached serve`.

An index file counts while the shard has the size and the time that the index has, its checksum is right, and nobody else
can have written it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.birth import born_ns
from .._common.errors import InvalidError
from .._common.local_file import stamp_of
from .._common.one_line import printable
from .._common.varint import varint_at
from .tar_headers import BLOCK, TarError, members_of_archive

SUFFIX = ".stocached-index"
_HEAD = struct.Struct("<8sIIqq5Q")  # up to the bytes of the keys
_HEADER_BYTES = 104
_VERSION = 2
MOST_BYTES = 2**32 - 1  # bytes of a member
_MOST_FIELD, _MOST_FIELDS = 255, 1 << 16
_KEY_BLOCK = 64  # keys of a block, of which each says how it differs from the one before
_COMPRESSED = {
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4", b"\x1f\x9d": "compress",
}  # fmt: skip


@dataclass
class Members:
    """The members of samples of a shard, in their order."""

    stamp: tuple[int, int]  # bytes and modification time of the shard
    fields: list[str]
    starts: npt.NDArray[np.int64]  # the first member of each sample, and the number of members
    numbers: npt.NDArray[np.int64]  # numbers of their fields
    places: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    packed: bytes  # the keys of the samples, as an index has them

    def keys(self) -> list[bytes]:
        """Raises ValueError if they are damaged."""
        made, at, before, data = list[bytes](), 0, b"", self.packed
        for k in range(len(self.starts) - 1):
            shared, at = varint_at(data, at, len(data))
            more, at = varint_at(data, at, len(data))
            before = before[: shared if k % _KEY_BLOCK else 0] + data[at : at + more]
            at += more
            made.append(before)
        return made


def members_of(path: str) -> Members:
    """Of the index of a shard if it has one, else of its headers."""
    stamp = stamp_of(os.stat(path))
    for index in indexes_of(path, "tar"):
        found = _read_index(index, stamp)
        if found is not None:
            return found
    return _walked(path, stamp)  # the index is made again, as the server does


def indexes_of(path: str, kind: str) -> list[str]:
    """Where an index lies: beside the file, as the server keeps those of shards, and in the user's cache folder."""
    absolute = os.path.abspath(path)
    distinct = f"{os.path.basename(path)}-{hashlib.sha256(os.fsencode(absolute)).hexdigest()[:16]}{SUFFIX}"
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [path + SUFFIX, os.path.join(user, "stocached", kind, distinct)]


def is_trusted(index: str, descriptor: int) -> bool:
    """Whether only this user, root, or the owner of the file can have written its index, as the server asks too."""
    about, owners = os.fstat(descriptor), {0, os.geteuid()}
    with contextlib.suppress(OSError):
        owners.add(os.stat(index.removesuffix(SUFFIX)).st_uid)
    return about.st_uid in owners and not about.st_mode & stat.S_IWOTH


def _decoded(data: bytes, stamp: tuple[int, int]) -> Members | None:
    """None: of another shard or version, or damaged."""
    magic, version, checksum, size, modified, samples, members, fields, field_bytes, key_bytes = _HEAD.unpack_from(data)
    rest = np.frombuffer(data, np.uint8)[16:]
    if (magic, version, (size, modified)) != (b"stoc-tar", _VERSION, stamp):
        return None
    if _native.crc32c(0, rest.ctypes.data, rest.nbytes) != checksum:
        return None
    at = _HEADER_BYTES

    def section(dtype: Any, count: int) -> npt.NDArray[Any]:
        nonlocal at
        part = np.frombuffer(data, dtype, count, at)
        at += (part.nbytes + 7) // 8 * 8
        return part

    starts, places, sizes = section("<u4", samples + 1), section("<u8", members), section("<u4", members)
    names, text = [], section(np.uint8, field_bytes).tobytes()
    while text:
        names.append(text[1 : 1 + text[0]].decode())
        text = text[1 + text[0] :]
    if len(names) != fields:
        return None
    packed = data[at + (samples + _KEY_BLOCK - 1) // _KEY_BLOCK * 8 :][:key_bytes]
    numbers, blocks = (places & 0xFFFF).astype(np.int64), (places >> 16).astype(np.int64)
    starts = starts.astype(np.int64)
    if starts[0] or starts[-1] != members or (np.diff(starts) < 1).any() or (numbers >= fields).any():
        return None
    if (blocks * BLOCK + sizes > size).any():  # else a reader would make a buffer of any size
        return None
    return Members(stamp, names, starts, numbers, blocks * BLOCK, sizes.astype(np.int64), packed)


def _read_index(index: str, stamp: tuple[int, int]) -> Members | None:
    """None: there is none of the shard as it is."""
    try:
        with open(index, "rb") as file:
            return _decoded(file.read(), stamp) if is_trusted(index, file.fileno()) else None
    except (OSError, ValueError, OverflowError, struct.error):  # OverflowError: a count above 2^63
        return None


def kept_index(path: str) -> Members | None:
    """What the index beside a shard says; None if there is none of the shard as it is, or no shard."""
    return _read_index(path + SUFFIX, stamp_of(os.stat(path))) if os.path.exists(path) else None


def encoded(path: str, keys: list[str], members: list[list[tuple[str, int, int]]]) -> bytes:
    """The index of a shard that is written. members: of each sample: field, where its data lie, their size."""
    numbers: dict[str, int] = {}
    starts, places, sizes = [0], list[int](), list[int]()
    for each in members:
        for field, at, size in each:
            places.append(at // BLOCK << 16 | numbers.setdefault(field, len(numbers)))
            sizes.append(size)
        starts.append(len(places))
    names = b"".join(bytes([len(name.encode())]) + name.encode() for name in numbers)
    listed, blocks = _packed([key.encode() for key in keys])
    rest = struct.pack("<7Q", len(numbers), len(names), len(listed), 0, 0, 0, born_ns(path))
    for dtype, values in (("<u4", starts), ("<u8", places), ("<u4", sizes)):
        rest += _padded(np.array(values, dtype).tobytes())
    rest += _padded(names) + np.array(blocks, "<u8").tobytes() + _padded(listed)
    rest = struct.pack("<qqQQ", *stamp_of(os.stat(path)), len(keys), len(places)) + rest
    array = np.frombuffer(rest, np.uint8)
    checksum = _native.crc32c(0, array.ctypes.data, array.nbytes)
    return struct.pack("<8sII", b"stoc-tar", _VERSION, checksum) + rest


def _packed(keys: list[bytes]) -> tuple[bytes, list[int]]:
    """Keys as an index has them, and where its blocks of keys begin."""
    listed, blocks, before = bytearray(), list[int](), b""
    for k, key in enumerate(keys):
        if k % _KEY_BLOCK == 0:
            blocks.append(len(listed))
            before = b""
        shared = len(os.path.commonprefix([before, key]))  # noqa: RUF071 - of bytes, not of folders
        listed += _varint(shared) + _varint(len(key) - shared) + key[shared:]
        before = key
    return bytes(listed), blocks


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def split_name(name: str) -> tuple[str, str] | None:
    """The key of a sample and its field, in lower case; None for a member that is no part of a sample."""
    top = name.partition("/")[0]
    if len(top) >= 4 and top.startswith("__") and top.endswith("__"):
        return None
    folder, slash, base = name.rpartition("/")
    stem, _, field = base.partition(".")
    if not stem or not field or any("\udc80" <= c <= "\udcff" for c in field):  # no UTF-8
        return None
    return folder + slash + stem, "".join(c.lower()[0] for c in field)


def _after(key: Any) -> str:
    """The place in an archive, for errors. key: of the last sample before it, if there is one."""
    return "" if key is None else f" (after the sample {printable(key)!r})"


def _walked(path: str, stamp: tuple[int, int]) -> Members:
    numbers: dict[str, int] = {}
    starts, found, places, sizes, keys = list[int](), list[int](), list[int](), list[int](), list[bytes]()
    key = None
    with open(path, "rb") as file:
        _refuse_compressed(path, file.read(BLOCK))
        try:
            for member in members_of_archive(file, stamp[0]):
                parts = split_name(member.name) if member.regular else None
                if parts is None or len(parts[1].encode()) > _MOST_FIELD:
                    continue
                if member.size > MOST_BYTES:
                    raise InvalidError(f"{path}: member {printable(member.name)!r} has 4 GiB or more")
                number = numbers.setdefault(parts[1], len(numbers))
                if number == _MOST_FIELDS:
                    raise InvalidError(
                        f"{path} has more than {_MOST_FIELDS} different fields: is it one of webdataset's?"
                    )
                if parts[0] != key:
                    starts.append(len(found))
                    key = parts[0]
                    keys.append(os.fsencode(key))
                if number in found[starts[-1] :]:
                    raise InvalidError(f"{path}: sample {printable(key)!r} has the field {printable(parts[1])!r} twice")
                found.append(number)
                places.append(member.at)
                sizes.append(member.size)
        except TarError as error:
            raise InvalidError(f"{path} {error}{_after(key)}") from error
    starts.append(len(found))
    first, of, at, size = (np.array(values, np.int64) for values in (starts, found, places, sizes))
    return Members(stamp, list(numbers), first, of, at, size, _packed(keys)[0])


def compressed_by(head: bytes) -> str | None:
    """The program that compressed a file, by its first bytes."""
    return next((name for magic, name in _COMPRESSED.items() if head.startswith(magic)), None)


def unpack(path: str, program: str) -> str:
    """What to do with a compressed file, for an error. path: shown."""
    return "unpack it" if "://" in path else f"unpack it: {program} -dc {path} > new-file"


def _refuse_compressed(path: str, head: bytes) -> None:
    name = compressed_by(head)
    if name is not None:
        raise InvalidError(
            f"{path} is compressed with {name}, so no sample can be read by itself; {unpack(path, name)}"
        )
