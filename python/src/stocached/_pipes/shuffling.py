"""Another order of a pipe in each epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from .._common.cached import cached_property
from .._common.numbers import whole
from .._order.order import Order, WeightedOrder
from . import visits
from .batches import Batch, Pack
from .combining import Mix
from .functions import FlatMap
from .mixing import mixed
from .stage import Item, Stage
from .visits import Visit, Visits, Window


class Shuffle(Stage):
    """span: how many visits a window has, of a pipe without an index; 0: the default."""

    kind = "shuffle"

    def __init__(self, above: Stage, seed: int | None, span: int | None, weights: Any, draws: int | None) -> None:
        super().__init__(above)
        self.seed = None if seed is None else whole("seed", seed)
        self.weighted: WeightedOrder | None = None
        self._span = 0 if span is None else whole("window", span, 1)
        if span is not None and above.indexed:
            raise self.refuse(
                "window= is for a pipe without an index; each element of this one has one item, and all are shuffled"
            )
        stages = itertools.takewhile(lambda stage: type(stage) is not FlatMap, above.chain())
        before = next((stage for stage in stages if isinstance(stage, (Shuffle, Mix, Batch, Pack))), None)
        if before is not None:
            advice = "makes one item of several; write it above"
            if isinstance(before, (Shuffle, Mix)):
                advice = "gives an order already; leave one of them out"
                advice += ", or shuffle the pipes that are mixed" if isinstance(before, Mix) else ""
            raise self.refuse(f"it stands below {before.shown()}{before.line}, which {advice}")
        if weights is None and draws is not None:
            raise self.refuse("draws= is for weights=; give both, or none")
        if weights is not None:
            self.weighted = WeightedOrder(len(above), weights, self.seed or 0, draws)

    def order(self, seed: int) -> Order | WeightedOrder:
        """seed: of the loader."""
        own, weighted = seed if self.seed is None else self.seed, self.weighted
        if weighted is None:
            return Order(len(self.above[0]), "shuffled", seed=own)
        if weighted.seed != own:  # kept: its table is the same for all epochs
            self.weighted = weighted = WeightedOrder(weighted.samples, weighted.weights, own, weighted.draws)
        return weighted

    def __len__(self) -> int:
        return len(self.above[0]) if self.weighted is None else self.weighted.draws

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.Shuffled(self.above[0].visits(epoch, seed), self.order(seed), epoch)

    in_order = False

    @property
    def order_key(self) -> Any:
        return (self.seed, len(self)) if self.weighted is None and self.above[0].in_order else None

    def _own_shape(self, seed: int) -> str:
        return repr(self.order(seed))

    @cached_property
    def window(self) -> int | None:
        above = self.above[0].window
        return above if self.indexed else max(self._span, above or 0)

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        own = window.seed if self.seed is None else self.seed
        return mixed(list(self.above[0].items(some, window)), own, window)

    def shown(self) -> str:
        seed = [] if self.seed is None else [f"seed={self.seed}"]
        span = [f"window={self._span}"] if self._span else []
        return f".shuffle({', '.join(seed + span + ([] if self.weighted is None else ['weights=...']))})"
