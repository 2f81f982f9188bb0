"""What the stages of a pipe have counted: items exactly, and who is the slowest."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import model
import numpy as np
import pytest
from chains import CHAINS as CHAINS_OF_BOTH
from trace_file import read as read_trace

from stocached import BadSampleError, Loader, Order, Pipe, image, source
from stocached._datasets.cached_samples import CachedSamples
from stocached._datasets.stage_stats import StageStats
from stocached._datasets.tally import Counters

WAYS: dict[str, dict[str, Any]] = {
    "here": {},
    "forked": {"num_workers": 2},
    "served": {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
    "threads": {"num_workers": 2, "worker": "thread"},
    "kept": {"num_workers": 2, "persistent_workers": True},
}
ROW = 40  # bytes of an array


def arrays(k: int) -> Iterator[Any]:
    """k mod 5 arrays."""
    for _ in range(k % 5):
        yield np.full(ROW, k, np.uint8)


def array(k: int) -> Any:
    return np.full(ROW, k, np.uint8)


def even(item: Any) -> bool:
    return item[0] % 2 == 0


def half(item: Any) -> Any:
    return item[: ROW // 2]


def dozing(batch: Any) -> Any:
    time.sleep(0.03)  # longer than a busy machine takes to load all items, which no function makes
    return batch


def napping(item: Any) -> Any:
    time.sleep(0.005)
    return item


def drawing(item: Any) -> Any:
    return item + np.uint8(random.random() < 0.5)


def same(batch: Any) -> Any:
    return batch


def first(pair: Any) -> Any:
    return pair[0]


def epoch(loader: Loader) -> int:
    return sum(len(batch) for batch in loader)


def items_of(loader: Loader) -> list[int]:
    return [stage.items for stage in loader.stats().stages]


N = 35  # elements, with 70 arrays, of which 34 are of even elements


def numbers() -> Pipe:
    return source(range(N))


def indexed() -> Pipe:
    return numbers().map(array)


def lists() -> Pipe:
    return numbers().flat_map(arrays)


EVEN = sum(k % 5 for k in range(0, N, 2))
PACKED = lists().pack(10 * ROW)
# The items of each stage in the first epoch, and in the second.
CHAINS: dict[str, tuple[Callable[[], Pipe], list[int], list[int]]] = {
    "filter": (
        lambda: lists().filter(even).map(half).batch(4).map(same),
        [N, 70, EVEN, EVEN, 9, 9],
        [N, 70, EVEN, EVEN, 9, 9],
    ),
    "global numbers": (
        lambda: indexed().flat_map(lambda item: [drawing(item)] * 3).map(drawing).shuffle(seed=2).batch(4),
        [N, N, 3 * N, 3 * N, 3 * N, 27],
        [N, N, 3 * N, 3 * N, 3 * N, 27],
    ),
    "a cache of lists": (
        lambda: lists().cache("8MiB").filter(even).batch(4),
        [N, 70, 70, EVEN, 9],
        [0, 0, 70, EVEN, 9],
    ),
    "rows of tokens": (lambda: PACKED.batch(1), [N, 70, 7, 7], [N, 70, 7, 7]),
    "an index and a cache": (
        lambda: indexed().cache("8MiB").shuffle(seed=1).map(half).batch(4).map(same),
        [N, N, N, N, N, 9, 9],
        [0, 0, N, N, N, 9, 9],
    ),
    "a zip in two orders": (
        lambda: indexed().cache("8MiB").shuffle(seed=1).zip(numbers().shuffle(seed=2)).map(first).batch(4),
        [N, N, N, N, N, N, N, N, 9],
        [0, 0, N, N, N, N, N, N, 9],
    ),
    "a cache that a zip reads": (
        lambda: indexed().cache("8MiB").zip(numbers()).map(first).batch(4),
        [N, N, N, N, N, N, 9],
        [0, 0, N, N, N, N, 9],
    ),
    "a cache that a cache reads": (
        lambda: indexed().cache("8MiB").map(half).cache("8MiB").batch(4),
        [N - 3, N - 3, N, N, N, 9],  # looks for the second cache have filled the first one with three
        [0, 0, 0, 0, N, 9],
    ),
    "two caches that a zip reads": (
        lambda: indexed().cache("8MiB").map(half).cache("8MiB").zip(numbers()).batch(4),
        [N - 3, N - 3, N, N, N, N, N, 9],
        [0, 0, 0, 0, N, N, N, 9],
    ),
    "two caches of lists": (
        lambda: lists().cache("8MiB").filter(even).cache("8MiB").map(half).batch(4),
        [N, 70, 70, EVEN, EVEN, EVEN, 9],
        [0, 0, 0, 0, EVEN, EVEN, 9],
    ),
}


# Workers take long to start. These chains tell: lists, a cache of lists, caches with an index, and a second order.
WORKED = ("filter", "a cache of lists", "a zip in two orders", "two caches that a zip reads")
SERVED = ("a cache of lists", "two caches that a zip reads")


@pytest.mark.parametrize(
    ("name", "way"),
    [(n, w) for n in CHAINS for w in WAYS if w in ("here", "threads") or n in (SERVED if w == "served" else WORKED)],
)
def test_items_are_exact(name: str, way: str):
    make, *wanted = CHAINS[name]
    pipe = make()
    loader = Loader(pipe, **WAYS[way])
    for epoch_items in wanted:
        before = loader.stats()
        list(loader)
        since = loader.stats() - before
        assert [stage.items for stage in since.stages] == epoch_items
    assert [stage.stage for stage in loader.stats().stages] == [line.strip() for line in str(pipe).splitlines()]
    loader.close()


@pytest.mark.parametrize("indexed", [True, False])
def test_a_cache_that_is_used_twice_counts_once(indexed: bool):
    cached = (source(range(20)).map(array) if indexed else source(range(20)).flat_map(arrays)).cache("8MiB")
    loader = Loader((cached + cached.map(half)).batch(4, collate=list))
    list(loader)
    stats = loader.stats()
    assert (stats.hits, stats.misses) == (20, 20)
    lines = [stage for stage in stats.stages if stage.stage.startswith(".cache")]
    assert [(line.hits, line.misses) for line in lines] == [(20, 20)] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_both_of_two_caches_have_hits_and_misses(workers: int):
    loader = Loader(indexed().cache("8MiB").map(half).cache("8MiB").batch(4), num_workers=workers)
    for _ in range(2):
        epoch(loader)
    stats = loader.stats()
    upper, lower = (stage for stage in stats.stages if stage.stage.startswith(".cache"))
    assert upper.misses == N - 3  # looks for the second cache have filled the first one with three
    assert upper.hits >= 3  # loads that are compared with others count too
    assert (lower.hits, lower.misses) == (N, N)
    assert (stats.hits, stats.misses) == (N, N)
    loader.close()


@pytest.mark.parametrize("way", ["here", "forked"])
@pytest.mark.parametrize("indexed", [True, False])
def test_bytes_are_those_of_the_arrays(indexed: bool, way: str):
    pipe = source(range(40)).map(array) if indexed else source(range(40)).map(array).filter(same_length)
    loader = Loader(pipe.map(half).batch(4), **WAYS[way])
    epoch(loader)
    by_line = {stage.stage: stage.bytes for stage in loader.stats().stages}
    assert by_line[".map(half)"] == by_line[".batch(4)"] == 40 * ROW // 2
    if indexed:
        cached = Loader(source(range(40)).map(array).cache("8MiB").shuffle(seed=1).map(half).batch(4), **WAYS[way])
        epoch(cached)
        assert [stage.bytes for stage in cached.stats().stages[1:4]] == [40 * ROW] * 3
        cached.close()
    else:
        assert by_line[".map(array)"] == by_line[".filter(same_length)"] == 40 * ROW
    loader.close()


def same_length(item: Any) -> bool:
    return len(item) == ROW


NAPPING = ".map(napping)"
SLOW: dict[str, tuple[Callable[[], Pipe], str]] = {
    "last": (lambda: lists().map(half).map(napping).batch(4), NAPPING),
    "not last": (lambda: lists().map(napping).shuffle(seed=1).map(half).batch(4), NAPPING),
    "a generator": (
        lambda: numbers().flat_map(lambda k: map(napping, arrays(k))).map(half).batch(4),
        ".flat_map(<lambda>)",
    ),
    "above a cache of lists": (lambda: lists().map(napping).cache("8MiB").map(half).batch(4), NAPPING),
    "above a cache": (lambda: indexed().map(napping).cache("8MiB").map(half).batch(4), NAPPING),
    "above a cache in a zip": (
        lambda: indexed().map(napping).cache("8MiB").shuffle(seed=1).zip(numbers().shuffle(seed=2)).batch(4),
        NAPPING,
    ),
    "above two caches in a zip": (
        lambda: indexed().map(napping).cache("8MiB").map(half).cache("8MiB").zip(numbers()).batch(4),
        NAPPING,
    ),
    "below a cache": (lambda: indexed().cache("8MiB").map(half).map(napping).batch(4), NAPPING),
    "a side of a zip": (
        lambda: numbers().map(napping).shuffle(seed=1).zip(numbers().shuffle(seed=2)).map(first).batch(4),
        NAPPING,
    ),
    "in whole batches": (lambda: indexed().cache("8MiB").map(napping).batch(4, collate=list), NAPPING),
    "of batches": (lambda: indexed().batch(1).map(dozing), ".map(dozing)"),
    "a collate function": (lambda: lists().batch(1, collate=napping), ".batch(1, collate=napping)"),
}


@pytest.mark.parametrize(
    ("name", "way"), [(n, w) for k, n in enumerate(SLOW) for w in ("here", ("forked", "threads")[k % 2])]
)
def test_the_slowest_stage_is_named(name: str, way: str):
    make, line = SLOW[name]
    loader = Loader(make(), **WAYS[way])
    list(loader)
    stats = loader.stats()
    assert stats.slowest is not None
    assert stats.slowest.stage == line
    assert stats.slowest.seconds >= 0.005 * N * 0.9  # a sleep is never shorter
    assert min(stage.seconds for stage in stats.stages) >= 0
    assert f"the slowest stage: {line}, " in str(stats)
    loader.close()


@pytest.mark.parametrize("way", ["here", "forked", "threads"])
@pytest.mark.parametrize("cached", [False, True])
def test_arguments_are_the_stages_of_a_pipe(cached: bool, way: str):
    data, size = [array(k) for k in range(N)], "8MiB" if cached else None
    pipe = (source(data).cache(size) if cached else source(data)).shuffle(seed=1).map(napping).batch(4).map(same)
    told = []
    for loader in (
        Loader(pipe, **WAYS[way]),
        Loader([*data], 4, shuffle=True, seed=1, size=size, augment=napping, batch_augment=same, **WAYS[way]),
    ):
        before = loader.stats()
        for _ in range(2):
            epoch(loader)
            since, before = loader.stats() - before, loader.stats()
            told.append([(each.stage, each.items, each.hits, each.misses) for each in since.stages])
            napped, batch = since.stages[-3:-1]
            assert napped.seconds >= 0.005 * N * 0.9  # a sleep is never shorter
            assert napped.bytes == batch.bytes == N * ROW
        loader.close()
    assert told[:2] == told[2:]


def test_attributes_that_a_program_sets_are_stages():
    loader = Loader(range(N), batch_size=5, collate_fn=list, drop_last=True, sampler=[3, 1] * 4)
    lines = ["source(range, 35 elements)", ".sampler(list)", ".batch(5, collate=list, drop_last=True)"]
    assert [stage.stage for stage in loader.stats().stages] == lines
    loader.augment, loader.batch_augment = same, dozing
    epoch(loader)
    stages = loader.stats().stages
    assert [stage.stage for stage in stages] == [*lines[:2], ".map(same)", lines[2], ".map(dozing)"]
    assert [stage.items for stage in stages] == [5, 5, 5, 1, 1]
    assert stages[-1].seconds >= 0.03


class Endless:
    def __len__(self) -> int:
        raise RuntimeError("it has no end")

    def __getitem__(self, index: int) -> int:
        return index


def test_every_loader_says_what_it_is():
    lines = [[stage.stage for stage in loader.stats().stages] for loader in (
        Loader({1, 2, 3}, batch_size=2),
        Loader(range(N), batch_size=None, order="shuffled", seed=None),
        Loader(range(N), batch_sampler=[[1, 2], [3]]),
        Loader(Endless(), sampler=[1, 2]),
        Loader(range(N), order=Order(N, "windows", window=5)),
        Loader(CachedSamples(range(N), size="8MiB"), shuffle=True),
    )]  # fmt: skip
    assert lines == [
        ["source(set)", ".batch(2)"],
        ["source(range, 35 elements)", ".shuffle(seed=0)"],
        ["source(range, 35 elements)", ".batch(list)"],
        ["source(Endless)", ".sampler(list)", ".batch(1)"],
        ["source(range, 35 elements)", ".shuffle(order=windows)", ".batch(1)"],
        ["source(range, 35 elements)", ".cache()", ".shuffle()", ".batch(1)"],
    ]


def test_the_slowest_stage_is_above_a_cache_that_was_made_before():
    pipe = indexed().map(napping).cache("8MiB")
    assert (pipe[0] == array(0)).all()
    loader = Loader(pipe.batch(4))
    epoch(loader)
    slowest = loader.stats().slowest
    assert slowest is not None
    assert slowest.stage == ".map(napping)"


def test_a_pipe_counts_after_it_was_read_alone():
    pipe = (source(range(5)) + source(range(6))).map(array).filter(even)
    alone = len([*pipe])
    loader = Loader(pipe.batch(4))
    assert epoch(loader) == alone == 6
    assert items_of(loader) == [5, 6, 11, 11, 6, 2]


def late(item: Any) -> Any:
    """The first item takes long."""
    if not np.any(item):
        time.sleep(0.5)
    return item


ONE_IS_SLOW = {
    "a last function": lambda: source(range(40)).flat_map(thousand).map(late),
    "not last": lambda: source(range(40)).flat_map(thousand).map(late).filter(any_item).map(same),
    "of an element": lambda: source(range(5000)).map(late).flat_map(twenty).map(same),
    "above a cache": lambda: source(range(3000)).map(array_of).map(late).map(same).cache("8MiB"),
}


def thousand(k: int) -> Any:
    return range(1000 * k, 1000 * k + 1000)


def any_item(item: Any) -> bool:
    return True


def twenty(k: int) -> Any:
    return [k] * 20


def array_of(k: int) -> Any:
    return np.full(1, k)


@pytest.mark.parametrize(("name", "way"), [*((name, "here") for name in ONE_IS_SLOW), ("of an element", "forked")])
def test_one_slow_item_stands_for_itself(name: str, way: str):
    loader, start = Loader(ONE_IS_SLOW[name]().batch(64), **WAYS[way]), time.monotonic()
    list(loader)
    took = time.monotonic() - start
    by_line = {stage.stage: stage.seconds for stage in loader.stats().stages}
    assert by_line[".map(late)"] >= 0.5 * 0.99
    assert sum(by_line.values()) <= took * max(1, WAYS[way].get("num_workers", 0))
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_items_of_a_dropped_batch_were_read(workers: int):
    """Docs of StageStats."""
    loader = Loader(lists().filter(even).map(half).batch(8, drop_last=True), num_workers=workers)
    assert epoch(loader) == EVEN // 8 * 8
    *read, finished, batches = items_of(loader)
    assert (read, batches) == ([N, 70, EVEN], EVEN // 8)
    assert EVEN // 8 * 8 <= finished <= EVEN
    loader.close()
    loader = Loader((source(range(N)) + source(range(5))).map(array).batch(16, drop_last=True), num_workers=workers)
    assert epoch(loader) == 32
    assert items_of(loader) == [32, 0, 32, 32, 2]  # with an index only what is given is read
    loader.close()


def test_a_part_of_the_items_says_how_long_all_take():
    def busy(k: int) -> Any:
        for j in range(2000):
            spin()
            yield j

    def spin() -> None:
        until = time.thread_time_ns() + 20_000
        while time.thread_time_ns() < until:
            pass

    loader = Loader(source(range(20)).flat_map(busy).map(same).batch(50))
    assert epoch(loader) == 40_000
    stages = loader.stats().stages
    assert stages[1].seconds > 0.5 * 40_000 * 20e-6
    assert stages[1].seconds > 3 * (stages[0].seconds + stages[2].seconds)
    assert [stage.items for stage in stages] == [20, 40_000, 40_000, 800]


def test_stats_of_a_pipe_that_was_not_read_name_no_slowest():
    loader = Loader(source(range(4)).filter(bool).batch(2))
    assert loader.stats().slowest is None
    assert "slowest" not in str(loader.stats())
    assert Loader(list(range(4))).stats().slowest is None


def test_a_resumed_loader_counts_what_it_gives():
    pipe = lists().filter(even).map(half).batch(2)
    loader = Loader(pipe)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    for workers in (0, 1, 2):
        resumed = Loader(pipe, num_workers=workers)
        resumed.load_state_dict(state)
        assert sum(len(batch) for batch in resumed) == EVEN - 10
        assert [stage.items for stage in resumed.stats().stages][-2:] == [EVEN - 10, (EVEN - 10) // 2]
        before = resumed.stats()
        epoch(resumed)
        assert [stage.items for stage in (resumed.stats() - before).stages] == [N, 70, EVEN, EVEN, EVEN // 2]
        resumed.close()


class Shot:
    """Kills its process at some element, once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, k: int) -> Iterator[Any]:
        if k == 20 and os.getpid() != PARENT:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return arrays(k)


