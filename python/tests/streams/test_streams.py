"""Streams: which items come in which batch, for any number of workers and ranks; ends; files that
fail; invalid settings."""

from __future__ import annotations

import itertools
import pickle
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers import python
from processes import lives
from stream_files import Breaking, Files, collect, expected, item, lengths_of, pids, streams

from stocached import InvalidError, StreamError
from stocached.streams import Streams

SEEDS = range(4)


# ------------------------------------------------------------ which items


WAYS = [(False, "pad"), (True, "drop"), (True, "pad"), (False, "drop")]


@pytest.mark.parametrize(
    ("workers", "known", "ends"),
    [(0, *way) for way in WAYS]
    + [(workers, *way) for k, workers in enumerate((1, 2, 3, 5)) for way in WAYS[2 * (k % 2) :][:2]],
)
def test_batches_are_those_of_the_specification(workers, known, ends):
    """Two epochs each. Some have empty files, some have fewer files than rows. Each number of
    workers has other files."""
    first = 10 * workers + (known == (ends == "pad"))  # two combinations with the same files
    for seed in range(first, first + (12 if workers == 0 else 1)):
        rows = 1 + seed % 6
        lengths = lengths_of(seed, least=rows if ends == "drop" else 1)
        loader = streams(
            lengths, rows, known=known, num_workers=workers, ends=ends, seed=seed, prefetch_batches=1 + seed % 4
        )
        for epoch in range(2):
            want = expected(lengths, rows, epoch=epoch, seed=seed, ends=ends)
            if known:
                assert len(loader) == len(want)
            assert collect(loader) == want
        if ends == "pad":
            given = sorted(at for step in want for at in step if at is not None)
            assert given == [(file, k) for file, length in enumerate(lengths) for k in range(length)]  # each item once


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_the_files(ranks, known, workers):
    for seed in SEEDS[1:2] if workers else SEEDS:
        rows = 4 * (1 + seed % 2)
        lengths = lengths_of(seed)
        loaders = [
            streams(
                lengths,
                rows // ranks,
                known=known,
                rank=rank,
                world_size=ranks,
                seed=seed,
                num_workers=workers,
                uneven=True,
            )
            for rank in range(ranks)
        ]
        found = [collect(loader) for loader in loaders]
        want = expected(lengths, rows, groups=1 if known else ranks, seed=seed)
        if known:
            assert [len(steps) for steps in found] == [len(want)] * ranks
        share = rows // ranks
        for rank in range(ranks):
            mine = [step[rank * share : (rank + 1) * share] for step in want]
            while not known and mine and not any(mine[-1]):
                mine.pop()  # ranks end one by one
            assert found[rank] == mine
        given = sorted(at for steps in found for step in steps for at in step if at is not None)
        assert given == [(file, k) for file, length in enumerate(lengths) for k in range(length)]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_cycle_goes_on_with_the_files_of_the_next_epoch(known, workers):
    for seed in SEEDS[:2] if workers else SEEDS:
        rows, groups = 4, 1 + seed % 2
        lengths = lengths_of(seed)
        loader = streams(lengths, rows, known=known, ends="cycle", seed=seed, groups=groups, num_workers=workers)
        assert collect(loader, 60) == expected(lengths, rows, groups, seed=seed, ends="cycle", steps=60)
        with pytest.raises(TypeError, match="cycle"):
            len(loader)


def test_files_are_shuffled_again_in_each_epoch_or_not():
    lengths = [1] * 50
    first, second = (collect(streams(lengths, 1, seed=seed)) for seed in (0, 1))
    assert first != second
    loader = streams(lengths, 1)
    assert collect(loader) == first != collect(loader)
    loader.set_epoch(0)
    assert collect(loader) == first
    assert [step[0][0] for step in collect(streams(lengths, 1, shuffle=False))] == list(range(50))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_by_any_start_method(method):
    lengths = lengths_of(3)
    assert collect(streams(lengths, 4, num_workers=2, multiprocessing_context=method)) == expected(lengths, 4)


def test_more_workers_than_rows_are_not_started():
    lengths = lengths_of(3)
    loader = streams(lengths, 2, num_workers=5)
    batches = iter(loader)
    next(batches)
    assert sum(map(lives, pids(batches))) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_opened_once_each(workers, tmp_path):
    lengths = [3] * 20
    collect(streams(lengths, 4, read=Files(lengths, tmp_path), num_workers=workers))
    assert sorted(int(path.name.split("-")[0]) for path in tmp_path.iterdir()) == list(range(20))


