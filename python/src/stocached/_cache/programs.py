"""Caches whose samples programs load (a server's source of kind none): other programs and machines may have a
sample that this one has missed. docs/spec/control.md, Samples that programs load."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from .. import _native
from .._common.array_addresses import address_of
from .._common.errors import ClosedError, FetchFailure, ReplacedError, StocachedError
from .._samples.values import Part, VariableValues
from . import fetch_calls as _fetch
from .attachment import Attachment
from .fetched_samples import fetch_each, fetch_rows
from .gathering import aligned
from .results import SetResult

_ANSWER = 5.0  # seconds that a server may take
_AWAY = 5.0  # seconds without questions to a server that was away
_LONGEST_WAIT = 60.0  # seconds of waiting for the loads of others


def load(
    cache: Attachment, indices: Sequence[int], own: Callable[[list[int]], Sequence[Any]], give: Callable[[Any], Any]
) -> list[Any]:
    """Samples that the caller has missed. `give` makes samples of values that other programs have; `own` loads the
    others. Its puts offer them to other programs."""
    samples: list[Any] = [None] * len(indices)
    left, end = list(range(len(indices))), time.monotonic() + _LONGEST_WAIT
    while left:
        found, mine = _ask(cache, [indices[k] for k in left])
        if not found and not mine and time.monotonic() >= end:
            mine = list(range(len(left)))
        for k, value in found.items():
            samples[left[k]] = give(value)
        if mine:
            wanted = [indices[left[k]] for k in mine]
            with ended(cache, wanted):
                for k, sample in zip(mine, own(wanted)):
                    samples[left[k]] = sample
        done = found.keys() | set(mine)
        left = [position for k, position in enumerate(left) if k not in done]
    return samples


def stored(cache: Attachment, i: int, parts: list[Part], result: SetResult, vector: Any) -> None:
    """Offers a sample that this program has put."""
    mine = i in cache._loading
    if mine or result in (SetResult.STORED, SetResult.FULL, SetResult.OUT):
        offer(cache, i, vector, len(parts))


def offer(cache: Attachment, i: int, vector: Any, count: int) -> None:
    """Ends a load with its sample."""
    if _end(cache, lambda wait, error: _native.offer(cache._handle, i, vector, count, wait, error)):
        cache._loading.discard(i)


def damaged(cache: Attachment, i: int, reason: str) -> None:
    """Ends a load whose file is damaged."""
    text = reason.encode()
    if _end(cache, lambda wait, error: _native.offer_damaged(cache._handle, i, text, wait, error)):
        cache._loading.discard(i)


@contextlib.contextmanager
def ended(cache: Attachment, indices: list[int]) -> Generator[None, None, None]:
    """Gives up what the block has not offered: it raised, or a sample is not cached."""
    try:
        yield
    finally:
        for i in indices:
            if i in cache._loading:
                cache._loading.discard(i)
                _end(cache, functools.partial(_native.offer, cache._handle, i, None, 0))


def _end(cache: Attachment, tell: Callable[[int, Any], int]) -> bool:
    """Tells the server that a load has ended. False: there is none, and others may load the sample too."""
    if time.monotonic() < cache._away_until:
        return False
    error = _native.Error()
    if tell(int(_ANSWER * 1000), error) >= 0:
        return True
    cache._away_until = time.monotonic() + _AWAY
    return False


def _ask(cache: Attachment, indices: list[int]) -> tuple[dict[int, Any], list[int]]:
    """Values by position, of samples that others have, and the positions of samples that this program loads."""
    everything = list(range(len(indices)))
    if time.monotonic() < cache._away_until:
        return {}, everything
    try:
        if isinstance(cache._values, VariableValues):
            found, failures = fetch_each(
                cache, np.array(indices, np.int64), _fetch.milliseconds(_ANSWER), _native.FETCH_LOADS
            )
        else:
            found, failures = _ask_rows(cache, indices)
    except (ClosedError, ReplacedError):
        raise
    except StocachedError:
        cache._away_until = time.monotonic() + _AWAY
        return {}, everything
    mine = [failure.position for failure in failures if failure.kind != "LOADING"]
    cache._loading.update(failure.index for failure in failures if failure.kind == "LOAD")
    return found, mine


def _ask_rows(cache: Attachment, indices: Sequence[int]) -> tuple[dict[int, Any], Sequence[FetchFailure]]:
    """What others have, of samples of one size, and why the other samples are not there."""
    stride, wanted, wait = cache._slot_stride, np.array(indices, np.int64), _fetch.milliseconds(_ANSWER)
    raw, had = aligned(len(indices) * stride), np.zeros(len(indices), np.bool_)
    failures = fetch_rows(cache, wanted, address_of(raw), stride, had, wait, _native.FETCH_LOADS)
    found = {
        k: cache._values.decode(raw[k * stride : k * stride + cache.sample_bytes], True)
        for k in np.flatnonzero(had).tolist()
    }
    return found, failures
