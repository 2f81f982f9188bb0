"""The stages of a pipe: docs/spec/pipes.md."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._common.errors import InvalidError, NondeterministicDatasetError
from .._common.notes import raise_noted
from .._common.numbers import whole
from .._common.one_line import one_line
from .._datasets.augment_function import takes_generator
from .._datasets.cached_samples import CachedSamples
from .._order.concatenation import Concatenation
from .._order.order import MixedOrder, Order, WeightedOrder
from .._random.sample_generator import generator
from . import rows, visits
from .stage import Stage
from .visits import Visit, Visits


class Source(Stage):
    """data: an object with len() and [index]."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        iterable = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
        if isinstance(data, iterable) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise InvalidError(
                f"source({one_line(data)}): it takes a list, an array, or a dataset with len() and [index]; give an "
                "IterableDataset to DataLoader, without a pipe"
            )
        if isinstance(data, (str, bytes, dict)):
            raise InvalidError(
                f"source({one_line(data)}): it takes a list, an array, or a dataset with len() and [index]; of files, such "
                "as source(sorted(glob.glob(pattern)))"
            )
        if len(data) == 0:
            raise InvalidError("source(): there are no elements in it")
        self.data = data

    def elements(self) -> int:
        return len(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.InOrder(len(self.data), epoch)

    @functools.cached_property
    def rows(self) -> Any:
        return self.data

    def item(self, visit: Visit, seed: int) -> Any:
        return self.data[visit.element]

    in_order = True

    def where(self, element: int) -> str:
        file = ""
        with contextlib.suppress(Exception):  # only datasets such as Folder name the file of a sample
            file = f", {self.data.name(element)}"
        return f"element {element} of {self.shown()}{file}"

    def shown(self) -> str:
        return f"source({type(self.data).__name__}, {len(self.data):,} elements)"


class Map(Stage):
    """function: of an item, and perhaps of a generator."""

    def __init__(self, above: Stage, function: Callable[..., Any]) -> None:
        super().__init__(above)
        self.function = function
        if not callable(function):
            raise self.refuse("it takes a function of an item")
        self.draws = takes_generator(function, ".map") and not _is_fixed(function)

    @functools.cached_property
    def random(self) -> int:
        return self.above[0].random + self.draws

    @functools.cached_property
    def rows(self) -> Any:
        return rows.mapped(self.above[0].rows, self.function, self.call)

    def item(self, visit: Visit, seed: int) -> Any:
        item = self.above[0].item(visit, seed)
        return self.call(item, visit.element, visits.seed_at(seed, visit, self.random - 1) if self.draws else 0)

    def call(self, item: Any, element: int | None, seed: int) -> Any:
        """element: for errors; None: unknown. seed: of the generator of this item, if the stage is random."""
        try:
            return self.function(item, generator(seed)) if self.draws else self.function(item)
        except Exception as error:
            at = "" if element is None else f", with {self.above[0].where(element)}"
            raise_noted(error, f"stocached: in {self.shown()}{self.line}{at}")

    def shown(self) -> str:
        return f".map({getattr(self.function, '__name__', None) or one_line(self.function)})"


class Shuffle(Stage):
    def __init__(self, above: Stage, seed: int | None, weights: Any, draws: int | None) -> None:
        super().__init__(above)
        self.seed = None if seed is None else whole("seed", seed)
        self.weighted: WeightedOrder | None = None
        before = next((stage for stage in above.chain() if isinstance(stage, (Shuffle, Mix, Batch))), None)
        if before is not None:
            raise self.refuse(
                f"it stands below {before.shown()}, which gives an order already; leave one of them out"
                + (", or shuffle the pipes that are mixed" if isinstance(before, Mix) else "")
            )
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

    def shown(self) -> str:
        seed = [] if self.seed is None else [f"seed={self.seed}"]
        return f".shuffle({', '.join(seed + ([] if self.weighted is None else ['weights=...']))})"


class Cache(Stage):
    """options: of `CachedSamples`."""

    def __init__(self, above: Stage, options: dict[str, Any]) -> None:
        super().__init__(above)
        self.options = options
        for stage in every(above):
            if isinstance(stage, Map) and stage.draws:
                raise NondeterministicDatasetError(
                    f"{self.shown()}{self.line}: {stage.shown()}{stage.line} stands above it and draws random numbers, "
                    "so a cache would keep the first draw; write it below .cache()"
                )
            if isinstance(stage, Batch):
                raise self.refuse("it stands below .batch(), and a cache keeps items; write it above .batch()")
            if isinstance(stage, Zip) and not stage.one_order:
                raise self.refuse(
                    f"it stands below {stage.shown()}{stage.line}, whose sides are in different orders, so its items "
                    "differ between epochs; cache the sides, or shuffle below the zip"
                )

    @functools.cached_property
    def rows(self) -> CachedSamples:
        """The cache, if no loader makes it as its own; made at the first use."""
        return CachedSamples(self.above[0].rows, **self.options)

    @property
    def made(self) -> bool:
        """Whether `rows` was used."""
        return "rows" in vars(self)

    def item(self, visit: Visit, seed: int) -> Any:
        return self.rows[visit.element]

    def shown(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.options.items() if value not in (None, False, "decoded")]
        return f".cache({', '.join(given)})"


class Join(Stage):
    """Pipes one after the other."""

    def __init__(self, *above: Stage) -> None:
        super().__init__(*above)
        _without_batches(self, above)

    @functools.cached_property
    def counts(self) -> Concatenation:
        """The elements of the sides."""
        return Concatenation(side.elements() for side in self.above)

    def elements(self) -> int:
        return len(self.counts)

    def __len__(self) -> int:
        return sum(map(len, self.above))

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.Joined([side.visits(epoch, seed) for side in self.above], self.counts)

    @functools.cached_property
    def rows(self) -> Any:
        return rows.Joined([side.rows for side in self.above])

    def item(self, visit: Visit, seed: int) -> Any:
        d, inside = visit.inner
        return self.above[d].item(inside, seed)

    @functools.cached_property
    def in_order(self) -> bool:
        return all(side.in_order for side in self.above)

    def where(self, element: int) -> str:
        d, local = self.counts.locate(element)
        return self.above[d].where(local)

    def shown(self) -> str:
        return f"+ ({len(self.above)} pipes, one after the other)"


class Mix(Join):
    """ratios: whole numbers. stop: "first", "all", or how many items an epoch has."""

    def __init__(self, above: Sequence[Stage], ratios: list[int], seed: int, stop: str | int) -> None:
        super().__init__(*above)
        self.ratios, self.stop = ratios, stop
        orders, seed = [Order(len(side), "sequential") for side in above], whole("seed", seed)
        if isinstance(stop, str):
            self.order = MixedOrder(orders, ratios, seed, stop)  # type: ignore[arg-type]
        else:
            self.order = MixedOrder(orders, ratios, seed, "length", stop)
        self._length = len(self.order.epoch(0))

    def __len__(self) -> int:
        return self._length

    def visits(self, epoch: int, seed: int) -> Visits:
        side = functools.lru_cache(maxsize=4 * len(self.above))(lambda d, number: self.above[d].visits(number, seed))
        return visits.Mixed(self.order, self.counts, side, epoch)

    in_order = False

    def shown(self) -> str:
        return f"mix({len(self.above)} pipes, weights={self.ratios}, stop={self.stop!r})"


class Zip(Stage):
    """Pipes side by side."""

    def __init__(self, above: Sequence[Stage], strict: bool) -> None:
        super().__init__(*above)
        _without_batches(self, above)
        lengths = [len(side) for side in above]
        if strict and len(set(lengths)) > 1:
            raise self.refuse(
                f"its pipes have {', '.join(f'{n:,}' for n in lengths)} items; give strict=False to end with the shortest"
            )
        orders = {_order_of(side) for side in above}
        self.one_order = len(orders) == 1 and None not in orders and len(set(lengths)) == 1

    def elements(self) -> int:
        return self.above[0].elements() if self.one_order else len(self)

    def __len__(self) -> int:
        return min(map(len, self.above))

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.Zipped([side.visits(epoch, seed) for side in self.above], epoch, self.one_order)

    @functools.cached_property
    def rows(self) -> Any:
        return rows.Zipped([side.rows for side in self.above])

    def item(self, visit: Visit, seed: int) -> Any:
        return tuple(side.item(inside, seed) for side, inside in zip(self.above, visit.inner))

    @functools.cached_property
    def in_order(self) -> bool:
        return self.one_order and self.above[0].in_order

    def where(self, element: int) -> str:
        return self.above[0].where(element) if self.one_order else f"item {element} of {self.shown()}"

    def shown(self) -> str:
        return f".zip({len(self.above)} pipes, side by side)"


class Batch(Stage):
    """The loader makes the batches; the stage says how."""

    def __init__(self, above: Stage, size: int, pad: Any, collate: Callable[..., Any] | None, drop_last: bool) -> None:
        super().__init__(above)
        self.size, self.pad, self.collate, self.drop_last = whole("size", size, 1), pad, collate, drop_last
        if pad is not None and collate is not None:
            raise self.refuse("collate= makes the batch, so pad= has nothing to do; leave one of them out")
        _without_batches(self, [above])

    def shown(self) -> str:
        return f".batch({self.size})"


def ratios_of(weights: Sequence[float] | None, temperature: float | None, sizes: list[int]) -> list[int]:
    """The ratios of a mix. Raises InvalidError."""
    if weights is not None and temperature is not None:
        raise InvalidError("mix(): give weights= or temperature=, not both")
    if weights is None:
        t = 1.0 if temperature is None else float(temperature)
        if not t > 0:
            raise InvalidError(f"mix(): temperature={temperature!r} is not above 0")
        weights = [n ** (1 / t) for n in sizes]
    elif len(weights) != len(sizes):
        raise InvalidError(f"mix(): {len(sizes)} pipes and {len(weights)} weights; there is one for each pipe")
    for d, weight in enumerate(weights):
        if not (weight > 0 and math.isfinite(weight)):
            raise InvalidError(f"mix(): weights[{d}]={weight!r} is not a finite number above 0")
    if all(isinstance(weight, (int, np.integer)) for weight in weights):
        return [int(weight) for weight in weights]
    total = math.fsum(weights)
    return [max(1, round(weight / total * 10**6)) for weight in weights]


def _is_fixed(function: Any) -> bool:
    """Whether it is a step of stocached.image, which takes a generator, and draws nothing from it."""
    steps = sys.modules.get("stocached._image.steps")
    return steps is not None and isinstance(function, steps.Step) and not function.random


def every(stage: Stage) -> list[Stage]:
    """A stage and all above it."""
    return [stage, *itertools.chain.from_iterable(map(every, stage.above))]


def _order_of(stage: Stage) -> Any:
    """A value that is equal for stages whose visits have their elements in one order; None: none has it."""
    found = next((each for each in stage.chain() if isinstance(each, (Shuffle, Mix, Zip))), None)
    if isinstance(found, Shuffle) and found.weighted is None and found.above[0].in_order:
        return found.seed, len(found)
    return "in order" if stage.in_order else None


def _without_batches(stage: Stage, above: Sequence[Stage]) -> None:
    for each in above:
        if any(isinstance(one, Batch) for one in each.chain()):
            raise stage.refuse("it stands below .batch(), and takes items; write it above .batch()")