def test_files_may_be_sequences_and_functions():
    arrays = [np.arange(n) + 100 * n for n in (3, 4, 5)]
    for files in (
        arrays,
        [lambda a=a: iter(a) for a in arrays],
        [list(a) for a in arrays],
        [lambda a=a: a for a in arrays],
    ):
        loader = Streams(files, 2, shuffle=False)
        assert [batch.items.tolist() for batch in loader] == [
            [300, 400],
            [301, 401],
            [302, 402],
            [500, 403],
            [501, 0],
            [502, 0],
            [503, 0],
            [504, 0],
        ]
        state = next(itertools.islice(iter(loader), 1, None)) and loader.state_dict()
        loader.load_state_dict(state)
        assert next(iter(loader)).items.tolist() == [302, 402]


def test_random_numbers_depend_on_seed_epoch_and_file_alone():
    def read(file, rng):
        for _ in range(5):
            yield rng.random(3)

    def run(workers, seed=0):
        loader = Streams(range(6), 2, read, num_workers=workers, seed=seed, multiprocessing_context="fork")
        return [
            {(f, p): tuple(x) for batch in loader for f, p, x in zip(batch.files, batch.positions, batch.items)}
            for _ in range(2)
        ]

    alone = run(0)
    assert alone == run(2)
    assert len({value for epoch in alone for value in epoch.values()}) == 60
    assert alone != run(0, 1)


def test_a_rank_without_any_file_gives_batches_of_zeros():
    """So that ranks end together."""
    loader = streams([3, 2], 2, known=True, rank=1, world_size=2)
    assert collect(loader) == [[None, None]] * 3
    loader = streams([3, 2], 2, known=True, rank=1, world_size=2, num_workers=2)
    assert collect(loader) == [[None, None]] * 3


def test_rows_number_through_all_ranks():
    loader = streams([2] * 8, 3, known=True, rank=1, world_size=2)
    batch = next(iter(loader))
    assert batch.rows.tolist() == [3, 4, 5]
    assert [batch.step for batch in loader] == list(range(len(loader)))


