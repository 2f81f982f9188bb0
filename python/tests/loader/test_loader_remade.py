"""A named cache is removed and made again while a loader reads it: the loader goes on with the new one."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import Of
from processes import until
from served import expected, program

from stocached import Cache, Loader, ReplacedError, mix, source
from stocached._datasets import cache_backed

N = 40


def dataset(first=0):
    return Of(lambda index: np.full(8, first + index, np.int64), N)


def first_values(loader):
    return sorted(int(row[0]) for batch in loader for row in batch)


def remove(name):
    subprocess.run([program(), "rm", name], check=True, stdout=subprocess.DEVNULL)


WORKERS = [
    {},
    {"num_workers": 2, "worker": "process", "persistent_workers": True},
    {"num_workers": 2, "worker": "thread", "persistent_workers": True},
    {"num_workers": 2, "worker": "process", "augment": np.copy},
]


PIPES = {
    "lists": lambda first: first.flat_map(lambda sample: [sample]),
    "a side": lambda first: mix([first, source(dataset(N))]),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", PIPES)
def test_stages_of_a_pipe_read_and_fill_the_new_cache(cache_name, kind, workers):
    def pipe():
        def cached(above):
            return above.cache("8MiB", name=cache_name, fingerprint="numbers")

        numbers = source(dataset())
        return cached(PIPES[kind](numbers)) if kind == "lists" else PIPES[kind](cached(numbers))

    loader = Loader(pipe().batch(4), num_workers=workers, persistent_workers=workers > 0)
    values = first_values(loader)
    remove(cache_name)
    other = Loader(pipe().batch(4))
    assert first_values(loader) == values
    assert first_values(other) == values
    stages = [next(each for each in one.stats().stages if ".cache" in each.stage) for one in (loader, other)]
    # All that read a cache count: `loader` has filled the new one, and `other` read it.
    assert [(each.hits, each.misses) for each in stages] == [(N, 2 * N), (N, N)]
    loader.close()
    other.close()


@pytest.mark.parametrize(
    ("settings", "given"),
    [*((settings, "name=") for settings in WORKERS), (WORKERS[1], "cache=")],
    ids=["none", "kept", "threads", "new", "kept, cache="],
)
def test_the_next_epoch_reads_and_fills_the_new_cache(cache_name, settings, given):
    data = dataset()
    named = {"name": cache_name, "fingerprint": "numbers"}
    with contextlib.ExitStack() as stack:
        if given == "cache=":
            made = stack.enter_context(Loader(data, 4, **named).cache)
            loader = Loader(data, 4, cache=made, seed=1, shuffle=True, **settings)
        else:
            loader = Loader(data, 4, seed=1, shuffle=True, **named, **settings)
        stack.callback(loader.close)
        for _ in range(2):
            assert first_values(loader) == list(range(N))
        before = loader.cache
        remove(cache_name)
        assert first_values(loader) == list(range(N)), "no other cache has its place"
        assert loader.cache is before

        other = stack.enter_context(Loader(dataset(), 4, **named).cache)
        other.put(7, np.full(8, 7, np.int64))
        misses = loader.stats().misses
        assert first_values(loader) == list(range(N))
        assert loader.cache.uuid == other.uuid != before.uuid
        assert loader.stats().misses == misses + N - 1, "it has filled the new cache"
        assert other.stats().ready == N
        assert first_values(loader) == list(range(N))
        assert loader.stats().misses == misses + N - 1


@pytest.mark.parametrize(
    "other", [{"fingerprint": "others"}, {"fingerprint": None}, {"shape": 4}, {"samples": N + 1}], ids=str
)
def test_a_cache_of_other_samples_is_not_read(cache_name, other):
    loader = Loader(dataset(), 4, name=cache_name, fingerprint="numbers")
    assert first_values(loader) == list(range(N))
    before = loader.cache
    remove(cache_name)
    options = {"samples": N, "shape": 8, "dtype": np.int64, "fingerprint": "numbers", **other}
    with Cache.create(cache_name, **options):
        assert first_values(loader) == list(range(N))
        assert loader.cache is before
    loader.close()


@pytest.mark.torch
@pytest.mark.parametrize(
    "settings",
    [{}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 2, "augment": np.asarray}],
    ids=["none", "kept", "by workers"],
)
@pytest.mark.parametrize("when", ["between epochs", "in an epoch"])
def test_the_cache_of_a_server_that_made_it_again(server, settings, when):
    from stocached.torch import DataLoader, SourceDataset

    server.records(N)
    loader = DataLoader(SourceDataset(server.name), 4, seed=1, **settings)
    wanted = expected(range(N))
    batches = iter(loader)
    got = [next(batches) for _ in range(3 if when == "in an epoch" else N // 4)]
    before = loader.cache.uuid
    server.stop()
    server.path.unlink()
    server.start()
    got += batches
    assert (np.concatenate(got) == wanted).all()
    assert (np.concatenate(list(loader)) == wanted).all()
    assert loader.cache.uuid != before
    assert loader.cache.stats().ready == N
    loader.close()


@pytest.mark.torch
def test_two_threads_find_the_cache_of_a_server_replaced(server, monkeypatch):
    """The second one attaches to nothing, because the first one has: it reads the new cache too."""
    from stocached.torch import SourceDataset

    server.records(N)
    dataset = SourceDataset(server.name)
    old, fetched = dataset.cache, cache_backed.fetch_and_count
    server.stop()
    server.path.unlink()
    server.start()
    both = threading.Barrier(2)

    def late(cache, *arguments):
        try:
            return fetched(cache, *arguments)
        except ReplacedError:
            if both.wait(30) == 0:
                until(lambda: dataset.cache is not old, "the other thread has attached")
            raise

    monkeypatch.setattr(cache_backed, "fetch_and_count", late)
    with ThreadPoolExecutor(2) as pool:
        for (samples, ok), _ in pool.map(lambda _: dataset.fetch(list(range(N))), range(2)):
            assert ok.all()
            assert (samples == expected(range(N))).all()
