"""Checkpoints of streams: taken after every batch, and continued by other numbers of workers and
ranks. Also states that cannot be continued."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from stream_files import Files, SeekingFiles, collect, expected, lengths_of, streams

from stocached import InvalidError
from stocached.streams import Streams

WAYS = [(False, "pad"), (True, "drop"), (False, "cycle"), (True, "pad"), (False, "drop"), (True, "cycle")]
WORKERS = [(0, 2), (3, 1), (2, 0)]


@pytest.mark.parametrize(
    ("workers", "known", "ends"),
    [((0, 0), *way) for way in WAYS]
    + [(workers, *WAYS[(3 * k + way) % 6]) for k, workers in enumerate(WORKERS) for way in range(2)],
)
def test_checkpoint_after_every_batch(workers, known, ends):
    """From a loop that stops there, and from one that has itself continued from a checkpoint."""
    lengths = lengths_of(5 if ends == "drop" else 9, least=4)
    most = 25 if ends == "cycle" else 10**9
    settings = {"known": known, "ends": ends}
    want = expected(lengths, 4, ends=ends, steps=most)
    first = streams(lengths, 4, num_workers=workers[0], **settings)
    batches = iter(first)
    assert len(want) > 5
    for step in range(len(want)):
        state = json.loads(json.dumps(first.state_dict()))
        assert (state["epoch"], state["step"]) == (0, step)
        if step % 5 == 0 or step > len(want) - 3:
            second = streams(
                lengths, 4, num_workers=workers[1], read=SeekingFiles(lengths) if step % 2 else None, **settings
            )
            second.load_state_dict(state)
            assert second.state_dict() == state
            if known and ends != "cycle":
                assert len(second) == len(want) - step
            assert collect(second, most - step) == want[step:]
        next(batches)
    if ends != "cycle":
        assert next(batches, None) is None
        state = first.state_dict()
        assert (state["epoch"], state["step"]) == (1, 0)
        second = streams(lengths, 4, num_workers=workers[1], **settings)
        second.load_state_dict(state)
        assert collect(second) == expected(lengths, 4, ends=ends, epoch=1) == collect(first)


def test_a_chain_of_checkpoints():
    """Each batch comes from another loader, with another number of workers."""
    lengths = lengths_of(2)
    for known in (False, True):
        found, state = [], None
        for k, _ in enumerate(want := expected(lengths, 3)):
            loader = streams(lengths, 3, known=known, num_workers=(0, 2, 1)[k % 3])
            if state is not None:
                loader.load_state_dict(state)
            found += collect(loader, 1)
            state = loader.state_dict()
        assert found == want


@pytest.mark.parametrize("before", [1, 2, 4])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_another_number_of_ranks_where_lengths_are_known(before, after):
    """The state of any one rank is enough."""
    lengths, rows = lengths_of(9), 8
    want = expected(lengths, rows)
    for step in (0, len(want) // 2, len(want) - 1):
        for rank in {0, before - 1}:
            first = streams(lengths, rows // before, known=True, rank=rank, world_size=before, num_workers=rank % 2)
            collect(first, step) if step else None
            state = first.state_dict()
            found = []
            for other in range(after):
                second = streams(
                    lengths, rows // after, known=True, rank=other, world_size=after, num_workers=other % 2
                )
                second.load_state_dict(state)
                found.append(collect(second))
            assert [list(itertools.chain(*parts)) for parts in zip(*found)] == want[step:]


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 2), (4, 1), (1, 4), (2, 4)])
def test_another_number_of_ranks_where_they_are_not(before, after):
    """With the states of all ranks, and with groups from the start."""
    lengths, rows = [7, 3, 9, 5, 8, 2, 6, 7, 4, 9, 3, 8, 5, 5, 6, 7], 8
    want = expected(lengths, rows, groups=4)
    for step in (0, 1, 7):
        first = [
            streams(lengths, rows // before, rank=rank, world_size=before, groups=4, uneven=True)
            for rank in range(before)
        ]
        for loader in first:
            collect(loader, step) if step else None
        states = [loader.state_dict() for loader in first]
        for rank in range(after):
            second = streams(
                lengths, rows // after, rank=rank, world_size=after, groups=4, uneven=True, num_workers=rank % 3
            )
            second.load_state_dict(states[::-1] if rank % 2 else states)
            share = rows // after
            mine = [row[rank * share : (rank + 1) * share] for row in want[step:]]
            while not any(mine[-1]):
                mine.pop()
            assert collect(second) == mine


class Counting(Files):
    """Counts the requested items."""

    def __init__(self, lengths):
        super().__init__(lengths)
        self.items = 0

    def __call__(self, file):
        for value in super().__call__(file):
            self.items += 1
            yield value


class CountingSeeking(SeekingFiles):
    def __init__(self, lengths):
        super().__init__(lengths)
        self.starts = []

    def __call__(self, file, start=0):
        self.starts.append((file, start))
        return super().__call__(file, start)


def test_readers_that_can_seek_are_told_where_to():
    lengths = [1000, 1000]
    first = streams(lengths, 2, known=True, shuffle=False)
    collect(first, 600)
    state = first.state_dict()
    seeking, plain = CountingSeeking(lengths), Counting(lengths)
    for read in (seeking, plain):
        second = streams(lengths, 2, known=True, read=read, shuffle=False)
        second.load_state_dict(state)
        assert collect(second, 1) == [[(0, 600), (1, 600)]]
    assert seeking.starts == [(0, 600), (1, 600)]
    assert plain.items == 2 * 601


def test_iterations_and_epochs():
    lengths = [2, 3, 4, 1]
    loader = streams(lengths, 2)
    assert collect(loader, 1) == expected(lengths, 2, epoch=0)[:1]  # left in the middle
    assert loader.state_dict()["step"] == 1
    assert collect(loader) == expected(lengths, 2, epoch=1)  # each has its own epoch
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (2, 0)
    loader.set_epoch(7)
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (7, 0)
    assert collect(loader) == expected(lengths, 2, epoch=7)
    state = loader.state_dict()
    collect(loader, 2)
    loader.load_state_dict(state)
    assert collect(loader) == expected(lengths, 2, epoch=8)


def test_set_epoch_of_the_epoch_of_a_state_goes_on_where_it_is():
    lengths = [2, 3, 4, 1]
    loader = streams(lengths, 2)
    loader.set_epoch(3)
    collect(loader, 2)
    state = loader.state_dict()
    again = streams(lengths, 2)
    again.load_state_dict(state)
    again.set_epoch(3)
    assert collect(again) == expected(lengths, 2, epoch=3)[2:]
    again.set_epoch(3)
    assert collect(again) == expected(lengths, 2, epoch=3)  # the state is used up
    again.load_state_dict(state)
    again.set_epoch(4)
    assert collect(again) == expected(lengths, 2, epoch=4)


def test_state_of_several_iterations_is_that_of_the_last_batch():
    loader = streams([9] * 4, 2)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 1)
    next(first)
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, 2)


def test_a_state_takes_numbers_of_any_kind():
    """As they come from a checkpoint of torch or NumPy."""
    loader = streams([5] * 6, 2)
    collect(loader, 3)
    state = {
        key: np.asarray(value) if key in ("place", "item", "next", "epoch", "step") else value
        for key, value in loader.state_dict().items()
    }
    other = streams([5] * 6, 2)
    other.load_state_dict(state)
    assert other.state_dict() == loader.state_dict()


GOOD = {"files": 6, "batch_size": 2, "rank": 0, "world_size": 2, "lengths": [4] * 6}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": 7, "lengths": [4] * 7}, "files=6, and here it is 7"),
        ({"batch_size": 3}, r"rows=4, and here it is 6 \(batch_size=3 x world_size=2\)"),
        ({"world_size": 4}, r"rows=4, and here it is 8 \(batch_size=2 x world_size=4\)"),
        ({"seed": 3}, "seed=0, and here it is 3"),
        ({"shuffle": False}, "shuffle=True, and here it is False"),
        ({"ends": "drop"}, "ends='pad', and here it is 'drop'"),
        ({"groups": 2}, "groups=1, and here it is 2"),
        ({"lengths": None, "uneven": True, "groups": 2}, "groups=1, and here it is 2"),
        ({"lengths": None, "rank": 0, "world_size": 1, "batch_size": 4}, "lengths_known=True, and here it is False"),
    ],
    ids=str,
)
def test_states_of_other_settings(change, message):
    def make(files, batch_size, **settings):
        return Streams(range(files), batch_size, Files([4] * files), **settings)

    state = make(**GOOD).state_dict()
    with pytest.raises(InvalidError, match=message):
        make(**(GOOD | change)).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "of version 2"),
        ({"version": None}, "no state of streams"),
        ({"place": [0]}, "1 places, 2 items"),
        ({"place": [0, 9]}, "place 9 of 6 files"),
        ({"place": [0, -2]}, "numbers below 0"),
        ({"item": [0, -1]}, "numbers below 0"),
        ({"item": "ab"}, "item is 'ab'"),
        ({"next": []}, "0 groups"),
        ({"step": "soon"}, "step is 'soon'"),
        ({"step": -1}, "numbers below 0"),
        ({"first_row": 1}, "from row 1 on"),
    ],
    ids=str,
)
def test_damaged_states(change, message):
    loader = streams([4] * 6, 2)
    state = loader.state_dict()
    before = dict(state)
    with pytest.raises(InvalidError, match=message):
        loader.load_state_dict(state | change)
    assert loader.state_dict() == before
    for key in ("epoch", "place", "next"):
        with pytest.raises(InvalidError, match=f"no '{key}'"):
            loader.load_state_dict({name: value for name, value in state.items() if name != key})
    for nothing in ({}, [], [5], ["x"]):
        with pytest.raises(InvalidError):
            loader.load_state_dict(nothing)


def test_states_of_some_ranks_or_of_different_steps():
    def make(rank, world_size, batch_size):
        return streams([4] * 16, batch_size, rank=rank, world_size=world_size, groups=4, uneven=True)

    first = [make(rank, 4, 2) for rank in range(4)]
    one = make(0, 1, 8)
    with pytest.raises(
        InvalidError,
        match=r"the state has rows 2\.\.3 of 8, and rank 0 of 1 reads 0\.\.7: give the states of all ranks",
    ):
        one.load_state_dict(first[1].state_dict())
    collect(first[2], 1)
    with pytest.raises(InvalidError, match=r"different steps, \(epoch, step\) = \[\(0, 0\), \(0, 1\)\]"):
        one.load_state_dict([loader.state_dict() for loader in first])
