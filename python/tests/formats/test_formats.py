"""What all formats keep: order, counts, random access, processes and threads, caches, checkpoints, and files that are
damaged or change."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import CASES, ONE_OF_EACH, Made, plain

from stocached import Loader, Pipe, source


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return CASES[request.param](tmp_path_factory.mktemp("case"))


@pytest.fixture
def own(case: Made, tmp_path: Path) -> Made:
    """A copy of the files, which a test may damage."""
    shutil.copytree(os.path.dirname(case.text), tmp_path / "own")
    return replace(case, text=str(tmp_path / "own" / os.path.basename(case.text)))


def opened(made: Made) -> Pipe:
    return source(made.text, **made.options)


_EMPTY = 4_210_000  # bytes of a cache without room for items


class Number:
    """The number of an item, as an array of 32 KiB."""

    def __init__(self, items: list[Any]) -> None:
        self.numbers = {repr(plain(item)): number for number, item in enumerate(items)}

    def __call__(self, item: Any) -> Any:
        return np.full(4096, self.numbers[repr(plain(item))])


def test_items_come_in_order_and_by_number(case: Made):
    pipe = opened(case)
    wanted = [*map(plain, case.items)]
    assert [*map(plain, pipe)] == wanted
    assert len(pipe) == len(wanted)
    for number in random.Random(1).choices(range(len(wanted)), k=20):
        assert plain(pipe[number]) == wanted[number]
        assert plain(pipe[number - len(wanted)]) == wanted[number]
    with pytest.raises(IndexError):
        pipe[len(wanted)]
    assert [*map(plain, pickle.loads(pickle.dumps(pipe)))] == wanted
    if case.counts is not None:
        assert pipe._stage.lengths().tolist() == case.counts
        assert f"{len(case.counts)} elements, {len(wanted)} items" in repr(pipe)


def test_threads_read_what_one_reads(case: Made):
    pipe = opened(case)
    with ThreadPoolExecutor(4) as pool:
        several = [*pool.map(lambda _: [*map(plain, pipe)], range(4))]
    assert several == [[*map(plain, case.items)]] * 4


def read(pipes: list[Pipe]) -> list[list[Any]]:
    return [[*map(plain, pipe)] for pipe in pipes]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_read_what_one_reads(method: str, tmp_path: Path):
    """All formats in two processes at a time. The parent has read before the fork, and reads after it."""
    several = []
    for number, make in enumerate(CASES.values()):
        (tmp_path / f"{number}").mkdir()
        several.append(make(tmp_path / f"{number}"))
    pipes = [*map(opened, several)]
    wanted = [[*map(plain, case.items)] for case in several]
    assert read(pipes) == wanted
    with multiprocessing.get_context(method).Pool(1) as pool:
        found = pool.apply_async(read, (pipes,))
        assert read(pipes) == wanted
        assert found.get(timeout=120) == wanted


def numbers(batches: Iterable[Any]) -> list[int]:
    return [number for batch in batches for number in batch[:, -1].tolist()]


@pytest.mark.parametrize(
    ("case", "workers"), [(name, 2 * (k % 2)) for k, name in enumerate(ONE_OF_EACH)], indirect=["case"]
)
def test_a_loader_shuffles_caches_a_half_and_resumes(case: Made, workers: int):
    n = len(case.items)
    elements = n if case.counts is None else len(case.counts)

    def made(share: float) -> Loader:
        pipe = opened(case).map(Number(case.items)).cache(_EMPTY + int(share * n * 32768))
        return Loader(pipe.shuffle(seed=3).batch(7), num_workers=workers)

    whole = made(1.5)
    first, second = numbers(whole), numbers(whole)
    assert sorted(first) == sorted(second) == [*range(n)]
    assert first != second != [*range(n)]
    assert whole.stats().misses == elements
    whole.close()
    half = made(0.6)
    assert numbers(half) == first
    misses = half.stats().misses
    batches, states = [], []
    for batch in half:
        batches.append(batch)
        states.append(half.state_dict())
    assert numbers(batches) == second
    assert half.stats().misses - misses <= 0.55 * elements
    half.close()
    resumed = made(1.5)
    resumed.load_state_dict(states[3])
    assert numbers(resumed) == second[28:]
    resumed.close()
