"""Streams whose readers have states of their own (`state_dict` and `load_state_dict`): what a
checkpoint holds of them, and what is read again after it."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from processes import until
from stateful_files import (
    BUFFER,
    Around,
    Lines,
    SeekingShuffled,
    Shuffled,
    ShuffledFiles,
    collect,
    contents,
    logged,
)
from stream_files import Files, expected

from stocached import InvalidError, StateError, StreamError
from stocached._streams.snapshots import Snapshot, Snapshots
from stocached.streams import Streams

LENGTHS = [9, 3, 0, 12, 1, 7, 5, 10]


def streams(read, batch_size, *, lengths=LENGTHS, known=False, **settings):
    settings = {"multiprocessing_context": "fork", "timeout": 60, "shuffle": False} | settings
    return Streams(range(len(lengths)), batch_size, read, lengths=lengths if known else None, **settings)


def wanted(rows, *, lengths=LENGTHS, groups=1, read=None, **settings):
    """What `collect` finds, without the tested code."""
    files = contents(read or ShuffledFiles(lengths), len(lengths))
    steps = expected(lengths, rows, groups, shuffle=False, **settings)
    return [[None if at is None else files[at[0]][at[1]] for at in step] for step in steps]


def round_trip(state):
    text = json.dumps(state)
    assert json.loads(text) == state
    return json.loads(text)


def read_again(log, state):
    """Checks that the files that rows had open are given their snapshots, and then read nothing that
    had been read at these. Returns how many items were given again, of the row with the most."""
    again = [0]
    begun = {}
    for one in state["snapshots"]:
        k = one["row"] - state["first_row"]
        file = state["place"][k] % len(LENGTHS)  # not shuffled
        begun[file] = (one["iterator"] or one["iterable"])["read"]
        again.append(state["item"][k] - one["item"])
        if state["item"][k] < LENGTHS[file]:
            assert logged(log).count((file, -1, 1)) == 1
    for file, number, loaded in logged(log):
        assert not loaded or number == -1 or number >= begun[file]
    return max(again)


# ------------------------------------------------------------ resuming


WAYS = [(False, "pad"), (True, "drop"), (False, "cycle"), (True, "pad"), (False, "drop"), (True, "cycle")]
WORKERS = [(0, 3), (1, 0), (1, 3), (3, 0), (3, 1), (3, 3)]


@pytest.mark.parametrize(
    ("workers", "known", "ends"),
    [((0, 0), *way) for way in WAYS] + [(workers, *way) for workers, way in zip(WORKERS, WAYS)],
)
def test_resume_at_the_exact_item_without_reading_what_came_before(workers, known, ends, tmp_path):
    """States of all batches, of which some are continued, by another number of workers."""
    settings = {"known": known, "ends": ends}
    most = 24 if ends == "cycle" else 10**9
    want = wanted(3, ends=ends, steps=most)
    first = streams(ShuffledFiles(LENGTHS), 3, num_workers=workers[0], **settings)
    batches = iter(first)
    kinds = (Shuffled, Around)
    for step in range(len(want)):
        state = round_trip(first.state_dict())
        if step % 7 == 3 or step > len(want) - 2:
            log = tmp_path / str(step)
            second = streams(
                ShuffledFiles(LENGTHS, log, kinds[step % 2]), 3, num_workers=workers[1], seed=0, **settings
            )
            second.load_state_dict(state)
            assert second.state_dict() == state
            assert collect(iter(second), most - step) == want[step:]
            assert read_again(log, state) == 0
        assert collect(batches, 1) == want[step : step + 1]
    if ends != "cycle":
        assert next(batches, None) is None
        assert "snapshots" not in first.state_dict()


def test_answers_are_heard_in_any_order():
    kept = Snapshots({}, 0)
    for step in (2, 5, 4, 3):
        kept.add([Snapshot(0, 7, step + 1, step, b"")])
    assert [kept.after(step, [7])[0].step for step in (2, 3, 4, 5, 6)] == [2, 3, 4, 5, 5]


@pytest.mark.parametrize(
    ("every", "known", "workers"),
    [(4, True, 0), (4, False, 2), (0, False, 0), (0, True, 2), (None, True, 0)],
)
def test_snapshot_every_n_steps(every, known, workers, tmp_path):
    """At most n - 1 items of each row are read again; with 0, all of the file."""
    want = wanted(3)
    settings = {"known": known, "num_workers": workers, "snapshot_every_n_steps": every}
    first = streams(ShuffledFiles(LENGTHS), 3, **settings)
    batches = iter(first)
    again = []
    for step in range(1, len(want) - 3):
        collect(batches, 1)
        state = round_trip(first.state_dict())
        second = streams(ShuffledFiles(LENGTHS, tmp_path / str(step)), 3, **settings)
        second.load_state_dict(state)
        assert second.state_dict() == state
        later = iter(second)
        assert collect(later, 2) == want[step : step + 2]
        again.append(read_again(tmp_path / str(step), state))
        if step % 3 == 1:
            third = streams(ShuffledFiles(LENGTHS), 3, **settings)  # from a state of the continued one
            third.load_state_dict(second.state_dict())
            later.close()
            assert collect(iter(third), 2) == want[step + 2 : step + 4]
    if every:
        assert [count for step, count in enumerate(again, 1) if step % 4 == 0] == [0] * (len(again) // 4)
        assert max(again) == 3
    else:
        assert max(again) > 8


@pytest.mark.parametrize("every", [1, 3, 0])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_order_that_nothing_determines_but_the_state(every, workers):
    """The iterator is asked when its file is opened too: read again, it would give another
    order."""
    lengths = [30, 30, 30]
    settings = {"lengths": lengths, "num_workers": workers, "snapshot_every_n_steps": every}
    first = streams(ShuffledFiles(lengths, seeded=False), 3, **settings)
    batches = iter(first)
    collect(batches, 8)
    state = first.state_dict()
    second = streams(ShuffledFiles(lengths, seeded=False), 3, **settings)
    second.load_state_dict(state)
    collect(later := iter(second), 2)
    third = streams(ShuffledFiles(lengths, seeded=False), 3, **settings)
    third.load_state_dict(second.state_dict())
    later.close()
    assert collect(iter(third)) == collect(batches)[2:]


def test_an_iterable_with_a_state_and_a_generator_over_it(tmp_path):
    want = wanted(3)
    for step, workers in ((4, 0), (7, 2)):
        log = tmp_path / str(step)
        first = streams(ShuffledFiles(LENGTHS, kind=Lines), 3, num_workers=workers)
        collect(iter(first), step)
        state = round_trip(first.state_dict())
        assert all(one["iterable"] and one["iterator"] is None for one in state["snapshots"])
        second = streams(ShuffledFiles(LENGTHS, log, Lines), 3)
        second.load_state_dict(state)
        assert collect(iter(second)) == want[step:]
        assert read_again(log, state) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_files_themselves_without_a_reader(workers):
    """Iterables and functions that return one."""

    def files():
        return [
            Around(k, n, None, k) if k % 2 else lambda k=k, n=n: Shuffled(k, n, None, k)
            for k, n in ((0, 9), (1, 8), (2, 7))
        ]

    settings = {"shuffle": False, "num_workers": workers, "multiprocessing_context": "fork"}
    want = wanted(2, lengths=[9, 8, 7])
    first = Streams(files(), 2, **settings)
    assert collect(iter(first), 5) == want[:5]
    second = Streams(files(), 2, **settings)
    second.load_state_dict(round_trip(first.state_dict()))
    assert collect(iter(second)) == want[5:]


@pytest.mark.parametrize("every", [1, 4])
def test_a_reader_with_start_begins_at_the_snapshot(every, tmp_path):
    """And its iterator gets the rest of its state, here a generator."""
    want = wanted(3, read=SeekingShuffled(LENGTHS))
    first = streams(SeekingShuffled(LENGTHS), 3, num_workers=2, snapshot_every_n_steps=every)
    collect(iter(first), 6)
    state = round_trip(first.state_dict())
    second = streams(SeekingShuffled(LENGTHS, tmp_path / "log"), 3)
    second.load_state_dict(state)
    assert collect(iter(second)) == want[6:]
    begun = [(state["place"][one["row"]], one["item"]) for one in state["snapshots"]]
    assert sorted(logged(tmp_path / "log"))[: len(begun)] == sorted(begun)


# ------------------------------------------------------------ what a state holds


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_the_state_is_that_of_the_delivered_batch_not_of_what_is_read_ahead(known, tmp_path):
    lengths = [40] * 4
    log = tmp_path / "log"
    first = streams(ShuffledFiles(lengths, log), 4, lengths=lengths, known=known, num_workers=2, prefetch_batches=6)
    batches = iter(first)
    collect(batches, 3)
    # Workers that rest are woken when half of the steps are left.
    until(lambda: len(logged(log)) >= 4 * (3 + BUFFER + 3), "workers are three steps ahead")
    state = first.state_dict()
    assert [(one["row"], one["item"]) for one in state["snapshots"]] == [(row, 3) for row in range(4)]
    assert [one["iterator"]["read"] for one in state["snapshots"]] == [2 + BUFFER] * 4
    kept = batches._source._scheduler.snapshots._rows
    for _ in range(10):
        collect(batches, 1)
        assert max(map(len, kept.values())) <= 6 + 2  # the last batch's, and those of batches to come
    assert state == first.state_dict() | {key: state[key] for key in ("step", "item", "snapshots")}


class Asked(Shuffled):
    """Knows after how many items it was asked for its state."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked, self.given = [], 0

    def __next__(self):
        self.given += 1
        return super().__next__()

    def state_dict(self):
        self.asked.append(self.given)
        return super().state_dict()