# ------------------------------------------------------------ batches


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pool_bytes", ["64KiB", "1GiB"])
def test_kept_batches_never_change(workers, pool_bytes):
    """Whole batches, and slices of dropped batches; below the limit of the batch pool and far above
    it."""
    lengths = [40] * 20
    loader = streams(lengths, 4, num_workers=workers, pool_bytes=pool_bytes)
    kept, sums, parts = [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in loader:
            kept.append(batch)
            sums.append([part.tobytes() for part in (batch.items.data, batch.items.name["k"][0], batch.files)])
            parts.append((batch.items.data[1:, 2].reshape(-1)[3:], batch.items.data[1:, 2].reshape(-1)[3:].tobytes()))
            if len(kept) % 3 == 0:
                kept[-1] = None
    for batch, want in zip(kept, sums):
        if batch is not None:
            assert [part.tobytes() for part in (batch.items.data, batch.items.name["k"][0], batch.files)] == want
    for part, want in parts:
        assert part.tobytes() == want


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_of_batches_is_used_again(workers):
    loader = streams([300] * 4, 4, num_workers=workers)
    addresses = {batch.items.data.ctypes.data for epoch in range(2) for batch in loader}
    assert len(addresses) <= 4 + 3


def test_being_told_once_that_batches_are_kept():
    loader = streams([40] * 20, 4, num_workers=1, pool_bytes="64KiB")
    with pytest.warns(UserWarning, match="pool_bytes=65536") as caught:
        kept = list(loader)
    assert len(kept) == 200
    assert sum(warning.category is UserWarning for warning in caught) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_user_s_to_write_to(workers):
    lengths = [30] * 6
    for batch, want in zip(streams(lengths, 3, num_workers=workers), expected(lengths, 3)):
        assert (batch.items.data[0] == item(*want[0]).data).all()
        batch.items.data[:] = 99
        batch.mask[:] = False


# ------------------------------------------------------------ files that fail


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_file_that_fails_ends_the_iteration_there(workers, known):
    """At the same batch for any number of workers. The state is the one before that batch."""
    lengths = [4, 5, 6, 7, 8, 0, 2, 3]
    for rows in (3, 5) if workers else (1, 2, 3, 5):
        read = Breaking(lengths)
        read.lengths[5] = 3
        want = expected(lengths, rows, shuffle=False)
        end = min(step for step, row in enumerate(want) if (3, 2) in row or (5, 0) in row)
        loader = streams(lengths, rows, known=known, read=read, shuffle=False, num_workers=workers)
        found = []
        with pytest.raises(StreamError) as caught:
            for batch in loader:
                found.append(batch)
        assert len(found) == end
        number = 3 if (3, 2) in want[end] else 5
        assert (caught.value.number, caught.value.item) == ((3, 2) if number == 3 else (5, 0))
        assert f"file {number} ({number})" in str(caught.value)
        assert ("ZeroDivisionError: in the middle" if number == 3 else "no such file") in str(caught.value)
        if workers:
            assert "worker" in str(caught.value)
            trace = str(caught.value.__cause__.__cause__)
            assert "stream_files" in trace or "test_streams" in trace
        assert isinstance(caught.value.__cause__, ZeroDivisionError if number == 3 else FileNotFoundError)
        state = loader.state_dict()
        assert state["step"] == end
        whole = streams(lengths, rows, known=known, shuffle=False, num_workers=2 if rows == 3 else 0)
        whole.load_state_dict(state)  # the file is readable again
        assert collect(whole) == want[end:]


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_files_that_fail_may_be_left_out(workers, known):
    lengths = [4, 5, 6, 7, 8, 3, 2, 3]
    for rows in (3, 5) if workers else (1, 2, 3, 5):
        loader = streams(
            lengths, rows, known=known, read=Breaking(lengths), shuffle=False, num_workers=workers, errors="skip"
        )
        with pytest.warns(RuntimeWarning, match="is left out from item") as caught:
            found = collect(loader)
        assert sorted((failure.number, failure.item, failure.message.split(":")[0]) for failure in loader.failures) == [
            (3, 2, "ZeroDivisionError"),
            (5, 0, "FileNotFoundError"),
        ]
        assert sum(warning.category is RuntimeWarning for warning in caught) == 2
        if known:  # the assignment does not change
            want = [
                [None if at in [(3, k) for k in range(2, 7)] or (at and at[0] == 5) else at for at in step]
                for step in expected(lengths, rows, shuffle=False)
            ]
        else:
            want = expected([4, 5, 6, 2, 8, 0, 2, 3], rows, shuffle=False)
        assert found == want


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("number", [1, 3])  # 3: the last one of its row
@pytest.mark.parametrize(
    ("told", "message"),
    [(3, "has more than 3 items, and lengths= says 3"), (6, "ends after 5 items, and lengths= says 6")],
)
def test_lengths_that_are_not_true(workers, number, told, message):
    true, said = [5 if file == number else 4 for file in range(4)], [told if file == number else 4 for file in range(4)]
    settings = {"lengths": said, "shuffle": False, "num_workers": workers, "multiprocessing_context": "fork"}
    batches = iter(Streams(range(4), 2, Files(true), **settings))
    found = 0
    with pytest.raises(StreamError, match=message) as caught:
        for _ in batches:
            found += 1
    assert (caught.value.number, caught.value.item) == (number, min(told, 5))
    assert found == min(told, 5) + 4 * (number == 3)
    with pytest.warns(RuntimeWarning, match=message):
        batches = [*Streams(range(4), 2, Files(true), errors="skip", **settings)]
    assert sum(batch.mask.sum() for batch in batches) == 12 + min(told, 5)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("second", "message"),
    [
        (np.zeros(4, np.uint8), r"the item of uint8\[4\], where the first item had the item of uint8\[3\]"),
        (np.zeros(3, np.int16), r"the item of int16\[3\], where the first"),
        ({"a": np.zeros(3, np.uint8)}, "the item is dict"),
        ("abc", "the item is str"),
        (None, "the item is NoneType"),
        (np.array([None, 1, 2]), "the item is ndarray of object"),
    ],
    ids=str,
)
def test_items_of_another_kind_than_the_first(workers, second, message):
    files = [[np.zeros(3, np.uint8)] * 2, [np.zeros(3, np.uint8), second]]
    loader = Streams(files, 2, shuffle=False, num_workers=workers, multiprocessing_context="fork")
    batches = iter(loader)
    next(batches)
    with pytest.raises(StreamError, match=f"SchemaError: {message}") as caught:
        next(batches)
    assert (caught.value.number, caught.value.item) == (1, 1)
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, "a dict of"),
        ((1, 2), (1, 2, 3), "a tuple of"),
        ((1, 2), [1, 2], "a list of"),
        ({"a": (1, {"b": np.zeros(2)})}, {"a": (1, {"b": np.zeros(3)})}, r"a\.1\.b of float64\[3\]"),
    ],
    ids=str,
)
def test_items_put_together_otherwise(first, second, message):
    with pytest.raises(StreamError, match=message):
        list(Streams([[first, second]], 1))


