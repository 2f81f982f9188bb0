"""No cache stores random samples, whichever process loads them. The check notices draws, not only
values that differ."""

from __future__ import annotations

import contextlib
import gc
import pickle
import random
import re
import tempfile
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import Of
from processes import in_child, in_threads, is_inside, limit, meanwhile, until

from stocached import Cache, Loader, NondeterministicDatasetError
from stocached._checks import loading
from stocached._checks.fills import Fills
from stocached._datasets.cached_samples import CachedSamples
from stocached._random import generators
from stocached.prepare import BlockStorage, DataPreparer, DatasetInfo, prepare

N = 60
LATE = 5  # a sample that no constructor probes


@pytest.fixture(autouse=True)
def states_kept():
    with generators.kept():
        yield


class Constant(Of):
    """Every sample is the same. The function runs before it is returned."""

    def __init__(self, do, n=N):
        super().__init__(do, n)

    def __getitem__(self, index):
        self.function(index)
        return np.zeros(4, np.float32), 1


def at(index, do):
    """Runs it for one sample only."""
    return lambda k: do() if k == index else None


def gauss_again():
    """Returns the second of two numbers that were made together, which does not move the
    generator's position."""
    np.random.standard_normal()


DRAWS = {
    "random": random.random,
    "random, gauss": lambda: random.gauss(0, 1),
    "numpy.random": np.random.rand,
    "numpy.random, gauss": gauss_again,
    "numpy.random, every word": lambda: np.random.rand(312),
}


def read_all(dataset):
    return [dataset[k] for k in range(len(dataset))]


# ------------------------------------------------------------ every way in


def by_cached(dataset, **options):
    cached = CachedSamples(dataset, **options)
    try:
        read_all(cached)
    finally:
        assert options or cached.stats().ready == 0


def by_batches(dataset, **options):
    cached = CachedSamples(dataset, **options)
    for first in range(0, N, 10):
        cached.__getitems__(list(range(first, first + 10)))


def by_loader(workers, worker="process"):
    def read(dataset, **options):
        loader = Loader(dataset, 6, num_workers=workers, worker=worker, size="16MiB", **options)
        try:
            list(loader)
        finally:
            assert options or loader.cache.stats().ready == 0
            loader.close()

    return read


def by_get_or_load(dataset, **options):
    with Cache.create(samples=N, fields={"x": ((4,), "float32"), "y": ((), "int64")}) as cache:

        def load(index):
            x, y = dataset[index]
            return {"x": x, "y": y}

        try:
            for k in range(N):
                cache.get_or_load(k, load, **options)
        finally:
            assert options or cache.stats().ready == 0


class Prepared(DataPreparer):
    def __init__(self, dataset):
        self.dataset = dataset

    def dataset_info(self):
        return DatasetInfo({"x": ((4,), "float32"), "y": ((), "int64")}, len(self.dataset), "constant")

    def samples(self, first, stop):
        for k in range(first, stop):
            x, y = self.dataset[k]
            yield {"x": x, "y": y}


def by_prepare(processes):
    def read(dataset, **options):
        with tempfile.TemporaryDirectory() as folder:
            prepare(Prepared(dataset), BlockStorage(f"{folder}/made"), processes=processes, **options)

    return read


