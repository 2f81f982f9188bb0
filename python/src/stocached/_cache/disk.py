"""The file on a local disk behind a cache, which processes share without a server (docs/spec/tiers.md, A disk cache
without a server)."""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing.util
import os
from collections.abc import Sequence
from typing import Any

from .. import _native
from .._common import errors
from .._common.array_addresses import address_of
from .._common.errors import InvalidError, StocachedError
from .._common.sizes import parse_size
from . import policies, reading, storing
from .attachment import Attachment
from .handle import Handle

_FLUSH = 5.0  # seconds that the end of a process waits for writes
# A disk knows neither costs nor plans.
_POLICIES = (
    "first-come",
    "random",
    "clock",
    "fifo",
    "lru",
    "lfu",
)
_KEEPS = "first-come", "first-indices", "cost"  # policies that do not take each sample


def check(
    disk: int | str | None, disk_dir: str | os.PathLike[str] | None, disk_policy: policies.Policy | None = None
) -> None:
    """Raises InvalidError, which names the argument."""
    if disk_policy is not None and disk_policy not in _POLICIES:
        raise InvalidError(f"disk_policy={disk_policy!r}; it must be one of {', '.join(_POLICIES)}")
    if disk is None:
        if disk_policy is not None:
            raise InvalidError('disk_policy= is for a disk; give disk= too, such as disk="200GiB"')
        if disk_dir is not None:
            raise InvalidError('disk_dir= is the folder of disk=; give disk= too, such as disk="200GiB"')
        return
    try:
        size = parse_size(disk, "disk")
    except InvalidError as error:
        raise InvalidError(f"{error}. The folder is disk_dir=") from None
    if size == 0:
        raise InvalidError(f"disk={disk!r} holds no sample; leave out disk= for a cache in memory only")
    if disk_dir is None:
        raise InvalidError("disk= needs disk_dir=, a folder on a local disk")
    if not isinstance(disk_dir, (str, os.PathLike)) or not os.fspath(disk_dir):
        raise InvalidError(f"disk_dir={disk_dir!r}; it must be the path of a folder")


def open_behind(
    cache: Attachment,
    size: int | str,
    folder: str | os.PathLike[str],
    fingerprint: str,
    kind: Sequence[Any] = (),
    policy: policies.Policy = "first-come",
) -> Disk:
    """Opens the file for the samples of a cache. fingerprint: of the dataset. kind: what else decides about the bytes
    of a sample."""
    if cache.programs:
        raise InvalidError(
            f"disk= is for a cache without a server, and a server shares {cache.name!r}; give that cache a tier of the kind disk"
        )
    text = repr((fingerprint, *kind, [(field.name, field.code, field.shape) for field in cache.fields]))
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = os.path.join(os.path.abspath(os.fspath(folder)), f"{cache.name or digest[:16]}.tier")
    if cache.variable and policy != "first-come":
        raise InvalidError(
            f'disk_policy={policy!r}: samples that differ in size need "first-come" on a disk; leave it out'
        )
    return Disk(path, cache.samples, cache.sample_bytes, cache.variable, parse_size(size, "disk"), digest, policy)


# Of stats(). Dropped: samples that were not written because the disk was slow, or because another process wrote them.
COUNTS = "disk_hits", "disk_misses", "disk_writes", "disk_dropped", "disk_poisoned", "disk_failed"


