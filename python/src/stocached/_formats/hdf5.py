"""Files of HDF5, which h5py reads a chunk of rows at a time."""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import math
import os
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._common.errors import BadSampleError, InvalidError
from .._common.local_file import stamp_of
from .._common.one_line import printable
from .._common.sizes import show_size
from .._memory.texts import SharedBytes
from .array_rows import common_length, rows_of, type_of
from .local_file import AsRaw, opened
from .remote_files import GAP
from .tables import Table

_MOST_OPEN = 16  # files
_PIECE = 256 << 10  # bytes of an element at least, so that a call of h5py pays
_LARGE = 16 << 20  # bytes of an element that may be as long as the longest chunk, so that none is read again
_HUGE = 64 << 20  # bytes that cause a warning
_GOOD = 1 << 20  # bytes that it advises
_MOST_RATIO = 1 << 16  # bytes in memory of one of a file
_PLUGINS = 32001  # the first code of filters that others write
_DEEPEST = 64  # groups in groups
_LEAST = 16  # bytes of a text
_VALUE = np.dtype([("length", "<u4"), ("at", "<u8"), ("index", "<u4")])  # where a text or a ragged row lies
_BLOCK, _MOST_BLOCKS = 64 << 10, 32  # bytes of a small read of an object, and how many of these each open file keeps


_local = threading.local()  # loaded: parts of the file that this thread reads: places and bytes