WAYS = {
    "CachedSamples": (by_cached, "CachedDataset"),
    "batches": (by_batches, "CachedDataset"),
    "loader, 0 workers": (by_loader(0), "Loader"),
    "loader, 2 workers": (by_loader(2), "Loader"),
    "loader, 2 threads": (by_loader(2, "thread"), "Loader"),
    "get_or_load": (by_get_or_load, "get_or_load"),
    "prepare": (by_prepare(0), "prepare"),
    "prepare, 2 processes": (by_prepare(2), "prepare"),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_a_draw_is_an_error_though_no_value_differs(way):
    read, call = WAYS[way]
    with pytest.raises(NondeterministicDatasetError) as caught:
        read(Constant(at(LATE, np.random.rand)))
    said = str(caught.value)
    assert f"sample {LATE} of" in said
    assert "the global generator of numpy.random" in said
    assert "differ" not in said
    assert ("augment=" if call != "get_or_load" else "after get_or_load") in said
    assert f"{call}(" in said
    assert "allow_random=True" in said


@pytest.mark.parametrize("way", list(WAYS))
def test_what_is_allowed_to_be_random_is(way):
    WAYS[way][0](Constant(lambda k: random.random()), allow_random=True)


@pytest.mark.parametrize("draw", list(DRAWS))
def test_every_draw_is_noticed(draw):
    np.random.standard_normal()  # leaves the second number in the generator
    random.gauss(0, 1)
    with pytest.raises(NondeterministicDatasetError, match=f"global generator of {draw.partition(',')[0]}[ :]"):
        by_cached(Constant(at(LATE, DRAWS[draw])))


def test_a_draw_of_what_is_tried_out_is_told_at_once():
    with pytest.raises(
        NondeterministicDatasetError,
        match="sample 0 of the dataset draws random numbers from the global generator of random:",
    ):
        CachedSamples(Constant(lambda k: random.random()))


def test_each_generator_is_named():
    with pytest.raises(NondeterministicDatasetError, match="of random and the global generator of numpy.random:"):
        CachedSamples(Constant(lambda k: (random.random(), np.random.rand())))


def test_a_generator_in_the_place_of_numpys(monkeypatch):
    mersenne = np.random.mtrand._rand._bit_generator
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        cached = CachedSamples(Constant(at(LATE, np.random.rand)))
        cached[3]
        with pytest.raises(NondeterministicDatasetError, match=r"global generator of numpy\.random"):
            cached[LATE]
    finally:
        np.random.set_bit_generator(mersenne)
    assert np.random.mtrand._rand._bit_generator is mersenne


def test_generators_whose_memory_is_unknown(monkeypatch):
    monkeypatch.setattr(generators, "_python_is_known", lambda: False)
    monkeypatch.setattr(generators, "_numpy_is_known", lambda: False)
    monkeypatch.setattr(generators, "_known", (generators.PythonGenerator(), generators.NumpyGenerator()))
    monkeypatch.setattr(generators, "_observer", None)
    for draw in DRAWS:
        with pytest.raises(NondeterministicDatasetError, match=f"global generator of {draw.partition(',')[0]}[ :]"):
            by_cached(Constant(at(LATE, DRAWS[draw])))


def test_a_batch_names_its_samples():
    class Batches(Constant):
        def __getitems__(self, indices):
            if len(indices) > 1:
                random.random()
            return [super(Batches, self).__getitem__(k) for k in indices]

    cached = CachedSamples(Batches(lambda k: None))
    with pytest.raises(NondeterministicDatasetError, match="one of the samples 3, 4, 5 of the dataset draws"):
        cached.__getitems__([3, 4, 5])
    with pytest.raises(NondeterministicDatasetError, match=r"one of the samples 1, .*, 16 and 4 others of the dataset"):
        CachedSamples(Batches(lambda k: None)).__getitems__(list(range(1, 21)))


# ------------------------------------------------------------ the numbers of the program


class Lazy(Constant):
    """Makes a model with random weights before its first sample."""

    def __init__(self, n=N):
        super().__init__(self.build, n)
        self.weights = None

    def build(self, index):
        if self.weights is None:
            self.weights = np.random.standard_normal(3), random.gauss(0, 1)


def numbers():
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.standard_normal()]


def test_the_numbers_of_the_program_are_as_without_the_check():
    seen = []
    for allowed in (True, False):
        random.seed(7)
        np.random.seed(7)
        cached = CachedSamples(Lazy(), allow_random=allowed)
        mine = numbers()
        for k in range(N):
            cached[k]
            if k % 7 == 0:
                mine += numbers()
        seen.append(mine)
    assert seen[0] == seen[1]


# ------------------------------------------------------------ what is no randomness


def seeded(index):
    random.seed(index)
    np.random.seed(index)
    random.random(), np.random.standard_normal(3)


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("dataset", [lambda: Constant(seeded), Lazy], ids=["seeds itself", "makes a model"])
def test_no_false_alarm(way, dataset):
    WAYS[way][0](dataset(), **({"allow_random": False} if way != "prepare" else {}))


