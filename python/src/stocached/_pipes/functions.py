"""The stages that call a function of the program for each item: .map, .filter and .flat_map."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from .._common.cached import cached_property
from .._common.errors import BadSampleError, InvalidError
from .._common.notes import no_end, raise_noted
from .._common.numbers import whole
from .._common.one_line import name_of, one_line
from .._datasets.augment_function import takes_generator
from .._datasets.tally import current
from .._order.concatenation import Concatenation
from .._random.sample_generator import generator, own_generator
from .._random.sample_seeds import chain
from .._samples.containers import container_of
from .._samples.own_copy import CONSTANT, own_copy
from . import element_datasets, visits
from .lengths import KeepsLengths, called
from .stage import Item, Stage
from .visits import Epochs, Visit, Visits, Window

_NO_LISTS = (str, bytes, dict)  # their iterators give characters, numbers and keys: hardly what is meant


class Function(Stage):
    """function: of an item, and perhaps of a generator."""

    name: str  # the name of the pipe's method
    _generator = staticmethod(generator)

    def __init__(self, above: Stage, function: Callable[..., Any]) -> None:
        super().__init__(above)
        self.function = function
        if not callable(function):
            raise self.refuse("it takes a function of an item")
        steps: Any = sys.modules.get("stocached._image.steps")
        if steps is not None and isinstance(function, type) and issubclass(function, (steps.Step, steps.Decode)):
            raise self.refuse(f"it takes a step, and this is its class; write {function.__name__}(...)")
        plain = function.func if isinstance(function, functools.partial) else function
        if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
            raise self.refuse("it takes a function that returns, and this one is async; write a plain one")
        if inspect.isgeneratorfunction(plain) and not isinstance(self, FlatMap):
            raise self.refuse("this function is a generator; write .flat_map, which gives all items that it makes")
        self.draws = takes_generator(function, lambda: f"{self.shown()}{self.line}: it") and not _is_fixed(function)
        if type(self) is not Map:
            self.refuse_batches()

    def functions(self) -> list[Any]:
        return [self.function]

    @cached_property
    def random(self) -> int:
        return self.above[0].random + self.draws

    def seed_of(self, visit: Visit, ordinal: int, seed: int) -> int:
        """The seed of the numbers that the function gets for an item. seed: of the loader."""
        return visits.seed_at(seed, visit, self.random - 1, ordinal) if self.draws else 0

    def call(self, item: Any, at: Any, seed: int, ordinal: int | None = None) -> Any:
        """at: the visit or the element, for errors; None: unknown. seed: of the generator of this item, if the stage is
        random. ordinal: of the item, for errors."""
        try:
            return self.function(item, self._generator(seed)) if self.draws else self.function(item)
        except Exception as error:
            self.failed(error, at, ordinal)

    def failed(self, error: Exception, at: Any, ordinal: int | None = None) -> NoReturn:
        """Raises an error of the function, with a note. at, ordinal: as of `call`."""
        error = no_end(error, self.shown())
        element = at.element if isinstance(at, Visit) else at
        where = None if element is None else self.above[0].where(element, ordinal)
        if where is not None and isinstance(error, BadSampleError):
            error = error.named(where)
        raise_noted(error, f"stocached: in {self.shown()}{self.line}{'' if where is None else f', with {where}'}")

    def shown(self) -> str:
        return f"{self.name}({name_of(self.function)})"

    def made_of(self, lists: Any) -> Any:
        above = self.above[0].made_of(lists)
        lists.functions.append(self.function)
        return self.name, above


class Map(Function):
    """One item for each item. Steps of stocached.image in neighbouring stages are one call of the library: those above the
    last only say what is to be done. This one does so if `waits`."""

    kind, name, waits = "map", ".map", False

    def __init__(self, above: Stage, function: Callable[..., Any]) -> None:
        super().__init__(above, function)
        steps = sys.modules.get("stocached._image.steps")
        if steps is not None and type(above) is Map and steps.go_together(above.function, function):
            waiting = above.copied()
            waiting.waits = True
            self.above = (waiting,)

    def shape(self, seed: int) -> str:
        return self.above[0].shape(seed)

    @cached_property
    def together(self) -> list[Map]:
        """The stages above this one that wait, from the first to the last, and this one."""
        above = self.above[0]
        return [*(above.together if isinstance(above, Map) and above.waits else ()), self]

    @cached_property
    def measured(self) -> Stage:
        _ = self.together  # the copy gets it: stages above that one wait, too
        made: Stage = super().measured
        return made

    @cached_property
    def _staged(self) -> Any:
        return in_one_step(self.together)

    @property
    def stage(self) -> int:
        """Which random numbers its steps draw, among those of the stages that are together."""
        return max(self.random - 1, 0)

    def made(self, item: Any, seed: int) -> Any:
        """The function of an item. Errors have no note."""
        if self.waits:
            waiting = item if type(item) is _Waiting else _Waiting(item, {})
            if self.draws:
                waiting.seeds[self.stage] = seed
            return waiting
        if type(item) is not _Waiting:
            return self.function(item, generator(seed)) if self.draws else self.function(item)
        if self.draws:
            item.seeds[self.stage] = seed
        try:
            return self._staged.made(item.item, item.seeds)
        except Exception:
            return self._alone(item)

    def _alone(self, waiting: _Waiting) -> Any:
        """Calls the stages that are together after an error, which tells whose it is. There is none if only a Compose
        refuses it, as max_pixels= of a Decode is for all of its steps."""
        item = waiting.item
        for k, each in enumerate(self.together):
            try:
                item = each.function(item, generator(waiting.seeds[each.stage])) if each.draws else each.function(item)
            except Exception as own:
                if not self.indexed:  # each of these has counted an item
                    for other in self.together[k:-1]:
                        current().gave_back(other.number)
                raise _StageError(each, own) from None
        return item

    def call(self, item: Any, at: Any, seed: int, ordinal: int | None = None) -> Any:
        try:
            return self.made(item, seed)
        except Exception as error:
            self.failed(error, at, ordinal)

    def failed(self, error: Exception, at: Any, ordinal: int | None = None) -> NoReturn:
        if isinstance(error, _StageError):
            Function.failed(error.stage, error.error, at, ordinal)
        super().failed(error, at, ordinal)

    @cached_property
    def rows(self) -> Any:
        return element_datasets.mapped(self.above[0].rows, self.function, self)

    @cached_property
    def lends(self) -> bool:
        return self.above[0].lends and not self.owns

    @cached_property
    def owns(self) -> bool:
        """Whether its function gets a copy of each item, as it may change it. Steps of stocached.image change nothing."""
        steps: Any = sys.modules.get("stocached._image.steps")
        return self.above[0].lends and not (steps is not None and isinstance(self.function, (steps.Step, steps.Decode)))

    def item(self, visit: Visit, seed: int) -> Any:
        item = self.above[0].item(visit, seed)
        return self.call(own_copy(item) if self.owns else item, visit, self.seed_of(visit, 0, seed))

    def called(self, items: Iterable[Any], entries: Iterable[Any], seed: int) -> Iterator[Any]:
        """The function of some items. entries: their visits and ordinals. Errors have no note."""
        if self.owns:
            items = map(own_copy, items)
        alone = len(self.together) == 1 and not self.waits
        if alone and not self.draws:
            return map(self.function, items)
        seeds = (self.seed_of(visit, ordinal, seed) for visit, ordinal, _ in entries)
        return map(self.function, items, map(generator, seeds)) if alone else map(self.made, items, seeds)

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        call, seed_of, seed, owns = self.call, self.seed_of, window.seed, self.owns
        for visit, ordinal, item in self.above[0].items(some, window):
            try:
                made = call(own_copy(item) if owns else item, visit, seed_of(visit, ordinal, seed), ordinal)
            except Exception as error:
                window.left_out(self.above[0].where(visit.element, ordinal), error)
                continue
            yield visit, ordinal, made


class _Waiting:
    """An item whose functions wait. seeds: of the generators of their stages."""

    __slots__ = ("item", "seeds")

    def __init__(self, item: Any, seeds: dict[int, int]) -> None:
        self.item, self.seeds = item, seeds


class _StageError(Exception):
    """An error of one of several stages that are called together."""

    def __init__(self, stage: Map, error: Exception) -> None:
        self.stage, self.error = stage, error
        error.__suppress_context__ = True  # this one


def in_one_step(maps: list[Map], of: Any = None) -> Any:
    """The functions of stages as one step. of: as of `Staged`."""
    steps: Any = sys.modules["stocached._image.steps"]
    return steps.Staged([each.function for each in maps], [each.stage for each in maps], of)


class Several(KeepsLengths, Function):
    """None, one or several items for each item."""

    indexed = False


class Filter(Several):
    """The items of which the function is true."""

    name = ".filter"
    lends = False

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        call, seed_of, seed, lent = self.call, self.seed_of, window.seed, self.above[0].lends
        for visit, ordinal, item in self.above[0].items(some, window):
            if lent:
                item = own_copy(item)
            try:
                stays = self._is_true(call(item, visit, seed_of(visit, ordinal, seed), ordinal), visit, ordinal)
            except Exception as error:
                window.left_out(self.above[0].where(visit.element, ordinal), error)
                continue
            if stays:
                yield visit, ordinal, item

    def _is_true(self, value: Any, visit: Visit, ordinal: int) -> bool:
        try:
            return bool(value)
        except Exception as error:  # such as an array
            self.failed(error, visit, ordinal)


class FlatMap(Several):
    """The items of the iterable that the function makes of each item."""

    name = ".flat_map"
    lends = False
    _generator = staticmethod(own_generator)  # it draws while its items are read, and stages below draw too

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        above, seed_of, seed = self.above[0], self.seed_of, window.seed
        first = above.indexed  # one item has the ordinals 0, 1, ...
        for visit, ordinal, item in above.items(some, window):
            try:
                made = self.called(item, visit, seed_of(visit, ordinal, seed), ordinal)
            except Exception as error:
                window.left_out(above.where(visit.element, ordinal), error)
                continue
            numbers: Iterable[int] = itertools.count()
            if not first:
                numbers = map(functools.partial(chain, ordinal), numbers)
            try:  # the function may be a generator
                yield from zip(
                    itertools.repeat(visit), numbers, map(own_copy, made) if self._is_lent(item) else iter(made)
                )
            except Exception as error:
                try:
                    self.failed(error, visit, ordinal)
                except Exception as noted:
                    window.left_out(above.where(visit.element, ordinal), noted)

    def _is_lent(self, item: Any) -> bool:
        """Whether the function gets the item itself, which may be large, such as an array; what it makes may be parts."""
        return self.above[0].lends and type(item) not in CONSTANT and container_of(item) is None

    def called(self, item: Any, visit: Visit, seed: int, ordinal: int | None = None) -> Any:
        """The iterable of an item."""
        lent = self.above[0].lends and not self._is_lent(item)
        made = self.call(own_copy(item) if lent else item, visit, seed, ordinal)
        if made is None or isinstance(made, _NO_LISTS):
            advice = "is a return missing?" if made is None else "write [...] around it, or list(...)"
            raise self.refuse(
                f"it has made {one_line(made)}, with {self.above[0].where(visit.element, ordinal)}, and takes an iterable of items; "
                + advice
            )
        return made

    def where(self, element: int, ordinal: int | None = None) -> str:
        return super().where(element)  # the ordinals are its own


class Counted(FlatMap):
    """With count=: each item is an element of its own, so it has an index."""

    indexed, takes_all = True, False
    lends = True  # the last list is kept

    def __init__(self, above: Stage, function: Callable[..., Any], count: Any) -> None:
        self._given = count
        super().__init__(above, function)
        if not (above.indexed and above.in_order):
            raise self.refuse(
                "count= gives an index to the items of elements in order; shuffle below it, and write .filter or another "
                ".flat_map below it, or leave count= out"
            )
        if not callable(count):
            _ = self.counts  # raises InvalidError now
        self._last: list[tuple[Any, list[Any]]] = [(None, [])]  # the list of the last element
        self._epochs = Epochs(above, 0)

    def functions(self) -> list[Any]:
        return [self.function, self._given]

    @cached_property
    def counts(self) -> Concatenation:
        """The items of each element above."""
        return self.counts_by(0)

    def counts_by(self, workers: int) -> Concatenation:
        """`counts`, which processes of so many workers find out if a function says them, and that takes long."""
        if "counts" in vars(self):
            return self.counts
        n, given = len(self.above[0]), self._given
        if callable(given):
            given = called(n, self.count_of, workers)
        elif not getattr(given, "ndim", hasattr(given, "__len__")):
            given = [whole("count", given)] * n
        if len(given) != n:
            raise self.refuse(f"count= has {len(given):,} numbers, and there are {n:,} elements")
        # A truth is one item or none.
        numbers = (int(each) if isinstance(each, (bool, np.bool_)) else each for each in given)
        made = vars(self)["counts"] = Concatenation(whole("count", number) for number in numbers)
        return made

    def count_of(self, element: int) -> Any:
        """What the function says of an element above."""
        try:
            return self._given(self.above[0].source_item(self.above[0].visit_of(element)))
        except Exception as error:
            raise_noted(
                error, f"stocached: in count= of {self.shown()}{self.line}, with {self.above[0].where(element)}"
            )

    def elements(self) -> int:
        return len(self.counts)

    def __len__(self) -> int:
        return len(self.counts)

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.InOrder(len(self.counts), epoch)

    def visit_of(self, element: int) -> Visit:
        return Visit(element, 0, 0)

    @cached_property
    def rows(self) -> Any:
        return element_datasets.Flat(self.above[0].rows, self.function, self.counts, self)

    def item(self, visit: Visit, seed: int) -> Any:
        e, ordinal = self.counts.locate(visit.element)
        if self._epochs.seed != seed:
            self._epochs = Epochs(self.above[0], seed)
        upper = self._epochs.visits(visit.epoch).at(e)
        if visit.draw:
            upper = visits.drawn(upper, visit.draw)
        key = e, visit.draw, visit.epoch, seed
        last, made = self._last[0]
        if last != key:
            made = self.list_of(self.above[0].item(upper, seed), upper, seed)
            self._last[0] = key, made
        return made[ordinal]

    @property
    def noter(self) -> Any:
        return self

    def note(self, visit: Visit) -> None:
        e, ordinal = self.counts.locate(visit.element)
        if not ordinal:  # another worker may make the list for its other items
            above = self.above[0]
            current().took(above.number)
            if above.noter is not None:
                above.noter.note(above.visit_of(e))

    @cached_property
    def measured(self) -> Stage:
        made: Any = super().measured
        made._last = self._last  # else a list whose items are measured in part is made twice
        return made  # type: ignore[no-any-return]

    def list_of(self, item: Any, upper: Visit, seed: int) -> list[Any]:
        made = self.called(item, upper, self.seed_of(upper, 0, seed))
        try:
            made = list(made)
        except Exception as error:  # the function may be a generator
            self.failed(error, upper)
        count = self.counts.samples[upper.element]
        if len(made) != count:
            raise InvalidError(
                f"{self.shown()}{self.line}: {self.above[0].where(upper.element)} has {len(made):,} items, and count= says "
                f"{count:,}"
            )
        return made

    def shown(self) -> str:
        given = self._given if isinstance(self._given, (int, np.integer)) else "..."
        return f"{super().shown()[:-1]}, count={given})"

    def where(self, element: int, ordinal: int | None = None) -> str:
        e, ordinal = self.counts.locate(element)
        return f"item {ordinal} of {self.above[0].where(e)}"

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_last": [(None, [])]}


def _is_fixed(function: Any) -> bool:
    """Whether it is a step of stocached.image, which takes a generator, and draws nothing from it. A program's own __call__
    may draw."""
    steps = sys.modules.get("stocached._image.steps")
    if steps is None or not isinstance(function, steps.Step) or function.random:
        return False
    return type(function).__call__ is steps.Step.__call__
