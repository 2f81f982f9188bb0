"""Rows of a pipe with workers that a loader keeps, and what a timeline has of them."""

from __future__ import annotations

import collections
import contextlib
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stream_files
import trace_file
from processes import held, in_child, limit, meanwhile, nothing_new, until
from stream_files import Files, check, collect, expected, kill, lengths_of, pids, streams

from stocached import Loader, StreamError, source

known_or_not = pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])


def kept(lengths: list[int], rows: int, **settings: Any) -> Loader:
    return stream_files.loader(lengths, rows, **{"num_workers": 2, "persistent_workers": True} | settings)


@pytest.mark.parametrize(("known", "method"), [(False, "fork"), (True, "fork"), (False, "forkserver")])
def test_epochs_have_the_same_workers_and_the_batches_of_new_ones(known: bool, method: str):
    before, lengths, rng = held(), lengths_of(9, least=4), random.Random(4)
    loader, theirs, first = kept(lengths, 4, known=known, multiprocessing_context=method), None, None
    for epoch in range(8):
        batches = iter(loader)
        first = first or pids(batches)
        assert pids(batches) == first
        most = rng.choice([0, 1, 3, 10**9])
        found = collect(batches, most) if most else []
        assert found == expected(lengths, 4, epoch=epoch)[: len(found)]
        theirs = streams(lengths, 4, known=known)
        theirs.set_epoch(epoch)
        if most:
            collect(theirs, most)
            assert loader.state_dict() == theirs.state_dict()
    loader.set_epoch(3)
    assert collect(loader) == expected(lengths, 4, epoch=3)
    loader.close()
    del batches, loader, theirs
    if method == "fork":  # the first of the others starts a process of multiprocessing that stays
        nothing_new(before)


def test_an_item_that_takes_long_is_written_into_no_later_batch(tmp_path: Path):
    """The loop leaves an epoch while workers are in the middle of an item."""

    def read(file: int) -> Any:
        try:
            for k in range(9):
                if file == 3 and k == 3 and not (tmp_path / "slow").exists():
                    (tmp_path / "slow").touch()
                    time.sleep(0.3)
                yield np.full(1000, 100 * file + k)
        finally:
            (tmp_path / f"closed-{file}-{time.monotonic_ns()}").touch()

    loader = kept([9] * 4, 4, read=read)
    batches = iter(loader)
    next(batches)
    until(lambda: (tmp_path / "slow").exists(), "a worker is in the middle of an item")
    batches.close()
    until(lambda: len(list(tmp_path.glob("closed-*"))) == 4, "all files are closed, without another epoch")
    for batch in loader:
        assert (batch.items == (100 * batch.files + batch.positions)[:, None]).all()
    loader.close()


@known_or_not
def test_kept_workers_that_are_killed_are_replaced(known: bool):
    """By the next iteration, in the middle of an epoch and between two."""
    before, lengths, rng = held(), [5, 9, 2, 7] * 5, random.Random(2)
    loader, errors, epoch = kept(lengths, 4, known=known), 0, 0
    for _ in range(10):
        loader.set_epoch(epoch)
        with contextlib.suppress(StreamError):
            batches = iter(loader)
            victim = rng.choice(pids(batches))
            timer = threading.Timer(rng.random() * 0.04, kill, (victim,))
            timer.start()
            try:
                assert collect(batches) == expected(lengths, 4, epoch=epoch)
                epoch += 1
            except StreamError as error:
                if "was killed by SIGKILL" not in str(error):
                    raise AssertionError from error
                errors += 1
            timer.join()
    loader.set_epoch(epoch)
    while True:
        with contextlib.suppress(StreamError):  # the last one was killed between two epochs
            assert collect(loader) == expected(lengths, 4, epoch=epoch)
            break
    assert errors
    loader.close()
    del batches, loader
    nothing_new(before)


def test_forks_of_the_parent_between_batches():
    """Also by another thread, while one settles steps."""
    lengths = [3, 1, 4, 1, 5, 9, 2, 6] * 4
    loader = kept(lengths, 4)
    with meanwhile(lambda: in_child(lambda: True)):
        for epoch in range(3):
            assert collect(loader) == expected(lengths, 4, epoch=epoch)
    loader.close()


def test_close_ends_kept_workers_in_the_middle_of_an_item():
    def read(file: int) -> Any:
        yield np.zeros(3)
        time.sleep(100)

    loader = kept([2] * 4, 4, read=read)
    next(iter(loader))
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < limit(1)


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_that_take_more_files_than_tasks_have_room(workers: int):
    """Each file without an item is a round, while other workers have answered later steps."""
    lengths = [40] * 5 + [0] * 900 + [3]
    found = collect(streams(lengths, 6, num_workers=workers, shuffle=False))
    assert found == expected(lengths, 6, shuffle=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_timeline_has_steps_waits_and_loads(workers: int, tmp_path: Path):
    lengths, path = [60, 30, 80, 50], tmp_path / "trace.json"
    pipe = source(range(4)).flat_map(Files(lengths, slow=0.002)).batch(2, rows=True)
    loader = Loader(pipe, num_workers=workers, trace=path)
    batches = sum(sum(1 for _ in loader) for _ in range(2))
    assert loader.stats().load_seconds >= 2 * (sum(lengths) - len(lengths)) * 0.002  # a round's items do not count
    loader.close()
    spans = [event for event in trace_file.read(path)["traceEvents"] if event["ph"] == "X"]
    names = collections.Counter(event["name"] for event in spans)
    assert names["step"] >= batches
    assert names["wait"] >= batches
    assert {event["args"]["batch"] for event in spans if event["name"] == "load"} >= set(range(batches // 2))
    assert sum(event["dur"] for event in spans if event["name"].startswith(".flat_map")) > 0
    assert len({event["tid"] for event in spans if event["name"] == "load"}) == max(workers, 1)


def test_batches_that_the_program_keeps_stay_over_epochs():
    lengths, found = [5, 9, 2, 7], []
    loader = kept(lengths, 2)
    for epoch in range(3):
        found += [(batch, want) for batch, want in zip(loader, expected(lengths, 2, epoch=epoch), strict=True)]
    for batch, want in found:
        check(batch, want)
    loader.close()
