"""Statistics of a loader, and the progress bar that shows them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import sys
import time

import numpy as np
import pytest
from helpers import Of, without
from processes import in_threads

from stocached import InvalidError, Loader
from stocached._common.load_time import idle_ns
from stocached._loader import worker
from stocached._loader.progress import progress
from stocached._loader.stats import LoaderStats, Meter


def test_what_is_metered_is_told():
    meter = Meter()
    assert meter.stats() == LoaderStats()
    meter.batch(64, 60, 4, 6400, 1_000_000, 3_000_000)
    meter.batch(36, 0, 36, 3600, 2_000_000)
    meter.add(wait=500_000, step=4_000_000)
    meter.add(gather=7, load=9)
    meter.add(load=2)
    stats = meter.stats()
    assert stats == LoaderStats(
        batches=2,
        samples=100,
        hits=60,
        misses=40,
        bytes=10_000,
        wait_seconds=0.0035,
        step_seconds=0.007,
        gather_seconds=7e-9,
        load_seconds=11e-9,
    )
    assert stats.hit_rate == 0.6
    assert stats.seconds == pytest.approx(0.0105)
    assert stats.waiting == pytest.approx(1 / 3)
    assert stats.samples_per_second == pytest.approx(100 / 0.0105)
    assert (
        str(stats)
        == "100 samples in 2 batches, 60.0% hits, 9,524 samples/s; the training loop waited 0.004 of 0.011 s (33.3%)"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.hits = 3


def test_before_anything_nothing_is_divided_by():
    stats = LoaderStats()
    assert (stats.hit_rate, stats.waiting, stats.samples_per_second, stats.seconds) == (0, 0, 0, 0)


def test_the_difference_is_what_happened_between():
    meter = Meter()
    meter.batch(10, 10, 0, 100, 5, 6)
    before = meter.stats()
    meter.batch(20, 5, 15, 200, 1_000_000_000, 1_000_000_000)
    between = meter.stats() - before
    assert (between.batches, between.samples, between.hits, between.misses, between.bytes) == (1, 20, 5, 15, 200)
    assert between.hit_rate == 0.25
    assert between.waiting == pytest.approx(0.5)
    with pytest.raises(TypeError):
        between - 3


def test_threads_lose_nothing():
    meter = Meter()

    def work(_: int) -> None:
        for _ in range(5000):
            meter.batch(1, 1, 0, 2, 1, 1)
            meter.add(load=1)
            meter.add(gather=2)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(4, work)
    finally:
        sys.setswitchinterval(interval)
    stats = meter.stats()
    assert (stats.batches, stats.bytes, stats.load_seconds, stats.gather_seconds) == (
        20_000,
        40_000,
        20_000 / 1e9,
        40_000 / 1e9,
    )


def slow(index: int) -> np.ndarray:
    time.sleep(0.002)
    return np.full(100, index, np.int32)


def test_figures_of_a_real_loader():
    loader = Loader(Of(slow, 40), batch_size=8, num_workers=1, size="8MiB")
    begin = time.monotonic()
    for _ in loader:
        time.sleep(0.005)
    first, took = loader.stats(), time.monotonic() - begin
    assert (first.batches, first.samples, first.hits, first.misses) == (5, 40, 0, 40)
    assert first.load_seconds >= 40 * 0.002
    assert 5 * 0.005 <= first.step_seconds <= took
    assert first.wait_seconds > 0
    assert first.seconds <= took + 0.001
    list(loader)
    second = loader.stats() - first
    assert (second.samples, second.hits, second.misses, second.hit_rate) == (40, 40, 0, 1.0)
    assert second.bytes == 40 * 400
    assert second.load_seconds == 0
    assert second.gather_seconds > 0
    loader.close()


def odd(k, ragged=False):
    """A sample of arrays, numbers and strings, in dicts and tuples; with a length of its own if asked for."""
    return {"pair": (np.full(10 + k % 2 * ragged, k, np.float32), k), "name": str(k), "names": ["a", "b"]}


def as_it_is(samples):
    return [sample["pair"][0] for sample in samples]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "settings", "expected"),
    [
        (Of(odd, 12), {}, 12 * (40 + 8)),
        (Of(odd, 12), {"augment": dict}, 12 * (40 + 8)),
        (Of(odd, 12), {"size": "8MiB", "augment": dict}, 12 * (40 + 8)),
        (Of(odd, 12), {"collate_fn": as_it_is}, 12 * 40),
        (Of(functools.partial(odd, ragged=True), 12), {"collate_fn": as_it_is}, 12 * 42),
    ],
    ids=["plain", "augmented", "cached", "own", "ragged"],
)
def test_bytes_are_counted_from_the_first_batch_on(workers, dataset, settings, expected):
    loader = Loader(copy.copy(dataset), 4, num_workers=workers, **settings)  # the cache ends with the copy
    for epoch in (1, 2):
        list(loader)
        assert loader.stats().bytes == epoch * expected


OWN = {"collate_fn": np.stack}
AUGMENTED = OWN | {"augment": np.negative}


@pytest.mark.parametrize(
    ("workers", "worker", "settings"),
    [(2, "process", settings) for settings in (OWN, AUGMENTED, {"batch_size": None}, {})]
    + [(0, "process", AUGMENTED), (0, "process", {}), (4, "thread", AUGMENTED), (4, "thread", {"batch_size": None})],
)
def test_hits_are_counted_in_every_process_that_makes_batches(workers, worker, settings):
    loader = Loader(Of(slow, 40), **{"batch_size": 8, **settings}, num_workers=workers, worker=worker, size="8MiB")
    figures = []
    for _ in range(3):
        before = loader.stats()
        list(loader)
        figures.append(loader.stats() - before)
    assert [(epoch.hits, epoch.misses) for epoch in figures] == [(0, 40), (40, 0), (40, 0)]
    loader.close()


def test_progress_shows_the_figures_of_its_epoch():
    loader = Loader(Of(slow, 40), batch_size=8, size="8MiB")
    list(loader)
    screen = io.StringIO()
    batches = list(progress(loader, file=screen, desc="epoch 1", mininterval=0, ncols=120))
    assert np.array_equal(np.concatenate(batches)[:, 0], np.arange(40))
    shown = screen.getvalue().split("\r")[-1]
    assert "epoch 1: 100%" in shown
    assert "5/5" in shown
    assert "100% hits" in shown
    assert "samples/s" in shown


def test_progress_that_is_switched_off_or_left_early():
    loader = Loader(Of(slow, 40), batch_size=8)
    screen = io.StringIO()
    assert len(list(progress(loader, file=screen, disable=True))) == 5
    assert screen.getvalue() == ""
    for _ in progress(loader, file=screen, mininterval=0):
        break
    assert "1/5" in screen.getvalue()


def test_progress_of_unknown_length():
    class Endless:
        def __iter__(self):
            return iter(np.arange(6, dtype=np.int64))

    screen = io.StringIO()
    assert len(list(progress(Loader(Endless(), batch_size=2), file=screen, mininterval=0))) == 3
    assert "3batch" in screen.getvalue()


def test_progress_needs_a_loader_of_ours():
    with pytest.raises(InvalidError, match="a list has none; use tqdm itself"):
        progress([1, 2, 3])


def test_progress_needs_tqdm():
    call = "from stocached._loader.progress import progress; progress(type('Loader', (), {'stats': len})())"
    assert without("tqdm", call) == "progress() needs tqdm: pip install tqdm\n"


class Quick:
    """A sample says how often its worker has asked what a load waited."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> np.ndarray:
        if worker.idle_ns is idle_ns:
            worker.idle_ns = lambda: self.asked.append(index) or idle_ns()
        if index >= 300:
            time.sleep(1e-4)
        return np.array(len(self.asked))


def test_only_slow_loads_are_asked_what_they_waited():
    """Asking takes longer than a quick load, so a worker also asks once before all that it loads together."""
    asked = np.concatenate(list(Loader(Quick(), batch_size=10, num_workers=1, worker="process")))
    assert asked[299] < 300
    assert asked[399] - asked[301] >= 98


def blocks(index: int) -> int:
    """One sample of ten waits for a block; the others are in it."""
    if index % 10 == 0:
        time.sleep(0.02)
    return index


def test_a_slow_load_among_quick_ones_has_waited():
    loader = Loader(Of(blocks, 300), batch_size=10, num_workers=1, worker="process")
    assert sum(map(len, loader)) == 300
    assert loader._meter.source_share > 0.8
