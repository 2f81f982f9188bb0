"""Records what a loader does when, and writes it as a timeline that Perfetto and `stocached trace` read: docs/spec/trace.md is the format."""

from __future__ import annotations

import atexit
import gzip
import hashlib
import inspect
import io
import itertools
import json
import os
import struct
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._common.errors import InvalidError

FORMAT = "stocached trace"
VERSION = 1
LIMIT = 1_000_000  # spans; 64 MB of memory, some 120 MB of file
TICK = 125  # ns; an eighth of a microsecond: see docs/spec/trace.md

LOOP = "training loop"
TRANSFER = "transfer"
GATHER = "gather"
SERVER = "server"

_ARGS = ("epoch", "batch", "index", "samples", "hits", "misses", "bytes")
_ROW = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("index", "i8"),
        ("batch", "i8"),
        ("bytes", "i8"),
        ("epoch", "i4"),
        ("samples", "i4"),
        ("hits", "i4"),
        ("misses", "i4"),
        ("track", "i4"),
        ("name", "i4"),
    ]
)
_FORMAT = struct.Struct("=qqqqqiiiiii")
_pack = _FORMAT.pack_into
assert _FORMAT.size == _ROW.itemsize == 64
_MORE = ("epoch", "batch", "samples", "hits", "misses", "bytes")  # arguments of `spans`
_NONE = -1
_UNKNOWN = np.array((0, 0, -1, -1, -1, -1, -1, -1, -1, 0, 0), _ROW)
_LOOP, _LAP, _STEP, _WAIT = (
    1,
    1,
    2,
    3,
)  # numbers that every recorder has: the track of the training loop, what `lap` puts, and the two spans that become of it
_SHIFT = 10
_CHUNK = 1 << _SHIFT  # rows of a chunk: 64 KiB
_MASK = _CHUNK - 1
_BLOCK = 1 << 16  # rows that are formatted at a time


def worker(number: int) -> str:
    """The track of a worker."""
    return f"worker {number}"


def gatherer(number: int) -> str:
    """The track of a thread that gathers."""
    return GATHER if number == 0 else f"{GATHER} {number}"