@pytest.mark.parametrize(
    ("every", "asked"), [(1, range(1, 13)), (5, [0, 5, 10]), (12, [0, 12]), (100, [0]), (0, [0])], ids=str
)
def test_when_an_iterator_is_asked(every, asked):
    read = Asked(0, 12, None, 0)
    loader = Streams([0], 1, lambda file: read, snapshot_every_n_steps=every)
    batches = iter(loader)
    kept = batches._source._scheduler.snapshots._rows
    for _ in batches:
        assert (len(kept[0]), batches._source._open_files.snapshots) == (1, [])
    assert read.asked == list(asked)


def test_a_state_does_not_change_with_the_iterator():
    first = streams(ShuffledFiles(LENGTHS), 3)
    batches = iter(first)
    collect(batches, 2)
    state = first.state_dict()
    text = json.dumps(state)
    collect(batches, 2)
    assert json.dumps(state) == text
    second = streams(ShuffledFiles(LENGTHS), 3)
    second.load_state_dict(state)
    state["snapshots"][0]["iterator"]["buffer"].clear()
    assert json.dumps(second.state_dict()) == text
    assert collect(iter(second)) == wanted(3)[2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_readers_without_a_state_add_nothing(workers):
    first = streams(Files(LENGTHS), 3, num_workers=workers)
    next(iter(first))
    assert list(first.state_dict()) == [
        *("version", "files", "rows", "groups", "seed", "shuffle", "ends", "lengths_known"),
        *("epoch", "step", "first_row", "place", "item", "next"),
    ]


class SaysNothing(Shuffled):
    """Has the methods, and no state; arrays are compared nowhere."""

    def state_dict(self):
        return None if self.file % 2 else {"array": np.arange(3)}

    def load_state_dict(self, state):
        assert state["array"].tolist() == [0, 1, 2]


def test_an_iterator_that_says_it_has_no_state_is_read_from_its_start():
    first = streams(ShuffledFiles(LENGTHS, kind=SaysNothing), 2)
    collect(iter(first), 2)
    assert [one["row"] for one in first.state_dict()["snapshots"]] == [0]
    only = streams(ShuffledFiles(LENGTHS, kind=SaysNothing), 2, snapshot_every_n_steps=0)
    collect(iter(only), 2)
    second = streams(ShuffledFiles(LENGTHS, kind=SaysNothing), 2)
    second.load_state_dict(only.state_dict())
    assert collect(iter(second)) == wanted(2)[2:]


def test_a_state_of_a_version_without_snapshots():
    first = streams(ShuffledFiles(LENGTHS), 3)
    collect(iter(first), 5)
    state = first.state_dict()
    del state["snapshots"]
    second = streams(ShuffledFiles(LENGTHS), 3, num_workers=2)
    second.load_state_dict(state)
    assert collect(iter(second)) == wanted(3)[5:]


@pytest.mark.parametrize(
    "snapshots",
    [
        5,
        {"row": 0},
        [5],
        [{"row": 0}],
        [{"row": "x", "item": 1, "iterable": None, "iterator": 1}],
        [{"row": 3, "item": 1, "iterable": None, "iterator": 1}],
        [{"row": 0, "item": 6, "iterable": None, "iterator": 1}],
        [{"row": 0, "item": -1, "iterable": None, "iterator": 1}],
    ],
    ids=str,
)
def test_damaged_snapshots(snapshots):
    first = streams(ShuffledFiles(LENGTHS), 3)
    collect(iter(first), 2)
    state = first.state_dict()
    with pytest.raises(InvalidError, match="snapshot"):
        first.load_state_dict(state | {"snapshots": snapshots})
    assert first.state_dict() == state
    for wrong in (-1, 1.5, "x"):
        with pytest.raises(InvalidError, match="snapshot_every_n_steps="):
            streams(ShuffledFiles(LENGTHS), 3, snapshot_every_n_steps=wrong)


# ------------------------------------------------------------ ranks and parts


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2), (2, 4)])
def test_ranks(before, after, known, tmp_path):
    """Each rank's state has the snapshots of its rows: with all states, any number of ranks
    continues without reading anything again."""
    groups = 1 if known else 4
    want = wanted(4, groups=groups)
    settings = {"known": known, "groups": groups, "uneven": True}

    def make(rank, ranks, log=None, workers=0):
        return streams(
            ShuffledFiles(LENGTHS, log), 4 // ranks, rank=rank, world_size=ranks, num_workers=workers, **settings
        )

    first = [make(rank, before, workers=2 * (rank % 2)) for rank in range(before)]
    for loader in first:
        collect(iter(loader), 5)
    states = [round_trip(loader.state_dict()) for loader in first]
    whole = states[0] | {"place": [], "item": [], "snapshots": []}
    for state in states:
        whole["place"] += state["place"] if not known or state is states[0] else []
        whole["item"] += state["item"] if not known or state is states[0] else []
        whole["snapshots"] += state["snapshots"]
    share = 4 // after
    for rank in range(after):
        second = make(rank, after, tmp_path / "log", workers=rank % 2)
        second.load_state_dict(states[::-1])
        mine = [step[rank * share : (rank + 1) * share] for step in want[5:]]
        while not known and mine and not any(mine[-1]):
            mine.pop()
        assert collect(iter(second)) == mine
    assert read_again(tmp_path / "log", whole) == 0
    if known:  # one rank's state is enough; the rows of the others are read from the start of their files
        for rank in range(after):
            second = make(rank, after)
            second.load_state_dict(states[-1])
            assert collect(iter(second)) == [step[rank * share : (rank + 1) * share] for step in want[5:]]