PARENT = os.getpid()


def test_sums_hold_after_the_death_of_a_worker(tmp_path: Path):
    bullet = tmp_path / "bullet"
    bullet.write_text("")
    loader = Loader(
        source(range(N)).flat_map(Shot(bullet)).filter(even).map(half).batch(4), num_workers=2, restart_workers=True
    )
    for number in (1, 2):
        assert epoch(loader) == EVEN
        assert items_of(loader)[2:] == [number * EVEN, number * EVEN, number * 9]
    assert not bullet.exists()
    loader.close()


def test_items_that_are_left_out_count_in_no_stage_below():
    def odd_fails(item: Any) -> Any:
        if item[0] % 2:
            raise BadSampleError("it is odd")
        return item

    for make, counts in (
        (lambda: lists().map(odd_fails).filter(same_length).batch(16), [N, 70, EVEN, EVEN]),
        (lambda: lists().map(half).map(odd_fails).batch(16), [N, 70, 70, EVEN]),
        (lambda: lists().map(odd_fails).cache("8MiB").batch(16), [N, 70, EVEN, EVEN]),
    ):
        for workers in (0, 2):
            loader = Loader(make(), num_workers=workers, bad_samples="skip")
            with pytest.warns(UserWarning, match="left out"):
                assert epoch(loader) == EVEN
            assert items_of(loader)[:4] == counts
            loader.close()


