"""The arguments with which a loader of datasets does what a pipe says.

Most pipes are a dataset that the loader caches, reads in an order of stocached, and augments. Others, such as a zip of
pipes in different orders, are a dataset of the positions of epochs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .._common.errors import InvalidError
from .._common.ranks import rank_of
from .._datasets.lists import without_index
from .._datasets.looks import start_method
from .._datasets.making import OF_CACHE
from .._datasets.tally import current
from .._order.order import Order, WeightedOrder
from . import streams
from .batches import Batch
from .caching import Cache, renew_caches
from .counting import Chain, numbered
from .functions import Counted, Map, in_one_step
from .lists import PipeLists, WalkOrder
from .padding import Batching
from .positions import Positions, PositionsOrder
from .shuffling import Shuffle
from .stage import Stage, every, visits_digest
from .visits import staged

_IN_THE_CHAIN = {  # arguments of a loader, and what to write in place of them
    "shuffle": ".shuffle()",
    "order": ".shuffle() or mix()",
    "sampler": ".shuffle() or mix()",
    "batch_sampler": ".batch()",
    "augment": ".map()",
    "batch_augment": ".map() below .batch()",
    "cache": ".cache()",
    **{name: f".cache({name}=...)" for name in OF_CACHE},
}


def of_loader(stage: Stage, given: Any, collate: Callable[..., Any]) -> Any:
    """given: the arguments of the program, a dataclass. collate: how the loader makes a batch by default. Raises
    InvalidError for an argument that the chain says."""
    for each in every(stage):
        if isinstance(each, Counted):
            each.counts_by(given.num_workers)
    renew_caches(stage)
    stage = root = numbered(stage)
    batch, below = _without_maps(stage)
    _check(given, batch)
    _check_functions(batch or stage, given)  # those below .batch() run in this process
    seed = given.seed or 0
    changes: dict[str, Any] = {"seed": None}
    if batch is not None:
        where, by_default = f"{batch.shown()}{batch.line}", batch.collate is None and batch.pad is None
        made = Batching(where, batch.collate or collate, by_default, batch.pad)
        changes |= {"batch_size": batch.size, "drop_last": batch.drop_last, "collate_fn": made}
        changes |= {"batch_augment": _BatchFunctions(below) if below else None}
        if batch.by is None:
            stage = batch.above[0]
        else:  # an item of this stage is the list of the items of a batch
            stage, changes = batch, changes | {"batch_size": None}
    elif given.collate_fn is None and given.batch_size is not None:
        changes["collate_fn"] = Batching(f"batches of batch_size={given.batch_size}", collate, True)
    plan = _plan(stage) if stage.indexed else None
    chain = Chain(root, stage) if plan is None else Chain(root, stage, top=plan.top, cache=plan.cache)
    order: Any
    if batch is not None and batch.contiguous:
        order = streams.order_of(batch, seed, given, chain)
        try:
            ranks = rank_of(given.rank, given.world_size)
        except InvalidError:
            if given.rank is not None or given.world_size is not None:
                raise
            ranks = 0, 1  # in a process that Lightning has started, torch.distributed knows them later
        order.settings(*ranks)  # raises InvalidError now
        changes |= {"dataset": streams.PipeRows(), "collate_fn": None, "ends": None}
    elif not stage.indexed:
        _check_without_index(stage, given)
        changes["dataset"] = lists = PipeLists(stage, seed)
        ends, skips = given.ends or "uneven", given.bad_samples == "skip"
        order = WalkOrder(len(stage), seed, visits_digest(stage, seed), lists, ends, skips, chain)
    elif plan is None:
        changes["dataset"] = Positions(stage, seed)
        order = PositionsOrder(len(stage), seed, visits_digest(stage, seed), chain)
    else:
        changes |= {"dataset": plan.dataset, "augment": _augment(plan.maps)}
        order = _with_chain(_order(plan, seed), chain)
        if plan.cache is not None and not plan.cache.made:
            changes |= plan.cache.options
    return dataclasses.replace(given, **changes, order=order)


def batch_of(stage: Stage) -> Batch | None:
    """The stage that makes batches, if a pipe has one."""
    return _without_maps(stage)[0]


def rows_of(stage: Stage) -> Iterator[Any]:
    """The batches of contiguous rows of epoch 0."""
    batch, below = _without_maps(stage)
    assert batch is not None
    return map(_BatchFunctions(below), streams.batches(batch))


def _without_maps(stage: Stage) -> tuple[Batch | None, list[Map]]:
    """The stage that makes batches, and those below it."""
    below: list[Map] = []
    for each in stage.chain():
        if isinstance(each, Batch):
            return each, below[::-1]
        if type(each) is not Map:
            break
        below.append(each)
    return None, []


def _check(given: Any, batch: Batch | None) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(given)}
    for name, instead in _IN_THE_CHAIN.items():
        if getattr(given, name) is not defaults[name] and getattr(given, name) != defaults[name]:
            raise InvalidError(f"{name}= is part of the chain of a pipe: leave it out, and write {instead}")
    for name in ("batch_size", "collate_fn", "drop_last"):
        if batch is not None and getattr(given, name) != defaults[name]:
            raise InvalidError(f"{name}= with a pipe that has {batch.shown()}: leave it out")


def _check_functions(stage: Stage, given: Any) -> None:
    if given.num_workers and given.worker in (None, "process"):
        check_functions(stage, given.multiprocessing_context, 'give multiprocessing_context="fork"')


def check_functions(stage: Stage, context: Any, instead: str) -> None:
    """Raises InvalidError for a function that cannot be sent to workers."""
    method = start_method(context)
    if method == "fork":
        return
    for each in every(stage):
        for function in each.functions():
            name = getattr(getattr(function, "func", function), "__qualname__", "")  # func: of a partial
            if "<locals>" in name or "<lambda>" in name:
                raise each.refuse(
                    f"workers that are started by {method} are sent {name} pickled, which lambdas and functions within "
                    f"functions cannot be; define it in a module, or {instead}"
                )


def _check_without_index(stage: Stage, given: Any) -> None:
    if given.ends in ("pad", "drop") and stage.lengths() is None:
        raise without_index(f'ends="{given.ends}"')
    if given.affinity is not None:
        raise without_index("affinity=")


@dataclasses.dataclass
class _Plan:
    """A pipe as a dataset with an order, and functions of its samples."""

    dataset: Any
    top: Stage  # its elements are those of the dataset
    cache: Cache | None  # the cache of the dataset's samples
    shuffle: Shuffle | None
    maps: list[Map]  # below the cache, from the first to the last


def _plan(stage: Stage) -> _Plan | None:
    """None: positions tell more than elements."""
    chain = stage.chain()
    counted = next((k for k, each in enumerate(chain) if isinstance(each, Counted)), len(chain) - 1)
    *chain, top = chain[: counted + 1]
    if not top.in_order or top.random:
        return None
    shuffle = next((each for each in chain if isinstance(each, Shuffle)), None)
    if shuffle is not None and shuffle.weighted is not None and stage.random:
        return None  # an element that is drawn twice draws twice
    maps: list[Map] = []
    for each in chain:
        if isinstance(each, Cache):
            return _Plan(each.kept if each.made else each.above[0].rows, top, each, shuffle, maps[::-1])
        if type(each) is Map:
            maps.append(each)
        elif not isinstance(each, Shuffle):
            return None
    return _Plan(top.rows, top, None, shuffle, maps[::-1])


def _order(plan: _Plan, seed: int) -> Any:
    n = len(plan.dataset)
    order = Order(n, "sequential") if plan.shuffle is None else plan.shuffle.order(seed)
    return order if order.seed == seed else _WithSeed(order, seed)


def _with_chain(order: Any, chain: Chain) -> Any:
    """A copy of an order, for one loader, which finds the stages of its pipe there."""
    made = object.__new__(type(order))
    vars(made).update(vars(order), chain=chain, first=order)  # the first one ends the table of a WeightedOrder
    return made


class _WithSeed:
    """An order whose samples draw their random numbers from another seed."""

    _parts_given = ("order",)

    def __init__(self, order: Order | WeightedOrder, seed: int) -> None:
        self.order, self.seed, self.samples = order, seed, order.samples

    def epoch(self, number: int) -> Any:
        return self.order.epoch(number)

    def __repr__(self) -> str:
        return f"{self.order!r} with numbers of seed={self.seed}"


def _augment(maps: list[Map]) -> Any:
    """One function for several stages. Of steps of stocached.image it is a step, which threads do in C."""
    if not maps:
        return None
    steps: Any = sys.modules.get("stocached._image.steps")
    functions, called = Functions(maps), [each.function for each in maps]
    in_c = steps is not None and all(isinstance(function, (steps.Step, steps.Decode)) for function in called)
    # A shuffle may stand between the stages: it changes no item.
    return in_one_step(maps, functions) if in_c and all(map(steps.go_together, called, called[1:])) else functions


class Functions:
    """The functions of several stages, for `augment=`: `seeded` gets the seed of a sample in place of a generator."""

    takes_generator = True

    def __init__(self, maps: list[Map]) -> None:
        self.maps = maps

    def __call__(self, sample: Any, generator: Any) -> Any:
        raise TypeError("it takes a seed")

    def seeded(self, sample: Any, seed: int) -> Any:
        last = current().last
        last.begin()
        for each in self.maps:
            own = staged(seed, each.random - 1) if each.draws else 0
            sample = last.call(each.number, each.call, sample, None, own)
        return sample

    def where(self, index: int) -> str:
        """Names a sample in errors."""
        return self.maps[0].above[0].where(index)

    def __repr__(self) -> str:
        return "".join(each.shown() for each in self.maps)


class _BatchFunctions:
    """The functions below .batch()."""

    def __init__(self, maps: list[Map]) -> None:
        for each in maps:
            if each.draws:
                raise each.refuse("a batch has no element, so it has no random numbers: draw above .batch()")
        self._maps = maps
        self.named = "".join(each.shown() for each in maps)  # in errors

    def __call__(self, batch: Any) -> Any:
        last = current().last
        last.begin()
        for each in self._maps:
            batch = last.call(each.number, each.call, batch, None, 0)
            current().took(each.number)
        return batch
