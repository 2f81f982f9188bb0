"""Records what a loader does and when, and writes it as a timeline for Perfetto and `stocached
trace`."""

from __future__ import annotations

import atexit
import itertools
import os
import struct
import threading
import time
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._common.errors import InvalidError
from .._common.threads import for_each
from . import trace_file
from .trace_file import LAP, ROW, STEP, WAIT
from .tracks import LOOP

LIMIT = 1_000_000  # spans: 64 MB of memory, some 120 MB of file

_FORMAT = struct.Struct("=qqqqqiiiiii")  # layout of a ROW
_pack = _FORMAT.pack_into
assert _FORMAT.size == ROW.itemsize == 64
_UNKNOWN = np.array((0, 0, -1, -1, -1, -1, -1, -1, -1, 0, 0), ROW)
_LOOP = 1  # the number of the training loop's track
_SHIFT = 10
_CHUNK = 1 << _SHIFT  # rows of a chunk: 64 KiB
_MASK = _CHUNK - 1


class Recorder:
    """Spans of time on tracks, kept in memory until `close` writes them.

    Safe from any thread, from signal handlers and finalizers. In a forked child all calls do
    nothing: the file is the parent's. A recorder that is not closed writes its file when the
    program drops it, at the latest at exit of the interpreter."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        settings: Mapping[str, Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        about: Mapping[str, int] | None = None,
        limit: int = LIMIT,
    ) -> None:
        """path: the file to write. It replaces an older file, and is compressed if it ends in .gz.
        settings: arguments of the loader, for the readers of the file.
        about: further numbers of its header, such as sample_bytes.
        limit: the most spans that are kept. Further spans are only counted.
        Raises InvalidError now, not after hours, if no file can be written there."""
        self.path = trace_file.writable(path)
        if limit < 1:
            raise InvalidError(f"limit={limit}: a trace must keep one span at least")
        self._settings = {str(key): trace_file.plain(value) for key, value in (settings or {}).items()}
        self._rank = rank or 0
        self._world_size = world_size or 1
        self.about = dict(about or {})
        self._limit = limit
        self._origin = time.monotonic_ns()  # ts 0
        self._unix = time.time_ns()
        self._pid = os.getpid()
        # For all but the packing of a row. Reentrant: a finalizer may record while its thread
        # records.
        self._lock = threading.RLock()
        self._tracks: dict[str, int] = {LOOP: _LOOP}  # numbers from 1: track 0 marks a row without a span
        self._names: dict[str, int] = {"": LAP, "step": STEP, "wait": WAIT}
        self._next = itertools.count().__next__  # the next row, in one step of the interpreter: put() needs no lock
        self._chunks: list[NDArray[Any]] = []  # _CHUNK rows each; the last one ends at the limit
        self._rooms: list[memoryview] = []  # the bytes of the chunks
        self._bulk: list[NDArray[Any]] = []  # rows of spans()
        self._reserved = 0  # rows of _chunks and _bulk
        self._dropped = 0
        self._dropped_from: int | None = None
        self._closed = False
        _recorders.add(self)

    # ------------------------------------------------------------ recording

    def track(self, name: str) -> int:
        """The number of a track, for `put` and `spans`. A new track gets a new number."""
        with self._lock:
            return self._tracks.setdefault(name, len(self._tracks) + 1)

    def name(self, name: str) -> int:
        """The number of a name of spans, for `put`."""
        with self._lock:
            return self._names.setdefault(name, len(self._names) + 1)

    def put(
        self,
        track: int,
        name: int,
        start_ns: int,
        end_ns: int,
        epoch: int = -1,
        batch: int = -1,
        index: int = -1,
        samples: int = -1,
        hits: int = -1,
        misses: int = -1,
        bytes: int = -1,
    ) -> None:
        """Records that a track did something from start_ns to end_ns of time.monotonic_ns(). track, name: the numbers
        of both. -1: unknown."""
        values = start_ns, end_ns, index, batch, bytes, epoch, samples, hits, misses, track, name
        row = self._next()
        try:
            _pack(self._rooms[row >> _SHIFT], (row & _MASK) << 6, *values)
        except (IndexError, struct.error):  # a new chunk, or the limit
            self._put(row, values)

    def lap(
        self, step_ns: int, wait_ns: int, end_ns: int, epoch: int, batch: int, samples: int, hits: int, bytes: int
    ) -> None:
        """Records two spans in one row, as each batch has them: the training loop was busy from
        step_ns to wait_ns, and then waited for a batch until end_ns."""
        self.put(_LOOP, LAP, step_ns, end_ns, epoch, batch, wait_ns, samples, hits, samples - hits, bytes)

    def _put(self, row: int, values: tuple[int, ...]) -> None:
        with self._lock:
            if self._closed:
                return
            while len(self._rooms) <= row >> _SHIFT:
                self._grow()
            room, at = self._rooms[row >> _SHIFT], (row & _MASK) << 6
            if at >= len(room):
                self._drop(1, values[0])
                return
            try:
                _pack(room, at, *values)
            except struct.error as error:
                raise InvalidError(f"a span cannot be recorded: {error}") from None

    def spans(
        self,
        track: str | NDArray[np.int64],
        name: str,
        starts: ArrayLike,
        ends: ArrayLike,
        indices: ArrayLike = -1,
        *,
        epoch: ArrayLike = -1,
        batch: ArrayLike = -1,
    ) -> None:
        """Records many spans of one name. Arguments are arrays of equal length, or one value for
        all spans; they are copied. track: a name, or numbers that `track` gave."""
        rows = np.empty(np.size(starts), ROW)
        rows[:] = _UNKNOWN
        given = {"start": starts, "end": ends, "index": indices, "epoch": epoch, "batch": batch}
        for column, values in given.items():
            try:
                rows[column] = values
            except ValueError:
                raise InvalidError(f"{column}: {np.size(values)} values for {len(rows)} spans") from None
        rows["track"], rows["name"] = self.track(track) if isinstance(track, str) else track, self.name(name)
        with self._lock:
            if self._closed:
                return
            fit = min(len(rows), self._limit - self._reserved)
            if fit < len(rows):
                self._drop(len(rows) - fit, int(rows["start"][fit:].min()))
            if fit > 0:
                self._bulk.append(rows[:fit])
                self._reserved += fit

    def _grow(self) -> None:
        size = max(0, min(_CHUNK, self._limit - self._reserved))
        self._chunks.append(np.zeros(size, ROW))
        self._rooms.append(self._chunks[-1].view(np.uint8).data if size else memoryview(b""))
        self._reserved += size

    def _drop(self, count: int, start_ns: int) -> None:
        self._dropped += count
        self._dropped_from = start_ns if self._dropped_from is None else min(start_ns, self._dropped_from)

    def _forget(self) -> None:
        """Frees the memory. From now on spans are dropped."""
        self._closed = True
        self._rooms, self._chunks, self._bulk = [], [], []

    def __len__(self) -> int:
        """Spans that are kept; a lap is one."""
        with self._lock:
            return sum(int(np.count_nonzero(rows["track"])) for rows in (*self._chunks, *self._bulk))

    # ------------------------------------------------------------ writing

    def flush(self) -> None:
        """Writes the file with all spans so far, which takes about 2 us a span. Recording goes on.

        Raises OSError if the file cannot be written; an older file then stays as it was."""
        self._written(closes=False)

    def close(self) -> None:
        """Writes the file and drops all spans, and all that come later. A second call does nothing.

        Raises as `flush` does."""
        self._written(closes=True)

    def _written(self, *, closes: bool) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            rows = self._rows()
            tracks, names = list(self._tracks), list(self._names)
            if closes:
                self._forget()
        self._write(rows, tracks, names)

    def __del__(self) -> None:
        self._close_late()

    def _close_late(self) -> None:
        """`close` for finalizers and exit: an error can only become a warning."""
        if not hasattr(self, "_closed"):  # the constructor raised
            return
        try:
            self.close()
        except Exception as error:
            warnings.warn(f"stocached: the trace {self.path} was not written: {error}", stacklevel=1)

    def _rows(self) -> NDArray[Any]:
        """All rows as the file has them."""
        # `tobytes` holds the GIL, so no row is half written in its copy. The last chunk is copied
        # first: a thread wrote its spans in earlier chunks before those in it. So the file has the
        # first spans of each thread, without holes.
        copies = [np.frombuffer(room.tobytes(), ROW) for room in reversed(self._rooms)]
        rows: NDArray[Any] = np.concatenate([np.empty(0, ROW), *reversed(copies), *self._bulk])
        del copies
        return trace_file.in_order(rows, self._origin)

    def _write(self, rows: NDArray[Any], tracks: list[str], names: list[str]) -> None:
        about = {
            "rank": self._rank,
            "world_size": self._world_size,
            "settings": self._settings,
            **self.about,
            "dropped": self._dropped,
            "dropped_from": None
            if self._dropped_from is None
            else trace_file.ticks(self._dropped_from, self._origin) / 1000,
            "clock": trace_file.clock(self._origin, self._unix),
        }
        trace_file.write(self.path, rows, tracks, names, about)

    def __repr__(self) -> str:
        return (
            f"<stocached trace {self.path}: {len(self)} spans{f', {self._dropped} dropped' if self._dropped else ''}>"
        )


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _forget() -> None:
    """For a forked child: the recorders are the parent's, and a thread of the parent may have held
    a lock."""
    for recorder in list(_recorders):
        recorder._lock = threading.RLock()
        recorder._forget()


_at_exit = for_each(_recorders, Recorder._close_late)
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forget)
