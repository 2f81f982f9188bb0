"""Files of HDF5, which h5py reads a chunk of rows at a time."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from .._common.errors import BadSampleError, InvalidError
from .._common.one_line import printable
from .._common.sizes import show_size
from .._shards.tar_index import stamp_of
from .array_rows import common_length, rows_of
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


class _Sets(dict[str, Any]):
    """The datasets of an open file. To open the file and them again takes half a millisecond."""

    def __init__(self, path: str) -> None:
        import h5py

        try:
            self.file = h5py.File(path, "r")
        except OSError as error:
            if error.errno == errno.EAGAIN or "lock" not in str(error):  # a program that writes has a lock
                raise
            self.file = h5py.File(path, "r", locking=False)  # the file system has no locks, or this program wants none

    def __missing__(self, name: str) -> Any:
        self[name] = found = self.file[name]
        return found


class _OpenFiles:
    """The files of this process, for all its threads: h5py lets one read at a time. HDF5 gives what it knows of a file that is
    open already, so one that has changed, or was opened before a fork, is closed first."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock, self._files = threading.Lock(), OrderedDict[tuple[int, int], tuple[Any, _Sets]]()

    def after_fork(self) -> None:
        files = [*self._files.values()]
        self._begin()
        for _, sets in files:
            sets.file.close()

    def of(self, path: str) -> _Sets:
        status = os.stat(path)
        place, stamp = (status.st_dev, status.st_ino), stamp_of(status)
        with self._lock:
            old, sets = self._files.pop(place, (None, None))
            if sets is not None and old != stamp:
                sets.file.close()
            if sets is None or old != stamp:
                sets = _Sets(path)
            self._files[place] = stamp, sets
            if len(self._files) > _MOST_OPEN:
                self._files.popitem(last=False)
        return sets

    def forget(self, place: tuple[int, int]) -> None:
        """The program may write the file then."""
        self._files.pop(place, None)


_files = _OpenFiles()
os.register_at_fork(after_in_child=_files.after_fork)


class Hdf5(Table):
    """Elements are some rows of all datasets: the chunk of that with the most bytes, or several. columns: the names of the
    datasets; None: all."""

    what, module, extra = "HDF5 file", "h5py", "hdf5"
    errors = (ValueError, OSError, RuntimeError, KeyError, TypeError)

    addresses = False  # HDF5 asks for many small parts, one after the other
    _place = (0, 0)  # device and number of the file
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

        status = os.stat(self._path)
        self._place = status.st_dev, status.st_ino
        if self._reader().file.visititems(note) is not None:
            raise InvalidError(
                f"{printable(self._path)} has groups in groups, more than {_DEEPEST} deep; write it anew"
            )
        return names

    def _others(self, names: Sequence[str]) -> list[str]:
        """Links: h5py visits each dataset once, under one of its names."""
        import h5py

        return [name for name in names if isinstance(self._reader().file.get(name), h5py.Dataset)]

    def _plan(self) -> None:
        sets = {name: self._reader()[name] for name in self._names}
        self._items = common_length(self._path, {name: each.shape for name, each in sets.items()})
        row_bytes = self._row_bytes(sets)
        whole = sum(row_bytes.values())
        self._rows = _rows_of_an_element(sets, row_bytes, whole)
        self.counts = [min(self._rows, self._items - at) for at in range(0, self._items, self._rows)]
        self._weigh([whole * rows for rows in self.counts])
        if self.counts and whole * self.counts[0] > _HUGE:
            name = max(row_bytes, key=row_bytes.__getitem__)
            good = "x".join(map(str, (max(1, _GOOD // row_bytes[name]), *sets[name].shape[1:])))
            shown = printable(self._path)
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
        return InvalidError(f"{printable(self._path)}, dataset {printable(name)}: {why}; or leave it out by columns=")

    def _reader(self) -> _Sets:
        if self._plugins:
            _is_there(_PLUGINS)
        return _files.of(self._path)

    def __del__(self, forget: Any = _files.forget) -> None:
        forget(self._place)

    def _columns(self, reader: Any, k: int) -> list[Sequence[Any]]:
        begin = k * self._rows
        columns = list[Sequence[Any]]()
        for name in self._names:
            try:
                columns.append(rows_of(reader[name][begin : begin + self.counts[k]], texts=True))
            except self.errors as error:
                if getattr(error, "errno", None):
                    raise
                raise BadSampleError(f"h5py does not read the dataset {printable(name)}: {error}") from None
        return columns

    def name(self, k: int) -> str:
        begin = k * self._rows
        return f"rows {begin:,} to {begin + self.counts[k] - 1:,}"


def _rows_of_an_element(sets: dict[str, Any], row_bytes: dict[str, int], whole: int) -> int:
    chunks: dict[str, int] = {
        name: each.chunks[0] for name, each in sets.items() if each.chunks and not each.dtype.hasobject
    }
    unit = chunks[max(chunks, key=row_bytes.__getitem__)] if chunks else 1
    wanted = max(unit, _PIECE // whole, *(rows for rows in chunks.values() if rows * whole <= _LARGE))
    return -(-wanted // unit) * unit


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
