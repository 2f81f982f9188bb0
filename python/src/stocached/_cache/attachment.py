"""What a `Cache` object holds: the numbers of its segment, its handle, and arrays over its
payload."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common import threads
from .._common.array_addresses import address_of
from .._common.errors import SampleIndexError
from .._common.numbers import index_of
from .._samples import dtypes, schema
from .._samples.schema import Field
from .._samples.values import Array, FixedValues, VariableValues
from . import policies
from .handle import Handle
from .singleflight import SingleFlight

_SMALL = 64 * 1024  # bytes: a copy of less takes less time than handing the GIL over and back
_CLOSED = Handle()  # NULL, which the library answers with ECLOSED
_LEAVE = 5.0  # seconds: how long a program that ends waits for calls in its daemon threads

# With a policy that needs no costs, the first loads of this number are measured, then one in 16.
_MEASURED_FIRST, _MEASURED_OF = 1024, 16


class Attachment:
    """The state of a `Cache` object, which the functions of this package work on."""

    def __init__(self, handle: Handle) -> None:
        info = handle.info()
        self.samples = int(info.samples)
        self.variable = bool(info.variable)
        self.slots = 0 if self.variable else int(info.slots)
        self.sample_bytes = int(info.sample_bytes)
        self.segment_bytes = int(info.segment_bytes)
        self.policy = policies.name_of(info.policy)
        self._planned_by: int | None = None  # the process that announced to the server what it reads
        self._kept: bytes | None = None  # see _keep
        self.programs = bool(info.programs)
        self._learns = bool(info.lengths) and not info.read_only  # whether _learn_length may be called
        self._lengths = bool(info.lengths)
        self._loading: set[int] = set()  # samples that this process loads for others too (programs)
        self._away_until = 0.0  # until then it does not ask the server of programs, which was away
        self._evicts = policies.evicts(self.policy)
        self._offered = 0  # loads that `_measure_next` was asked about
        self.read_only = bool(info.read_only)
        self.name: str | None = info.name.decode() or None
        self.path: str | None = os.fsdecode(info.path) or None
        self.fingerprint: str | None = info.fingerprint.decode() or None
        self.decode: str | None = info.decode.decode() or None
        self.uuid = bytes(info.uuid)
        self.fields: tuple[Field, ...] = tuple(map(schema.from_native, handle.fields(info.field_count)))
        self._limit_bytes = int(info.limit_bytes)
        self._unlink_last = bool(info.unlink_last)
        self._slot_stride = int(info.slot_stride)
        self._handle = handle
        self._watch: Callable[[], None] | None = None  # is called once a second while it waits for its server
        self._disk: Any = None  # a disk.Disk: what this cache misses may come from it
        self._once = SingleFlight()
        self._values: FixedValues | VariableValues = (
            VariableValues(self.fields) if self.variable else FixedValues(self.fields, self.sample_bytes)
        )
        self._get_into = _native.get if self.sample_bytes > _SMALL else _native.get_small
        self._payload = handle.payload.array() if handle.payload else np.empty(0, np.uint8)
        self._columns: list[Array] = []  # an array of each field of fixed size: (slots, *shape)
        if isinstance(self._values, FixedValues):
            self._columns = self._values.arrays(self._payload, self.slots, self._slot_stride)
        # The column of the only field, if its items are arrays: `get` is fastest in this case.
        single = len(self._columns) == 1 and self.fields[0].shape != () and self.fields[0].code != dtypes.BYTES
        self._rows = self._columns[0] if single and not self._evicts else None
        # An array of this dtype and shape is a whole sample as it is. None: no array is.
        whole = single and self.fields[0].bytes == self.sample_bytes and not self.programs
        self._row_dtype: np.dtype[Any] | None = self.fields[0].dtype if whole else None
        self._row_shape = self.fields[0].shape
        _open.add(self)

    def _detach(self) -> None:
        """Drops the handle and the arrays. Views of the user and calls in other threads keep
        theirs."""
        self._handle, self._rows, self._columns, self._payload = _CLOSED, None, [], np.empty(0, np.uint8)
        if self._disk is not None:
            self._disk.flush()  # also if a worker thread keeps it open
        self._disk = None

    def _keep(self, kept: bytes | None) -> None:
        """From now on this handle, its copies in forked children and unpickled ones store only samples
        of these buckets, as `Owners.keep` returns them. None: all samples."""
        self._handle.keep(kept)
        self._kept = kept

    def _learn_length(self, i: int, items: int) -> None:
        """Remembers how many items a sample that is a list has, whether or not the cache holds it. Only if `_learns`."""
        self._handle.check(_native.learn_length(self._handle, i, items), i)

    def _learned_lengths(self) -> npt.NDArray[np.uint64]:
        """Of all samples, as a copy: items + 1, or 0 if they are not known."""
        found = np.zeros(self.samples, np.uint64)
        if self._lengths:
            self._handle.check(_native.learned_lengths(self._handle, 0, self.samples, address_of(found)))
        return found

    def _measure_next(self) -> bool:
        """Whether to measure the next load and tell what it cost: docs/spec/policies.md, Who measures."""
        if self.policy == "cost":
            return True
        self._offered += 1
        return self._offered <= _MEASURED_FIRST or self._offered % _MEASURED_OF == 0

    @property
    def _detached(self) -> bool:
        return self._handle is _CLOSED

    def _index(self, index: SupportsIndex) -> int:
        """The index as an int of the cache's range. Raises SampleIndexError, or ClosedError."""
        i = index_of(index)
        if 0 <= i < self.samples:
            return i
        if self._detached:
            raise self._handle.error(_native.ECLOSED)
        if -(2**63) <= i < 2**63:
            raise self._handle.error(_native.EINDEX, i)
        raise SampleIndexError(f"index {i} is out of range; this cache has the samples 0 to {self.samples - 1}")


_open: weakref.WeakSet[Attachment] = weakref.WeakSet()


@threads.at_exit
def _detach_all() -> None:
    """Detaches cleanly when a program ends with caches open: `unlink="last"` needs it.

    Views of these caches stay valid to the very end."""
    leaving = []
    for cache in list(_open):
        if cache._unlink_last:
            leaving.append(weakref.ref(cache._handle))
        cache._detach()
    # Calls in daemon threads hold handles. The interpreter stops these threads, and then no code
    # closes the handles, so let the calls finish first.
    end = time.monotonic() + _LEAVE
    while any(handle() not in (None, _CLOSED) for handle in leaving) and time.monotonic() < end:
        time.sleep(0.001)
