"""The native API: a `Cache` holds samples, addressed by index, for all processes of the machine.

This module is its public face. The work is in other modules: `opening` (create, attach),
`attachment` (state), `reading` (single samples), `gathering` (many samples), `served` (a server
fills the misses) and `storing` (put, load, clear)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.sizes import show_size
from . import gathering, opening, reading, served, storing
from .attachment import Attachment
from .policies import Policy
from .results import SetResult as SetResult
from .results import State as State
from .stats import Stats, stats_of

_view_slot = _native.view_slot


class Cache(Attachment):
    """A cache of samples in shared memory. Make one with `Cache.create` or `Cache.attach`.

    Lifetime: a view stays valid as long as the program refers to it, also after `close` and after
    the cache object is gone. Its bytes are final until a client clears the cache or overwrites the
    sample. Then the view may show old bytes, new bytes or a mix. Copies are never a mix. A store
    into a view raises ValueError. A cache that evicts gives out no views: there `get` copies.
    Concurrency: any number of threads may use one object, `close` included. So may forked children.
    Pickling: the process that unpickles attaches by path. If the cache has no name, it attaches
    through the process that pickled it, which must be alive.
    Samples: an array, or a dict of arrays by name if the cache has several fields. A field of dtype
    `bytes` gives bytes, and a view of it gives a memoryview.

    Attributes, which never change:

    samples: of the dataset; indices are 0..samples-1.
    slots: how many samples of fixed size fit; 0 in a variable-size cache.
    variable: whether samples differ in size.
    sample_bytes: of a sample of fixed size, or of the largest one that a variable-size cache takes.
    segment_bytes: the most memory that the segment can take, control part included.
    policy, name, fingerprint: as given at creation; name and fingerprint may be None.
    read_only: whether this handle can only read.
    path: of the segment; None if this process sees no file of it.
    decode: how `SourceDataset` makes pictures of the files that a server keeps in the first field
        (docs/spec/stores.md, In a server); None: samples are as they lie.
    programs: whether programs load the samples of this cache, which a server shares between programs and
        machines (docs/guides/several-nodes.md). There put offers the sample to others, and get_or_load asks
        first whether others have it.
    uuid: 16 bytes that name this segment. fields: the schema of a sample."""

    # ------------------------------------------------------------ create, attach, close

    @classmethod
    def create(
        cls,
        name: str | None = None,
        *,
        samples: int,
        shape: int | Sequence[int | None] | None = None,
        dtype: Any = None,
        fields: Mapping[str, tuple[Any, Any]] | None = None,
        size: int | str | None = None,
        sample_bytes: int | None = None,
        variable: bool = False,
        policy: Policy = "first-come",
        reserve: bool = False,
        unlink: Literal["last"] | None = None,
        dir: str | os.PathLike[str] | None = None,
        fingerprint: str | None = None,
        slots: int | None = None,
        clients: int | None = None,
        slot_bytes: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Cache:
        """Creates a cache and attaches to it.

        name: other processes attach by it; 1 to 100 of [A-Za-z0-9._-]. None: the cache goes with
            its last process.
        shape, dtype: of a sample (default uint8). A dimension of None differs between samples.
            With variable and without shape and fields, samples are bytes.
        fields: several arrays in a sample,
            `{"image": ((3, 224, 224), "uint8"), "label": ((), "int64")}`.
        samples: number of samples of the dataset, cached or not (required).
        size: the most bytes of the whole cache, such as 8GiB or 500MB. Without it: room for every
            sample; variable needs a size.
        slots: exact number of slots; each has room for one sample. Without it: as many as size
            holds.
        sample_bytes: bytes of a sample without fields; with variable the most that a sample may
            have. Without it: the bytes of the fields; with variable 4 GiB - 1.
        variable: samples differ in size, and dimensions of fields may; needs size. Without it:
            samples of one size.
        policy: which samples stay. first-come: any sample stored while there is space.
            first-indices: sample i below the number of slots has slot i, the others have none; not
            with variable. In a full cache the others give the space of one sample to another: cost
            keeps the samples that take longest to load (with variable: for their bytes), clock and
            lfu those read most often, lru those read last; fifo and random are to compare with;
            planned, only in a cache of a server, keeps those that jobs read soonest. Without it:
            first-come.
        slot_bytes: bytes of a slot, a power of two, with variable and a policy that evicts; a
            sample takes several, so best a sixteenth of a typical sample. Without it: a size that
            follows from size and samples.
        reserve: takes all memory now, so that no set fails later for lack of it. Without it: memory
            as samples come.
        unlink: "last": its last user removes a cache with a name. Without it: a cache that stays
            until it is removed.
        clients: the most processes that use the cache at a time. Without it: 1024.
        dir: folder of a cache with a name, on a tmpfs. Without it: `/dev/shm/stocached-<uid>`.
        fingerprint: names dataset and transform, in at most 64 bytes; programs with another one
            refuse the cache. Without it: none.
        progress: while `reserve` takes memory, `progress(done, total)` is called, in bytes.

        A cache of that name of another version of stocached is replaced, with a warning, if no process uses it.

        Raises InvalidError (ValueError), CacheExistsError (FileExistsError), VersionError (ValueError)
        if processes use one of another version, CacheMemoryError (MemoryError) with the numbers, CachePermissionError, SystemCallError (OSError)."""
        given = dict(locals())
        del given["cls"]
        return opening.create(cls, **given)

    @classmethod
    def attach(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        fingerprint: str | None = None,
        read_only: bool = False,
        timeout: float | None = None,
    ) -> Cache:
        """Attaches to a named cache. Without permission to write, the handle is `read_only`.

        This process may not see the name, because the cache lies in another folder or mount
        namespace. Then it asks the server for the cache, if one has run.
        timeout: seconds to wait for the server and its answer, as in Go and C. None: 60, so that the server can
            restart meanwhile. Without the folder of its socket (STOCACHED_SOCKETS_DIR) there is no wait.
        Raises CacheNotFoundError (FileNotFoundError), FormatError, VersionError, FingerprintError
        (ValueError), CachePermissionError, SystemCallError."""
        return cls(opening.attach(name_or_path, fingerprint, read_only, timeout, opening.has_run))

    def close(self) -> None:
        """Detaches. Views stay valid, and calls that run in other threads finish. All later calls
        raise ClosedError, but `close` may be called again."""
        self._detach()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._detached

    def unlink(self) -> None:
        """Removes a named cache: no process can attach any more, and those attached keep it.

        Raises CacheNotFoundError if it is gone already."""
        opening.unlink(self.path, self.name)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle, (type(self), self.path, *self._held(), self.read_only, self._kept, self._disk)

    def _held(self) -> tuple[int, int, bytes]:
        """Where this process holds the file, whatever becomes of its name: for `attach_process`."""
        return os.getpid(), int(self._handle.info().fd), self.uuid

    def _reader(self) -> Cache:
        """Another handle of the cache, which only reads."""
        return type(self)(opening.attach_pickled(self.path, *self._held(), True))

    def _remade(self) -> Cache | None:
        """The cache that has this one's place now, with its disk cache and kept samples (`attach_remade`). None: none
        has."""
        handle = None if self.closed else opening.attach_remade(self)
        if handle is None:
            return None
        cache = type(self)(handle)
        cache._keep(self._kept)
        cache._disk = self._disk
        return cache

    def __repr__(self) -> str:
        name = repr(self.name) if self.name else "without a name"
        fields = ", ".join(map(str, self.fields))
        capacity = f"variable size, {show_size(self.segment_bytes)}" if self.variable else f"{self.slots} slots"
        return (
            f"<stocached.Cache {name}: {self.samples} samples, {capacity}, {fields}{', closed' if self.closed else ''}>"
        )

    # ------------------------------------------------------------ read

    def __len__(self) -> int:
        """Slots: how many samples fit. A variable-size cache has none: the number of samples."""
        return self.samples if self.variable else self.slots

    def __bool__(self) -> bool:
        return True  # a cache, however small

    def get(self, index: SupportsIndex, copy: bool = False) -> Any:
        """A sample as a read-only view of the cache, or with `copy` as the caller's own memory;
        None on a miss. A cache that evicts always gives a copy. Raises SampleIndexError
        (IndexError), TypeError for what is no whole number, such as True."""
        rows = self._rows
        if rows is not None and not copy:  # the usual case stands here, as a call takes a tenth of its time
            try:
                slot = _view_slot(self._handle, index)
                # True and False are no indices. The first comparison tells it of most indices, for nothing.
                if 1 < index < self.samples or (type(index) is not bool and 0 <= index < self.samples):  # type: ignore[operator]
                    if slot >= 0:
                        return rows[slot]
                    if slot == -1:
                        return None
            except ctypes.ArgumentError:
                pass  # an index of another integer type
        return reading.copy(self, index) if copy else reading.get(self, index)

    def __contains__(self, index: SupportsIndex) -> bool:
        """Whether the sample is in the cache now. Counts neither a hit nor a miss. False for an
        index out of range."""
        return reading.contains(self, index)

    def gather(self, indices: Any, out: Any = None, threads: int = 1) -> tuple[Any, npt.NDArray[np.bool_]]:
        """Copies many samples in one call.

        Returns `(out, hit)`: row k of `out` is sample `indices[k]` if `hit[k]`. A variable-size
        cache gives a list of values, None for misses, and takes no `out`.

        out: an array or CPU tensor (len(indices), *shape) to fill. If the cache has several fields,
            a dict of arrays by field; fields may be left out. Rows of misses stay as they are.
            None: new arrays, with zeros in the rows of misses.
        threads: the most that copy; fewer do for a small gather.

        A True or False between numbers counts as 1 or 0: NumPy makes numbers of them before it can be seen.

        Each sample is copied whole: its fields belong to one version of it.
        Raises SampleIndexError before anything is copied, SchemaError if `out` does not fit."""
        return gathering.gather(self, gathering.sample_indices(indices), out, threads)[1]

    def states(self) -> npt.NDArray[np.uint8]:
        """The `State` of every sample as it is now, as a copy."""
        return reading.states(self)

    def costs(self) -> npt.NDArray[np.float64]:
        """Seconds that the load of each sample takes, to about 19 %; nan: unknown, or one load took far longer than
        those of others. With policy="cost" each load is measured, with others some. The cache also remembers those of
        samples that it does not hold any more."""
        return reading.costs(self)

    # ------------------------------------------------------------ have a server fill it

    def fetch(
        self,
        indices: Any,
        out: Any = None,
        timeout: float | None = None,
        *,
        errors: Literal["raise", "return"] = "raise",
        threads: int = 1,
    ) -> Any:
        """The samples of a batch: hits as `gather` gives them, and misses from the server that
        fills this cache, in one request.

        If all samples are hits, it costs what `gather` costs and needs no server. While it
        waits for a server that is away, other threads run. A full cache is no error: the other
        samples come through the server's socket each time.

        Returns `(out, ok)` as `gather` does; `ok` is true for every sample that was read. A
        variable-size cache gives a list of values in the order of the indices.

        timeout: seconds for the whole call. None: 60 until a server is there, no limit for its
            answer.
        errors: "raise": FetchError if the source could not give a sample; the error holds all other
            samples. "return": no such exception; `ok` is false and a list has None. The row is
            zeros in a new array, and undefined in an array of yours.

        Raises FetchError (OSError), NoServerError (ConnectionError) with the command that starts a
        server, CacheTimeoutError (TimeoutError), CacheNotFoundError when the server has no cache of
        this name, SampleIndexError before anything is copied, SchemaError if `out` does not fit.
        ReplacedError when the source has changed and an empty cache has taken this one's place."""
        return served.fetch(self, indices, out, timeout, errors, threads)

    def prefetch(self, indices: Any, timeout: float | None = None) -> int:
        """Asks the server to read samples when it has nothing more urgent to do. Returns how many
        it queued: misses that its queue had space for.

        timeout and errors: as for `fetch`. But a sample that cannot be read is an error only when
        it is fetched."""
        return served.prefetch(self, indices, timeout)

    # ------------------------------------------------------------ write

    def put(
        self,
        index: SupportsIndex,
        value: Any,
        *,
        overwrite: bool = False,
        wait: bool = False,
        cost: float | None = None,
    ) -> SetResult:
        """Stores a copy of a sample if the cache does not have it. The value must have the dtype
        and shape of the cache; its memory layout does not matter.

        overwrite: replaces the sample if the cache has it.
        wait: for another client that is filling the sample now, up to a minute.
        cost: the seconds that the load of this sample took, below 2**63 ns (292 years); `LoadTime` measures them. A
            cache with policy="cost" keeps the samples that cost most; others keep the cost, for `stocached advise`. None
            and 0: unknown. With policy="cost" such a sample gets a free slot, but no slot of another sample.

        Raises SampleIndexError (IndexError), SchemaError (ValueError), InvalidError (ValueError)
        for a cost that is negative, not finite or above 292 years, ReadOnlyError, ClosedError."""
        return storing.put(self, index, value, overwrite, wait, cost)

    def get_or_load(self, index: SupportsIndex, fn: Callable[[int], Any], *, allow_random: bool = False) -> Any:
        """The sample from the cache, or on a miss `fn(index)`, which is stored.

        Threads of this process that miss the same sample at the same time call `fn` once and share
        its result. The result is read-only: a view of the cache, or a copy if the cache is full
        or evicts. The cache is told the time that `fn` took: of each load with policy="cost", of some with others.

        If `fn` draws from the global generators of random, numpy.random or torch, the sample is
        loaded again to see whether it depends on them.
        allow_random: stores the sample without that check.

        Raises what fn raises. Raises NondeterministicDatasetError for a random sample; then the
        samples that this process stored by this call are removed."""
        value = self.get(index)
        return storing.get_or_load(self, index, fn, allow_random) if value is None else value

    def clear(self, timeout: float = 60.0) -> None:
        """Empties the cache. It waits for fills that run. New ones get BUSY until it ends.

        Raises CacheTimeoutError (TimeoutError) after `timeout` seconds."""
        storing.clear(self, timeout)

    def _remove(self, indices: Sequence[int]) -> int:
        return storing.remove(self, indices)

    def recover(self) -> int:
        """Reclaims what dead clients have claimed; returns how many samples. A put reclaims by
        itself when it meets such a claim."""
        return self._handle.check(_native.recover(self._handle))

    # ------------------------------------------------------------ inspect

    def stats(self) -> Stats:
        """The counters of all clients, and the state now."""
        return stats_of(self)

    def verify(self) -> list[int]:
        """Compares every sample in the cache with its checksum. Returns the indices of the corrupt
        ones: [] when all is well."""
        return reading.corrupt_samples(self)


def unpickle(
    kind: type[Cache],
    path: str | None,
    pid: int,
    fd: int,
    uuid: bytes,
    read_only: bool,
    kept: bytes | None = None,
    disk: Any = None,
) -> Cache:
    cache = kind(opening.attach_pickled(path, pid, fd, uuid, read_only))
    if kept is not None:
        cache._keep(kept)
    cache._disk = disk
    return cache


Cache.__module__ = "stocached"  # where users find it