# ------------------------------------------------------------ errors


class Fails(Shuffled):
    """At item 3 of file 1: in state_dict(), in load_state_dict(), by a state that cannot be
    pickled, or by the item itself, till a file of this name is there; or the process dies."""

    how = "state"

    def __next__(self):
        self.count = getattr(self, "count", -1) + 1
        if self.due and self.how == "item":
            raise OSError("no item 3")
        return super().__next__()

    @property
    def due(self):
        return (self.file, self.count) == (1, 3)

    def state_dict(self):
        if self.due and self.how == "state":
            raise OSError("no state of item 3")
        if self.due and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        lock = {"lock": (lambda: 1)} if self.due and self.how == "pickle" else {}
        return super().state_dict() | {"count": getattr(self, "count", -1)} | lock

    def load_state_dict(self, state):
        if self.file == 1 and self.how == "load":
            raise OSError("no such state")
        self.count = state["count"]
        super().load_state_dict(state)


def failing(way):
    return type("FailsSo", (Fails,), {"how": way})


@pytest.mark.parametrize(
    ("how", "workers", "known", "message"),
    [
        ("state", 0, False, "OSError: no state of item 3"),
        ("state", 2, True, "OSError: no state of item 3"),
        ("item", 2, False, "OSError: no item 3"),
        ("pickle", 0, True, "Can't (pickle|get) local object"),
        ("pickle", 2, False, "Can't (pickle|get) local object"),
    ],
)
def test_a_state_that_cannot_be_had_fails_as_the_file_does(how, message, workers, known):
    """The state of the stream then points at that item, and another reader continues there."""
    lengths = [6, 6, 6]
    first = streams(ShuffledFiles(lengths, kind=failing(how)), 3, lengths=lengths, known=known, num_workers=workers)
    batches = iter(first)
    want = wanted(3, lengths=lengths)
    assert collect(batches, 3) == want[:3]
    with pytest.raises(StreamError, match=message) as caught:
        next(batches)
    assert (caught.value.number, caught.value.item) == (1, 3)
    assert f"file 1 (1), item 3, row 1{', worker 1' if workers else ''}: " in str(caught.value)
    state = first.state_dict()
    assert [one["item"] for one in state["snapshots"]] == state["item"] == [3, 3, 3]
    second = streams(ShuffledFiles(lengths, kind=failing("not")), 3, lengths=lengths, known=known)
    second.load_state_dict(state)
    assert collect(iter(second)) == want[3:]