def test_pictures_that_c_makes_are_of_the_source(tmp_path: Path):
    from PIL import Image

    (tmp_path / "a").mkdir()
    for k in range(12):
        Image.fromarray(np.full((64, 64, 3), k, np.uint8)).save(tmp_path / "a" / f"{k}.jpg")
    pipe = source(image.Folder(tmp_path)).shuffle(seed=1).map(image.RandomResizedCrop(32)).batch(4)
    loader = Loader(pipe, num_workers=2, worker="native")
    list(loader)
    stages = loader.stats().stages
    assert [stage.items for stage in stages] == [12, 12, 12, 3]
    assert stages[0].seconds > 0
    assert stages[2].seconds > 0
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_timeline_has_the_seconds_of_stages(tmp_path: Path, workers: int):
    path = tmp_path / "run.json"
    pipe = lists().filter(even).map(napping).batch(4)
    loader = Loader(pipe, num_workers=workers, trace=str(path))
    for _ in range(2):
        assert epoch(loader) == EVEN
    stats = loader.stats()
    loader.close()
    seconds: Counter[str] = Counter()
    for event in read_trace(path)["traceEvents"]:
        if event["ph"] == "X":
            seconds[event["name"]] += event["dur"] / 1e6
    lines = [stage.stage for stage in stats.stages]
    assert stats.slowest is not None
    assert max(lines, key=lambda line: seconds[line]) == stats.slowest.stage == ".map(napping)"
    # Spans leave out waits for a processor.
    assert 0.005 * EVEN < seconds[".map(napping)"] <= stats.slowest.seconds * 1.01
    assert sum(seconds[line] for line in lines) <= seconds["load"] * 1.01
    assert json.loads(path.read_text())["otherData"]["format"] == "stocached trace"


