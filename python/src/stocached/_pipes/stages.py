"""The stages of a pipe: docs/spec/pipes.md."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import sys
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from .._common.numbers import whole
from .._common.one_line import name_of, one_line, printable
from .._common.reads_ahead import ahead_of
from .._common.remote_addresses import shown
from .._datasets import looks, mistaken
from .._datasets.cached_samples import CachedSamples
from .._datasets.making import CacheOptions
from .._datasets.tally import current
from .._formats.elements import Elements
from .._memory.texts import Texts
from .._order.concatenation import Concatenation
from .._order.order import MixedOrder, Order, WeightedOrder
from .._workers import serialization, set_up
from . import element_datasets, joining, visits
from .functions import FlatMap, Function, Map
from .lengths import KeepsLengths
from .mixing import mixed
from .stage import WINDOW, Item, Stage
from .texts import of_text
from .visits import Visit, Visits, Window

_PACKAGE = __name__.partition(".")[0]  # its datasets make each sample anew
_LONGEST = 400  # characters of a path in an error; other texts may be longer
_WINDOW_BYTES = 64 << 20  # of the groups of a window
_MANY = 100_000  # elements of a list from which on texts go into one buffer: workers copy the pages of a list


def _instead_of(data: Any, iterable: Any) -> str:
    """What a program gives in place of data that source() does not take."""
    if isinstance(data, iterable):
        return "; an IterableDataset or a DataPipe goes to stocached.torch.DataLoader, without a pipe"
    if isinstance(data, dict):
        if data and all(hasattr(value, "features") for value in data.values()):  # a DatasetDict of Hugging Face
            return f"; give one of its datasets, such as source(d[{next(iter(data))!r}])"
        return "; of a dict of columns: source(range(n)).map(lambda row: {name: d[name][row] for name in d})"
    if getattr(data, "shape", ()) and hasattr(data, "__getitem__"):  # an array of Zarr
        return f"; give source(range({data.shape[0]})).map(lambda k: data[k])"
    if hasattr(data, "__iter__") and not isinstance(data, bytes):
        return "; give a list of it, or source(f, parts=1) with a function: f(0) gives the items, such as a generator"
    return ", or a function with parts=, which gives the items of each part" if callable(data) else ""


class Source(Stage):
    """data: an object with len() and [index], or what `of_text` takes, with its format and options."""

    def __init__(self, data: Any, format: str | None = None, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._kind = type(data).__name__
        if isinstance(data, (str, os.PathLike)):
            self._kind = one_line(shown(os.fsdecode(data)))
            data = of_text(os.fsdecode(data), format, options or {})
        elif format is not None or options:
            given = ", ".join(f"{name}=" for name in [*["format"] * (format is not None), *(options or ())])
            raise InvalidError(
                f"source({one_line(data)}): {given} goes with a text that names files, or an address; leave it out"
            )
        mistaken.refuse("source", data)
        iterable = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
        indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__") and getattr(data, "shape", None) != ()
        if isinstance(data, (iterable, bytes, dict)) or not indexed:
            raise InvalidError(
                f"source({one_line(data)}): it takes a list, an array, a dataset with len() and [index], or a text that "
                f"names files{_instead_of(data, iterable)}"
            )
        if len(data) == 0:
            raise InvalidError("source(): there are no elements in it")
        if type(data) is tuple:  # `made_of` has tuples of its own
            data = list(data)
        if type(data) is list and len(data) >= _MANY:
            data = Texts.of_list(data) or data
        self.data = data

    def elements(self) -> int:
        return len(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.InOrder(len(self.data), epoch)

    @cached_property
    def rows(self) -> Any:
        return self.data

    def visit_of(self, element: int) -> Visit:
        return Visit(element, 0, 0)

    indexed = in_order = True
    window = None

    @cached_property
    def lends(self) -> bool:
        return type(self.data) is not range and not type(self.data).__module__.startswith(f"{_PACKAGE}.")

    @cached_property
    def ahead(self) -> Any:
        return ahead_of(self.data)

    def item(self, visit: Visit, seed: int) -> Any:
        return self.data[visit.element]

    def source_item(self, visit: Visit) -> Any:
        return self.data[visit.element]

    def sources(self) -> list[Any]:
        return [self.data]

    def made_of(self, lists: Any) -> Any:
        lists.datasets.append(element_datasets.Read(self.data))
        return "source"

    def where(self, element: int) -> str:
        file = ""
        with contextlib.suppress(
            Exception
        ):  # only lists of paths, and datasets such as Folder, name the file of a sample
            name = os.fspath(self.data[element]) if type(self.data) is list else self.data.name(element)
            file = f", {printable(name)}" if len(name) <= _LONGEST and name.isprintable() else ""
        return f"element {element} of {self.shown()}{file}"

    def shown(self) -> str:
        return f"source({self._kind}, {len(self.data):,} elements)"


class Parts(FlatMap):
    """function(k): an iterable of the items of part k."""

    def __init__(self, function: Callable[[int], Iterable[Any]], parts: int) -> None:
        self._parts = whole("parts", parts, 1)
        if not callable(function):
            raise InvalidError(
                f"source({one_line(function)}, parts={parts}): parts= is for a function of a part's number"
            )
        super().__init__(_Numbers(range(self._parts)), function)

    def sources(self) -> list[Any]:
        return [self.function]

    def where(self, element: int) -> str:
        return f"part {element} of {self.shown()}"

    def drawn(self) -> list[str]:
        return [self.shown()]

    def shown(self) -> str:
        return f"source({name_of(self.function)}, parts={self._parts})"


class Rows(Parts):
    """The items of groups, such as rows, whose numbers the files say."""

    def __init__(self, groups: Source) -> None:
        self._groups = groups
        FlatMap.__init__(self, groups, _items_of)

    def learned(self) -> npt.NDArray[np.int64]:
        return self._groups.data.counts  # type: ignore[no-any-return]

    @cached_property
    def usual_window(self) -> int:
        """As many groups as go into some memory, or as have as many items as there are elements in a window of others."""
        groups, items = self._groups.data, int(self.learned().sum())
        most = _WINDOW_BYTES * len(groups) // groups.bytes if groups.bytes else WINDOW * len(groups) // max(1, items)
        return min(max(1, most), WINDOW)

    @property
    def files(self) -> Elements:
        return self._groups.data  # type: ignore[no-any-return]

    def sources(self) -> list[Any]:
        return self._groups.sources()

    def where(self, element: int) -> str:
        return self._groups.where(element)

    def shown(self) -> str:
        return f"{self._groups.shown()[:-1]}, {int(self.learned().sum()):,} items)"


def _items_of(group: list[Any]) -> list[Any]:
    return group


def of_files(source: Source) -> Stage:
    """The items of what a source names."""
    return Rows(source) if isinstance(source.data, Elements) and source.data.counts is not None else source


class _Numbers(Source):
    def where(self, element: int) -> str:
        return f"part {element}"


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


class Cache(KeepsLengths):
    """options: of `CachedSamples`."""

    kind, takes_all, noter = "cache", False, None  # a miss counts what stands above

    def __init__(self, above: Stage, options: dict[str, Any]) -> None:
        super().__init__(above)
        self.shared = self  # copies of the stage share its cache
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

    def shown(self) -> str:
        return cache_line(self.options)


class Join(Stage):
    """Pipes one after the other."""

    takes_all = False

    def __init__(self, *above: Stage) -> None:
        super().__init__(*above)
        self.refuse_batches()

    @cached_property
    def counts(self) -> Concatenation:
        """The elements of the sides."""
        return Concatenation(side.elements() for side in self.above)

    def elements(self) -> int:
        return len(self.counts)

    def __len__(self) -> int:
        return sum(map(len, self.above))

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.Joined([side.visits(epoch, seed) for side in self.above], self.counts)

    @cached_property
    def rows(self) -> Any:
        return element_datasets.Joined([side.rows for side in self.above], self)

    def made_of(self, lists: Any) -> Any:
        return ("+", *(side.made_of(lists) for side in self.above))

    def visit_of(self, element: int) -> Visit:
        d, local = self.counts.locate(element)
        return visits.raised(self.counts, d, self.above[d].visit_of(local))

    def item(self, visit: Visit, seed: int) -> Any:
        d, inside = visit.inner
        return self.above[d].item(inside, seed)

    @property
    def noter(self) -> Any:
        return self

    def note(self, visit: Visit) -> None:
        d, inside = visit.inner
        side = self.above[d]
        current().took(side.number)
        if side.noter is not None:
            side.noter.note(inside)

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        if self.window is None:
            return self._in_turn(some, window)
        return self._mixed(list(some), window)

    def _in_turn(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        for visit in some:
            d, inside = visit.inner
            for _, ordinal, item in self.above[d].items([inside], window):
                yield visit, ordinal, item

    def _mixed(self, some: list[Visit], window: Window) -> Iterator[Item]:
        """Sides mix the items of their visits in the window. Each visit has as many places as it has items."""
        outer = {visit.inner: visit for visit in some}
        made: list[deque[Item]] = []
        counts: Counter[Any] = Counter()
        for d, side in enumerate(self.above):
            own = deque(side.items([visit.inner[1] for visit in some if visit.inner[0] == d], window))
            counts.update((d, visit) for visit, _, _ in own)
            made.append(own)
        for visit in some:
            d = visit.inner[0]
            for _ in range(counts[visit.inner]):
                inside, ordinal, item = made[d].popleft()
                yield outer[d, inside], ordinal, item

    def lengths(self) -> npt.NDArray[np.int64] | None:
        sides = [side.lengths() for side in self.above]
        known = [side for side in sides if side is not None]
        return np.concatenate(known) if len(known) == len(sides) else None

    def measure(self, workers: int) -> None:
        for side in self.above:
            side.measure(workers)

    def source_item(self, visit: Visit) -> Any:
        d, inside = visit.inner
        return self.above[d].source_item(inside)

    @cached_property
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
        if stop == "all" and not self.indexed:
            raise self.refuse('stop="all" needs pipes with an index; give stop="first", or a number of elements')
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
        self.refuse_batches()
        lengths = [len(side) for side in above]
        if strict and len(set(lengths)) > 1:
            raise self.refuse(
                f"its pipes have {', '.join(f'{n:,}' for n in lengths)} items; give strict=False to end with the shortest"
            )
        orders = {_order_of(side) for side in above}
        self.one_order = len(orders) == 1 and None not in orders and len(set(lengths)) == 1
        sources = {tuple(map(id, side.sources())) for side in above}
        if not self.indexed and (len(sources) > 1 or not self.one_order or self.window is not None):
            raise self.refuse(
                "a pipe without an index is zipped with one over the same source object, in the same order; shuffle below "
                "the zip, or give .flat_map(..., count=)"
            )

    @cached_property
    def fixed(self) -> bool:
        return self.one_order and super().fixed

    def elements(self) -> int:
        return self.above[0].elements() if self.one_order else len(self)

    def __len__(self) -> int:
        return min(map(len, self.above))

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.Zipped([side.visits(epoch, seed) for side in self.above], epoch, self.one_order)

    @cached_property
    def rows(self) -> Any:
        return element_datasets.Zipped([side.rows for side in self.above])

    def made_of(self, lists: Any) -> Any:
        return (".zip", *(side.made_of(lists) for side in self.above))

    def visit_of(self, element: int) -> Visit:
        inner = tuple(side.visit_of(element) for side in self.above)
        return inner[0]._replace(inner=inner)

    def item(self, visit: Visit, seed: int) -> Any:
        return tuple(side.item(inside, seed) for side, inside in zip(self.above, visit.inner))

    @cached_property
    def noter(self) -> Any:
        return self if any(side.noter is not None for side in self.above) else None

    def note(self, visit: Visit) -> None:
        for side, inside in zip(self.above, visit.inner):
            if side.noter is not None:
                side.noter.note(inside)

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        bad: list[str] = []

        def left_out(name: str, error: Exception) -> None:
            window.left_out(name, error)
            bad.append(name)

        known = dataclasses.replace(window, left_out=left_out)
        for visit in some:
            sides = [list(side.items([inside], known)) for side, inside in zip(self.above, visit.inner)]
            if bad:  # the others have no partner
                both = set.intersection(*({ordinal for _, ordinal, _ in side} for side in sides))
                sides = [[item for item in side if item[1] in both] for side in sides]
                bad.clear()
            if len(set(map(len, sides))) > 1:
                counts = ", ".join(f"{len(side):,}" for side in sides)
                raise self.refuse(
                    f"its pipes have {counts} items of {self.where(visit.element)}; give them equally many"
                )
            for several in zip(*sides):
                yield visit, several[0][1], tuple(item for _, _, item in several)

    @cached_property
    def in_order(self) -> bool:
        return self.one_order and self.above[0].in_order

    def where(self, element: int) -> str:
        return self.above[0].where(element) if self.one_order else f"item {element} of {self.shown()}"

    def shown(self) -> str:
        return f".zip({len(self.above)} pipes, side by side)"


class Batch(Stage):
    """The loader makes the batches; the stage says how. by: the length of an item, of which a batch has `size`; None: it
    has `size` items."""

    kind = "batch"

    def functions(self) -> list[Any]:
        return [self.by, self.collate]

    def __init__(
        self,
        above: Stage,
        size: int,
        by: Any,
        pad: Any,
        collate: Callable[..., Any] | None,
        drop_last: bool,
        rows: bool = False,
        lengths: Any = None,
    ) -> None:
        super().__init__(above)
        self.contiguous, self._told = rows, lengths
        self.size, self.by, self.pad, self.collate, self.drop_last = whole("n", size, 1), by, pad, collate, drop_last
        if pad is not None and collate is not None:
            raise self.refuse("collate= makes the batch, so pad= has nothing to do; leave one of them out")
        if by is not None and not callable(by):
            raise self.refuse("size= is a function of an item, such as len")
        if by is not None and drop_last:
            raise self.refuse("batches by size= end with their windows, so there is no last one to drop")
        if lengths is not None and not rows:
            raise self.refuse("lengths= is for rows=True; leave it out, or call measure() of the pipe")
        self.refuse_batches()

    @cached_property
    def indexed(self) -> bool:
        return self.by is None and self.above[0].indexed

    @cached_property
    def window(self) -> int | None:
        above = self.above[0].window
        return above if self.by is None else above or 0

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        """With `by`, an item is the list of the items of a batch."""
        return joining.batches(self, list(self.above[0].items(some, window)), window)

    def lengths(self) -> npt.NDArray[np.int64] | None:
        if self._told is not None:
            return self._told  # type: ignore[no-any-return]
        return super().lengths() if self.by is None else None

    def measure(self, workers: int) -> None:
        if self.by is not None:
            raise self.refuse(_OF_WINDOWS)
        super().measure(workers)

    def shown(self) -> str:
        """The states of a loader have it, so it leaves out what does not change which items a batch has."""
        rows = ", rows=True" if self.contiguous else ""
        return f".batch({self.size}{'' if self.by is None else ', size=' + name_of(self.by)}{rows})"

    def drawn(self) -> list[str]:
        *above, own = super().drawn()
        given = "" if self.pad is None else f", pad={one_line(self.pad)}"
        given += "" if self._told is None else ", lengths=..."
        given += "" if self.collate is None else f", collate={name_of(self.collate)}"
        return [*above, f"{own[:-1]}{given}{', drop_last=True' if self.drop_last else ''})"]


class Pack(Stage):
    """Rows of `length` tokens."""

    def __init__(self, above: Stage, length: int) -> None:
        super().__init__(above)
        self.length = whole("length", length, 1)
        self.refuse_batches()
        if any(isinstance(one, Pack) for one in above.chain()):
            raise self.refuse("it stands below .pack(), whose rows are full; leave one of them out")

    indexed = False

    @cached_property
    def window(self) -> int | None:
        return self.above[0].window or 0

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        return joining.rows(self, list(self.above[0].items(some, window)))

    def lengths(self) -> None:
        return None

    def measure(self, workers: int) -> None:
        raise self.refuse(_OF_WINDOWS)

    def shown(self) -> str:
        return f".pack({self.length})"


_OF_WINDOWS = (
    "how many it makes depends on which items come together in an epoch, so no measure says it; "
    'leave ends="uneven", or end all ranks after as many steps'
)
REMEDY = Remedy(
    "Write the random part below .cache(), as a .map() whose function has a parameter generator.",
    ".cache(..., allow_random=True)",
    "the pipe above .cache()",
    converted="write source(dataset).cache(...).map(augment)",
)


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


def every(stage: Stage) -> list[Stage]:
    """A stage and all above it."""
    return [stage, *itertools.chain.from_iterable(map(every, stage.above))]


def _order_of(stage: Stage) -> Any:
    """A value that is equal for stages whose visits have their elements in one order; None: none has it."""
    found = next((each for each in stage.chain() if isinstance(each, (Shuffle, Mix, Zip))), None)
    if isinstance(found, Shuffle) and found.weighted is None and found.above[0].in_order:
        return found.seed, len(found)
    return "in order" if stage.in_order else None


def visits_digest(stage: Stage, seed: int) -> str:
    """Names the visits of all epochs: which element is read at which position. seed: of the loader."""
    return f"{zlib.crc32(_shape(stage, seed).encode()):08x}"


def _shape(stage: Stage, seed: int) -> str:
    """What determines the visits of an epoch."""
    if isinstance(stage, Shuffle):
        own = repr(stage.order(seed))
    elif isinstance(stage, Mix):
        own = repr(stage.order)
    elif isinstance(stage, Cache) or type(stage) is Map:
        return _shape(stage.above[0], seed)
    elif not stage.indexed:
        own = f"{stage.shown()} {stage.window}"
    else:
        own = f"{type(stage).__name__} {len(stage)}"
    return f"{own}({', '.join(_shape(above, seed) for above in stage.above)})"