@pytest.mark.parametrize(
    ("how", "workers", "known"),
    [("state", 2, False), ("item", 0, True), ("item", 2, True), ("load", 0, True), ("load", 2, False)],
)
def test_skip_leaves_out_the_rest_of_the_file(how, workers, known):
    lengths = [6, 6, 6]
    settings = {"lengths": lengths, "known": known, "num_workers": workers, "errors": "skip"}
    first = streams(ShuffledFiles(lengths, kind=failing("not" if how == "load" else how)), 3, **settings)
    batches = iter(first)
    want = wanted(3, lengths=lengths)
    want = want[:3] + [[a, None, c] for a, _, c in want[3:]]
    if how != "load":
        with pytest.warns(RuntimeWarning, match=r"file 1 \(1\) is left out from item 3 on: OSError"):
            assert collect(batches) == want
        return
    collect(batches, 3)
    second = streams(ShuffledFiles(lengths, kind=failing(how)), 3, **settings)
    second.load_state_dict(first.state_dict())
    with pytest.warns(RuntimeWarning, match=r"file 1 \(1\) is left out from item 3 on: OSError: no such state"):
        assert collect(iter(second)) == want[3:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_after_a_file_was_left_out(workers):
    lengths = [8, 8, 8]
    settings = {"lengths": lengths, "known": True, "num_workers": workers, "errors": "skip"}
    first = streams(ShuffledFiles(lengths, kind=failing("state")), 3, **settings)
    want = [[a, None if k >= 3 else b, c] for k, (a, b, c) in enumerate(wanted(3, lengths=lengths))]
    with pytest.warns(RuntimeWarning, match="left out from item 3"):
        assert collect(iter(first), 5) == want[:5]
    second = streams(ShuffledFiles(lengths, kind=failing("item")), 3, **settings)
    second.load_state_dict(round_trip(first.state_dict()))
    with pytest.warns(RuntimeWarning, match="left out from item 5"):
        assert collect(iter(second)) == want[5:]


@pytest.mark.parametrize(
    ("workers", "known", "errors"), [(0, False, "raise"), (0, True, "skip"), (2, True, "raise"), (2, False, "skip")]
)
def test_a_state_for_a_reader_that_has_none(workers, known, errors):
    """Never skipped: each open file would be left out."""
    settings = {"known": known, "num_workers": workers, "errors": errors}
    for kind, what in ((Shuffled, "the iterator of file 0"), (Lines, "file 0")):
        first = streams(ShuffledFiles(LENGTHS, kind=kind), 3, **settings)
        collect(iter(first), 2)
        state = first.state_dict()
        second = streams(Files(LENGTHS), 3, **settings)
        second.load_state_dict(state)
        batches = iter(second)
        expected_message = rf"file 0 \(0\), item 2, row 0.*holds a state of {what}, and .* has no load_state_dict\(\)"
        with pytest.raises(StateError, match=expected_message) as caught:
            next(batches)
        assert isinstance(caught.value.__cause__, StateError)
        assert second.state_dict() == state
