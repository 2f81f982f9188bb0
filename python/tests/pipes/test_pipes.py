"""A loader gives what docs/spec/pipes.md says, for each chain, kind of worker, rank and position in an epoch."""

from __future__ import annotations

import json
from typing import Any

import model
import numpy as np
import pytest
from chains import CHAINS, WORKED, Both, noisy, numbers

import stocached
from stocached import InvalidError, Loader

SEED = 11


@pytest.fixture(params=CHAINS)
def chain(request: pytest.FixtureRequest) -> Both:
    return CHAINS[request.param]()


def plain(value: Any) -> Any:
    """As lists of Python's numbers, for comparisons."""
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def items_of(batch: Any) -> list[Any]:
    """The items of a batch."""
    if isinstance(batch, (tuple, list)):
        return [list(item) for item in zip(*map(items_of, batch))]
    return plain(batch)


def expected(chain: Both, epoch: int, *, rank: int = 0, ranks: int = 1, size: int = 4) -> list[list[Any]]:
    return plain(model.batches(chain.plain.epoch(epoch, SEED, rank, ranks), size))


def read(loader: Loader) -> list[list[Any]]:
    return [items_of(batch) for batch in loader]


@pytest.mark.parametrize("name", CHAINS)
def test_batches_are_those_of_the_document(name: str):
    """Of the chains with workers, few have 1 worker or 5: workers take long to start."""
    chain, at = CHAINS[name](), WORKED.index(name) if name in WORKED else -1
    several = ((2, 2), (5 if at % 2 else 1, 1))[: 1 + (at % 5 == 0)] if at >= 0 else ()
    for workers, epochs in ((0, 2), *several):
        loader = Loader(chain.pipe.batch(4), seed=SEED, num_workers=workers, persistent_workers=workers == 2)
        for epoch in range(epochs):
            assert read(loader) == expected(chain, epoch)
        loader.close()


@pytest.mark.parametrize("name", WORKED)
def test_threads_make_the_same_batches(name: str):
    chain = CHAINS[name]()
    assert read(Loader(chain.pipe.batch(4), seed=SEED, num_workers=2, worker="thread")) == expected(chain, 0)


@pytest.mark.filterwarnings("ignore:.*makes a private cache")
@pytest.mark.parametrize("name", CHAINS)
def test_ranks_read_the_items_side_by_side(name: str):
    chain, at = CHAINS[name](), list(CHAINS).index(name)
    for rank in range(3) if name in WORKED else (at % 3,):
        loader = Loader(chain.pipe.batch(4), seed=SEED, rank=rank, world_size=3, ends="uneven")
        assert read(loader) == expected(chain, 0, rank=rank, ranks=3)


def test_a_pipe_alone_is_epoch_0_with_seed_0(chain: Both):
    items = plain(chain.plain.epoch(0))
    if chain.plain.indexed:
        assert len(chain.pipe) == len(items)
        assert plain(chain.pipe[-1]) == items[-1]
    else:
        with pytest.raises(TypeError, match="count="):
            len(chain.pipe)
        with pytest.raises(InvalidError, match="count="):
            chain.pipe[0]
    assert plain(list(chain.pipe)) == items


@pytest.mark.parametrize("name", CHAINS)
def test_a_loader_continues_from_each_batch(name: str):
    """Also at its end. The chains with workers continue with another number of workers too."""
    make, states = CHAINS[name], []
    chain = make()
    whole = expected(chain, 1)
    loader = Loader(chain.pipe.batch(4), seed=SEED)
    loader.set_epoch(1)
    for _ in loader:
        states.append(loader.state_dict())
    last, following = len(states) - 1, expected(chain, 2)
    for k, state in enumerate(states):
        assert len(json.dumps(state)) <= 200
        if k not in (0, last // 2, last) and not (k == 1 and name in WORKED):
            continue
        again = Loader(make().pipe.batch(4), seed=SEED, num_workers=2 if k == 1 and name in WORKED else 0)
        again.load_state_dict(json.loads(json.dumps(state)))
        assert read(again) == whole[k + 1 :]
        if k % 3 == 0:
            assert read(again) == following


def test_a_state_of_another_chain_is_refused():
    state = Loader(numbers(20).shuffle(seed=1).pipe.batch(4)).state_dict()
    with pytest.raises(stocached.StateError, match="seed=1"):
        Loader(numbers(20).shuffle(seed=2).pipe.batch(4)).load_state_dict(state)


def test_an_element_that_is_drawn_twice_draws_twice():
    chain = numbers(3).noise(noisy).weigh([1.0, 1.0, 1.0])
    items = [item for batch in read(Loader(chain.pipe.batch(3), seed=SEED)) for item in batch]
    assert len(set(items)) == 3
