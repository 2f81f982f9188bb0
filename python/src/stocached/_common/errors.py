"""One exception class for each error code, all under StocachedError, and of the built-in type that a user would expect there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _native


class StocachedError(Exception):
    """Whatever goes wrong here. `code` is the number of enum stoc_code, 0 for errors that only Python knows."""

    code = 0


class InvalidError(StocachedError, ValueError):
    """An argument makes no sense."""

    code = _native.EINVAL


class SampleIndexError(StocachedError, IndexError):
    """A sample index below 0, or not below the number of samples."""

    code = _native.EINDEX


class SchemaError(StocachedError, ValueError):
    """A value, or an array to fill, has another size, dtype, shape or field than the samples of this cache."""

    code = _native.ESCHEMA


class CacheNotFoundError(StocachedError, FileNotFoundError):
    """There is no cache of that name, at that path, or in that process."""

    code = _native.ENOENT


class CacheExistsError(StocachedError, FileExistsError):
    """A cache of that name exists already."""

    code = _native.EEXIST


class FormatError(StocachedError, ValueError):
    """The file is no segment, its header does not verify, or it is not the segment that was meant."""

    code = _native.EFORMAT


class VersionError(StocachedError, ValueError):
    """A segment of another layout version or build."""

    code = _native.EVERSION


class FingerprintError(StocachedError, ValueError):
    """The cache holds samples of another dataset or transform."""

    code = _native.EFINGERPRINT


class CacheMemoryError(StocachedError, MemoryError):
    """The cache does not fit into the tmpfs, the cgroup or the machine."""

    code = _native.EMEMORY


class CachePermissionError(StocachedError, PermissionError):
    """Not ours: owner, mode or kind of file."""

    code = _native.EPERM


class ReadOnlyError(StocachedError, PermissionError):
    """This handle may read only."""

    code = _native.EREADONLY


class ClosedError(StocachedError, ValueError):
    """The cache was closed in this process."""

    code = _native.ECLOSED


class ClientsError(StocachedError, RuntimeError):
    """The client table is full of live clients."""

    code = _native.ECLIENTS


class CacheTimeoutError(StocachedError, TimeoutError):
    """Waited long enough."""

    code = _native.ETIMEOUT


class SystemCallError(StocachedError, OSError):
    """A system call failed; `errno` says how."""

    code = _native.ESYSTEM


class LostError(StocachedError, RuntimeError):
    """A claim was no longer ours when it was published: a bug, or a foreign hand in the segment."""

    code = _native.ELOST


class CorruptError(StocachedError, RuntimeError):
    """A word, length or checksum of the cache cannot be."""

    code = _native.ECORRUPT


class UnsupportedError(StocachedError, NotImplementedError):
    """Not on this system."""

    code = _native.EUNSUPPORTED


class NoServerError(StocachedError, ConnectionError):
    """No server is there to be asked, or it went away; the message has the command that starts one. Hits go on without."""

    code = _native.ENOSERVER


class ReplacedError(StocachedError, RuntimeError):
    """The server has another cache of this name by now, because its source has changed: close this one and attach anew."""

    code = _native.EREPLACED


@dataclass(frozen=True)
class FetchFailure:
    """One sample that could not be had."""

    position: int  # in the indices that were asked for
    index: int
    kind: str  # INDEX, READ, CHANGED, DAMAGED, NO_SLOT, CANCELLED, CLOSING or INTERNAL: docs/spec/control.md says what they mean
    message: str  # of the server: what went wrong, and with which file


class FetchError(StocachedError, OSError):
    """A server could not give some of the samples, or refused the request.

    failures: which samples, and why each; empty if the whole request was refused. All others were had: `out` and `ok` are what the call would have
    returned without an error (of a variable-size cache, `out` is the list, with None for what failed). Both are None in another process."""

    code = _native.EREMOTE

    def __init__(self, message: str, failures: Sequence[FetchFailure] = (), out: Any = None, ok: Any = None) -> None:
        super().__init__(message)
        self.failures, self.out, self.ok = tuple(failures), out, ok

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.failures)


class NondeterministicDatasetError(StocachedError, ValueError):
    """A sample of the dataset is random: a cache would give the first result in every epoch. The message names the sample, the generator and the remedy."""


class WorkerLostError(StocachedError, RuntimeError):
    """A worker of a loader has died: killed, or its code ended the process. The message names worker, signal and sample."""


class StateError(StocachedError, ValueError):
    """A state that a loader cannot go on from."""


class StreamError(StocachedError, RuntimeError):
    """A file of a stream could not be read, or there is nothing to read. `file`, `number` and `item` say where, and are None where it is no file's fault."""

    def __init__(self, message: str, file: Any = None, number: int | None = None, item: int | None = None) -> None:
        super().__init__(message)
        self.file, self.number, self.item = file, number, item

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), None, self.number, self.item)  # the file may be anything


BY_CODE: dict[int, type[StocachedError]] = {
    kind.code: kind
    for kind in (
        InvalidError,
        SampleIndexError,
        SchemaError,
        CacheNotFoundError,
        CacheExistsError,
        FormatError,
        VersionError,
        FingerprintError,
        CacheMemoryError,
        CachePermissionError,
        ReadOnlyError,
        ClosedError,
        ClientsError,
        CacheTimeoutError,
        SystemCallError,
        LostError,
        CorruptError,
        UnsupportedError,
        NoServerError,
        ReplacedError,
        FetchError,
    )
}


def make(code: int, message: str, os_error: int = 0) -> StocachedError:
    """The exception for an error code. Built from its message alone, so that it survives pickling and the DataLoader's re-raise."""
    error = BY_CODE.get(code, StocachedError)(message)
    if os_error and isinstance(error, OSError):
        error.errno = os_error
    return error


def from_struct(error: _native.Error) -> StocachedError:
    return make(error.code, error.message.decode(errors="replace"), error.os_error)


for _kind in (StocachedError, NondeterministicDatasetError, WorkerLostError, StateError, StreamError, FetchFailure, *BY_CODE.values()):
    _kind.__module__ = "stocached"  # where users find them, and what tracebacks show
