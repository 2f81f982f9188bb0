"""Files of lines or records, and where each of these begins. The index of a large file is made once, and kept beside the file or
in the user's cache folder. It counts while the file has the same size, time and bytes at 64 places."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.checksum import crc32c
from .._common.local_file import stamp_of
from .._common.processors import processors
from .._memory.texts import SharedBytes
from .._shards.tar_index import indexes_of, is_trusted
from .local_file import opened

Starts = npt.NDArray[np.uint64]
# magic, version, checksum of the rest, rule, bytes, time, checksum of places, 0, lines
_HEAD = struct.Struct("<8sII16sqqIIQ")
_MAGIC, _VERSION = b"stoc-lin", 1
_KEPT = 16 << 20  # bytes of a file from which on its index is kept; others take 10 ms
_PLACES, _PLACE = 64, 256
_PATIENCE, _PAUSE = 60.0, 0.05  # seconds for which it waits for the index of another process, and between two looks
_HEAD_BYTES = 64 << 10  # the head of a file at an address


class Indexed:
    """Each element is a part of a file, read by itself."""

    what = ""

    def __init__(self, where: Any, starts: Starts) -> None:
        """where: a path, or a file at an address."""
        self._file = opened(where)
        self._shared = SharedBytes.of_array(starts)
        self._starts = self._shared.array.view(np.uint64)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _place(self, k: int) -> tuple[int, int]:
        """Where it begins, and its bytes."""
        begin, end = self._starts[k : k + 2].tolist()
        return begin, end - begin

    def spans(self, k: int) -> list[tuple[int, int]]:
        """The parts of the file that an element takes."""
        return [self._place(k)]

    def name(self, k: int) -> str:
        return f"{self.what} {k} (byte {int(self._starts[k]):,})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_starts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._starts = self._shared.array.view(np.uint64)


class OpenFile:
    """A file of this machine, while its index is made."""

    threads = min(processors(), 8)
    piece = 1 << 16  # bytes of a read of neighbouring records

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor, self.path = descriptor, path

    @property
    def stamp(self) -> tuple[int, int]:
        """Its bytes, and the time of its last change."""
        return stamp_of(os.fstat(self.descriptor))

    def pread(self, size: int, at: int) -> bytes:
        return os.pread(self.descriptor, size, at)

    def into(self, view: memoryview, at: int) -> int:
        return os.preadv(self.descriptor, [view], at)

    def sampled(self) -> int:
        """A checksum of some places."""
        places = np.linspace(0, max(0, self.stamp[0] - _PLACE), _PLACES).astype(np.int64).tolist()
        return crc32c(b"".join(self.pread(_PLACE, at) for at in places))

    def mode(self) -> int:
        return os.fstat(self.descriptor).st_mode & 0o664  # not for all: `is_trusted`

    def indexes(self) -> list[str]:
        return indexes_of(self.path, "lines")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process indexes the file, so that ranks read it once. Not every file system has locks."""
        end = time.monotonic() + _PATIENCE
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                try:
                    fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_PAUSE)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # also for a child that was forked meanwhile


class OpenObject:
    """The same of an object at an address. Its tag tells changes, so nothing of it is read for that."""

    threads, piece = 16, 8 << 20

    def __init__(self, file: Any) -> None:
        self._file, self.path, self.stamp = file, file.path, file.stamp
        self._head = self.now(_HEAD_BYTES, 0)  # which is asked for several times

    def pread(self, size: int, at: int) -> bytes:
        return self._head[at : at + size] if min(at + size, self.stamp[0]) <= len(self._head) else self.now(size, at)

    def now(self, size: int, at: int) -> bytes:
        size = min(size, self.stamp[0] - at)
        return self._file.now(at, size) if size > 0 else b""

    def into(self, view: memoryview, at: int) -> int:
        view[:] = self.pread(len(view), at)
        return len(view)

    def sampled(self) -> int:
        return 0

    def mode(self) -> int:
        return 0o600

    def indexes(self) -> list[str]:
        return indexes_of(self.path, "lines")[1:] if self.stamp[1] else []

    def alone(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def starts_of(where: Any, rule: bytes, make: Callable[[OpenFile | OpenObject], Starts]) -> Starts:
    """The index of a file, with the end of the file. where: a path, or a file at an address. rule: 16 bytes, which name what
    `make` finds. make: is called with the open file, if no index is kept. Raises what `make` does, OSError."""
    if not isinstance(where, str):
        return _starts_of(OpenObject(where), rule, make)
    descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _starts_of(OpenFile(descriptor, where), rule, make)
    except OSError as error:
        error.filename = error.filename or where
        raise
    finally:
        os.close(descriptor)


def _starts_of(file: OpenFile | OpenObject, rule: bytes, make: Callable[[OpenFile | OpenObject], Starts]) -> Starts:
    stamp = file.stamp
    if stamp[0] < _KEPT:
        return make(file)
    places = file.sampled()
    found = _found(file, stamp, rule, places)
    if found is not None:
        return found
    with file.alone():
        found = _found(file, stamp, rule, places)
        if found is None:
            found = make(file)
            if file.stamp == stamp:  # else who reads a line gets an error
                _keep(file, found, stamp, rule, places)
        return found


def _found(file: OpenFile | OpenObject, stamp: tuple[int, int], rule: bytes, places: int) -> Starts | None:
    kept = (_kept(index, stamp, rule, places) for index in file.indexes())
    return next((index for index in kept if index is not None), None)


def _kept(index: str, stamp: tuple[int, int], rule: bytes, places: int) -> Starts | None:
    """None: there is none of the file as it is."""
    try:
        with open(index, "rb") as file:
            magic, version, checksum, of, size, modified, sampled, _, lines = _HEAD.unpack(file.read(_HEAD.size))
            if (magic, version, of, (size, modified), sampled) != (_MAGIC, _VERSION, rule, stamp, places):
                return None
            if os.fstat(file.fileno()).st_size != _HEAD.size + 8 * (lines + 1) or not is_trusted(index, file.fileno()):
                return None
            starts = np.fromfile(file, "<u8", lines + 1)
    except (OSError, ValueError, struct.error):
        return None
    whole = len(starts) == lines + 1 and crc32c(starts) == checksum
    return starts if whole and starts[-1] == size and (starts[:-1] < starts[1:]).all() else None


def _keep(file: OpenFile | OpenObject, starts: Starts, stamp: tuple[int, int], rule: bytes, places: int) -> None:
    """In the first place that takes it, or in none."""
    head = _HEAD.pack(_MAGIC, _VERSION, crc32c(starts), rule, *stamp, places, 0, len(starts) - 1)
    for index in file.indexes():
        folder, name = os.path.split(os.path.abspath(index))
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", delete=False) as made:
                try:
                    made.write(head)
                    made.write(starts.data)
                    made.flush()
                    os.fchmod(made.fileno(), file.mode())
                    os.replace(made.name, index)
                except BaseException:
                    os.unlink(made.name)
                    raise
            return
