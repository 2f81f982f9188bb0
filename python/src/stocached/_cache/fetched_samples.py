"""Samples that a server sends: into rows of memory, or each into memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from .. import _native
from .._common.array_addresses import address_of
from .._common.errors import FetchFailure
from .._samples.values import VariableValues
from .attachment import Attachment
from .fetch_calls import ask
from .gathering import Flags, Indices


def fetch_rows(
    cache: Attachment, wanted: Indices, address: int, stride: int, ok: Flags, wait: int, flags: int = 0
) -> Sequence[FetchFailure]:
    """Fetches whole samples into rows of memory, except the rows that are `ok` already. flags: more of FetchOptions."""
    handle, n, indices, had = cache._handle, wanted.size, address_of(wanted), address_of(ok)
    return ask(
        lambda options, error: _native.fetch(handle, indices, n, address, stride, had, options, error),
        wait,
        flags,
        cache._watch,
    )[1]


def fetch_each(
    cache: Attachment, asked: Indices, wait: int, flags: int = 0, read: Callable[[int, int], Any] | None = None
) -> tuple[dict[int, Any], Sequence[FetchFailure]]:
    """Values of samples of any size, by their positions, and the samples that failed. flags: more of FetchOptions. read: makes a
    value of memory, its address and bytes."""
    handle, n = cache._handle, asked.size
    data, lengths = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
    indices, addresses, sizes = address_of(asked), address_of(data), address_of(lengths)
    read = read or cast("VariableValues", cache._values).read
    try:
        _, failures = ask(
            lambda options, error: _native.fetch_each(handle, indices, n, addresses, sizes, options, error),
            wait,
            flags,
            cache._watch,
        )
        found = {
            k: read(address, length)
            for k, (address, length) in enumerate(zip(data.tolist(), lengths.tolist()))
            if address
        }
    finally:
        _native.fetch_end(None, addresses, n)
    return found, failures