def counted(stage: model.Pipe, visits: list[model.Visit], at: model.At, kept: dict[int, set[int]]) -> list[int]:
    """The items of each line that a plain program counts. kept: the elements of each cache."""
    lines: list[int] = []
    sides = [visits] * len(stage.above)
    if type(stage) is model.Pipe:  # a cache
        there = kept.setdefault(id(stage), set())
        missed = {visit.element: visit for visit in visits if visit.element not in there}
        sides = [[*missed.values()]]
        there.update(missed)
    elif isinstance(stage, model.Join):
        sides = [[visit.inner[1] for visit in visits if visit.inner[0] == d] for d in range(len(stage.above))]
    elif isinstance(stage, model.Zip):
        sides = [[visit.inner[d] for visit in visits] for d in range(len(stage.above))]
    elif isinstance(stage, model.Counted):  # a list counts with its first item
        firsts = {sum(stage.counts[:e]): e for e, count in enumerate(stage.counts) if count}
        above = stage.above[0].visits(at.epoch, at.seed)
        sides = [[above[firsts[visit.element]] for visit in visits if visit.element in firsts]]
    for side, some in zip(stage.above, sides):
        if not (isinstance(side, model.Source) and isinstance(side.data, range)):  # the numbers of parts have no line
            lines += counted(side, some, at, kept)
    return [*lines, len(visits) if stage.indexed else len(stage.items(visits, at))]


