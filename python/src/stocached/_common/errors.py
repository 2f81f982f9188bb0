"""One exception class for each error code. All derive from StocachedError, and from the built-in
type that a user would expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _native


class StocachedError(Exception):
    """The base of all errors of stocached. `code` is the number of enum stoc_code, 0 for errors
    that only Python raises."""

    code = 0

    def __str__(self) -> str:
        """The message, which can be printed: a name of a file that is not UTF-8 has its bytes as escapes."""
        return super().__str__().encode("utf-8", "backslashreplace").decode()


class InvalidError(StocachedError, ValueError):
    """An argument makes no sense."""

    code = _native.EINVAL


class SampleIndexError(StocachedError, IndexError):
    """A sample index below 0, or not below the number of samples."""

    code = _native.EINDEX


class SchemaError(StocachedError, ValueError):
    """A value, or an array to fill, does not have the size, dtype, shape or fields of this cache's
    samples."""

    code = _native.ESCHEMA


class CacheNotFoundError(StocachedError, FileNotFoundError):
    """No cache has that name or path, or the process does not have it."""

    code = _native.ENOENT


class CacheExistsError(StocachedError, FileExistsError):
    """A cache of that name exists already."""

    code = _native.EEXIST


class FormatError(StocachedError, ValueError):
    """The file is no segment, its header fails the checks, or it is another segment than the
    expected one."""

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
    """The owner, mode or kind of the file does not allow it."""

    code = _native.EPERM


class ReadOnlyError(StocachedError, PermissionError):
    """A store with a handle that is read-only."""

    code = _native.EREADONLY


class ClosedError(StocachedError, ValueError):
    """The cache was closed in this process."""

    code = _native.ECLOSED


class ClientsError(StocachedError, RuntimeError):
    """The client table is full of live clients."""

    code = _native.ECLIENTS


class CacheTimeoutError(StocachedError, TimeoutError):
    """The timeout of a call has passed."""

    code = _native.ETIMEOUT


class SystemCallError(StocachedError, OSError):
    """A system call failed; `errno` says how."""

    code = _native.ESYSTEM


class LostError(StocachedError, RuntimeError):
    """The claim was lost before its publish: a bug, or another program has changed the segment."""

    code = _native.ELOST


class CorruptError(StocachedError, RuntimeError):
    """A word, length or checksum of the cache is impossible."""

    code = _native.ECORRUPT


class UnsupportedError(StocachedError, NotImplementedError):
    """This system does not support the call."""

    code = _native.EUNSUPPORTED


class NoServerError(StocachedError, ConnectionError):
    """No server runs, or it has ended. The message has the command that starts one. Hits need no
    server."""

    code = _native.ENOSERVER


class ReplacedError(StocachedError, RuntimeError):
    """The source has changed, so the server has another cache of this name now. Close this one and
    attach again."""

    code = _native.EREPLACED


@dataclass(frozen=True)
class FetchFailure:
    """One sample that the server could not give."""

    position: int  # in the indices of the call
    index: int  # index of the sample
    kind: str  # INDEX, READ, CHANGED, DAMAGED, NO_SLOT, NO_MEMORY, CANCELLED, CLOSING, INTERNAL or BAD (docs/spec/control.md)
    message: str  # the server's text: the error, and the file


class FetchError(StocachedError, OSError):
    """A server could not give some of the samples, or refused the request.

    failures: which samples failed, and why; empty if the whole request was refused. The other
        samples are in `out` and `ok`, as the call returns them without an error. For a
        variable-size cache `out` is the list, with None for failures. Both are None in another
        process."""

    code = _native.EREMOTE

    def __init__(self, message: str, failures: Sequence[FetchFailure] = (), out: Any = None, ok: Any = None) -> None:
        super().__init__(message)
        self.failures, self.out, self.ok = tuple(failures), out, ok

    @property
    def bad(self) -> bool:
        """Whether all failures are bad samples: their files are no pictures, or damaged."""
        return bool(self.failures) and all(failure.kind == "BAD" for failure in self.failures)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.failures)


BYTES = "bytes"
"""The name of a file whose bytes alone are known, in errors."""


class BadSampleError(StocachedError, ValueError):
    """A sample is damaged or invalid, such as a picture that does not decode. A dataset of yours may raise
    it too: with bad_samples="skip", loaders leave such samples out of their batches.

    reason: why. file: where it comes from, if known. The message has both."""

    def __init__(self, reason: str, file: Any = None) -> None:
        super().__init__(reason if file is None else f"{file}: {reason}")
        self.reason, self.file = reason, None if file is None else str(file)

    def named(self, where: str) -> BadSampleError:
        """This error; where it comes from is added, if it does not know it."""
        if self.file not in (None, BYTES):
            return self
        made = type(self)(self.reason, where)
        made.__cause__, made.__notes__ = self.__cause__, getattr(self, "__notes__", [])
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.file)


class NondeterministicDatasetError(StocachedError, ValueError):
    """A sample of the dataset is random, so a cache would give the first result in every epoch. The
    message names the sample, the generator and the remedy."""


class WorkerLostError(StocachedError, RuntimeError):
    """A worker of a loader was killed, or its code ended the process. The message names worker,
    signal and sample."""


class StateError(StocachedError, ValueError):
    """A state from which a loader cannot continue."""


class StreamError(StocachedError, RuntimeError):
    """A file of a stream could not be read, or there is no file. `file`, `number` and `item` say
    where, and are None if no file is the cause."""

    def __init__(self, message: str, file: Any = None, number: int | None = None, item: int | None = None) -> None:
        super().__init__(message)
        self.file, self.number, self.item = file, number, item

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), None, self.number, self.item)  # the file may be an object that cannot be pickled


_KINDS: tuple[type[StocachedError], ...] = (StocachedError, *StocachedError.__subclasses__())
BY_CODE: dict[int, type[StocachedError]] = {kind.code: kind for kind in _KINDS if kind.code}


def make(code: int, message: str, os_error: int = 0) -> StocachedError:
    """The exception for an error code. Its only argument is the message, so it survives pickling
    and the DataLoader's re-raise."""
    error = BY_CODE.get(code, StocachedError)(message)
    if os_error and isinstance(error, OSError):
        error.errno = os_error
    return error


def from_struct(error: _native.Error) -> StocachedError:
    return make(error.code, error.message.decode(errors="replace"), error.os_error)


def called(function: Any, *arguments: Any) -> int:
    """The result of a function of the C library whose last argument is a struct stoc_error. Raises what that says."""
    error = _native.Error()
    result = function(*arguments, error)
    if result < 0:
        raise from_struct(error)
    return int(result)


for _kind in _KINDS:
    _kind.__module__ = "stocached"  # where users find them, and as tracebacks show them
