"""Samples that a cache misses: where they come from, how they are checked, and how they get into the cache."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from .. import _native
from .._cache import programs
from .._cache.cache import Cache, SetResult
from .._checks import loading
from .._checks.fills import Fills
from .._checks.randomness import Guard
from .._common.errors import InvalidError, SchemaError
from .._common.load_time import TimedLoad
from .._common.subsets import unwrapped
from .._samples.own_copy import own_copy
from .._samples.structure import Structure
from .lists import PackedLists
from .notices import Notices
from .tally import uncounted


class Misses:
    """Takes a sample from the cache on disk, from another node, or else from the dataset."""

    def __init__(self, dataset: Any, cache: Cache, structure: Structure, guard: Guard | None, notices: Notices) -> None:
        """dataset: its samples are cached as they are. guard: checks loads; None: they are not checked. notices:
        learns which samples the cache does not take."""
        self._dataset, self._cache, self._structure = dataset, cache, structure
        self._guard, self._notices = guard, notices
        self._compares = not isinstance(dataset, PackedLists)  # some of the loads with another one
        # A Subset has __getitems__ too. It loads one sample after the other if the dataset inside has none, and then
        # the cost of each is known.
        self._in_batches = callable(getattr(unwrapped(dataset)[0], "__getitems__", None))

    def load(self, i: int, *, lent: bool = False) -> Any:
        """A sample that the cache has not, which gets into it. It is the caller's own, as one of the cache. lent: the
        caller only copies it, so it may be the dataset's."""
        sample = self._from_disk(i)
        if sample is not None:
            return sample
        return self._made([i], lambda _: [self._load(i, lent)])[0]

    def load_several(self, indices: list[int]) -> list[Any]:
        """`load` of several samples, which are the caller's own. A dataset that has __getitems__ gives its part of them in one call."""
        if not self._in_batches or len(indices) < 2:
            return [self.load(i) for i in indices]
        samples = [self._from_disk(i) for i in indices]
        missing = [k for k, sample in enumerate(samples) if sample is None]
        wanted = [indices[k] for k in missing]
        for k, sample in zip(missing, self._made(wanted, self._load_batch) if wanted else ()):
            samples[k] = sample
        return samples

    def keep(self, i: int, sample: Any, cost: float | None) -> None:
        """Caches a sample that the caller has loaded. cost: seconds of its load."""
        self._store(i, sample, None, cost)

    def _made(self, indices: list[int], load: Callable[[list[int]], Sequence[Any]]) -> Sequence[Any]:
        """Samples that are not on disk. load: of the dataset."""
        if not self._cache.programs:
            return load(indices)
        return programs.load(self._cache, indices, load, self._given)

    def _given(self, value: Any) -> Any:
        return self._structure.sample(value, self._cache.fields)

    def _from_disk(self, i: int) -> Any:
        """A sample from the disk cache, which is then in memory too; None on a miss."""
        behind = self._cache._disk
        value = None if behind is None else behind.take(self._cache, i)
        return None if value is None else self._given(value)

    # ------------------------------------------------------------ from the dataset

    def _load(self, i: int, lent: bool) -> Any:
        load = functools.partial(loading.without_stop_iteration, operator.getitem, self._dataset, i)
        again = functools.partial(uncounted, load)
        first, stays = TimedLoad(load, self._cache._measure_next()), True
        if self._guard is None:
            sample = loading.run(first)
        else:
            sample, stays = self._guard.load(i, first, again)
        fits = stays and self._store(i, sample, again if self._compares else None, first.seconds)
        return sample if lent and fits else own_copy(sample)

    def _load_batch(self, indices: list[int]) -> Sequence[Any]:
        first, stays = TimedLoad(functools.partial(self._batch, indices), self._cache._measure_next()), True
        samples: Sequence[Any]
        if self._guard is None:
            samples = loading.run(first)
        else:
            samples, stays = self._guard.load_several(indices, first)
        if stays:
            each = None if first.seconds is None else first.seconds / len(indices)
            for i, sample in zip(indices, samples):
                self._store(i, sample, functools.partial(self._one_of_batch, i), each)
        return [own_copy(sample) for sample in samples]

    def _batch(self, indices: list[int]) -> Sequence[Any]:
        loaded: Any = loading.without_stop_iteration(self._dataset.__getitems__, indices)
        if not isinstance(loaded, (list, tuple)) or len(loaded) != len(indices):
            count = f" of {len(loaded)}" if hasattr(loaded, "__len__") else ""
            raise InvalidError(
                f"__getitems__ of the dataset gave a {type(loaded).__name__}{count}; it must give a list of {len(indices)} samples"
            )
        return loaded

    def _one_of_batch(self, i: int) -> Any:
        return self._batch([i])[0]

    # ------------------------------------------------------------ into the cache

    def _store(self, i: int, sample: Any, again: Callable[[], Any] | None, cost: float | None) -> bool:
        """Caches a loaded sample. Returns whether it fits the cache. again: loads it once more, to compare. cost:
        seconds of its load."""
        cache = self._cache
        if cache.read_only:
            return True
        try:
            value = self._structure.value(sample, cache.fields)
            result = cache.put(i, value, cost=cost)
            stored = result is SetResult.STORED
            kept = stored or result is SetResult.EXISTS
            if cache._disk is not None and not (kept and cache._disk.apart_from(cache)):
                stored |= cache._disk.put(cache, i, value)
        except SchemaError as error:
            _native.count_passed(cache._handle, 1)
            shapes = self._structure.other_shapes(sample, cache.fields)
            self._notices.passed(i, shapes or str(error), shape=bool(shapes))
            return False
        if stored and self._guard is not None:
            self._guard.stored(i, sample, again)
        return True


def take_back(cache: Cache, made: bool, fills: Fills) -> str:
    """Removes the samples of a random dataset from the cache. Returns a sentence about it. made: this program has
    made the cache."""
    if cache._disk is not None:
        cache._disk.clear()
    return fills.take_back(cache, made)