def test_items_in_any_order_of_keys():
    batch = next(iter(Streams([[{"a": 1, "b": 2}], [{"b": 4, "a": 3}]], 2, shuffle=False)))
    assert {key: value.tolist() for key, value in batch.items.items()} == {"a": [1, 3], "b": [2, 4]}


def test_the_first_row_says_what_items_are_made_of():
    """However slow its worker is. Otherwise, with errors="skip", chance would decide which file is
    left out."""

    def read(file):
        import time

        time.sleep(0.2 if file == 0 else 0)
        yield np.zeros(3 + file)

    loader = Streams(range(3), 3, read, shuffle=False, num_workers=3, errors="skip", multiprocessing_context="fork")
    with pytest.warns(RuntimeWarning, match="left out"):
        batch = next(iter(loader))
    assert batch.items.shape == (3, 3)
    assert batch.mask.tolist() == [True, False, False]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_nothing_to_read(workers, known):
    """A cycle through empty files ends with an error, instead of never."""
    if not known:
        assert list(streams([0, 0, 0], 2, num_workers=workers)) == []
        loader = streams([0, 0, 0], 2, num_workers=workers, ends="cycle")
    else:  # the row's group never gets the one file that has items
        loader = streams([0, 5, 0, 5], 2, known=True, num_workers=workers, ends="cycle", groups=2, shuffle=False)
    with pytest.raises(StreamError, match="none had an item"):
        next(iter(loader))


def test_a_generator_can_be_read_only_once():
    with pytest.raises(StreamError, match="list the function that makes it"):
        next(iter(Streams([(k for k in range(3))], 1)))


# ------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": []}, "no files"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": 300}, "num_workers=300 is above 256"),
        ({"prefetch_batches": 0}, "prefetch_batches=0"),
        ({"pool_bytes": "many"}, "many"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
        ({"ends": "stop"}, "ends='stop' is none of pad, drop, cycle"),
        ({"errors": "ignore"}, "errors='ignore' is none of raise, skip"),
        ({"timeout": -1}, "timeout=-1"),
        ({"read": 5}, "read=5 is no function"),
        ({"lengths": [1, 2]}, r"lengths are int64\[2\], and must be a whole number for each of the 6 files"),
        ({"lengths": [1.5] * 6}, r"lengths are float64\[6\]"),
        ({"lengths": [1, 2, -3, 4, 5, 6]}, "file 2 has a length of -3"),
        ({"lengths": [0] * 6}, "all 6 files have a length of 0"),
        ({"rank": 0}, "rank=0, world_size=None: give both, or neither"),
        ({"rank": 2, "world_size": 2}, r"rank=2 is not in 0\.\.world_size-1, world_size=2"),
        ({"rank": 0, "world_size": 2}, r'ends="pad" over 2 ranks needs lengths=.*uneven=True'),
        ({"rank": 0, "world_size": 2, "ends": "cycle", "groups": 3}, r"groups=3 does not divide the 4 rows"),
        ({"rank": 0, "world_size": 4, "ends": "cycle", "groups": 2}, r"groups=2 is no multiple of world_size=4"),
        ({"batch_size": 7, "ends": "drop"}, "6 files are too few for 7 rows"),
    ],
    ids=str,
)
def test_invalid_settings(settings, message):
    with pytest.raises(InvalidError, match=message):
        Streams(**{"files": range(6), "batch_size": 2, "read": Files([1] * 6)} | settings)


def test_invalid_epochs():
    loader = streams([1], 1)
    for epoch in (-1, 1.5, "2"):
        with pytest.raises(InvalidError, match=f"epoch={epoch!r}"):
            loader.set_epoch(epoch)
    with pytest.raises(TypeError, match="lengths="):
        len(loader)


def test_needs_no_torch():
    python(
        "import sys, stocached.streams as s; assert [b.items.tolist() for b in s.Streams([[1, 2]], 1)] == [[1], [2]]; assert 'torch' not in sys.modules"
    )


def test_an_error_survives_pickling():
    error = StreamError("file 3 (<function>)", lambda: 0, 3, 7)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.file, again.number, again.item) == (str(error), None, 3, 7)


def test_the_picture_is_what_the_guide_says(monkeypatch):
    root = Path(__file__).resolve().parents[3]
    monkeypatch.syspath_prepend(root / "tools")
    drawn = runpy.run_path(str(root / "tools" / "draw_streams.py"))
    assert (root / "docs" / "images" / "streams.svg").read_text() == drawn["draw"](drawn["batches"]())
