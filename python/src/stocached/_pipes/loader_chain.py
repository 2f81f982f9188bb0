"""The chain of a loader that is made of arguments. Its stages say what the loader does, as its attributes are now."""

from __future__ import annotations

import contextlib
from typing import Any

from .._common.one_line import name_of
from .._datasets.making import OF_CACHE
from .caching import cache_line
from .counting import Chain
from .stage import Stage

_IN_SEQUENCE = ("SequentialSampler", "_InfiniteConstantSampler", "_Endless", "NoneType")  # torch's samplers and ours


class Said(Stage):
    """A stage that the loader runs, and has checked."""

    tallied, indexed = False, True

    def __init__(self, kind: str, shown: str, *above: Said) -> None:
        self.kind, self._shown, self.above, self.line = kind, shown, above, ""
        self.number = above[0].number + 1 if above else 0
        self.takes_all = kind != "cache"

    def shown(self) -> str:
        return self._shown


def of_arguments(setup: Any) -> Chain:
    """setup: of the loader."""
    samples, data, cached = None, setup.dataset, setup.cached
    with contextlib.suppress(Exception):  # a len() of the program
        samples = setup.samples()
    fills = cached is not None and not cached.served
    count = "" if samples is None else f", {samples:,} elements"
    stage = top = Said("", f"source({type(data.dataset if fills and data is cached else data).__name__}{count})")
    cache = None
    if fills:
        options = {name: getattr(setup, name) for name in OF_CACHE} | {"name": cached.cache.name}
        stage = cache = Said("cache", cache_line(options), stage)
    order = "" if setup.iterable else _order_line(setup)
    if order:
        stage = Said("shuffle", order, stage)
    if setup.augment is not None:
        stage = Said("map", f".map({name_of(setup.augment)})", stage)
    items = stage
    batch = _batch_line(setup)
    if batch:
        stage = Said("batch", batch, stage)
    if setup.batch_augment is not None:
        stage = Said("map", f".map({name_of(setup.batch_augment)})", stage)
    return Chain(stage, items, top=top, cache=cache)


def _order_line(setup: Any) -> str:
    if setup.ordered is not None:
        order = setup.ordered.order
        kind = getattr(order, "kind", type(order).__name__)
        if kind != "shuffled":
            return "" if kind == "sequential" else f".shuffle(order={kind})"
        return ".shuffle()" if setup.drawn else f".shuffle(seed={order.seed})"
    kind = type(setup.sampler).__name__
    if kind == "RandomSampler" and not setup.sampler.replacement:
        return ".shuffle()"
    return "" if kind in _IN_SEQUENCE else f".sampler({kind})"


def _batch_line(setup: Any) -> str:
    if setup.batch_size is None:
        return "" if setup.batch_sampler is None else f".batch({type(setup.batch_sampler).__name__})"
    collate = "" if setup.default_collate else f", collate={name_of(setup.collate_fn)}"
    return f".batch({setup.batch_size}{collate}{', drop_last=True' if setup.drop_last else ''})"