# Looks fill the first of two caches, and a batch may draw an element twice before a cache has it.
BUT = ("two caches", "weights, cache")
COUNTED = [(name, 0) for name in CHAINS_OF_BOTH if name not in BUT]
COUNTED += [(name, 2) for name in ("join, cache below", "mix, cache below", "counted, random side", "counted twice")]


@pytest.mark.parametrize(("name", "workers"), COUNTED)
def test_items_are_those_of_the_model(name: str, workers: int):
    both = CHAINS_OF_BOTH[name]()
    plain, kept = both.plain, dict[int, set[int]]()
    loader = Loader(both.pipe.batch(4, collate=list), seed=9, num_workers=workers)
    for number in range(2):
        before = loader.stats()
        list(loader)
        visits = plain.visits(number, 9)
        span = len(visits) if plain.indexed else 1 if plain.span is None else plain.span or 1024
        windows = [visits[at : at + span] for at in range(0, len(visits), span)]
        wanted = [counted(plain, some, model.At(9, number, w), kept) for w, some in enumerate(windows)]
        assert [stage.items for stage in (loader.stats() - before).stages][:-1] == [*map(sum, zip(*wanted))]
    loader.close()


def test_each_worker_counts_in_a_row_of_its_own():
    chain: Any = SimpleNamespace(lines=[".map(f)"], batch=-1)
    counters = Counters(chain, 700)
    assert len({counters.row_of(worker) for worker in range(700)} - {0}) == 700
    assert max(map(counters.row_of, range(700))) < len(counters.table)


def test_differences_are_of_each_number():
    one, other = StageStats(".map(f)", 9, 3.0, 40, 2, 1), StageStats(".map(f)", 4, 1.0, 10, 1, 1)
    assert one - other == StageStats(".map(f)", 5, 2.0, 30, 1, 0)


def test_the_seconds_of_an_epoch_are_not_below_0():
    """The first items of a stage took long, and few of the others were measured."""
    before = StageStats(".map(first)", items=100, seconds=9.0, bytes=800)
    assert StageStats(".map(first)", items=300, seconds=4.0, bytes=900) - before == StageStats(
        ".map(first)", 200, 0, 100
    )


def test_a_list_is_made_once_whether_its_items_are_measured_or_not():
    made: list[int] = []

    def four(k: int) -> list[int]:
        made.append(k)
        return [k] * 4

    stage = source(range(3)).flat_map(four, count=4)._stage
    visits = stage.visits(0, 0)
    assert [(stage, stage.measured)[p % 2].item(visits.at(p), 0) for p in range(8)] == [0] * 4 + [1] * 4
    assert made == [0, 1]
