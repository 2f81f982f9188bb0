"""source(files).shuffle(seed=seed).flat_map(read).batch(n, rows=True), side by side with `Streams` on the same files."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stateful_files
from stateful_files import Around, Lines, SeekingShuffled, Shuffled, ShuffledFiles
from stream_files import Breaking, Files, SeekingFiles, collect, expected, lengths_of, loader, pids, pipe, streams

from stocached import InvalidError, Loader, StateError, StreamError, source
from stocached._order.order import Order
from stocached._random.sample_generator import generator as generator_of
from stocached._random.sample_seeds import chained, sample_seed
from stocached.streams import StreamBatch, Streams


def equal(batch: Any, other: Any) -> None:
    """Bit for bit, with types."""
    assert type(batch) is StreamBatch
    assert plain(batch) == plain(other)


def plain(value: Any) -> Any:
    """A batch as types, shapes and bytes."""
    if isinstance(value, dict):
        return [(key, plain(child)) for key, child in value.items()]
    if isinstance(value, (tuple, list)):
        return [type(value), *map(plain, value)]
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def side_by_side(ours: Any, theirs: Any, most: int = 10**9) -> list[Any]:
    """Iterates over both, and returns the state before each batch, and that after the last one."""
    states = []
    for batch, other in itertools.zip_longest(itertools.islice(ours, most), itertools.islice(theirs, most)):
        equal(batch, other)
        states.append(round_trip(ours, theirs))
    return [*states, round_trip(ours, theirs)]


def round_trip(ours: Any, theirs: Any) -> Any:
    state = ours.state_dict()
    assert state == theirs.state_dict()
    assert list(state) == list(theirs.state_dict())
    return json.loads(json.dumps(state))


# ------------------------------------------------------------ the same as Streams


@pytest.mark.parametrize(
    ("workers", "known", "ends"),
    [(0, known, ends) for known in (False, True) for ends in ("pad", "drop", "cycle")]
    + [
        (1, False, "drop"),
        (1, True, "pad"),
        (1, False, "cycle"),
        (3, True, "cycle"),
        (3, False, "pad"),
        (3, True, "drop"),
    ],
)
def test_batches_states_and_ends_are_those_of_streams(workers: int, known: bool, ends: str):
    first = 10 * workers + (known == (ends == "pad"))
    for seed in range(first, first + (5 if workers == 0 else 1)):
        rows = 1 + seed % 6
        lengths = lengths_of(seed, least=rows if ends == "drop" else 1)
        settings = {"known": known, "ends": ends, "seed": seed}
        ours, theirs = loader(lengths, rows, num_workers=workers, **settings), streams(lengths, rows, **settings)
        for _ in range(2):
            if known and ends != "cycle":
                assert len(ours) == len(theirs)
            side_by_side(ours, theirs, 40)
        for epoch in (7, 0):
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            side_by_side(ours, theirs, 5)


@pytest.mark.parametrize(
    ("ranks", "known", "workers"),
    [(1, False, 0), (2, False, 0), (3, False, 0), (2, True, 0), (3, True, 0), (3, False, 2), (2, True, 2)],
)
def test_ranks_are_those_of_streams(ranks: int, known: bool, workers: int):
    lengths, given = lengths_of(5), []
    for rank in range(ranks):
        settings = {"known": known, "rank": rank, "world_size": ranks, "uneven": True}
        ours, theirs = loader(lengths, 2, num_workers=workers, **settings), streams(lengths, 2, **settings)
        side_by_side(ours, theirs)
        ours.set_epoch(0)
        given += [(f, k) for batch in ours for f, k, real in zip(batch.files, batch.positions, batch.mask) if real]
    assert sorted(given) == [(file, k) for file, length in enumerate(lengths) for k in range(length)]  # each item once


@pytest.mark.parametrize(("workers", "known"), [((0, 2), False), ((1, 5), True), ((3, 0), False), ((3, 0), True)])
def test_a_state_of_each_batch_is_continued_by_both(workers: tuple[int, int], known: bool):
    """By other numbers of workers; the loader continues from a state of the class, and the class from one of the
    loader."""
    lengths = lengths_of(9, least=4)
    settings = {"known": known}
    ours, theirs = loader(lengths, 4, num_workers=workers[0], **settings), streams(lengths, 4, **settings)
    want = expected(lengths, 4)
    states = side_by_side(ours, theirs)
    states = [loader(lengths, 4, **settings).state_dict(), *states[:-2], states[-1]]
    assert len(states) == len(want) + 1 > 6
    assert states[-1]["epoch"] == 1
    for step, state in enumerate(states[:-1]):
        if workers[1] and step not in (0, 1, 3, 4, len(want)):
            continue  # workers take long to start
        second = loader(
            lengths, 4, num_workers=workers[1], read=SeekingFiles(lengths) if step % 2 else None, **settings
        )
        second.load_state_dict(state)
        assert second.state_dict() == state
        if known:
            assert len(second) == len(want) - step
        if step % 3 == 0:  # a loop that has itself continued
            assert collect(second, 2) == want[step : step + 2]
            third = streams(lengths, 4, **settings)
            third.load_state_dict(second.state_dict())
            assert collect(third) == want[step + 2 :]
        else:
            assert collect(second) == want[step:]
            assert collect(second) == expected(lengths, 4, epoch=1)


def test_the_states_of_all_ranks_are_loaded_by_each():
    """Where lengths are not known, and a reader has states, a rank has those of its own rows."""
    lengths = lengths_of(9)
    first = [loader(lengths, 2, rank=rank, world_size=2, uneven=True) for rank in range(2)]
    for each in first:
        collect(each, 2)
    states = [each.state_dict() for each in first]
    for rank in range(2):
        second = loader(lengths, 2, rank=rank, world_size=2, uneven=True)
        second.load_state_dict(states)
        assert second.state_dict() == states[rank]
        want = [step[2 * rank : 2 * rank + 2] for step in expected(lengths, 4, groups=2)[2:]]
        assert collect(second) == [rows for k, rows in enumerate(want) if any(itertools.chain(*want[k:]))]
        with pytest.raises(StateError, match="give the states of all ranks"):
            second.load_state_dict(states[1 - rank])


# ------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_file_that_fails_ends_the_iteration_where_streams_end(workers: int, known: bool):
    lengths = [4, 5, 6, 7, 8, 3, 2, 3]
    settings = {"known": known, "read": Breaking(lengths), "shuffle": False}
    ours, theirs = loader(lengths, 3, num_workers=workers, **settings), streams(lengths, 3, **settings)
    errors = []
    for each in (ours, theirs):
        with pytest.raises(StreamError) as caught:
            collect(each)
        errors.append(caught.value)
    assert (errors[0].number, errors[0].item) == (errors[1].number, errors[1].item)
    assert isinstance(errors[0].__cause__, ZeroDivisionError)
    assert str(errors[0]).startswith("file 3 (3), item 2, row 0")
    state = round_trip(ours, theirs)
    whole = loader(lengths, 3, known=known, shuffle=False, num_workers=2)
    whole.load_state_dict(state)  # the file is readable again
    assert collect(whole) == expected(lengths, 3, shuffle=False)[state["step"] :]


def test_an_iteration_that_failed_ends_and_its_state_stays():
    lengths = [4, 5, 6, 7, 8, 3, 2, 3]
    ours = loader(lengths, 3, read=Breaking(lengths), shuffle=False)
    batches = iter(ours)
    with pytest.raises(StreamError):
        list(batches)
    state = ours.state_dict()
    assert next(batches, None) is None
    assert ours.state_dict() == state
    assert state["epoch"] == 0


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_files_that_fail_are_left_out_as_of_streams(workers: int, known: bool):
    lengths = [4, 5, 6, 7, 8, 3, 2, 3]
    settings = {"known": known, "read": Breaking(lengths), "shuffle": False, "errors": "skip"}
    ours, theirs = loader(lengths, 3, num_workers=workers, **settings), streams(lengths, 3, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.warns(UserWarning, match="a bad sample was left out.*sample") as caught:
            side_by_side(ours, theirs)
    assert sum("bad sample" in str(each.message) for each in caught) == 1
    stats = ours.stats()
    assert stats.bad_samples == 2
    assert sorted((bad.index, bad.file) for bad in stats.bad) == [(3, "3"), (5, "5")]
    reasons = {bad.index: bad.reason for bad in stats.bad}
    assert "left out from item 2 on: ZeroDivisionError: in the middle" in reasons[3]


# ------------------------------------------------------------ readers with states


@pytest.mark.parametrize(
    ("kind", "workers", "every"),
    [
        (kind, workers, (1, 4)[(k + turn) % 2])
        for k, kind in enumerate((Shuffled, Lines, Around, "seeking"))
        for turn, workers in enumerate(((0, 3), (3, 0)))
    ],
)
def test_states_of_readers_are_those_of_streams(workers: tuple[int, int], kind: Any, every: int):
    lengths = [9, 3, 0, 12, 1, 7, 5, 10]
    read = SeekingShuffled(lengths) if kind == "seeking" else ShuffledFiles(lengths, None, kind)
    settings = {"read": read, "snapshot_every_n_steps": every}
    ours, theirs = loader(lengths, 3, num_workers=workers[0], **settings), streams(lengths, 3, **settings)
    whole = stateful_files.collect(iter(streams(lengths, 3, read=read)))
    batches = iter(ours), iter(theirs)
    for step in range(len(whole)):
        state = round_trip(ours, theirs)
        assert step == 0 or state["snapshots"]
        if step % 5 == 3:
            second = loader(lengths, 3, num_workers=workers[1], **settings)
            second.load_state_dict(state)
            assert second.state_dict() == state
            assert stateful_files.collect(iter(second)) == whole[step:]
        equal(next(batches[0]), next(batches[1]))


@pytest.mark.parametrize("kind", [Shuffled, Lines, Around])
def test_readers_with_states_below_a_filter(kind: Any, tmp_path: Path):
    """The filter counts what it gets, so random numbers below are the same. A reader that is seeded by nothing would give
    another order if it began again."""
    lengths = [30, 30, 30, 20]

    def chain(log: Path | None = None) -> Any:
        read = ShuffledFiles(lengths, log, kind, seeded=False)
        files = source(range(4)).flat_map(read).filter(lambda x: x["at"][1] % 3).map(_noise)
        return files.batch(2, rows=True)

    first = Loader(chain(), num_workers=2, multiprocessing_context="fork")
    batches = iter(first)
    for _ in range(11):
        batch = next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    log = tmp_path / "log"
    second = Loader(chain(log))
    second.load_state_dict(state)
    later = iter(second)
    opened = {int(file) for file in batch.files}
    for _ in range(4):  # the rest of the files that were open
        equal(next(batches), next(later))
    assert {file for file, number, _ in stateful_files.logged(log) if number == -1} == opened


def _noise(x: Any, generator: Any) -> Any:
    return {**x, "noise": generator.random()}


# ------------------------------------------------------------ stages above and below


def _named(file: int) -> str:
    return f"file-{file}"


def test_maps_and_filters_run_in_workers_for_files_and_items():
    lengths = [9, 4, 0, 7, 5, 6]
    here = os.getpid()

    def read(name: str) -> Any:
        file = int(name.split("-")[1])
        return ((file, k) for k in range(lengths[file]))

    def double(x: Any) -> Any:
        assert os.getpid() != here
        return np.array(x) * 2

    chain = source(range(6)).map(_named).shuffle(seed=2).flat_map(read).filter(lambda x: x[1] % 2).map(double)
    chain = chain.batch(2, rows=True).map(lambda batch: (batch.items.sum(), batch))
    order = Order(6, "shuffled", 2).epoch(0)
    kept = [[(f, k) for k in range(lengths[f]) if k % 2] for f in (order.at(p) for p in range(6))]
    found: dict[int, list[Any]] = {0: [], 1: []}
    for total, batch in Loader(chain, num_workers=2, multiprocessing_context="fork"):
        assert total == batch.items.sum()
        for row in range(2):
            if batch.mask[row]:
                found[row].append(tuple(batch.items[row] // 2))
    assert sorted(found[0] + found[1]) == sorted(itertools.chain(*kept))
    for row in range(2):  # whole files, one after the other
        assert [list(some) for _, some in itertools.groupby(found[row], lambda at: at[0])] == [
            file for file in kept if file and file[0] in found[row]
        ]


def _random_chain(n: int) -> Any:
    def start(file: int, generator: Any) -> Any:
        return file, generator.random()

    def read(given: Any, generator: Any) -> Any:
        for k in range(5 + given[0] % 3):
            yield np.array([given[0], k, given[1], generator.random()])

    def keep(x: Any) -> bool:
        return bool(x[1] != 1)

    def noise(x: Any, generator: Any) -> Any:
        return np.append(x, generator.random())

    return source(range(n)).map(start).shuffle(seed=9).flat_map(read).filter(keep).map(noise).batch(3, rows=True)


@pytest.mark.parametrize("workers", [0, 2, 5])
def test_random_numbers_are_those_of_the_document(workers: int):
    """Of any workers, and after a resume in the middle of files."""
    n, seed = 8, 11

    def numbers(epoch: int, file: int, stage: int, ordinal: int) -> Any:
        base = sample_seed(sample_seed(seed, epoch, 0), 0, file)
        return generator_of(base if stage == ordinal == 0 else chained(base, stage, ordinal, 0))

    def want(epoch: int, file: int) -> list[Any]:
        first = numbers(epoch, file, 0, 0).random()
        drawn, made = np.random.Generator(np.random.PCG64(0)), []
        drawn.bit_generator.state = numbers(epoch, file, 1, 0).bit_generator.state
        for k in range(5 + file % 3):
            second = drawn.random()
            if k != 1:
                made.append([file, k, first, second, numbers(epoch, file, 2, k).random()])
        return made

    ours = Loader(_random_chain(n), num_workers=workers, seed=seed, multiprocessing_context="fork")
    for epoch in range(2):
        found: dict[int, list[Any]] = {}
        for count, batch in enumerate(ours):
            for file, values, real in zip(batch.files.tolist(), batch.items.tolist(), batch.mask):
                if real:
                    found.setdefault(file, []).append(values)
            if count == 6:
                again = Loader(
                    _random_chain(n), num_workers=2 - workers // 2, seed=seed, multiprocessing_context="fork"
                )
                again.load_state_dict(ours.state_dict())
        assert found == {file: want(epoch, file) for file in range(n)}
        ours.set_epoch(epoch)
        for batch, other in zip(itertools.islice(ours, 7, None), again, strict=True):
            equal(batch, other)


def test_a_cache_above_reads_files_once(tmp_path: Path):
    def load(file: int) -> Any:
        (tmp_path / f"{file}-{time.monotonic_ns()}").touch()
        return np.arange(10) + 100 * file

    chain = source(range(6)).map(load).cache("8MiB").shuffle(seed=1).flat_map(iter).batch(2, rows=True)
    ours = Loader(chain, num_workers=2, multiprocessing_context="fork")
    theirs = Streams([np.arange(10) + 100 * file for file in range(6)], 2, seed=1)
    side_by_side(ours, theirs)
    read = len(list(tmp_path.iterdir()))
    for _ in range(2):
        side_by_side(ours, theirs)
    assert len(list(tmp_path.iterdir())) == read
    assert (ours.stats().hits, ours.stats().misses) == (12, 6)
    ours.close()


def test_the_parts_of_a_function_are_files():
    chain = source(lambda k: (np.array([k, i]) for i in range(3 + k)), parts=5).batch(2, rows=True)
    ours = Loader(chain, num_workers=2, multiprocessing_context="fork")
    theirs = Streams(range(5), 2, lambda k: (np.array([k, i]) for i in range(3 + k)), shuffle=False)
    side_by_side(ours, theirs)


def test_a_pipe_alone_gives_epoch_0():
    lengths = lengths_of(4)
    alone = pipe(lengths, 3, known=True, seed=5)
    theirs = streams(lengths, 3, known=True, seed=5)
    assert len(alone) == len(theirs)
    for _ in range(2):
        theirs.set_epoch(0)
        for batch, other in zip(alone, theirs, strict=True):
            equal(batch, other)
    with pytest.raises(TypeError, match=r"with lengths=, of a pipe also after measure\(\)"):
        len(pipe(lengths, 3))
    assert str(alone).splitlines()[-1] == ".batch(3, rows=True, lengths=...)"
    assert list(pipe([2, 2], 2).map(lambda batch: int(batch.mask.sum()))) == [2, 2]


def test_measured_lengths_are_lengths():
    lengths = lengths_of(4)
    chain = source(range(len(lengths))).shuffle(seed=3).flat_map(Files(lengths)).filter(lambda x: x.name["k"][1] != 1)
    left = [length - (length > 1) for length in lengths]
    chain = chain.batch(3, rows=True).measure(num_workers=2)
    assert len(chain) == len(streams(left, 3, known=True, seed=3))
    ranks = [Loader(chain, rank=rank, world_size=2) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == len(list(ranks[0])) == len(list(ranks[1]))


# ------------------------------------------------------------ loaders


@pytest.mark.parametrize("workers", [0, 2])
def test_stats_count_items_of_each_stage(workers: int):
    lengths = [9, 4, 0, 7, 5, 6]
    chain = source(range(6)).shuffle(seed=1).flat_map(Files(lengths)).filter(lambda x: x.name["k"][1]).map(lambda x: x)
    ours = Loader(chain.batch(2, rows=True).map(lambda x: x), num_workers=workers, multiprocessing_context="fork")
    count = 0
    for epoch in range(1, 3):
        count += sum(1 for _ in ours)
        stats = ours.stats()
        assert [stage.items for stage in stats.stages] == [
            *(epoch * n for n in (6, 6, sum(lengths), sum(lengths) - 5, sum(lengths) - 5)),
            count,
            count,
        ]
        assert (stats.batches, stats.samples) == (count, epoch * (sum(lengths) - 5))
        assert (
            stats.bytes == sum(batch.nbytes for batch in _arrays(next(iter(chain.batch(2, rows=True))))) * stats.batches
        )
    assert stats.slowest is not None


def _arrays(batch: Any) -> list[Any]:
    return [batch.items.data, batch.items.name["file"], *batch.items.name["k"]]


def test_a_loader_can_be_pickled_and_its_attributes_set():
    lengths = lengths_of(3)
    ours = loader(lengths, 4)
    assert ours.batch_size == 4
    again = pickle.loads(pickle.dumps(ours))
    again.num_workers = 3
    assert collect(again) == collect(ours) == expected(lengths, 4)
    batches: Any = iter(again)
    assert len(pids(batches)) == 3


def test_an_epoch_that_is_set_after_the_iteration_was_made():
    """As frameworks do, with the sampler. They ask for the length of an iteration that has given no batch."""
    lengths = lengths_of(9)
    want = [len(expected(lengths, 4, epoch=epoch)) for epoch in range(8)]
    assert len(set(want)) > 1
    ours = loader(lengths, 4, known=True)
    for epoch in (0, 1):
        assert len(ours) == want[epoch]
        batches = iter(ours)
        assert len(ours) == want[epoch]
        next(batches)
    batches = iter(ours)
    ours.sampler.set_epoch(5)
    assert len(ours) == want[5]
    assert collect(batches, 2) == expected(lengths, 4, epoch=5)[:2]
    assert len(ours) == want[6]
    ours.load_state_dict(ours.state_dict())
    assert len(ours) == want[5] - 2
    batches = iter(ours)
    assert len(ours) == want[5] - 2
    assert collect(batches) == expected(lengths, 4, epoch=5)[2:]
    assert ours.state_dict()["epoch"] == 6


def test_ranks_of_the_environment_are_those_of_the_iteration(monkeypatch: pytest.MonkeyPatch):
    """A program may begin torch.distributed after it has made the loader."""
    lengths = lengths_of(9)
    ours = loader(lengths, 2, known=True)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert collect(ours) == [step[2:] for step in expected(lengths, 4)]


def test_states_that_are_of_other_rows():
    ours, state = loader([4] * 6, 2), loader([4] * 6, 2).state_dict()
    for other, message in (
        (loader([4] * 7, 2).state_dict(), "files=7, and here it is 6"),
        (loader([4] * 6, 3).state_dict(), "rows=3, and here it is 2"),
        (Loader(source(range(6)).batch(2)).state_dict(), "the state was made with files=None"),
        (state | {"step": "soon"}, "step is 'soon'"),
        (state | {"version": 2}, "of version 2"),
        ({}, "no state of streams"),
    ):
        with pytest.raises(StateError, match=message):
            ours.load_state_dict(other)
        assert ours.state_dict() == state
    with pytest.raises(StateError):
        Loader(source(range(6)).batch(2)).load_state_dict(state)


# ------------------------------------------------------------ what is refused

FILES = source(range(6))
ITEMS = FILES.flat_map(Files([3] * 6))
LINE = r" in test_stream_pipes\.py, line \d+"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ITEMS.batch(2, rows=True, pad=0), "leave size=, pad=, collate= and drop_last= out"),
        (lambda: ITEMS.batch(2, rows=True, size=len), "leave size="),
        (lambda: ITEMS.batch(2, rows=True, collate=list), "leave size="),
        (lambda: ITEMS.batch(2, rows=True, drop_last=True), 'ends="drop"'),
        (lambda: ITEMS.batch(2, lengths=[3] * 6), r"lengths= is for rows=True"),
        (lambda: ITEMS.batch(2, rows=True, lengths=[3] * 5), r"lengths are int64\[5\], .* the 6 files"),
        (lambda: FILES.batch(2, rows=True), r"source\(range, 6 elements\).* has items alone; write .flat_map\(read\)"),
        (lambda: FILES.flat_map(range, count=3).batch(2, rows=True), "leave count= out, and give lengths="),
        (lambda: ITEMS.shuffle(seed=1).batch(2, rows=True), "without weights= above .flat_map"),
        (lambda: FILES.shuffle(weights=[1] * 6).flat_map(range).batch(2, rows=True), "without weights= above"),
        (
            lambda: source(range, parts=3).shuffle(seed=1).batch(2, rows=True),
            r"write source\(range\(n\)\).shuffle\(...\).flat_map\(f\)",
        ),
        (lambda: ITEMS.cache().batch(2, rows=True), "keeps whole files.*leave it out"),
        (lambda: ITEMS.flat_map(list).batch(2, rows=True), "call both functions in one .flat_map"),
        (lambda: FILES.filter(bool).flat_map(range).batch(2, rows=True), "filter the list that source"),
        (lambda: (ITEMS + ITEMS).batch(2, rows=True), r"make rows of one source, with source\(\[\*a, \*b\]\)"),
        (lambda: (FILES + FILES).flat_map(range).batch(2, rows=True), "make rows of one source"),
        (lambda: FILES.zip(FILES).flat_map(list).batch(2, rows=True), "make rows of one source"),
        (lambda: ITEMS.pack(4).batch(2, rows=True), "make rows of one source"),
    ],
)
def test_chains_without_rows_are_refused_when_they_are_made(make: Any, words: str):
    with pytest.raises(InvalidError, match=rf"^\.batch\(2.*{LINE}: .*({words})"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: rows.filter(bool),
        lambda rows: rows.flat_map(list),
        lambda rows: rows.batch(3),
        lambda rows: rows.pack(3),
        lambda rows: rows.zip(FILES),
        lambda rows: rows + FILES,
        lambda rows: rows.cache(),
        lambda rows: rows.shuffle(),
        lambda rows: rows.write("nowhere"),
    ],
)
def test_stages_that_need_items_are_refused_below(make: Any):
    with pytest.raises(InvalidError, match=r"\.batch\(2, rows=True\)"):
        make(ITEMS.batch(2, rows=True))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch_size": 3}, "batch_size= with a pipe that has"),
        ({"shuffle": True}, r"write \.shuffle\(\)"),
        ({"restart_workers": True}, "leave restart_workers= out"),
        ({"worker": "thread"}, "leave worker= out"),
        ({"affinity": "node"}, "leave affinity= out"),
        ({"ends": "stop"}, "ends='stop' is none of pad, drop, cycle, of a pipe uneven"),
        ({"num_workers": 300}, "num_workers=300 is above 256"),
        ({"rank": 0, "world_size": 2}, r'needs lengths=.*ends="uneven"'),
        ({"rank": 0, "world_size": 4, "ends": "drop"}, "needs lengths="),
        ({"ends": "drop", "rank": 0, "world_size": 1}, "6 files are too few for 8 rows"),
    ],
)
def test_arguments_of_a_loader_that_rows_do_not_take(given: dict[str, Any], words: str):
    rows = ITEMS.batch(8 if "too few" in words else 2, rows=True)
    with pytest.raises(InvalidError, match=words):
        iter(Loader(rows, **given))


def test_other_pipes_do_not_take_the_ends_of_rows():
    with pytest.raises(InvalidError, match="ends='cycle'; it must be"):
        Loader(ITEMS.batch(2), ends="cycle")


def test_an_error_of_a_function_names_its_stage():
    def bad(x: Any) -> Any:
        raise KeyError("lost")

    for chain in (FILES.flat_map(bad), FILES.map(bad).flat_map(range), ITEMS.map(bad)):
        with pytest.raises(StreamError, match="file 0") as caught:
            list(chain.batch(2, rows=True))
        cause: Any = caught.value.__cause__
        assert isinstance(cause, KeyError)
        assert re.search(rf"in \.(map|flat_map)\(bad\){LINE}", "".join([*getattr(cause, "__notes__", []), str(cause)]))