def writable(path: str | os.PathLike[str]) -> str:
    """The whole path of a file that a timeline goes to. InvalidError if nothing can be written there."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidError(f'trace={path!r}; it must be the path of the file to write, such as "run.json"')
    whole = os.path.abspath(os.fspath(path))
    folder = os.path.dirname(whole)
    if os.path.isdir(whole):
        raise InvalidError(f"trace={os.fspath(path)!r} is a folder; give the name of a file in it")
    if not os.path.isdir(folder):
        raise InvalidError(f"trace={os.fspath(path)!r}: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidError(f"trace={os.fspath(path)!r}: no permission to write into {folder}")
    return whole


class Recorder:
    """Spans of time on tracks, kept in memory until `close` writes them.

    Safe from any thread, from signal handlers and finalizers. In a forked child all calls do nothing; the file is the parent's. A recorder that is
    not closed writes when nobody has it any more, at the latest at exit of the interpreter."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        settings: Mapping[str, Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        limit: int = LIMIT,
    ) -> None:
        """path: the file to write, replaced if it is there; compressed if it ends in .gz.
        settings: arguments of the loader, for whoever reads the file.
        limit: the most spans that are kept; those beyond are counted.
        Raises InvalidError if nothing can be written there, now rather than after hours."""
        self.path = writable(path)
        if limit < 1:
            raise InvalidError(f"limit={limit}: a trace needs room for a span at least")
        self._settings = {str(key): _plain(value) for key, value in (settings or {}).items()}
        self._rank = rank or 0
        self._world_size = world_size or 1
        self._limit = limit
        self._origin = time.monotonic_ns()  # ts 0
        self._unix = time.time_ns()
        self._pid = os.getpid()
        self._lock = threading.RLock()  # of all that is rare; reentrant, as a finalizer may record while this thread records
        self._tracks: dict[str, int] = {LOOP: _LOOP}  # numbers from 1: a row whose track is 0 is not written yet
        self._names: dict[str, int] = {"": _LAP, "step": _STEP, "wait": _WAIT}
        self._next = itertools.count().__next__  # the next row: one step of the interpreter, so that span() needs no lock
        self._chunks: list[NDArray[Any]] = []  # of _CHUNK rows each, less where the limit is
        self._rooms: list[memoryview] = []  # their bytes
        self._bulk: list[NDArray[Any]] = []  # what spans() was given
        self._reserved = 0  # rows of both
        self._dropped = 0
        self._dropped_from: int | None = None
        self._closed = False
        _recorders.add(self)

    # ------------------------------------------------------------------------------------------------ recording

    def span(
        self,
        track: str,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        epoch: int = -1,
        batch: int = -1,
        index: int = -1,
        samples: int = -1,
        hits: int = -1,
        misses: int = -1,
        bytes: int = -1,
    ) -> None:
        """Records that `name` went on on `track` from start_ns to end_ns of time.monotonic_ns(). What is -1 is unknown."""
        try:
            track_number, name_number = self._tracks[track], self._names[name]
        except KeyError:
            track_number, name_number = self.track(track), self.name(name)
        self.put(track_number, name_number, start_ns, end_ns, epoch, batch, index, samples, hits, misses, bytes)

    def track(self, name: str) -> int:
        """The number of a track, for `put` and `spans`. It gets one if it has none yet."""
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
        """`span` for those who record each batch: by the numbers of track and name."""
        row = self._next()
        try:
            _pack(self._rooms[row >> _SHIFT], (row & _MASK) << 6, start_ns, end_ns, index, batch, bytes, epoch, samples, hits, misses, track, name)
        except (IndexError, struct.error):  # a new chunk, or the limit
            self._put(row, start_ns, (start_ns, end_ns, index, batch, bytes, epoch, samples, hits, misses, track, name))

    def lap(self, step_ns: int, wait_ns: int, end_ns: int, epoch: int, batch: int, samples: int, hits: int, bytes: int) -> None:
        """The training loop was busy from step_ns to wait_ns, and waited to end_ns for a batch: two spans in one row, as each batch has them."""
        row = self._next()
        try:
            _pack(
                self._rooms[row >> _SHIFT],
                (row & _MASK) << 6,
                step_ns,
                end_ns,
                wait_ns,
                batch,
                bytes,
                epoch,
                samples,
                hits,
                samples - hits,
                _LOOP,
                _LAP,
            )
        except (IndexError, struct.error):
            self._put(row, step_ns, (step_ns, end_ns, wait_ns, batch, bytes, epoch, samples, hits, samples - hits, _LOOP, _LAP))

    def _put(self, row: int, start_ns: int, values: tuple[int, ...]) -> None:
        with self._lock:
            if self._closed:
                return
            while len(self._rooms) <= row >> _SHIFT:
                self._grow()
            room, at = self._rooms[row >> _SHIFT], (row & _MASK) << 6
            if at >= len(room):
                self._drop(1, start_ns)
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
        indices: ArrayLike | None = None,
        *,
        epoch: ArrayLike = _NONE,
        batch: ArrayLike = _NONE,
        samples: ArrayLike = _NONE,
        hits: ArrayLike = _NONE,
        misses: ArrayLike = _NONE,
        bytes: ArrayLike = _NONE,
    ) -> None:
        """Records many spans of one name: arrays of equal length, or one value for all. They are copied. track: a name, or numbers that `track` gave."""
        rows = np.empty(np.size(starts), _ROW)
        rows[:] = _UNKNOWN
        for column, values in zip(("start", "end", "index", *_MORE), (starts, ends, indices, epoch, batch, samples, hits, misses, bytes)):
            if values is None or values is _NONE:
                continue
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
        self._chunks.append(np.zeros(size, _ROW))
        self._rooms.append(self._chunks[-1].view(np.uint8).data if size else memoryview(b""))
        self._reserved += size

    def _drop(self, count: int, start_ns: int) -> None:
        self._dropped += count
        self._dropped_from = start_ns if self._dropped_from is None else min(start_ns, self._dropped_from)

    def _forget(self) -> None:
        """Gives the memory back, and takes no more."""
        self._closed = True
        self._rooms, self._chunks, self._bulk = [], [], []

    def __len__(self) -> int:
        """Spans that are kept; a lap is one."""
        with self._lock:
            return sum(int(np.count_nonzero(rows["track"])) for rows in (*self._chunks, *self._bulk))

    @property
    def dropped(self) -> int:
        """Spans beyond the limit."""
        return self._dropped

    # ------------------------------------------------------------------------------------------------ writing

    def flush(self) -> None:
        """Writes the file with what there is so far, and goes on. It takes about 2 us a span, of all so far.
        Raises OSError if it cannot be written; a file that was there before is then as it was."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            rows = self._rows()
            tracks, names = list(self._tracks), list(self._names)
        self._write(rows, tracks, names)

    def close(self) -> None:
        """Writes the file and forgets everything. What is recorded from then on is dropped; a second call does nothing. Raises as `flush` does."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            rows = self._rows()
            tracks, names = list(self._tracks), list(self._names)
            self._forget()
        self._write(rows, tracks, names)

    def __del__(self) -> None:
        self._close_late()

    def _close_late(self) -> None:
        """`close` where nobody can be told but by a warning."""
        if not hasattr(self, "_closed"):  # the constructor raised
            return
        try:
            self.close()
        except Exception as error:
            warnings.warn(f"stocached: the trace {self.path} was not written: {error}", stacklevel=1)

    def _rows(self) -> NDArray[Any]:
        """All rows in the order of the file: by start, a span before those within it. Rounded to ticks, from the origin."""
        # `tobytes` holds the GIL, so that no row is half written in its copy. The last chunk comes first: whatever a thread put there, its spans in the
        # chunks before were written already, and the file has a beginning of what a thread does, without holes.
        copies = [np.frombuffer(room.tobytes(), _ROW) for room in reversed(self._rooms)]
        rows: NDArray[Any] = np.concatenate([np.empty(0, _ROW), *reversed(copies), *self._bulk])
        del copies
        rows = _split(rows[rows["track"] > 0])
        for column in ("start", "end"):
            rows[column] = (rows[column] - self._origin + TICK // 2) // TICK * TICK
        np.maximum(rows["end"], rows["start"], out=rows["end"])
        rows = rows[np.lexsort((-rows["end"], rows["start"]))]
        return rows

    def _write(self, rows: NDArray[Any], tracks: list[str], names: list[str]) -> None:
        temporary = f"{self.path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
        try:
            with open(temporary, "xb") as file:
                if self.path.endswith(".gz"):
                    with gzip.GzipFile(filename="", mode="wb", compresslevel=3, fileobj=file, mtime=0) as packed:
                        self._write_text(packed, rows, tracks, names)
                else:
                    self._write_text(file, rows, tracks, names)
            os.replace(temporary, self.path)
        except BaseException:
            with _ignored():
                os.unlink(temporary)
            raise

    def _write_text(self, file: Any, rows: NDArray[Any], tracks: list[str], names: list[str]) -> None:
        with io.TextIOWrapper(io.BufferedWriter(_Kept(file), 1 << 20), encoding="utf-8", newline="\n") as text:
            header = {"format": FORMAT, "version": VERSION, "ranks": [self._about(len(rows))]}
            text.write(f'{{"displayTimeUnit":"ms",\n"otherData":{json.dumps(header)},\n"traceEvents":[\n')
            separator = ""
            for line in self._lines(rows, tracks, names):
                text.write(separator + line)
                separator = ",\n"
            text.write("\n]}\n")

    def _about(self, events: int) -> dict[str, Any]:
        return {
            "pid": 1,
            "rank": self._rank,
            "world_size": self._world_size,
            "settings": self._settings,
            "cpus": _cpus(),
            "events": events,
            "dropped": self._dropped,
            "dropped_from": None if self._dropped_from is None else (self._dropped_from - self._origin + TICK // 2) // TICK * TICK / 1000,
            "clock": {"boot": _boot(), "monotonic_ns": self._origin, "unix_ns": self._unix},
        }

    def _lines(self, rows: NDArray[Any], tracks: list[str], names: list[str]) -> Iterator[str]:
        """The events, one each."""
        name = "rank 0" if self._world_size == 1 else f"rank {self._rank} of {self._world_size}"
        yield json.dumps({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}})
        yield json.dumps({"ph": "M", "pid": 1, "name": "process_sort_index", "args": {"sort_index": self._rank}})
        numbers, used = track_numbers(tracks), set(np.unique(rows["track"]).tolist())
        for track, number in sorted(
            ((track, number) for k, (track, number) in enumerate(zip(tracks, numbers)) if k + 1 in used), key=lambda pair: pair[1]
        ):
            thread = {"ph": "M", "pid": 1, "tid": 10000 + number}
            yield json.dumps({**thread, "name": "thread_name", "args": {"name": track}})
            yield json.dumps({**thread, "name": "thread_sort_index", "args": {"sort_index": number}})
        heads = [f'{{"ph":"X","pid":1,"tid":{10000 + number},"ts":' for number in numbers]
        middles = [f',"name":{json.dumps(name)},"args":{{' for name in names]
        columns = [(column, f'"{column}":') for column in _ARGS]
        for first in range(0, len(rows), _BLOCK):
            part = rows[first : first + _BLOCK]
            args = [(key, part[column].tolist()) for column, key in columns if (part[column] >= 0).any()]
            starts, lengths = (part["start"] / 1000).tolist(), ((part["end"] - part["start"]) / 1000).tolist()
            for k, (start, length, track, name_) in enumerate(zip(starts, lengths, part["track"].tolist(), part["name"].tolist())):
                known = ",".join([key + str(values[k]) for key, values in args if values[k] >= 0])
                yield f'{heads[track - 1]}{start:.3f},"dur":{length:.3f}{middles[name_ - 1]}{known}}}}}'

    def __repr__(self) -> str:
        return f"<stocached trace {self.path}: {len(self)} spans{f', {self._dropped} dropped' if self._dropped else ''}>"


def _split(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows with a step and a wait for each lap."""
    lap = rows["name"] == _LAP
    steps, waits = rows[lap], rows[lap]
    steps["name"], waits["name"] = _STEP, _WAIT
    steps["end"] = waits["start"] = steps["index"]  # where the step ended
    steps["batch"] -= 1  # it was about the batch before
    for column in ("index", "bytes", "samples", "hits", "misses"):
        steps[column] = -1
    waits["index"] = -1
    return np.concatenate([rows[~lap], steps[steps["end"] > steps["start"]], waits])


def track_numbers(tracks: Iterable[str]) -> list[int]:
    """The numbers of tracks in a file: those of docs/spec/trace.md, or from 5000 on. No two are equal."""
    taken: set[int] = set()
    numbers = []
    other = 5000
    for track in tracks:
        number = _number(track)
        if number is None or number in taken:
            number, other = other, other + 1
        taken.add(number)
        numbers.append(number)
    return numbers


def _number(track: str) -> int | None:
    if (fixed := {LOOP: 1, TRANSFER: 2, GATHER: 3, SERVER: 8}.get(track)) is not None:
        return fixed
    kind, _, digits = track.rpartition(" ")
    if not (digits.isascii() and digits.isdigit()) or digits != str(int(digits[:9])):
        return None
    number = int(digits)
    if kind == "worker" and number < 4900:
        return 10 + number
    if kind == GATHER and 1 <= number <= 4:
        return 3 + number
    return None


def _plain(value: Any) -> Any:
    """What JSON can hold of a setting, without anything of the process or the machine."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        value = type(value)
    return f"{value.__module__}.{value.__qualname__}" if value.__module__ else str(value.__qualname__)


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _boot() -> str:
    """Names this start of this machine, and nothing else of it. "": unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return hashlib.sha256(b"stocached trace " + file.read()).hexdigest()[:16]
    except OSError:
        return ""


class _Kept(io.RawIOBase):
    """A binary file that stays open when what is layered upon it closes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)


class _ignored:
    """Whatever the system refuses while something worse is on its way."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        return isinstance(error, OSError)


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _forget() -> None:
    """In a forked child: the recorders are the parent's, and another of its threads may have held a lock."""
    for recorder in list(_recorders):
        recorder._lock = threading.RLock()
        recorder._forget()


def _at_exit() -> None:
    for recorder in list(_recorders):
        recorder._close_late()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forget)
