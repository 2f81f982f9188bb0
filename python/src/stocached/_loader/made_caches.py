"""The cache that a loader reads from: the user's, one that a loader of this process made before, or
a new one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .._cache.cache import Cache, unpickle
from .._checks.derived_fingerprint import Derived, derive
from .._common.errors import FingerprintError, InvalidError, SchemaError, StocachedError
from .._datasets import readers
from .._datasets.cache_backed import CacheBacked
from .._datasets.cached_samples import CachedSamples
from .._datasets.notices import say_if_private
from .._datasets.served_subset import served_subset
from .options import cache_options, makes_cache, takes_cache


@dataclasses.dataclass
class _Made:
    """How a loader made a cache."""

    options: dict[str, Any]
    derived: Derived | None  # fingerprint of the dataset


_living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_made: weakref.WeakKeyDictionary[Cache, _Made] = weakref.WeakKeyDictionary()  # caches that loaders made
# By the id of a dataset: the last cache that a loader made for it. It lives as long as the dataset.
_of_datasets: dict[int, Cache] = {}


# `readers.ending` guards what follows.
_begun: dict[threading.Thread, weakref.ref[Any]] = {}  # loaders whose constructors run
_later: list[Cache] = []  # caches to free when these have ended


def begin(loader: Any) -> None:
    """A constructor begins, which may take any cache of its dataset."""
    with readers.ending:
        _begun[threading.current_thread()] = weakref.ref(loader)


def register(loader: Any) -> None:
    """Adds a loader to `living`, as long as it exists. Its constructor ends."""
    with readers.ending:
        _living[id(loader)] = loader
        _begun.pop(threading.current_thread(), None)
        free([])


def _forget() -> None:
    """In a forked child."""
    _begun.clear()
    _later.clear()


os.register_at_fork(after_in_child=_forget)


def living() -> list[Any]:
    """The loaders of this process."""
    return [loader for reference in _living.valuerefs() if (loader := reference()) is not None]


def _usable(cache: Cache | None, options: dict[str, Any]) -> bool:
    """Whether a loader made this cache with these options."""
    return cache is not None and not cache.closed and cache in _made and _made[cache].options == options


def _cached_of(dataset: Any, options: dict[str, Any], cache: Cache | None = None) -> CachedSamples | None:
    """The CachedSamples of a loader of this process with the same dataset object, if it made the
    cache with these options. cache: only if it is this cache."""
    for loader in living():
        if loader.dataset is dataset and cache in (None, loader.cache) and _usable(loader.cache, options):
            cached: CachedSamples = loader._cached
            return cached
    return None


def samples_of(dataset: Any, options: Any, keeper: Any, kind: Callable[..., CachedSamples]) -> Any:
    """The dataset if it has a cache, or a ServedSubset of it; else a `kind` around it; None without a cache. options:
    has them as attributes. keeper: the stage of the pipe that the dataset was made for; the cache is as of a dataset.

    A framework may make a loader again from its attributes: then it gives cache= together with
    size=. Or it repeats the arguments: then it gives only size=. In both cases the new loader uses
    the cache of the first one, unless the dataset has changed since."""
    cache, made_with = options.cache, cache_options(options)
    if cache is not None and makes_cache(options):
        if not _usable(cache, made_with):
            return kind(dataset, cache, **made_with)  # raises InvalidError: some are for a cache that is made here
        return _made_before(kind, dataset, made_with, cache) or _made_new(kind, dataset, made_with, keeper)
    served = dataset if isinstance(dataset, CacheBacked) and dataset.served else served_subset(dataset)
    if served is not None and cache in (None, served.cache) and not makes_cache(options):
        return served
    if isinstance(dataset, CachedSamples):
        return dataset
    if cache is not None:
        return kind(dataset, cache)
    if not takes_cache(options):
        return None
    before = None
    if options.name is None:
        # CachedSamples does not know them.
        say_if_private(*(getattr(options, name, None) for name in ("rank", "world_size", "local_world_size")))
        before = _made_before(kind, dataset, made_with, keeper=keeper)
    return before or _made_new(kind, dataset, made_with, keeper)


def _made_new(kind: Callable[..., CachedSamples], dataset: Any, options: dict[str, Any], keeper: Any) -> CachedSamples:
    """The samples in a cache that is made here, or that has the name of the options."""
    cached = kind(dataset, **options)
    _made[cached.cache] = _Made(options, cached.derived or derive(dataset))
    if options["name"] is None:
        _keep(dataset if keeper is None else keeper, cached.cache)
    return cached


def _made_before(
    kind: Callable[..., CachedSamples],
    dataset: Any,
    options: dict[str, Any],
    cache: Cache | None = None,
    keeper: Any = None,
) -> CachedSamples | None:
    """The samples in a cache that a loader has made for the same dataset object, or stage of a pipe, with these options.
    None without one, or if the dataset has changed since. cache: only if it is this cache."""
    cached = _cached_of(dataset, options, cache)
    kept_by = dataset if keeper is None else keeper
    cache = cache or (_of_datasets.get(id(kept_by)) if cached is None else cached.cache)
    if cache is None or not _usable(cache, options):
        return None
    before, now = _made[cache].derived, derive(dataset)
    if cached is None:
        try:
            cached = _around(kind, dataset, cache, options["allow_random"])
        except (FingerprintError, SchemaError, InvalidError):
            return None  # the cache has samples of another dataset, schema or number
    elif not cached.is_fresh():
        return None
    return None if cached.has_changed(before, now) else cached


def _around(kind: Callable[..., CachedSamples], dataset: Any, cache: Cache, allow_random: bool) -> CachedSamples:
    """The samples in a cache that a loader has made."""
    cached = kind(dataset, cache, allow_random=allow_random)
    cached.made = True
    cached.notices.advice = cached.advice(given=False)
    return cached


def _keep(dataset: Any, cache: Cache) -> None:
    """Keeps the cache as long as the dataset: Lightning drops the loaders of hooks before it calls
    the hooks again."""
    if id(dataset) not in _of_datasets:
        try:
            weakref.finalize(dataset, _of_datasets.pop, id(dataset), None).atexit = False
        except TypeError:  # a list or a range has no weak references
            return
    _of_datasets[id(dataset)] = cache


def free(caches: list[Cache]) -> None:
    """Closes those without a name, when all their loaders are closed, and who iterates over their pipe has ended. caches:
    a loader or a stage of a pipe made them."""
    with readers.ending:
        _later.extend(cache for cache in caches if cache.name is None)
        here = threading.current_thread()  # it constructs nothing now: a constructor of it has failed
        if any(thread is not here and thread.is_alive() and loader() is not None for thread, loader in _begun.items()):
            return
        used = {id(cache) for loader in living() if not loader._closed for cache in loader._caches()}
        unused = [cache for cache in _later if id(cache) not in used]  # others are freed by their last loader
        read = {id(cache) for cache in readers.read()}
        freed = [cache for cache in unused if id(cache) not in read]
        _later[:] = [cache for cache in unused if id(cache) in read]
        for dataset in [
            dataset for dataset, kept in list(_of_datasets.items()) if any(kept is cache for cache in freed)
        ]:
            del _of_datasets[dataset]
        for cache in freed:
            cache.close()


def _free_later() -> None:
    if _later:
        free([])


readers.on_end.append(_free_later)


def successor(before: Cache, now: Cache) -> None:
    """A cache has taken the place of one that was removed."""
    if before in _made:
        _made[now] = _made[before]


def is_made_here(cache: Cache | None) -> bool:
    """Whether a loader of this process made the cache."""
    return cache in _made


def attach_again(dataset: Any, settings: dict[str, Any], pickled: tuple[Any, ...]) -> Cache | None:
    """The cache that a pickled loader had made, if a process still has it; else None."""
    options = cache_options(SimpleNamespace(**settings))
    return _attached(options, pickled) if _cached_of(dataset, options) is None else None


def keep_again(keeper: Any, pickled: tuple[Any, ...]) -> None:
    """As `attach_again`, for the stage of a pipe, whose next loader finds the cache."""
    if not _usable(_of_datasets.get(id(keeper)), keeper.options):
        cache = _attached(keeper.options, pickled)
        if cache is not None:
            _keep(keeper, cache)


def _attached(options: dict[str, Any], pickled: tuple[Any, ...]) -> Cache | None:
    with contextlib.suppress(StocachedError):  # its program has ended: the constructor makes a new cache
        cache = unpickle(*pickled)
        _made[cache] = _Made(options, None)
        return cache
    return None
