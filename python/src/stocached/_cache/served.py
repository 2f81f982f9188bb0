"""Samples that a server puts into a cache: `Cache.fetch` and `Cache.prefetch`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from .. import _native
from .._common.array_addresses import address_of
from .._common.errors import FetchFailure, InvalidError, called
from .._order.epoch import Shard
from .._order.nodes import Deal
from .._order.order import Order
from .._samples.values import Array, FixedValues, VariableValues
from . import fetch_calls as _fetch
from . import other_formats
from .attachment import Attachment
from .fetched_samples import fetch_each
from .gathering import Flags, Indices, aligned, gather, new_outputs, outputs, sample_indices, stride_of

_ANNOUNCE_MS = 1000  # it does without sooner than it waits for a server


def fetch(cache: Attachment, indices: Any, out: Any, timeout: float | None, errors: str, threads: int) -> Any:
    """Gathers the hits, and has the server fill the misses."""
    return fetch_and_count(cache, indices, out, timeout, errors, threads)[0]


def fetch_and_count(
    cache: Attachment, indices: Any, out: Any, timeout: float | None, errors: str = "raise", threads: int = 1
) -> tuple[Any, Flags]:
    """What `Cache.fetch` returns, and which samples were hits."""
    if errors not in ("raise", "return"):
        raise InvalidError(f'errors={errors!r}; it must be "raise" or "return"')
    wait = _fetch.milliseconds(timeout)
    wanted = sample_indices(indices)
    made = out is None and not cache.variable
    if made:
        out = new_outputs(cache, wanted.size)[0]
    hits, (out, ok) = gather(cache, wanted, out, threads)
    hit = ok
    if hits < wanted.size:
        hit = ok.copy()
        failures = _fetch_misses(cache, wanted, out, ok, wait, made)
        if failures and errors == "raise":
            raise _fetch.error(failures, out, ok)
    return out if cache.variable else (out, ok), hit


def prefetch(cache: Attachment, indices: Any, timeout: float | None) -> int:
    wanted, wait = sample_indices(indices), _fetch.milliseconds(timeout)
    handle, n, address = cache._handle, wanted.size, address_of(wanted)
    return _fetch.ask(lambda options, error: _native.prefetch(handle, address, n, options, error), wait)[0]


def announce(cache: Attachment, shard: Shard | Deal, batch_size: int) -> bool:
    """Tells the server that this handle reads a shard from now on, and then the next epochs of its
    order. Whether the cache keeps what is read soonest (docs/spec/control.md, ANNOUNCE)."""
    order = shard.epoch.order
    if not isinstance(order, Order) or isinstance(shard, Deal):
        return False  # a sample has no single position in other orders, and the server knows no nodes
    handle, epoch, settings = cache._handle, shard.epoch.number, order._settings()
    used = called(_native.announce, handle, settings, epoch, shard._shard, batch_size, _ANNOUNCE_MS)
    cache._planned_by = os.getpid() if used else None
    return bool(used)


def withdraw(cache: Attachment) -> None:
    """Tells the server that this handle reads no plan any more, if this process has announced one that the
    server uses."""
    if cache._planned_by == os.getpid():
        cache._planned_by = None
        _native.announce(cache._handle, None, 0, None, 0, _ANNOUNCE_MS, None)  # or the job ends with its connection


def announce_reads(cache: Attachment, reads: int) -> bool:
    """Tells the server how many samples of the plan that was announced last the job has read, of a job
    whose workers read the cache. Returns as `announce`."""
    return bool(called(_native.announce_reads, cache._handle, reads, _ANNOUNCE_MS))


def _fetch_misses(
    cache: Attachment, wanted: Indices, out: Any, ok: Flags, wait: int, made: bool
) -> Sequence[FetchFailure]:
    """Fetches the misses of a gather into `out`. made: `out` is new, so rows without a sample
    become zeros."""
    if isinstance(cache._values, VariableValues):
        return _fetch_each(cache, wanted, out, ok, wait)
    arrays = outputs(cache, out, wanted.size)
    if len(arrays) == 1 and cache.fields[0].bytes == cache.sample_bytes:
        failures = other_formats.fetch_rows(cache, wanted, address_of(arrays[0]), stride_of(arrays[0]), ok, wait)
    else:
        failures = _fetch_fields(cache, wanted, arrays, ok, wait)
    if failures and made:
        for array in arrays:
            array[~ok] = 0
    return failures


def _fetch_fields(
    cache: Attachment, wanted: Indices, arrays: list[Array], ok: Flags, wait: int
) -> Sequence[FetchFailure]:
    """Fetches whole samples, and copies each of their fields into its own array."""
    missing = np.flatnonzero(~ok)
    raw, had = aligned(missing.size * cache.sample_bytes), np.zeros(missing.size, np.bool_)
    failures = other_formats.fetch_rows(cache, wanted[missing], address_of(raw), cache.sample_bytes, had, wait)
    columns = cast("FixedValues", cache._values).arrays(raw, missing.size, cache.sample_bytes)
    for array, column in zip(arrays, columns):
        if array.ndim:  # else the caller left this field out
            array[missing[had]] = column[had]
    ok[missing[had]] = True
    return _moved(failures, missing)


def _fetch_each(cache: Attachment, wanted: Indices, values: list[Any], ok: Flags, wait: int) -> Sequence[FetchFailure]:
    """Fetches samples of any size."""
    missing = np.flatnonzero(~ok)
    found, failures = fetch_each(cache, wanted[missing], wait)
    for k, value in found.items():
        values[missing[k]], ok[missing[k]] = value, True
    return _moved(failures, missing)


def _moved(failures: Sequence[FetchFailure], positions: Indices) -> Sequence[FetchFailure]:
    """Failures of a part of a batch, with their positions in the whole batch."""
    return [dataclasses.replace(failure, position=int(positions[failure.position])) for failure in failures]
