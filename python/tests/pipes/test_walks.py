"""Chains drawn at random, beside docs/spec/pipes.md in Python. STOCACHED_TEST_WALKS: how many; `make soak` draws 10,000."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import chains
import model
import pytest
from chains import Both
from test_pipes import SEED, expected, plain

from stocached import Loader

WALKS = int(os.environ.get("STOCACHED_TEST_WALKS", "96"))


def small(x: Any, generator: Any) -> int:
    return number(x) % 50 + int(generator.integers(50))


def number(x: Any) -> int:
    """A whole number of any item."""
    return sum(map(number, x)) if isinstance(x, (tuple, list)) else int(x)


def lucky(x: Any, generator: Any) -> bool:
    return bool(generator.random() < 0.7)


def odd(x: Any) -> bool:
    return number(x) % 2 == 1


def spread(x: Any) -> Any:
    for k in range(number(x) % 4):
        yield 10 * number(x) + k


def twice(x: Any) -> Any:
    return [number(x), number(x) + 500]


def some(x: Any, generator: Any) -> Any:
    return [int(generator.integers(90)) for _ in range(int(generator.integers(3)))]


class Walk:
    """Draws stages that may follow each other."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def chain(self, depth: int = 0) -> Both:
        both = self._start(depth)
        for _ in range(self.draw.randrange(6 - 2 * depth)):
            both = self._longer(both)
        return both

    def _start(self, depth: int) -> Both:
        draw, n = self.draw, self.draw.randrange(1, 30)
        kind = draw.choice(["numbers", "numbers", "parts"] + ["join", "mix", "zip"] * (depth < 2))
        if kind == "numbers":
            return chains.numbers(n, draw.randrange(100))
        if kind == "parts":
            return chains.parts(spread, n)
        if kind == "zip":
            data = chains.numbers(n)
            if draw.random() < 0.5:
                return data.shuffle(seed=1).map(number).zip(chains.numbers(n).shuffle(seed=2), in_order=False)
            lists = data.flat_map(spread)
            return lists.map(number, random=False).zip(lists.noise(small), in_order=True)
        sides = [self.chain(depth + 1) for _ in range(2)]
        if kind == "join":
            return sides[0] + sides[1]
        weights = [draw.randrange(1, 4) for _ in sides]
        indexed = all(side.plain.indexed for side in sides)
        stop = draw.choice(["first", draw.randrange(1, 20)] + ["all"] * indexed)
        return chains.mixed(*sides, weights=weights, seed=draw.randrange(9), stop=stop)

    def _longer(self, both: Both) -> Both:
        draw, indexed = self.draw, both.plain.indexed
        seed = draw.choice([None, draw.randrange(99)])
        stages: list[Callable[[], Both]] = [
            lambda: both.map(number),
            lambda: both.noise(small),
            lambda: both.filter(odd),
            lambda: both.filter(lucky, random=True),
            lambda: both.flat_map(spread),
            lambda: both.flat_map(some, random=True),
            lambda: both.shuffle(seed, window=None if indexed else draw.choice([None, draw.randrange(1, 9)])),
            lambda: both.weigh([float(draw.randrange(4)) + 0.5 for _ in range(len(both.plain.visits(0, 0)))], seed),
            lambda: both.map(number).counted(twice, 2),
        ]
        try:
            return draw.choice(stages)()
        except ValueError:  # the chain is refused, such as a second shuffle; test_stages.py has those
            return both


def measures(both: Both, at: str, epoch: int) -> bool:
    """Whether the pipe could be measured. Then its length, its items and equal ends are those of the document."""
    if both.plain.indexed or model.varies(both.plain):
        return False
    both.pipe.measure()
    items, ranks = plain(both.plain.epoch(0)), 2
    assert len(both.pipe) == len(items), at
    for index in range(0, len(items), max(1, len(items) // 3)):
        assert plain(both.pipe[index]) == items[index], at
    if not all(both.plain.epoch(each, SEED, rank, ranks) for rank in range(ranks) for each in (0, epoch)):
        return True
    for rank in range(ranks):
        ends = "pad" if epoch else "drop"
        whole = plain(model.batches(both.plain.epoch(epoch, SEED, rank, ranks, ends), 3))
        loader = Loader(both.pipe.batch(3, collate=list), seed=SEED, rank=rank, world_size=ranks, ends=ends)
        loader.set_epoch(epoch)
        assert [plain(batch) for batch in loader] == whole, at
    return True


@pytest.mark.parametrize("part", range(8))
def test_chains_drawn_at_random_give_what_the_document_says(part: int):
    longest, without_index, measured = 0, 0, 0
    for seed in range(part, WALKS, 8):
        both, collate = Walk(seed).chain(), list
        if seed % 2:
            both, collate = both.map(number), None
        without_index += not both.plain.indexed
        at = f"chain {seed}:\n{both.pipe}"
        epoch, ranks = seed % 3, 1 + seed % 2
        assert plain(list(both.pipe)) == plain(both.plain.epoch(0)), at
        for rank in range(ranks):
            whole = expected(both, epoch, rank=rank, ranks=ranks, size=3)
            pipe = both.pipe.batch(3, collate=collate)
            loader = Loader(pipe, seed=SEED, rank=rank, world_size=ranks, ends="uneven")
            loader.set_epoch(epoch)
            stop, state, made = seed % 4, None, []
            for batch in loader:
                made.append(plain(batch))
                if len(made) == stop:
                    state = json.dumps(loader.state_dict())
            assert made == whole, at
            longest = max(longest, len(whole))
            several = seed % 32 == part
            if state is not None or several:
                workers = 2 if several else 0
                again = Loader(pipe, seed=SEED, rank=rank, world_size=ranks, ends="uneven", num_workers=workers)
                again.set_epoch(epoch)
                if state is not None:
                    again.load_state_dict(json.loads(state))
                assert [plain(batch) for batch in again] == (whole if state is None else whole[stop:]), at
        measured += measures(both, at, epoch)
    assert longest > 3
    assert measured > WALKS // 8 // 16
    assert without_index > WALKS // 8 // 4
