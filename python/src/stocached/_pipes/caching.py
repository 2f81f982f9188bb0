"""The cache of a pipe: what the stages above make is kept."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .._cache.cache import Cache as OpenCache
from .._cache.cache import unpickle
from .._checks.derived_fingerprint import derive
from .._checks.randomness import Remedy
from .._common.cached import cached_property
from .._common.errors import (
    BadSampleError,
    ClosedError,
    InvalidError,
    NondeterministicDatasetError,
    StocachedError,
)
from .._common.notes import noted
from .._datasets import looks
from .._datasets.cached_samples import CachedSamples
from .._datasets.making import CacheOptions
from .._datasets.tally import current
from .._workers import serialization, set_up
from . import element_datasets
from .batches import Batch, Pack
from .combining import Zip
from .functions import Function
from .lengths import KeepsLengths
from .shuffling import Shuffle
from .stage import Item, Stage, every
from .visits import Visit, Window

REMEDY = Remedy(
    "Write the random part below .cache(), as a .map() whose function has a parameter generator.",
    ".cache(..., allow_random=True)",
    "the pipe above .cache()",
    converted="write source(dataset).cache(...).map(augment)",
)


class Cache(KeepsLengths):
    """options: of `CachedSamples`."""

    kind, takes_all, noter = "cache", False, None  # a miss counts what stands above

    def __init__(self, above: Stage, options: dict[str, Any]) -> None:
        super().__init__(above)
        self._original: Cache | None = None  # the cache of the stage that this is a copy of
        self.options = options
        try:
            CacheOptions(**{field.name: options[field.name] for field in dataclasses.fields(CacheOptions)}).check(
                options["store"]
            )
        except InvalidError as error:
            raise self.refuse(str(error)) from None
        if not above.indexed and (options["store"] != "decoded" or options["variable"] is False):
            raise self.refuse(
                "it keeps the list of items of each element, which has no other form and differs in size; leave store= and "
                "variable= out"
            )
        for stage in every(above):
            if isinstance(stage, Function) and stage.draws:
                raise NondeterministicDatasetError(
                    f"{self.shown()}{self.line}: {stage.shown()}{stage.line} stands above it and draws random numbers, "
                    "so a cache would keep the first draw; write it below .cache()"
                )
            if isinstance(stage, (Batch, Pack)):
                raise self.refuse(
                    f"it stands below {stage.shown()}, and a cache keeps items of elements; write it above "
                    f"{stage.shown().split('(')[0]}()"
                )
            if isinstance(stage, Shuffle) and not stage.indexed:
                raise self.refuse(
                    f"it stands below {stage.shown()}{stage.line}, which mixes the items of elements; write it above the "
                    "shuffle"
                )
            if isinstance(stage, Zip) and not stage.one_order:
                raise self.refuse(
                    f"it stands below {stage.shown()}{stage.line}, whose sides are in different orders, so its items "
                    "differ between epochs; cache the sides, or shuffle below the zip"
                )

    lends = False

    @property
    def shared(self) -> Cache:
        """The stage whose cache this one has: copies of a stage share its cache."""
        return self if self._original is None else self._original

    def __copy__(self) -> Cache:
        made: Cache = super().__copy__()
        made._original = self.shared
        return made

    @property
    def kept(self) -> CachedSamples:
        """The cache, if no loader makes it as its own; made at the first use, and at the next one after a loader has
        freed it."""
        own = vars(self)  # other threads may renew it meanwhile
        kept: CachedSamples | None = own.get("kept")
        if kept is not None and self.shared is self and kept.cache.closed:
            self._forget()
            kept = None
        return own.setdefault("kept", self._made_kept()) if kept is None else kept

    def _forget(self) -> None:
        for name in ("kept", "rows", "ahead"):
            vars(self).pop(name, None)

    def _made_kept(self) -> CachedSamples:
        if self.shared is not self:  # then its misses count, and are measured, in the lines of this copy
            return self.shared.kept.of(self._stored())
        there = vars(self).get("kept") if self.made else None
        return self._made(self._stored()) if there is None else there

    def _stored(self) -> Any:
        return self.above[0].rows if self.indexed else element_datasets.Listed(self.above[0])

    def _made(self, stored: Any, cache: OpenCache | None = None) -> CachedSamples:
        """cache: of another process."""
        # Who reads a bad item gets its error.
        options = self.options | {"bad_samples": "skip"} | ({} if self.indexed else {"variable": True})
        if cache is not None:
            options = {name: options[name] for name in ("allow_random", "store", "bad_samples")}
        with noted(self.noted()):
            made = CachedSamples(stored, cache, **options, _remedy=REMEDY)
        made.derived = made.derived or derive(stored)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Copies for workers have the cache of their loader. Others are for any time and process: they attach if the
        cache is there then."""
        state = super().__getstate__()
        if self.shared is self:
            kept = state.pop("kept", None)
            with contextlib.suppress(ClosedError):
                if kept is not None:
                    state["_sent"] = kept.cache.__reduce__()[1]
        return state

    def noted(self) -> str:
        """For errors of a cache that is made."""
        return f"stocached: in {self.shown()}{self.line}"

    @cached_property
    def rows(self) -> Any:
        return element_datasets.Asked(self.kept, self) if self.indexed else self.kept

    @cached_property
    def ahead(self) -> Any:
        return None if self.above[0].ahead is None else self.kept.ahead

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        lists, tally = self.kept, current()
        for visit in some:
            mark = tally.mark()
            try:
                packed = lists.finish(visit.element, lists.peek(visit.element), lent=True)
            except BadSampleError:  # a list with a bad item is not kept; the others of it are given
                tally.back(mark)
                yield from self.above[0].items([visit], window)
                continue
            made, _ = serialization.unpacked(memoryview(packed))  # arrays are over `packed`, which is of this call
            if lists.cache._learns and not self.options["allow_random"]:
                lists.cache._learn_length(visit.element, len(made))
            window.begin(visit)  # after a miss as after a hit
            for ordinal, item in made:
                yield visit, ordinal, item

    def learned(self) -> npt.NDArray[np.int64] | None:
        known = self.above[0].lengths()
        if known is not None:
            return known
        if not self.made or self.kept.cache.closed:
            return None
        learned = self.kept.cache._learned_lengths()
        return learned.astype(np.int64) - 1 if learned.all() else None

    def measure(self, workers: int) -> None:
        if not self.indexed:
            self.make_caches()  # this one may know them
        super().measure(workers)

    def make_caches(self) -> None:
        super().make_caches()
        self.kept  # noqa: B018 - made now

    def renewed(self, *, certainly: bool = False) -> bool | None:
        """Whether the cache was forgotten, as the stages above give other items now. certainly: None if only a look at
        samples would tell."""
        kept = self.kept
        now = derive(kept.stored)
        if kept.derived is not None and now.certain(kept.derived):
            return False
        if certainly:
            return None
        if not kept.cache.closed and kept.is_fresh() and not kept.has_changed(kept.derived, now):
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """The stages above give other items now."""
        self._counted.clear()
        self._forget()

    @property
    def made(self) -> bool:
        """Whether `kept` was used."""
        own = vars(self.shared)
        sent = own.pop("_sent", None)
        if sent is not None:
            with contextlib.suppress(StocachedError):  # it was closed since, or has other items
                own.setdefault("kept", self.shared._made(self.shared._stored(), unpickle(*sent)))
        kept = own.get("kept")
        return kept is not None and not kept.cache.closed

    def item(self, visit: Visit, seed: int) -> Any:
        cached, above = self.kept, self.above[0].number
        item = cached.peek(visit.element)
        if item is not None:
            return cached.finish(visit.element, item)
        current().took(above)
        return current().reading.call(above, cached.finish, visit.element, None)

    def shape(self, seed: int) -> str:
        return self.above[0].shape(seed)

    def shown(self) -> str:
        return cache_line(self.options)


def cache_line(options: Mapping[str, Any]) -> str:
    given = [f"{name}={value!r}" for name, value in options.items() if value not in (None, False, "decoded")]
    return f".cache({', '.join(given)})"


def renew_caches(stage: Stage) -> None:
    """Forgets the caches of a stage, and of those above, whose items have changed since they were made. One child looks
    at samples for all."""
    shared = {id(one.shared): one.shared for one in reversed(every(stage)) if isinstance(one, Cache) and one.made}
    caches = [cache for cache in shared.values() if cache.renewed(certainly=True) is None]
    first = next((cache for cache in caches if looks.in_child(cache.kept.stored, None)), None)
    if first is None or len(caches) == 1:
        _renewed(caches)
        return
    with looks.begin(caches, first.kept.stored, set_up.numpy_worker, forks=None, workers=1) as look:
        for cache, renewed in zip(caches, look.ask(_renewed)):
            if renewed:
                cache.forget()


def _renewed(caches: list[Cache]) -> list[bool | None]:
    """A cache that is forgotten lets those below it see other items."""
    return [cache.renewed() for cache in caches]
