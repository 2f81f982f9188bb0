"""Single samples out of a cache: views of the payload, and copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.array_addresses import address_of
from .._common.errors import CorruptError
from .._common.numbers import index_of
from .._samples.values import Array, shown
from .attachment import Attachment
from .handle import Handle

_RETRIES = 16  # tries of a read whose sample is replaced each time; after them the read is a miss

_view_slot = _native.view_slot


def get(cache: Attachment, index: SupportsIndex) -> Any:
    """A view of a sample, or a copy from a cache that evicts; None on a miss."""
    return copy(cache, index) if cache._evicts else view(cache, index)


def view(cache: Attachment, index: SupportsIndex) -> Any:
    """A read-only view of a sample; None on a miss."""
    i = cache._index(index)
    handle, columns = cache._handle, cache._columns
    if not columns:
        return load_record(cache, _native.view, i)
    slot = _view_slot(handle, i)
    if slot < -1:
        raise handle.error(slot + 1, i)
    return _row(cache, columns, slot) if slot >= 0 else None


def uncounted(cache: Attachment, i: int) -> Any:
    """As `get`, without counting a hit or a miss."""
    if cache._evicts:
        return uncounted_copy(cache, i)
    rows = cache._rows
    slot = _native.locate_slot(cache._handle, i) if rows is not None else -1
    return rows[slot] if rows is not None and slot >= 0 else load_record(cache, _native.locate, i)


def uncounted_copy(cache: Attachment, i: int) -> Any:
    """A sample in new memory, without counting a hit or a miss; None on a miss."""
    found = bytes_of(cache, cache._handle, i, _native.copy)
    return None if found is None else cache._values.decode(found, True)


def _row(cache: Attachment, columns: list[Array], slot: int) -> Any:
    values = {field.name: shown(field, column[slot, ...], False) for field, column in zip(cache.fields, columns)}
    return values if len(values) > 1 else values[cache.fields[0].name]


def load_record(cache: Attachment, call: Callable[..., int], i: int) -> Any:
    """A view of a sample; None on a miss. call: stoc_view, or stoc_locate, which does not count."""
    handle, columns, payload = cache._handle, cache._columns, cache._payload
    data, length = ctypes.c_void_p(), ctypes.c_size_t()
    for attempt in range(_RETRIES):
        if handle.check(call(handle, i, data, length), i) == _native.MISS:
            return None
        start = (data.value or 0) - handle.payload.address if handle.payload and length.value else 0
        if columns:
            return _row(cache, columns, start // cache._slot_stride)
        try:
            return cache._values.decode(payload[start : start + length.value], False)
        except CorruptError:
            if attempt == _RETRIES - 1:
                raise
    return None


def copy(cache: Attachment, index: SupportsIndex) -> Any:
    """A sample in new memory; None on a miss."""
    i = cache._index(index)
    if not cache.variable:
        raw = np.empty(cache.sample_bytes, np.uint8)
        return copy_into(cache, i, raw, address_of(raw))
    found = bytes_of(cache, cache._handle, i)
    return None if found is None else cache._values.decode(found, True)


def bytes_of(
    cache: Attachment, handle: Handle, i: int, call: Callable[..., int] = _native.get
) -> npt.NDArray[np.uint8] | None:
    """Copies the bytes of a sample from the cache or disk cache that the handle opened. Returns None on a miss.

    call: stoc_get, or stoc_copy, which does not count."""
    length, capacity = ctypes.c_size_t(), cache.sample_bytes
    # Referred to here, as the library uses their memory during the call.
    wanted, lengths = np.array([i]), np.zeros(1, np.uint64)
    for _ in range(_RETRIES):
        if cache.variable:
            # Read the length first, uncounted. A longer sample may replace this one before the copy.
            there = handle.check(_native.lengths(handle, address_of(wanted), 1, address_of(lengths)), i)
            capacity = int(lengths[0]) if there else 0
        raw = np.empty(capacity, np.uint8)
        code = call(handle, i, address_of(raw), capacity, ctypes.addressof(length))
        if code != _native.ESCHEMA:
            return None if handle.check(code, i) == _native.MISS else raw[: length.value]
    return None


def copy_into(cache: Attachment, i: int, raw: npt.NDArray[np.uint8], address: int) -> Any:
    """A sample of fixed size in the caller's memory; None on a miss.

    raw: `sample_bytes` bytes of memory. address: where it begins."""
    handle = cache._handle
    if handle.check(cache._get_into(handle, i, address, cache.sample_bytes, None), i) == _native.MISS:
        return None
    return cache._values.decode(raw, True)


def contains(cache: Attachment, index: SupportsIndex) -> bool:
    """Whether a sample is READY. Counts nothing."""
    i = index_of(index)
    if not 0 <= i < cache.samples:
        return False
    return bool(cache._handle.check(_native.state(cache._handle, i), i) == _native.STATE_READY)


def states(cache: Attachment) -> npt.NDArray[np.uint8]:
    found = np.zeros(cache.samples, np.uint8)
    cache._handle.check(_native.states(cache._handle, 0, cache.samples, address_of(found)))
    return found


def costs(cache: Attachment) -> npt.NDArray[np.float64]:
    nanoseconds = np.zeros(cache.samples, np.uint64)
    cache._handle.check(_native.costs(cache._handle, 0, cache.samples, address_of(nanoseconds)))
    return np.where(nanoseconds == 0, np.nan, nanoseconds / 1e9)


def corrupt_samples(cache: Attachment) -> list[int]:
    """The indices of the samples whose bytes do not have their checksum."""
    handle, bad, first, found = cache._handle, ctypes.c_int64(), 0, []
    while first < cache.samples:
        if handle.check(_native.verify(handle, first, cache.samples - first, None, bad)) == 0:
            break
        found.append(bad.value)
        first = bad.value + 1
    return found
