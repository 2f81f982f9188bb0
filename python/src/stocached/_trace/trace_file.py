"""Writes recorded spans as the file of a timeline. docs/spec/trace.md is the format."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import inspect
import io
import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .._common.errors import InvalidError
from .._common.processors import processors
from .tracks import track_numbers

FORMAT = "stocached trace"
VERSION = 1
TICK = 125  # ns; an eighth of a microsecond: docs/spec/trace.md says why

# A recorded span. Its track and its name are numbers from 1.
ROW = np.dtype(
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
_ARGS = ("epoch", "batch", "index", "samples", "hits", "misses", "bytes")
# Names that every file has: a row of `Recorder.lap`, and the two spans that it becomes.
LAP, STEP, WAIT = 1, 2, 3
_BLOCK = 1 << 16  # rows that are formatted at a time


def writable(path: str | os.PathLike[str]) -> str:
    """The absolute path of a timeline's file. InvalidError if no file can be written there."""
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


def ticks(ns: Any, origin: int) -> Any:
    """Nanoseconds since the origin, rounded to ticks."""
    return (ns - origin + TICK // 2) // TICK * TICK


def in_order(rows: NDArray[Any], origin: int) -> NDArray[Any]:
    """Recorded rows as rows of a file: by start, a span before the spans within it, in ticks from
    the origin."""
    rows = _split_laps(rows[rows["track"] > 0])
    for column in ("start", "end"):
        rows[column] = ticks(rows[column], origin)
    np.maximum(rows["end"], rows["start"], out=rows["end"])
    return rows[np.lexsort((-rows["end"], rows["start"]))]


def _split_laps(rows: NDArray[Any]) -> NDArray[Any]:
    """Each lap becomes a step and a wait."""
    lap = rows["name"] == LAP
    steps, waits = rows[lap], rows[lap]
    steps["name"], waits["name"] = STEP, WAIT
    steps["end"] = waits["start"] = steps["index"]  # where the step ended
    steps["batch"] -= 1  # the step was about the batch before
    for column in ("index", "bytes", "samples", "hits", "misses"):
        steps[column] = -1
    waits["index"] = -1
    return np.concatenate([rows[~lap], steps[steps["end"] > steps["start"]], waits])


def write(path: str, rows: NDArray[Any], tracks: list[str], names: list[str], about: Mapping[str, Any]) -> None:
    """Writes rows of `in_order`. If it fails, a file that was at this path stays as it was.

    tracks, names: of the rows' numbers from 1. about: `rank` and `world_size`, and more for the
    header."""
    temporary = f"{path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            if path.endswith(".gz"):
                with gzip.GzipFile(filename="", mode="wb", compresslevel=3, fileobj=file, mtime=0) as packed:
                    _write_text(packed, rows, tracks, names, about)
            else:
                _write_text(file, rows, tracks, names, about)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first exception says more
            os.unlink(temporary)
        raise


def _write_text(file: Any, rows: NDArray[Any], tracks: list[str], names: list[str], about: Mapping[str, Any]) -> None:
    with io.TextIOWrapper(io.BufferedWriter(_Kept(file), 1 << 20), encoding="utf-8", newline="\n") as text:
        rank = {"pid": 1, **about, "cpus": processors(), "events": len(rows)}
        header = {"format": FORMAT, "version": VERSION, "ranks": [rank]}
        text.write(f'{{"displayTimeUnit":"ms",\n"otherData":{json.dumps(header)},\n"traceEvents":[\n')
        separator = ""
        for line in _lines(rows, tracks, names, about["rank"], about["world_size"]):
            text.write(separator + line)
            separator = ",\n"
        text.write("\n]}\n")


def _lines(rows: NDArray[Any], tracks: list[str], names: list[str], rank: int, world_size: int) -> Iterator[str]:
    """The events, one in a line."""
    name = "rank 0" if world_size == 1 else f"rank {rank} of {world_size}"
    yield json.dumps({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}})
    yield json.dumps({"ph": "M", "pid": 1, "name": "process_sort_index", "args": {"sort_index": rank}})
    numbers, used = track_numbers(tracks), set(np.unique(rows["track"]).tolist())
    shown = [(number, track) for k, (track, number) in enumerate(zip(tracks, numbers)) if k + 1 in used]
    for number, track in sorted(shown):
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
        spans = zip(starts, lengths, part["track"].tolist(), part["name"].tolist())
        for k, (start, length, track_number, name_number) in enumerate(spans):
            known = ",".join([key + str(values[k]) for key, values in args if values[k] >= 0])
            yield f'{heads[track_number - 1]}{start:.3f},"dur":{length:.3f}{middles[name_number - 1]}{known}}}}}'


def plain(value: Any) -> Any:
    """A setting as JSON can hold it, without anything of the process or the machine."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        value = type(value)
    return f"{value.__module__}.{value.__qualname__}" if value.__module__ else str(value.__qualname__)


def clock(monotonic_ns: int, unix_ns: int) -> dict[str, Any]:
    """One moment on the clocks of this machine, by which files of several processes are joined."""
    return {"boot": _boot(), "monotonic_ns": monotonic_ns, "unix_ns": unix_ns}


def _boot() -> str:
    """Names the last start of this machine, and says nothing else of the machine. "": unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return hashlib.sha256(b"stocached trace " + file.read()).hexdigest()[:16]
    except OSError:
        return ""


class _Kept(io.RawIOBase):
    """A binary file that stays open when the layers above it close."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)