class _Parts:
    """An object at an address. HDF5 asks for many small parts, one after the other, and mostly near each other. HDF5
    lets one thread read at a time."""

    def __init__(self, file: Any, blocks: OrderedDict[int, bytes]) -> None:
        """blocks: that were read before."""
        self._file, self._blocks = file, blocks

    def pread(self, size: int, at: int) -> bytes:
        data = _loaded(at, size)
        if data is not None:
            return data
        if size >= _BLOCK:
            return self._file.now(at, size)  # type: ignore[no-any-return]
        first = at // _BLOCK
        data = b"".join(map(self._block, range(first, (at + size - 1) // _BLOCK + 1)))
        return data[at - first * _BLOCK :][:size]

    def _block(self, k: int) -> bytes:
        at = k * _BLOCK
        data = self._blocks.pop(k, None) or self._file.now(at, min(_BLOCK, self._file.size - at))
        self._blocks[k] = data
        if len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)
        return data


def _loaded(at: int, size: int) -> bytes | None:
    for begin, data in getattr(_local, "loaded", ()):
        if begin <= at and at + size <= begin + len(data):
            return data[at - begin :][:size]  # type: ignore[no-any-return]
    return None


class _Sets(dict[str, Any]):
    """The datasets of an open file. To open the file and them again takes half a millisecond."""

    def __init__(self, where: Any, blocks: OrderedDict[int, bytes]) -> None:
        import h5py

        if not isinstance(where, str):
            self.file = h5py.File(AsRaw(_Parts(where, blocks), where.size), "r")
            return
        try:
            self.file = h5py.File(where, "r")
        except OSError as error:
            if error.errno == errno.EAGAIN or "lock" not in str(error):  # a program that writes has a lock
                raise
            self.file = h5py.File(where, "r", locking=False)  # the file system has no locks, or this program wants none

    def __missing__(self, name: str) -> Any:
        self[name] = found = self.file[name]
        return found


class _OpenFiles:
    """The files of this process, for all its threads: h5py lets one read at a time. HDF5 gives what it knows of a file that is
    open already, so one that has changed, or was opened before a fork, is closed first."""

    def __init__(self) -> None:
        # Blocks of objects, which forked children have too.
        self._blocks = defaultdict[Any, OrderedDict[int, bytes]](OrderedDict)
        self._begin()

    def _begin(self) -> None:
        self._lock, self._files = threading.Lock(), OrderedDict[Any, tuple[Any, _Sets]]()

    def close(self) -> None:
        files = [*self._files.values()]
        self._begin()
        for _, sets in files:
            sets.file.close()

    def of(self, where: Any) -> _Sets:
        place, stamp = _state_of(where)
        with self._lock:
            old, sets = self._files.pop(place, (None, None))
            if sets is not None and old != stamp:
                sets.file.close()
            if sets is None or old != stamp:
                sets = _Sets(where, self._blocks[place])
            self._files[place] = stamp, sets
            if len(self._files) > _MOST_OPEN:
                self.forget(next(iter(self._files)))
        return sets

    def forget(self, place: Any) -> None:
        """The program may write the file then."""
        self._files.pop(place, None)
        self._blocks.pop(place, None)


_files = _OpenFiles()
os.register_at_fork(after_in_child=_files.close)
# Else HDF5 closes them after the end of Python, and crashes for those that Python reads.
atexit.register(_files.close)


def _state_of(where: Any) -> tuple[Any, tuple[int, int]]:
    """What tells a file from others, and what changes with it."""
    if not isinstance(where, str):
        return (where.address, where.stamp), where.stamp
    status = os.stat(where)
    return (status.st_dev, status.st_ino), stamp_of(status)


class Hdf5(Table):
    """Elements are some rows of all datasets: the chunk of that with the most bytes, or several. columns: the names of the
    datasets; None: all."""

    what, module, extra = "HDF5 file", "h5py", "hdf5"
    errors = (ValueError, OSError, RuntimeError, KeyError, TypeError)

    _place: Any = None  # the place of the open file
    _parts: Any = None
    _plugins = False
    _stored = 0  # bytes of all datasets, without texts and ragged rows

    def _look(self) -> list[str]:
        import h5py

        names = list[str]()

        def note(name: str, found: Any) -> str | None:
            if name.count("/") > _DEEPEST:  # HDF5 would take minutes for some thousands
                return name
            if isinstance(found, h5py.Dataset):
                names.append(name)
                self._stored += found.id.get_storage_size()
            return None

        self._place, _ = _state_of(self._path)
        if self._reader().file.visititems(note) is not None:
            raise InvalidError(
                f"{printable(str(self._path))} has groups in groups, more than {_DEEPEST} deep; write it anew"
            )
        return names

    def _others(self, names: Sequence[str]) -> list[str]:
        """Links: h5py visits each dataset once, under one of its names."""
        import h5py

        return [name for name in names if isinstance(self._reader().file.get(name), h5py.Dataset)]

    def _plan(self) -> None:
        sets = {name: self._reader()[name] for name in self._names}
        self._items = common_length(str(self._path), {name: each.shape for name, each in sets.items()})
        self.item_types = {name: type_of(each.dtype, each.shape) for name, each in sets.items()}
        row_bytes = self._row_bytes(sets)
        whole = sum(row_bytes.values())
        self._rows = _rows_of_an_element(sets, row_bytes, whole)
        self.counts = [min(self._rows, self._items - at) for at in range(0, self._items, self._rows)]
        self._weigh([whole * rows for rows in self.counts])
        if not isinstance(self._path, str):
            self._parts = _parts_of([*sets.values()], self._rows, len(self.counts))
        if self.counts and whole * self.counts[0] > _HUGE:
            name = max(row_bytes, key=row_bytes.__getitem__)
            good = "x".join(map(str, (max(1, _GOOD // row_bytes[name]), *sets[name].shape[1:])))
            shown = printable(str(self._path))
            self.warning = (
                f"{shown} has chunks of {self.counts[0]:,} rows, {show_size(whole * self.counts[0])} in memory, and one read "
                "gives a whole chunk; smaller ones take less memory, and shuffle better: "
                f"h5repack -l {printable(name)}:CHUNK={good} {shown} NEW-FILE"
            )

    def _row_bytes(self, sets: dict[str, Any]) -> dict[str, int]:
        """Of each dataset, about. Raises InvalidError for those that cannot be read."""
        size, made = self._reader().file.id.get_filesize(), dict[str, int]()
        for name, found in sets.items():
            self._check(name, found)
            if self._items and not found.id.get_storage_size():
                raise self._refused(name, f"none of its {self._items:,} rows was written")
            if found.dtype.hasobject:  # texts and ragged rows, which lie anywhere in the file
                row = max(_LEAST, (size - self._stored) // max(1, self._items))
            else:
                row = max(1, found.dtype.itemsize * math.prod(found.shape[1:]))
            if row * self._items > _MOST_RATIO * size:
                raise self._refused(
                    name, f"its {self._items:,} rows of {row:,} bytes cannot be in a file of {size:,} bytes"
                )
            made[name] = row
        return made

    def _check(self, name: str, found: Any) -> None:
        try:
            kind = found.dtype
        except TypeError as error:
            raise self._refused(name, f"NumPy has no such type: {error}") from None
        if _has_references(kind):
            raise self._refused(name, "its values are references to other places of the file")
        if found.is_virtual or found.external or _number_of(found) != _number_of(self._reader().file):
            raise self._refused(
                name, "its rows are in other files, whose changes nobody would notice: name those files"
            )
        plan = found.id.get_create_plist()
        for number in range(plan.get_nfilters()):
            code, _, _, said = plan.get_filter(number)
            self._plugins |= code >= _PLUGINS
            if not _is_there(code):
                raise self._refused(
                    name,
                    f"h5py lacks its filter {code}, {printable(said.decode(errors='replace'))}. Most are in a package: "
                    "pip install hdf5plugin",
                )

    def _refused(self, name: str, why: str) -> InvalidError:
        return InvalidError(
            f"{printable(str(self._path))}, dataset {printable(name)}: {why}; or leave it out by columns="
        )

    def _reader(self) -> _Sets:
        if self._plugins:
            _is_there(_PLUGINS)
        return _files.of(self._path)

    def __del__(self, forget: Any = _files.forget) -> None:
        forget(self._place)

    def spans(self, k: int) -> list[tuple[int, int]]:
        """The parts of an object that an element takes: place and bytes. Others are small."""
        array = self._parts.array.view(np.uint64)
        begin, end = array[k : k + 2].tolist()
        return [(at, size) for at, size in array[len(self) + 1 :].reshape(-1, 2)[begin:end].tolist()]

    def _columns(self, reader: Any, k: int) -> list[Sequence[Any]]:
        if not isinstance(self._path, str):
            _local.loaded = [(at, self._path.read(at, size)) for at, size in self.spans(k)]
        try:
            return self._read_columns(reader, k)
        finally:
            _local.loaded = ()

    def _read_columns(self, reader: Any, k: int) -> list[Sequence[Any]]:
        begin = k * self._rows
        columns = list[Sequence[Any]]()
        for name in self._names:
            with self._reading(BadSampleError, f"h5py does not read the dataset {printable(name)}"):
                _check_lengths(self._path, reader[name], begin, begin + self.counts[k])
                columns.append(rows_of(reader[name][begin : begin + self.counts[k]], texts=True))
        return columns

    def name(self, k: int) -> str:
        begin = k * self._rows
        return f"rows {begin:,} to {begin + self.counts[k] - 1:,}"


def _parts_of(sets: Sequence[Any], rows: int, elements: int) -> SharedBytes:
    """The parts of the file that each element takes, as `spans` reads them: where those of each begin, then all."""
    found = list[tuple[int, int, int]]()  # element, place and bytes
    for each in sets if elements else ():
        chunks, start = list[Any](), each.id.get_offset()
        if each.chunks:
            each.id.chunk_iter(chunks.append)
            for chunk in chunks:
                first = chunk.chunk_offset[0]
                last = min((first + each.chunks[0] - 1) // rows, elements - 1)
                found += [(k, chunk.byte_offset, chunk.size) for k in range(first // rows, last + 1)]
        elif start is not None:
            row = each.id.get_type().get_size() * math.prod(each.shape[1:])  # Python's size of texts is another
            found += [(k, start + k * rows * row, min(rows, len(each) - k * rows) * row) for k in range(elements)]
    merged, ends, last = list[list[int]](), [0] * (elements + 1), -1
    for k, at, size in sorted(found):
        if k == last and at - sum(merged[-1]) <= GAP:
            merged[-1][1] = max(merged[-1][1], at + size - merged[-1][0])
        else:
            merged.append([at, size])
        ends[k + 1], last = len(merged), k
    parts = [*itertools.accumulate(ends, max), *itertools.chain.from_iterable(merged)]
    return SharedBytes.of_array(np.array(parts, np.uint64))


def _rows_of_an_element(sets: dict[str, Any], row_bytes: dict[str, int], whole: int) -> int:
    chunks: dict[str, int] = {
        name: each.chunks[0] for name, each in sets.items() if each.chunks and not each.dtype.hasobject
    }
    unit = chunks[max(chunks, key=row_bytes.__getitem__)] if chunks else 1
    wanted = max(unit, _PIECE // whole, *(rows for rows in chunks.values() if rows * whole <= _LARGE))
    return -(-wanted // unit) * unit


def _check_lengths(path: Any, found: Any, begin: int, end: int) -> None:
    """Raises ValueError for texts and ragged rows that are longer than the file: HDF5 would take their memory first. Those that
    a filter has packed are not looked at."""
    import h5py

    kind, plan = found.dtype, found.id.get_create_plist()
    text, base = h5py.check_string_dtype(kind), h5py.check_vlen_dtype(kind)
    ragged = base is not None if text is None else text.length is None
    if not ragged or plan.get_nfilters():
        return
    creation = found.file.id.get_create_plist()
    if creation.get_sizes()[0] != _VALUE.itemsize - 8:
        return
    if found.chunks and creation.get_userblock() and h5py.version.hdf5_version_tuple < (2, 0):
        return  # which may leave the bytes of the block out of the places of chunks
    places = list[tuple[int | None, int]]()
    if found.chunks is None:
        row = math.prod(found.shape[1:]) * _VALUE.itemsize
        at = found.id.get_offset()  # None: it lies in a head, which has a checksum or is short
        places.append((None if at is None else at + begin * row, (end - begin) * row))
    else:
        for part in found.iter_chunks((slice(begin, end), *(slice(0, length) for length in found.shape[1:]))):
            place = tuple(each.start // length * length for each, length in zip(part, found.chunks))
            chunk = found.id.get_chunk_info_by_coord(place)
            places.append((chunk.byte_offset, chunk.size))
    file = opened(path)
    for at, size in places:
        if at is not None:
            data = _loaded(at, size) or file.read(at, size)
            longest = int(np.frombuffer(data, _VALUE)["length"].max(initial=0))
            if longest * (base.itemsize if text is None else 1) > file.size:
                raise ValueError(
                    f"it has a value of {longest:,} items, and the file has {file.size:,} bytes: it is damaged"
                )


def _number_of(found: Any) -> int:
    """Of the open file."""
    import h5py

    return int(h5py.h5o.get_info(found.id).fileno)


def _has_references(kind: Any) -> bool:
    import h5py

    fields = [field for field, *_ in (kind.fields or {}).values()]
    inner = [each for each in (kind.subdtype and kind.subdtype[0], h5py.check_vlen_dtype(kind)) if each]
    return h5py.check_ref_dtype(kind) is not None or any(
        hasattr(each, "fields") and _has_references(each) for each in fields + inner
    )


def _is_there(code: int) -> bool:
    from h5py import h5z

    if not h5z.filter_avail(code):
        with contextlib.suppress(ImportError):
            import hdf5plugin  # noqa: F401  # registers its filters
    return bool(h5z.filter_avail(code))
