"""The chain of a loader that is made of arguments. Its stages say what the loader does, as its attributes are now."""

from __future__ import annotations

import dataclasses
from typing import Any

from .._common.one_line import name_of
from .._datasets.making import CacheOptions
from .counting import Chain
from .stage import Stage
from .stages import cache_line

_IN_SEQUENCE = ("SequentialSampler", "_InfiniteConstantSampler", "_Endless", "NoneType")  # of torch and of ours
_OF_CACHE = (*(field.name for field in dataclasses.fields(CacheOptions)), "allow_random", "store")


class Said(Stage):
    """A stage that the loader runs, and has checked."""

    tallied, indexed = False, True

    def __init__(self, kind: str, shown: str, *above: Said) -> None:
        self.kind, self._shown, self.above, self.line = kind, shown, above, ""
        self.number = above[0].number + 1 if above else 0
        self.takes_all = kind != "cache"

    def shown(self) -> str:
        return self._shown


def of_arguments(loader: Any) -> Chain:
    samples, data, cached = loader._setup().samples(), loader.dataset, loader._cached
    fills = cached is not None and not cached.served
    count = "" if samples is None else f", {samples:,} elements"
    stage = top = Said("", f"source({type(data.dataset if fills and data is cached else data).__name__}{count})")
    cache = None
    if fills:
        options = {name: getattr(loader, name) for name in _OF_CACHE} | {"name": loader.cache.name}
        stage = cache = Said("cache", cache_line(options), stage)
    order = "" if loader._iterable else _order_line(loader)
    if order:
        stage = Said("shuffle", order, stage)
    if loader.augment is not None:
        stage = Said("map", f".map({name_of(loader.augment)})", stage)
    items = stage
    batch = _batch_line(loader)
    if batch:
        stage = Said("batch", batch, stage)
    if loader.batch_augment is not None:
        stage = Said("map", f".map({name_of(loader.batch_augment)})", stage)
    return Chain(stage, items, top=top, cache=cache)


def _order_line(loader: Any) -> str:
    if loader._order is not None:
        order = loader._order.order
        kind = getattr(order, "kind", type(order).__name__)
        if kind != "shuffled":
            return "" if kind == "sequential" else f".shuffle(order={kind})"
        return ".shuffle()" if getattr(loader, "_drawn", False) else f".shuffle(seed={order.seed})"
    kind = type(loader.sampler).__name__
    if kind == "RandomSampler" and not loader.sampler.replacement:
        return ".shuffle()"
    return "" if kind in _IN_SEQUENCE else f".sampler({kind})"


def _batch_line(loader: Any) -> str:
    if loader.batch_size is None:
        return "" if loader.batch_sampler is None else f".batch({type(loader.batch_sampler).__name__})"
    collate = "" if loader._setup().default_collate else f", collate={name_of(loader.collate_fn)}"
    return f".batch({loader.batch_size}{collate}{', drop_last=True' if loader.drop_last else ''})"
