"""Checkpoints with hostile values: each is a StateError at once, or the right batches."""

from __future__ import annotations

import copy
import itertools
import json
import random
from typing import Any

import numpy as np
import pytest

from stocached import InvalidError, Loader, StateError, source
from stocached.prepare import BlockSampler
from stocached.streams import Streams

HOSTILE = [
    -1,
    2**31,
    2**63,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    "x",
    "3",
    None,
    [],
    {},
    [1],
    {"a": 1},
    b"x",
    np.array([1, 2]),
]
DATA = np.arange(40)


def places(value: Any, place: tuple = ()):
    if place:
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*place, key))


def mutants(state: dict, seed: int, count: int):
    """States with one hostile value, or one value less."""
    draw = random.Random(seed)
    every = list(itertools.product(places(state), [*HOSTILE, "without"]))
    for place, value in draw.sample(every, min(count, len(every))):
        mutant = copy.deepcopy(state)
        inner = mutant
        for key in place[:-1]:
            inner = inner[key]
        if isinstance(value, str) and value == "without":
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        yield place, value, mutant


def check(make, state: dict, count: int) -> None:
    refused = 0
    for place, value, mutant in mutants(state, 1, count):
        loader = make()
        try:
            loader.load_state_dict(mutant)
        except (StateError, InvalidError):
            refused += 1
            list(make())  # nothing is left of it
            continue
        try:
            batches = [np.asarray(getattr(batch, "items", batch)).tolist() for batch in itertools.islice(loader, 50)]
        except (StateError, InvalidError):
            assert place[0] in ("batches", "skip"), (place, value)  # how many there are, only reading shows
            continue
        assert batches, (place, value)
        assert set(itertools.chain(*batches)) <= set(range(40)), (place, value)
    assert refused > count // 4


def ten(file):
    return range(4 * file, 4 * file + 4)


def rows():
    return Loader(source(list(range(10))).shuffle().flat_map(ten).batch(2, rows=True, lengths=[4] * 10), seed=1)


def streams():
    return Streams(list(range(10)), 2, ten, seed=1)


def of_torch():
    from stocached.torch import DataLoader

    return DataLoader(np.arange(40), 4, shuffle=True)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: Loader(DATA, 4, seed=1), 60),
        (lambda: Loader(source(DATA).flat_map(lambda number: [number] * (number % 3)).batch(4), seed=1), 120),
        (rows, 120),
        (streams, 120),
        pytest.param(of_torch, 250, marks=pytest.mark.torch),
    ],
    ids=["seed", "lists", "rows", "streams", "torch"],
)
def test_states(make, count):
    loader = make()
    next(iter(loader))
    check(make, json.loads(json.dumps(loader.state_dict())), count)


@pytest.mark.parametrize("make", [rows, streams, lambda: Loader(DATA, 4, seed=1), lambda: BlockSampler(40, seed=1)])
def test_what_is_no_state_at_all(make):
    for given in (None, 3, True, "x", b"x", [], [None], {}, {"version": 1}, np.array([1, 2])):
        with pytest.raises((StateError, InvalidError)):
            make().load_state_dict(given)


def test_a_state_that_the_generator_of_the_loader_does_not_take():
    def make(generator=None):
        return Loader(DATA, 4, sampler=range(40), generator=generator)

    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateError, match="of another kind of generator: ValueError: state must be for a PCG64"):
        make(np.random.default_rng(1)).load_state_dict(state)
    loader = make(np.random.Generator(np.random.MT19937(1)))
    loader.load_state_dict(state)
    assert next(iter(loader)).tolist() == [4, 5, 6, 7]


def forty() -> Any:
    """An iterable dataset of torch."""
    torch = pytest.importorskip("torch")

    class Forty(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(40))

    return Forty()


@pytest.mark.torch
def test_states_of_another_kind_of_loader():
    torch = pytest.importorskip("torch")
    from stocached.torch import DataLoader

    kinds = [lambda: DataLoader(torch.arange(40), 4, shuffle=True), lambda: DataLoader(forty(), 4)]
    states = []
    for make in kinds:
        loader = make()
        next(iter(loader))
        states.append(loader.state_dict())
    for make, state in zip(kinds, reversed(states)):
        with pytest.raises(StateError, match="is iterable|of an iterable dataset"):
            make().load_state_dict(state)
    states[0]["generators"]["start"].clear()
    with pytest.raises(StateError, match="no state of torch"):
        kinds[0]().load_state_dict(states[0])


@pytest.mark.torch
def test_states_of_workers():
    dataset = forty()
    from stocached.torch import DataLoader

    loader = DataLoader(dataset, 4, num_workers=1)
    next(iter(loader))
    state = loader.state_dict()
    workers = {key: state[key] for key in ("_snapshot", "_steps_since_snapshot")}
    refused = 0
    for place, value, mutant in mutants(workers, 1, 60):
        try:
            loader.load_state_dict(state | mutant)
            assert list(loader), (place, value)
        except StateError:
            refused += 1
    assert refused > 40


def test_states_of_a_block_sampler():
    def make():
        return BlockSampler(40, seed=1)

    sampler = make()
    next(iter(sampler))
    for _, value, mutant in mutants(sampler.state_dict(), 1, 100):
        fresh = make()
        try:
            fresh.load_state_dict(mutant)
        except (StateError, InvalidError):
            continue
        assert set(fresh) <= set(range(40)), value
