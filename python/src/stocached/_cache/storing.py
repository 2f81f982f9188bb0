"""Samples into a cache: put, get_or_load, removal and clear."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from .. import _native
from .._checks.fills import Fills
from .._checks.randomness import Guard, Remedy
from .._common.array_addresses import address_of, addressof, first_byte
from .._common.errors import CacheTimeoutError
from .._common.load_time import TimedLoad
from .._common.numbers import real, seconds
from .._samples.values import Part
from . import programs, reading
from .attachment import Attachment
from .results import RESULTS, SetResult

_REMEDY = Remedy(
    "Draw random numbers after get_or_load has given the sample.",
    "get_or_load(index, fn, allow_random=True)",
    "what fn gives",
)

_put = _native.put
_MOST_COST = 9.223372e9  # as nanoseconds, in 63 bits


def put(
    cache: Attachment, index: SupportsIndex, value: Any, overwrite: bool, wait: bool, cost: float | None = None
) -> SetResult:
    nanoseconds = 0 if cost is None else _nanoseconds(cost)
    i = index if type(index) is int and 0 <= index < cache.samples else cache._index(index)
    flags = (_native.OVERWRITE if overwrite else 0) | (_native.WAIT if wait else 0)
    if (
        type(value) is np.ndarray
        and value.dtype is cache._row_dtype
        and value.shape == cache._row_shape
        and not nanoseconds
    ):
        # Most likely an array that fits as it is. For a small sample, all checks take longer than
        # the store.
        try:
            address = addressof(first_byte(value))
        except (TypeError, ValueError, BufferError):  # read-only, empty or with gaps
            pass
        else:
            handle = cache._handle
            code = (
                _put(handle, i, address) if flags == 0 else _native.set(handle, i, address, cache.sample_bytes, flags)
            )
            if code < 0:
                raise handle.error(code, i, cache.sample_bytes)
            return RESULTS[code]
    return store(cache, i, cache._values.parts(value), flags, nanoseconds)


def _nanoseconds(cost: float) -> int:
    """0 if the cache cannot use the cost. Raises InvalidError."""
    wanted = f"the seconds that the load took, 0 (unknown) to {_MOST_COST:.3g}"
    return round(real("cost", cost, wanted, 0, _MOST_COST) * 1e9)


def store(cache: Attachment, i: int, parts: list[Part], flags: int, nanoseconds: int = 0) -> SetResult:
    """Stores the sample that the parts make together. nanoseconds: of its load; 0: unknown."""
    handle = cache._handle
    vector = vector_of(parts) if cache.programs else None
    if nanoseconds:
        code = _native.set_loaded(handle, i, vector or vector_of(parts), len(parts), flags, nanoseconds)
    elif len(parts) == 1 and isinstance(parts[0], np.ndarray):
        code = _native.set(handle, i, address_of(parts[0]), parts[0].nbytes, flags)
    else:
        code = _native.setv(handle, i, vector_of(parts), len(parts), flags)
    if code < 0:
        raise handle.error(code, i, sum(map(_bytes_of, parts)))
    if vector is not None:
        programs.stored(cache, i, parts, RESULTS[code], vector)
    return RESULTS[code]


def get_or_load(cache: Attachment, index: SupportsIndex, fn: Callable[[int], Any], allow_random: bool) -> Any:
    """Loads and stores a sample that the caller has missed; one thread at a time for each
    sample."""
    i = cache._index(index)
    if cache.programs:
        return cache._once.run(
            i, lambda: programs.load(cache, [i], lambda _: [_load(cache, i, fn, allow_random)], _read_only)[0]
        )
    return cache._once.run(i, lambda: _load(cache, i, fn, allow_random))


def _read_only(value: Any) -> Any:
    """As `get_or_load` gives samples that are no views."""
    for array in value.values() if isinstance(value, dict) else (value,):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return value


def _load(cache: Attachment, i: int, fn: Callable[[int], Any], allow_random: bool) -> Any:
    # Another thread or process may have stored it since the caller's miss, which is counted.
    value = reading.uncounted(cache, i)
    if value is not None:
        return value
    guard = None if allow_random else _guard(cache)
    load = TimedLoad(functools.partial(fn, i), cache._measure_next())
    loaded, stays = (load(), True) if guard is None else guard.load(i, load)
    result = put(cache, i, loaded, False, False, load.seconds) if stays else SetResult.BUSY
    if guard is not None and result is SetResult.STORED:
        guard.stored(i)
    if result in (SetResult.STORED, SetResult.EXISTS) and not cache._evicts:
        value = reading.uncounted(cache, i)
        if value is not None:
            return value
    parts = cache._values.parts(loaded)
    return cache._values.decode(np.frombuffer(b"".join(map(_plain, parts)), np.uint8), False)


def _guard(cache: Attachment) -> Guard:
    """Watches the generators of random numbers while `get_or_load` loads."""
    # setdefault: all threads share one.
    fills = cache.__dict__.get("_fills") or cache.__dict__.setdefault("_fills", Fills(cache.samples))
    return Guard(fills, _REMEDY, cache._values.encoded, lambda fills: fills.take_back(cache, made=False))


def remove(cache: Attachment, indices: Sequence[int]) -> int:
    """Removes samples; returns how many stay because another client is filling them."""
    claim, left = _native.Claim(), 0
    for i in indices:
        handle = cache._handle
        if handle.check(_native.state(handle, i), i) != _native.STATE_READY:
            continue
        # A claim to overwrite that is aborted leaves the sample EMPTY. It needs no more memory than
        # the sample has.
        length = 0 if cache.variable else cache.sample_bytes
        code = handle.check(_native.claim(handle, i, length, _native.OVERWRITE | _native.WAIT, claim), i)
        if code == _native.STORED:
            handle.check(_native.abort(claim), i)
        else:
            left += 1
    return left


def clear(cache: Attachment, timeout: float) -> None:
    handle, end = cache._handle, time.monotonic() + seconds("timeout", timeout)
    while True:
        left = max(end - time.monotonic(), 0.0)
        code = handle.check(_native.clear(handle, int(min(left * 1000, 2**32 - 1))))
        if code != _native.BUSY:
            return
        if left == 0.0:
            raise CacheTimeoutError(f"another process has been clearing this cache for {timeout} s; try again later")
        time.sleep(0.001)


def vector_of(parts: list[Part]) -> ctypes.Array[_native.IoVec]:
    """The parts as an array of struct iovec; valid while the parts are."""
    vector = (_native.IoVec * len(parts))()
    for entry, part in zip(vector, parts):
        array = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        entry.base, entry.length = address_of(array), array.nbytes
    return vector


def _plain(part: Part) -> Any:
    """The bytes of a part, for `bytes.join`, which does not know every dtype."""
    return part if isinstance(part, bytes) else part.reshape(-1).view(np.uint8)


def _bytes_of(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part.nbytes