class Disk:
    """An open file. Threads, forked children and processes that unpickle it share it."""

    def __init__(
        self,
        path: str,
        samples: int,
        sample_bytes: int,
        variable: bool,
        size: int,
        fingerprint: str,
        policy: policies.Policy = "first-come",
        kept: bytes | None = None,
    ) -> None:
        self._arguments = path, samples, sample_bytes, variable, size, fingerprint, policy
        self.path = path
        options = _native.Options(
            struct_bytes=ctypes.sizeof(_native.Options), samples=samples, limit_bytes=max(size, 1),
            sample_bytes=sample_bytes, variable=variable, fingerprint=fingerprint.encode(), policy=policies.number_of(policy),
            open_flags=_native.OPEN_KIND_PYTHON,
        )  # fmt: skip
        self.handle, error = Handle(), _native.Error()
        if _native.disk_open(os.fsencode(path), options, self.handle, error) < 0:
            made = errors.from_struct(error)
            made.args = (f"disk={size}: {made}", *made.args[1:]) if error.code == _native.EMEMORY else made.args
            raise made
        self.slots = 0 if variable else int(self.handle.info().slots)
        self._partial = not variable and self.slots < samples
        self._kept: bytes | None = None
        self.keep(kept)
        self.flush_at_exit()

    def keep(self, kept: bytes | None) -> None:
        """As `Attachment._keep`, of what this handle writes to the file."""
        if kept != self._kept:
            self.handle.keep(kept)
            self._kept = kept

    def apart_from(self, cache: Attachment) -> bool:
        """Whether disk and memory should hold different samples: the disk has no room for all of them, and what the
        cache in memory takes stays there (docs/spec/tiers.md)."""
        return self._partial and cache.policy in _KEEPS

    def together(self, cache: Attachment) -> int:
        """How many samples the cache in memory and the disk hold together; 0: unknown, as they differ in size."""
        if not self.slots or not cache.slots:
            return 0
        apart = self.apart_from(cache)  # else memory has copies of what the disk has
        return min(cache.slots + self.slots if apart else max(cache.slots, self.slots), cache.samples)

    def __reduce__(self) -> tuple[Any, ...]:
        return Disk, (*self._arguments, self._kept)

    def take(self, cache: Attachment, i: int) -> Any:
        """A sample, which it also puts into the cache unless they are apart; None on a miss."""
        raw = reading.bytes_of(cache, self.handle, i)
        if raw is None:
            return None
        if not cache.read_only and not self.apart_from(cache):
            cache._handle.check(_native.set(cache._handle, i, address_of(raw), raw.nbytes, 0), i, raw.nbytes)
        return cache._values.decode(raw, True)

    def put(self, cache: Attachment, i: int, value: Any) -> bool:
        """Stores a sample in the background; returns whether it will. A disk that is slow, full or fails is no
        error."""
        if self._ends_in != os.getpid():  # a forked child
            self.flush_at_exit()
        parts = cache._values.parts(value)
        code = _native.set_later(self.handle, i, storing.vector_of(parts), len(parts))
        return bool(self.handle.check(code, i) == _native.STORED)

    def look(self) -> StocachedError | None:
        """Looks whether the path still names the file. FormatError: another program has taken it away or changed it. Others:
        the system cannot tell. None: nothing has happened."""
        error = _native.Error()
        code = _native.disk_look(self.handle, error)
        return None if code == 0 else errors.from_struct(error)

    def flush(self, seconds: float = _FLUSH) -> bool:
        """Waits until this process has written what it put; returns whether it has."""
        return bool(_native.flush(self.handle, int(seconds * 1000)) == 0)

    def flush_at_exit(self) -> None:
        """Has the end of this process write what waits. Also that of a worker of multiprocessing, which runs no
        handlers of atexit."""
        self._ends_in = os.getpid()
        multiprocessing.util.Finalize(self, _native.flush, (self.handle, int(_FLUSH * 1000)), exitpriority=0)

    def clear(self) -> None:
        """Empties the file, for all processes that share it."""
        _native.clear(self.handle, 10_000)

    def counts(self) -> tuple[int, ...]:
        """COUNTS, of all processes that have shared the file since it was out of use."""
        stats = _native.Stats(struct_bytes=ctypes.sizeof(_native.Stats))
        self.handle.check(_native.stats(self.handle, stats))
        counts = stats.hits, stats.misses, stats.stored, stats.busy, stats.corrupt, stats.passed
        return tuple(map(int, counts))
