"""Samples that are compared in the background: what the comparison finds, which processes learn of
it, and that it disturbs no other code."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
from processes import until

from stocached import Cache, FingerprintError, Loader, NondeterministicDatasetError
from stocached._checks import loading
from stocached._datasets import comparison as _comparison
from stocached._datasets.cached_samples import CachedSamples
from stocached._datasets.comparison import Comparison, private_copy

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*samples are compared in the background"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # files that a dataset opens and no code closes
]
N = 200


class Made:
    """A dataset about which only loaded samples tell anything."""

    def __init__(self, *changed):
        self.changed = changed

    def __len__(self):
        return N

    def __getitem__(self, index):
        return np.full(50, index + (index in self.changed))


# All samples but those that are compared when the cache is opened: the first, the last and the
# middle one.
OTHER = Made(*(set(range(N)) - {0, (N - 1) // 2, N - 1}))


def fill(name, dataset):
    """Makes a cache without a fingerprint."""
    with Cache.create(name, samples=N, shape=(50,), dtype=dataset[0].dtype, size="16MiB") as cache:
        cached = CachedSamples(dataset, cache)
        for index in range(N):
            cached[index]


@pytest.fixture
def filled(cache_name):
    fill(cache_name, Made())
    return cache_name


def test_other_samples_are_an_error_at_the_next_use(filled):
    cached = CachedSamples(OTHER, name=filled)
    cached._comparison.done.wait()
    for use in (lambda: cached[3], lambda: cached.__getitems__([3, 4])):
        with pytest.raises(
            FingerprintError,
            match=rf"holds other data than this dataset gives: sample \d+ was compared, .*stocached rm {filled}",
        ):
            use()


def test_a_random_dataset_is_told_from_one_of_other_samples(filled):
    class Random(Made):
        def __init__(self):
            super().__init__(*OTHER.changed)
            self.generator = np.random.default_rng(3)

        def __getitem__(self, index):
            return super().__getitem__(index) + (self.generator.integers(1, 9) if index in self.changed else 0)

    loader = Loader(Random(), 8, name=filled)
    loader._cached._comparison.done.wait()
    with pytest.raises(
        NondeterministicDatasetError,
        match=r"was loaded again and it \(.*\) differs: .*Loader\(dataset, \.\.\., augment=fn\)",
    ):
        next(iter(loader))
    assert loader.cache.stats().ready == N  # samples of other programs stay


def test_processes_that_were_forked_before_hear_of_it(filled):
    go, found = threading.Event(), os.pipe()

    class Slow(Made):
        def __getitem__(self, index):
            if threading.current_thread() is not threading.main_thread():
                go.wait()
            return super().__getitem__(index)

    cached = CachedSamples(Slow(*OTHER.changed), name=filled)
    go.set()  # the thread pauses while the process forks: it may be in the middle of a sample
    begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begin[0], 1)
        try:
            cached[3]
        except FingerprintError as error:
            os.write(found[1], str(error).encode())
        os._exit(0)
    cached._comparison.done.wait()
    os.write(begin[1], b".")
    os.waitpid(child, 0)
    assert b"holds other data" in os.read(found[0], 4096)
    for end in (*found, *begin):
        os.close(end)


def test_a_loader_stops(filled):
    loader = Loader(OTHER, 10, num_workers=2, name=filled)
    loader._cached._comparison.done.wait()
    with pytest.raises(FingerprintError, match="holds other data"):
        next(iter(loader))
    loader.close()


def test_samples_that_are_the_same_are_used_in_peace(filled):
    loader = Loader(Made(), 10, name=filled)
    hits = loader.cache.stats().hits
    loader._cached._comparison.done.wait()
    assert loader.cache.stats().hits == hits  # probes are not counted
    assert [row[0] for batch in loader for row in batch.tolist()] == list(range(N))
    assert loader.stats().hits == N


def test_what_could_not_be_told_is_said_once(filled, monkeypatch):
    monkeypatch.setattr(_comparison, "_said", False)
    with pytest.warns(
        UserWarning,
        match=r"is not certain \(data: Made does not say .*\)\. 32 samples are compared .*; fingerprint= makes",
    ) as caught:
        for _ in range(3):
            CachedSamples(Made(), name=filled)
    assert len(caught) == 1


def test_only_the_first_rank_of_a_machine_says_it(filled, monkeypatch, recwarn):
    monkeypatch.setattr(_comparison, "_said", False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    CachedSamples(Made(), name=filled)
    assert len(recwarn) == 0


def test_allow_random_compares_nothing(filled):
    assert CachedSamples(OTHER, name=filled, allow_random=True)[3].tolist() == [3] * 50


# ------------------------------------------------------------ nothing else notices


class Opens(Made):
    """Opens its file for the first sample, and keeps it open. Counts its loads."""

    def __init__(self, path, *changed):
        super().__init__(*changed)
        self.path, self.file, self.seen, self.files = path, None, [], {}

    def __getitem__(self, index):
        if self.file is None:
            self.file = self.files[self.path] = open(self.path, "rb")  # noqa: SIM115
        self.seen.append(index)
        self.file.seek(index * 8)
        return np.full(50, int.from_bytes(self.file.read(8), "little"))


@pytest.fixture
def path(tmp_path):
    np.arange(N, dtype=np.int64).tofile(tmp_path / "numbers")
    return tmp_path / "numbers"


def test_the_dataset_is_left_as_it_is(filled, path):
    dataset = Opens(path)
    cached = CachedSamples(dataset, name=filled)
    dataset.epoch = 3  # the program sets it during the comparison, which does not reset it
    cached._comparison.done.wait()
    assert (dataset.file, dataset.files, dataset.seen, dataset.epoch) == (None, {}, [], 3)
    cached.cache.clear()
    assert [int(cached[index][0]) for index in range(N)] == list(range(N))
    assert dataset.file is not None
    dataset.file.close()


def test_the_program_and_the_thread_load_one_after_the_other(filled):
    inside, entered, met = threading.Event(), threading.Event(), []

    class Alone(Made):
        def __getitem__(self, index):
            if threading.current_thread().name == "stocached background":
                inside.set()
                # if the program can load now, it does so within that time
                met.append(entered.wait(0.0 if met else 0.5))
            elif inside.is_set():
                entered.set()
            return super().__getitem__(index)

    cached = CachedSamples(Alone(), name=filled, _forks=False)
    inside.wait()
    cached.cache.clear()
    cached[3]
    cached._comparison.done.wait()
    assert met[0] is False


def test_datasets_that_seed_the_programs_generators_are_compared_at_once(cache_name):
    class Seeds(Made):
        def __getitem__(self, index):
            random.seed(index)
            return np.full(50, random.random() + (index in self.changed))

    fill(cache_name, Seeds())
    random.seed(5)
    with pytest.raises(FingerprintError, match="holds other data"):
        CachedSamples(Seeds(*OTHER.changed), name=cache_name, _forks=False)
    assert CachedSamples(Seeds(), name=cache_name, _forks=False)._comparison is None
    assert random.random() == random.Random(5).random()


def test_a_dataset_that_only_its_own_thread_may_ask(filled, tmp_path, monkeypatch):
    class Rows(Made):
        def __init__(self):
            super().__init__()
            self.rows = sqlite3.connect(tmp_path / "rows")

        def __getitem__(self, index):
            self.rows.execute("select 1")
            return super().__getitem__(index)

    said = []
    monkeypatch.setattr(_comparison, "_say_failed", lambda name, error: said.append((name, type(error))))
    dataset = Rows()
    cached = CachedSamples(dataset, name=filled, _forks=False)  # the comparison ends with it
    cached._comparison.done.wait()
    assert said == [(filled, sqlite3.ProgrammingError)]
    dataset.rows.close()


# ------------------------------------------------------------ the thread


def test_it_stands_still_while_the_process_forks():
    inside, go, compared = threading.Event(), threading.Event(), []

    def compare(index):
        inside.set()
        go.wait()
        compared.append(index)
        return True

    comparison = Comparison(list(range(5)), compare, pytest.fail)
    inside.wait()
    stopping = threading.Thread(target=comparison.before_fork)
    stopping.start()
    until(lambda: comparison.pauses, "it waits for the sample that is being compared")
    assert stopping.is_alive()
    go.set()
    stopping.join()
    assert not comparison._thread.is_alive()
    assert compared == [4]
    comparison.after_fork()
    comparison.done.wait()
    assert sorted(compared) == [0, 1, 2, 3, 4]


def test_children_have_no_such_thread(filled):
    cached = CachedSamples(Made(), name=filled)
    child = os.fork()
    if child == 0:
        with loading.alone(60) as alone:
            os._exit(len(list(Path("/proc/self/task").iterdir())) - 1 if alone else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cached._comparison.done.wait()


def test_it_ends_with_the_cache_and_with_the_dataset(filled):
    cached = CachedSamples(OTHER, name=filled)
    comparison = cached._comparison
    cached.cache.close()
    comparison.done.wait()
    until(lambda: not comparison._thread.is_alive(), "its thread ends")
    cached = CachedSamples(Made(), name=filled)
    comparison = cached._comparison
    del cached
    comparison.done.wait()


def test_copies_share_what_is_no_object_of_the_programs():
    class Inner(Made):
        pass

    inner = Inner()
    inner.itself, inner.array, inner.lock = inner, np.zeros(3), threading.Lock()
    outer = Made()
    outer.parts = [(inner, {"inner": inner})]
    made = private_copy(outer)
    (copied, named), *_ = made.parts
    assert copied is not inner
    assert named["inner"] is copied
    assert copied.itself is copied
    assert copied.array is inner.array
    assert copied.lock is inner.lock
    copied.more = 1
    assert not hasattr(inner, "more")