def test_samples_that_seed_themselves_do_not_hide_those_that_draw():
    """As in a concatenation of both datasets."""
    first, n = 100, 3000
    cached = CachedSamples(
        Constant(lambda k: random.random() if first <= k < n - 1 and k != (n - 1) // 2 else seeded(k), n)
    )
    with pytest.raises(NondeterministicDatasetError) as caught:
        read_all(cached)
    assert first <= int(str(caught.value).split()[1]) < first + 3 * 64
    assert cached.stats().ready == 0


@pytest.mark.parametrize("way", ["CachedSamples", "loader, 2 threads", "prepare"])
def test_another_thread_that_draws_is_not_the_dataset(way):
    def work(index):
        time.sleep(0)  # lets the other thread run

    with meanwhile(lambda: (random.random(), np.random.rand())):
        WAYS[way][0](Constant(work), **({"allow_random": False} if way != "prepare" else {}))
        # samples that differ are still noticed
        own = np.random.default_rng(3)
        with pytest.raises(NondeterministicDatasetError, match="differ"):
            CachedSamples(Of(lambda k: own.random(), N))


def test_a_dataset_that_draws_in_a_thread_of_its_own():
    def work(index):
        thread = threading.Thread(target=random.random)
        thread.start()
        thread.join()

    idle = threading.Event()
    waits = threading.Thread(target=idle.wait)  # an idle thread must not switch the check off
    waits.start()
    try:
        with pytest.raises(NondeterministicDatasetError, match="global generator of random"):
            CachedSamples(Constant(work))
    finally:
        idle.set()
        waits.join()


def test_a_loader_within_a_dataset():
    inner = Loader(range(6), 3, generator=None)

    outer = Of(lambda index: sum(int(batch.sum()) for batch in Loader(range(6), 3, sampler=range(6))), N)
    np.random.seed(5)
    iter(inner)
    before = np.random.get_state(legacy=False)
    iter(Loader(range(6), 3, sampler=range(6)))
    assert np.random.get_state(legacy=False)["state"]["pos"] != before["state"]["pos"], (
        "each iteration draws a base seed, as torch's does"
    )
    cached = CachedSamples(outer)
    assert read_all(cached) == [15] * N
    assert cached.stats().ready == N


# ------------------------------------------------------------ generators of the dataset's own


def differing(index_from):
    """A dataset with its own generator, whose samples differ from some index on."""
    own = np.random.default_rng()
    return Of(lambda k: np.full(3, own.random() if k >= index_from and k != N - 1 and k != (N - 1) // 2 else 0.5), N)


def test_samples_that_differ_are_found_and_the_cache_is_cleared():
    cached = CachedSamples(differing(10))
    with pytest.raises(NondeterministicDatasetError) as caught:
        read_all(cached)
    said = str(caught.value)
    assert "sample 10 of the dataset was loaded again and it (" in said
    assert "No global generator was drawn from: the dataset has one of its own" in said
    assert "CachedDataset(dataset, ..., augment=fn)" in said
    assert "The cache was cleared, of 11 samples." in said
    assert cached.stats().ready == 0
    with pytest.raises(NondeterministicDatasetError, match="sample 10 of"):  # later calls raise it too
        cached[3]
    assert cached.stats().ready == 0


@pytest.mark.parametrize("variable", [False, True], ids=["fixed size", "variable size"])
def test_only_samples_of_this_program_are_removed_from_the_cache_of_another(variable, folder):
    with Cache.create(
        "theirs",
        samples=N,
        shape=(None,) if variable else (3,),
        dtype="float64",
        variable=variable,
        size="16MiB",
        dir=folder,
    ) as theirs:
        for k in (2, 7):
            theirs.put(k, np.full(3, 0.5))
        mine = Cache.attach(theirs.path)
        cached = CachedSamples(differing(10), mine)
        with pytest.raises(
            NondeterministicDatasetError, match=r"The 9 samples that this program had stored were removed"
        ):
            read_all(cached)
        assert [k for k in range(N) if k in theirs] == [2, 7]
        assert theirs.verify() == []
        assert theirs.put(3, np.full(3, 0.25)), "its slot can be filled again"
        mine.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_a_loader_gave_before_are_counted(workers):
    loader = Loader(differing(24), 6, num_workers=workers, size="16MiB")
    given = 0
    with pytest.raises(NondeterministicDatasetError, match=r"sample [23]\d of ") as caught:
        for _ in loader:
            given += 1
    assert f"The loader gave {given} batches before" in str(caught.value)
    if workers == 0:
        assert given == 4
        assert re.search(r"The cache was cleared, of \d+ samples\.", str(caught.value))
    else:
        assert given <= 4, "one worker may be ahead of the loop; the others wait"
    assert loader.cache.stats().ready == 0
    loader.close()


def test_workers_that_are_spawned_share_what_they_know():
    """One worker finds it. The others store nothing from then on, and the samples that they had
    stored are removed."""
    fills = Fills(100)
    again = pickle.loads(pickle.dumps(fills))
    assert [again.compared() for _ in range(32)] == [True] * 32
    assert not fills.compared()
    fills.error.publish(NondeterministicDatasetError("why"))
    with pytest.raises(NondeterministicDatasetError, match="^why$"):
        again.error.check()
    data = pickle.dumps(fills)
    del fills, again
    # the other process has closed it: it starts again, because a cache may outlive the process that
    # pickled it
    alone = pickle.loads(data)
    assert alone.compared()
    alone.error.check()


def test_which_samples_are_looked_at():
    for processes in (1, 4):
        one = Fills()
        shares = [one, *(pickle.loads(pickle.dumps(one)) for _ in range(processes - 1))]
        due = [k for k in range(100_000) if shares[k % processes].compared()]
        assert due[:32] == list(range(32))
        assert len(due) == 256
        steps = np.diff(due[32:])
        assert 60 < steps.mean() < 68
        assert len({step % 2 for step in steps.tolist()}) == 2


def test_a_sample_that_cannot_be_loaded_again_is_not_stored():
    calls = []

    def once(index):
        if index == LATE:
            calls.append(index)
            if len(calls) == 2:
                raise OSError("busy")
            np.random.rand() if len(calls) == 1 else None

    cached = CachedSamples(Constant(once))
    cached[LATE]
    assert LATE not in cached.cache
    cached[LATE]
    assert LATE in cached.cache


def test_values_that_are_compared():
    """NaN equals NaN. Text and bytes are compared. Changes that a dataset makes in place are
    noticed."""
    cached = CachedSamples(
        Of(
            lambda k: {
                "nan": np.array([np.nan, 1]),
                "text": f"{k}",
                "raw": bytes([k]),
                "none": None,
                "more": [k, 1.5, True],
            },
            N,
        )
    )
    read_all(cached)
    assert cached.stats().ready == N
    counts = {}

    def changing(k):
        counts[k] = counts.get(k, 0) + (k not in (0, N - 1, (N - 1) // 2))
        return {"same": 1, "text": f"{counts[k]}"}

    with pytest.raises(NondeterministicDatasetError, match=r"its value 'text' \(str\) differs"):
        read_all(CachedSamples(Of(changing, N)))

    kept = np.zeros((N, 3))

    def in_place(k):
        kept[k] += k not in (0, N - 1, (N - 1) // 2)
        return kept[k]

    with pytest.raises(NondeterministicDatasetError, match=" differs: "):
        read_all(CachedSamples(Of(in_place, N)))


def test_nothing_of_a_refused_preparation_stays(tmp_path):
    own = np.random.default_rng()

    def storage():
        return BlockStorage(tmp_path / "d", file_bytes=4096, block_bytes=4096)

    class Large(Prepared):
        def dataset_info(self):
            return DatasetInfo({"x": ((512,), "float64")}, N, "large")

        def samples(self, first, stop):
            for k in range(first, stop):
                yield np.full(512, own.random() if k >= self.dataset else 1.0)

    for processes in (0, 2):
        with pytest.raises(
            NondeterministicDatasetError,
            match=r"sample \d+ of the preparer was loaded again.*prepare\(\.\.\., allow_random=True\)",
        ):
            prepare(Large(20), storage(), processes=processes)
        assert list(tmp_path.iterdir()) == []
    assert prepare(Large(N), storage())


# ------------------------------------------------------------ loading alone


def test_two_that_load_within_loads_do_not_wait_for_each_other():
    both, alone = threading.Barrier(2), []

    def load(_):
        loading.enter()
        both.wait()
        with loading.alone(60) as mine:
            alone.append(mine)
        loading.leave()

    in_threads(2, load)
    assert all(alone)


def test_a_thread_that_waits_for_the_load_of_another_is_not_loading():
    """get_or_load in one thread waits, inside its own load, for that of another thread, which must
    load alone."""
    waiting, results = threading.Event(), []
    with Cache.create(samples=2, shape=1, dtype="int64") as cache:

        def load(index):
            if not waiting.is_set():
                other.start()
                waiting.wait()
                until(lambda: is_inside(other, "stocached"), "it asks for the sample")
            np.random.rand() if not results else None
            results.append(index)
            return np.array([index])

        def within():
            loading.enter()
            waiting.set()
            cache.get_or_load(1, load)
            loading.leave()

        other = threading.Thread(target=within)
        np.testing.assert_array_equal(cache.get_or_load(1, load), [1])
        other.join()
        assert results == [1, 1, 1]
        assert 1 in cache


def test_a_fork_in_the_middle_of_a_load():
    child = at(LATE, lambda: in_child(lambda: loading.alone(60).__enter__()))
    read_all(CachedSamples(Constant(child)))


def test_threads_pause_while_a_sample_is_loaded_again():
    """Otherwise each thread would see numbers that others draw, in loads or in augment=, and would
    blame its own sample."""
    busy, calls, together = set(), [], []

    @contextlib.contextmanager
    def working():
        me = threading.get_ident()
        busy.add(me)
        try:
            yield busy - {me}
        finally:
            busy.discard(me)

    def work(index):
        with working() as others:
            if index == LATE:
                calls.append(index)
                if len(calls) == 1:
                    random.random()
                elif len(calls) <= 3:  # loaded again, from two states
                    together.append(others)
                    time.sleep(0.01)
                    together.append(busy - {threading.get_ident()})
            time.sleep(0.001)

    def augment(sample):
        with working():
            time.sleep(0.001)
            return sample

    loader = Loader(Constant(work), 4, num_workers=4, worker="thread", size="16MiB", augment=augment)
    list(loader)
    assert together == [set()] * 4
    assert loader.cache.stats().ready == N
    loader.close()


def test_nothing_that_checks_keeps_the_cache():
    """The memory of a cache ends with its last reference, not with the next garbage collection."""
    gc.disable()
    try:
        dataset = CachedSamples(Constant(lambda k: None))
        cache = Cache.create(samples=2, shape=1, dtype="int64")
        dataset[LATE]
        cache.get_or_load(0, lambda index: np.array([index]))
        gone = [weakref.ref(dataset), weakref.ref(dataset.cache), weakref.ref(cache)]
        del dataset, cache
        assert [reference() for reference in gone] == [None] * 3
    finally:
        gc.enable()


def test_a_loader_with_threads_within_a_dataset():
    """Its threads load while a sample is loaded again, which otherwise happens alone."""

    class Outer(Constant):
        def __getitem__(self, index):
            self.function(index)
            return np.concatenate(
                [x for x, _ in Loader(Constant(lambda k: None, 6), 2, num_workers=2, worker="thread")]
            )

    dataset = CachedSamples(Outer(lambda k: None))
    read_all(dataset)
    assert dataset.stats().ready == N
    with pytest.raises(NondeterministicDatasetError, match="global generator of random:"):
        read_all(CachedSamples(Outer(at(LATE, random.random))))


def test_a_load_that_waits_for_threads_of_the_program(monkeypatch):
    """The threads started before the load, and wait for it until their timeout."""
    monkeypatch.setattr(loading, "_timeout", 0.01)
    inner = Cache.create(samples=N, shape=1, dtype="int64")
    with inner, ThreadPoolExecutor(1) as pool:

        class Outer(Constant):
            def __getitem__(self, index):
                self.function(index)
                inner.clear()
                return pool.submit(inner.get_or_load, index, lambda k: np.array([k])).result().copy()

        dataset = CachedSamples(Outer(lambda k: None), _forks=False)
        read_all(dataset)
        assert dataset.stats().ready == N
        undecided = CachedSamples(Outer(at(LATE, random.random)), _forks=False)
        undecided[LATE]
        assert LATE not in undecided.cache


def test_a_load_that_hangs_is_waited_for_once():
    """Without this, each sample to be checked waits for its whole timeout while a thread hangs."""
    begun, end = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        end.wait()

    thread = threading.Thread(target=loading.run, args=(hang,))
    thread.start()
    begun.wait()
    try:
        seconds = []
        for timeout in (1, 30, 30):
            start = time.monotonic()
            with loading.alone(timeout) as alone:
                assert alone is None
            seconds.append(time.monotonic() - start)
        assert seconds[0] >= 1
        assert max(seconds[1:]) < 30
    finally:
        end.set()
        thread.join()
    with loading.alone(1.0) as alone:
        assert alone is not None


def test_a_load_of_a_closed_loader_that_hangs_is_not_waited_for():
    """It may hang for ever. Without this, every check of the process would wait, and decide nothing."""
    begun, end = threading.Event(), threading.Event()
    hangs = Constant(at(LATE, lambda: (begun.set(), end.wait())))
    loader = Loader(hangs, 4, num_workers=1, worker="thread")
    batches = iter(loader)
    begun.wait()
    thread = batches._runtime._workers[0]
    with loading.alone(0.01) as alone:
        assert alone is None, "the loader is not closed yet"
    loader.close()
    try:
        assert thread.is_alive()
        start = time.monotonic()
        with loading.alone(60) as alone:
            assert alone is not None
            assert alone.joined, "it may draw"
        with pytest.raises(NondeterministicDatasetError, match="global generator of random:"):
            read_all(CachedSamples(Constant(at(LATE, random.random))))
        assert time.monotonic() - start < limit(15)
    finally:
        end.set()
        thread.join()
    with loading.alone(60) as alone:
        assert alone is not None
        assert not alone.joined
