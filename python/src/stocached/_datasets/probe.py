"""Probes of a dataset before its samples are cached: are they the same each time, and the same as
those in the cache?"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._cache.cache import Cache
from .._checks import loading
from .._checks.randomness import difference, encoded, watched
from .._common.errors import FingerprintError, StocachedError
from .._common.notes import raise_noted
from .._samples.own_copy import own_copy
from . import looks

PROBES = 3  # samples
_TRIES = 100  # samples that are tried instead of a bad one


def spread(n: int, count: int = PROBES) -> list[int]:
    """At most `count` positions of 0..n-1: the first, the last, and some between, evenly."""
    return sorted({k * (n - 1) // (count - 1) for k in range(count)})


def tried(dataset: Any, index: int) -> Any:
    """Loads a sample on trial. A note in its error says so."""
    looks.note(index)
    try:
        return loading.without_stop_iteration(operator.getitem, dataset, index)
    except Exception as error:
        note = f"stocached: sample {index} was loaded on trial, to learn what samples are before the cache is made."
        if not isinstance(error, StocachedError):  # which says itself what is wrong
            note += " This is an error of the dataset, for this sample."
        if isinstance(error, (LookupError, TypeError)) and "stage" not in getattr(
            dataset, "_of_errors", ()
        ):  # a pipe's are elements
            note += (
                " A cache needs samples by number, from 0 on: leave out size= and name= for a dataset whose sampler "
                "gives other keys."
            )
        raise_noted(error, note)


def load(dataset: Any, index: int) -> Any:
    """Loads a sample for a look."""
    looks.note(index)
    return loading.item(dataset, index)


def first_samples(dataset: Any, n: int, passed_over: tuple[type[Exception], ...]) -> dict[int, tuple[Any, bool]]:
    """Some samples of a dataset by index, and whether a generator moved during their loads.

    passed_over: errors of a sample instead of which it takes the next one."""
    found: dict[int, tuple[Any, bool]] = {}
    for first in spread(n):
        for index in [(first + k) % n for k in range(min(n, _TRIES))]:
            try:
                if index not in found:
                    sample, moved = watched(functools.partial(tried, dataset, index))
                    found[index] = own_copy(sample), moved  # the dataset may load each sample into the same memory
                break
            except passed_over as error:
                last = error
        else:
            raise last
    return found


def check_fresh(cached: Any, name: str | None, held: tuple[int, int, bytes]) -> None:
    """Compares some samples of a filled cache with the dataset's samples now. Raises as
    check_sample. name, held: of the cache."""
    cached.attach_for_look(name, held)
    ready = cached_now(cached.cache)
    for k in spread(ready.size) if ready.size else []:
        with contextlib.suppress(*cached.passed_over):
            check_sample(cached, cached.stored, cached.peek, int(ready[k]))


def cached_now(cache: Cache) -> npt.NDArray[np.int64]:
    """The indices of all samples in the cache."""
    return np.flatnonzero(cache.states() == _native.STATE_READY)


def check_sample(cached: Any, dataset: Any, read: Callable[[int], Any], index: int) -> None:
    """Compares one sample of a CachedSamples with the sample of `dataset`. read: gives it from the
    cache.

    Raises FingerprintError if they differ, NondeterministicDatasetError if the dataset gives
    another sample each time."""
    old, new = read(index), load(dataset, index)
    where = None if old is None else difference(encoded(old, cached.encode), encoded(new, cached.encode))
    if where is not None:
        cached.check_repeatable(dataset, index, new)
        cache = cached.cache
        raise FingerprintError(
            f"cache {cache.name!r} holds other data than this dataset gives: sample {index} was compared, and {where}. The dataset or its transform "
            f"has changed since the cache was filled; use another name, or remove it{removal(cache)}"
        )


def removal(cache: Cache) -> str:
    """The command that removes a cache with a name, for messages."""
    return f" (stocached rm {cache.name})" if cache.name else ""
