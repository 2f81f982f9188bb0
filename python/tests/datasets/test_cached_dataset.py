"""CachedDataset returns what the dataset gives, and loads each sample once, whichever process
asks."""

from __future__ import annotations

import functools
import pickle
import random
import time
import warnings
from typing import Any

import helpers
import numpy as np
import pytest
from torch_helpers import TORCH_WARNINGS, DataLoader, Squares, torch
from torch_helpers import CachedDataset as cached

import stocached
from stocached import Cache

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


Of = functools.partial(helpers.Of, n=10)


def equal(a: Any, b: Any) -> bool:
    """Whether Python types and values are equal."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def test_each_sample_is_loaded_once():
    inner = Squares(40)
    dataset = cached(inner)
    assert len(dataset) == 40
    assert inner.loads == []  # the constructor has loaded three samples, twice, and left the dataset unchanged
    for _ in range(3):
        for k in range(40):
            assert equal(dataset[k], Squares(40)[k])
    assert sorted(inner.loads) == sorted([*range(40), *range(32)])  # the first samples are loaded again and compared
    assert equal(dataset[-1], Squares(40)[39])
    assert equal(dataset[np.int64(3)], dataset[torch.tensor(3)])
    for wrong in (40, -41):
        with pytest.raises(IndexError, match=str(wrong)):
            dataset[wrong]
        with pytest.raises(IndexError, match=str(wrong)):
            dataset.__getitems__([0, wrong])
    assert sum(1 for _ in dataset) == 40


def test_batches_are_gathered_and_equal_single_items():
    inner = Squares(40)
    dataset = cached(inner)
    inner.loads.clear()
    order = [5, 3, 5, 39, 0]
    for _ in range(2):
        samples = dataset.__getitems__(order)
        assert all(map(equal, samples, map(Squares(40).__getitem__, order)))
    assert sorted(set(inner.loads)) == [0, 3, 5, 39]
    samples[0][0].zero_()  # private: neither the cache nor the next sample in the batch changes
    assert samples[2][0].unique().tolist() == [5]
    assert equal(dataset[5], Squares(40)[5])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda k: (), ["no value that can be cached"]),
        (lambda k: None, ["no value that can be cached"]),
        (lambda k: torch.zeros((1,) * (1 + (k > 3))), ["dimensions", "[1, 2]"]),
        (lambda k: 2**70, ["64 bits"]),
        (lambda k: np.zeros(2, "U3"), ["<U3"]),
    ],
)
def test_samples_that_cannot_be_cached(function, words):
    with pytest.raises(stocached.StocachedError) as caught:
        cached(Of(function))
    for word in words:
        assert word in str(caught.value)


def test_empty_dataset():
    with pytest.raises(ValueError, match="empty"):
        cached(Of(lambda k: k, n=0))


@pytest.mark.parametrize("generator", ["torch", "time", "label"])
def test_random_dataset_is_refused(generator):
    functions = {
        "torch": lambda k: (torch.rand(3), k),
        "time": lambda k: (torch.tensor(time.perf_counter_ns()), k),
        "label": lambda k: (torch.zeros(3), random.random()),
    }
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with pytest.raises(stocached.NondeterministicDatasetError, match="augment=") as caught:
        cached(Of(functions[generator]))
    assert ("item 1 " if generator == "label" else "item 0 ") in str(caught.value)
    # a seeded run does not change
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    dataset = cached(Of(functions[generator]), allow_random=True)
    assert equal(dataset[3], dataset[3])


def test_augment_is_applied_after_the_cache():
    seen = []

    def augment(sample: Any) -> Any:
        seen.append(sample[1])
        return sample[0].add_(1), -sample[1]  # in place: the sample is private

    dataset = cached(Squares(40), augment=augment)
    for _ in range(3):
        image, label = dataset[7]
        assert image.unique().tolist() == [8]
        assert label == -49
        assert [int(image[0, 0, 0]) for image, _ in dataset.__getitems__([7, 8])] == [8, 9]
    assert seen == [49, 49, 64] * 3


def test_sample_outside_the_schema_passes_through():
    odd = Of(lambda k: torch.zeros(3 if k != 5 else 4) + k)
    dataset = cached(odd)
    with pytest.warns(UserWarning, match=r"sample 5 .* uncached.*\(4,\)") as caught:
        for _ in range(2):
            assert all(equal(dataset[k], odd[k]) for k in range(10))
            assert all(map(equal, dataset.__getitems__(range(10)), map(odd.__getitem__, range(10))))
    assert len(caught) == 1
    stats = dataset.stats()
    assert (stats.stored, stats.passed) == (9, 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3).to_sparse(),
        lambda: torch.zeros(3).to_mkldnn(),
        lambda: torch.zeros(3, device="meta"),
        pytest.param(
            lambda: torch.zeros(3, dtype=torch.uint8).view(torch.bits8),
            marks=pytest.mark.skipif(
                torch is not None and not hasattr(torch, "bits8"), reason="this torch has no bits8, which came with 2.1"
            ),
        ),
        lambda: np.zeros(3, ">f4"),
        lambda: np.zeros(3, "U4"),
        lambda: np.zeros(3, [("a", "i4")]),
        lambda: np.longdouble(1),
    ],
)
def test_value_that_no_cache_takes_passes_through(make):
    odd = make()
    dataset = cached(Of(lambda k: (torch.zeros(3), 1) if k != 5 else (odd, 1)))
    with pytest.warns(UserWarning, match="sample 5 .* uncached"):
        given = dataset[5][0]
    assert type(given) is type(odd)
    assert (given.dtype, given.shape) == (odd.dtype, odd.shape)
    assert given is not odd or isinstance(odd, np.generic)  # which is constant
    assert [type(sample[0]) is type(odd) for sample in dataset.__getitems__([4, 5])][1]
    assert dataset.stats().passed == 2
    with pytest.raises(stocached.SchemaError):
        cached(Of(lambda k: odd))


def test_partly_cached():
    inner = Squares(40, (3, 100, 100))
    dataset = cached(inner, size="8MiB")
    slots = len(dataset.cache)
    few = cached(
        inner, cache=Cache.create(samples=40, slots=10, fields={"0": ((3, 100, 100), "uint8"), "1": ((), "int64")})
    )
    assert slots == 40
    inner.loads.clear()
    for _ in range(3):
        for k in range(40):
            assert equal(few[k], Squares(40, (3, 100, 100))[k])
    assert len(inner.loads) == 40 + 10 + 30 + 30  # the ten stored samples are loaded again and compared
    assert few.stats().cached_fraction == 0.25


def test_own_cache_must_fit():
    fields = {"x": ((3, 8, 8), "uint8"), "y": ((), "int64")}
    with Cache.create(samples=40, fields=fields) as cache:
        assert equal(cached(Squares(40), cache)[3], Squares(40)[3])
        with pytest.raises(stocached.InvalidError, match="40 samples, the dataset has 41"):
            cached(Squares(41), cache)
        with pytest.raises(stocached.SchemaError, match="3x8x9"):
            cached(Squares(40, (3, 8, 9)), cache)
        with pytest.raises(stocached.InvalidError, match="size="):
            cached(Squares(40), cache, size="1GiB")
    with Cache.create(
        samples=40, fields={"x": ((3, None, None), "uint8"), "y": ((), "int64")}, variable=True, size="64MiB"
    ) as cache:
        dataset = cached(Squares(40), cache)
        assert equal(dataset[3], Squares(40)[3])
        assert all(map(equal, dataset.__getitems__([3, 4]), map(Squares(40).__getitem__, [3, 4])))


def test_read_only_cache_is_read(folder):
    with Cache.create("ro", samples=40, fields={"x": ((3, 8, 8), "uint8"), "y": ((), "int64")}, dir=folder) as cache:
        dataset = cached(Squares(40), cache)
        dataset[3]
        inner = Squares(40)
        reader = cached(inner, Cache.attach(cache.path, read_only=True))
        inner.loads.clear()
        assert equal(reader[3], inner[3])
        assert equal(reader[4], inner[4])
        assert inner.loads.count(4) == 2
        assert 4 not in cache


def test_named_is_shared_and_compared(cache_name):
    one = cached(Squares(40), name=cache_name, fingerprint="squares")
    for k in range(40):
        one[k]
    inner = Squares(40)
    two = cached(inner, name=cache_name, fingerprint="squares")
    inner.loads.clear()
    assert all(equal(two[k], Squares(40)[k]) for k in range(40))
    assert inner.loads == []
    with pytest.raises(stocached.FingerprintError):
        cached(Squares(40), name=cache_name, fingerprint="cubes")
    with pytest.raises(stocached.FingerprintError):
        cached(Squares(40), name=cache_name)
    with pytest.raises(stocached.SchemaError, match=rf"40 samples, the dataset has 39.*\(stocached rm {cache_name}\)"):
        cached(Squares(39), name=cache_name, fingerprint="squares")
    with pytest.raises(stocached.SchemaError, match=rf"another cache or name.*\(stocached rm {cache_name}\)"):
        cached(Squares(40, (3, 8, 9)), name=cache_name, fingerprint="squares")
    one.cache.unlink()


def test_filled_cache_of_other_data_is_refused(cache_name):
    old = cached(Of(lambda k: (torch.full((5,), k), k)), name=cache_name)
    for k in range(10):
        old[k]
    with pytest.raises(
        stocached.FingerprintError, match=rf"other data.*item 0 .* differs.*\(stocached rm {cache_name}\)"
    ):
        cached(Of(lambda k: (torch.full((5,), k + 1), k)), name=cache_name)
    with pytest.raises(stocached.NondeterministicDatasetError):
        cached(Of(lambda k: (torch.full((5,), random.randrange(10**6)), k)), name=cache_name)
    assert cached(Of(lambda k: (torch.full((5,), k + 1), k)), name=cache_name, allow_random=True)[3][1] == 3
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*samples are compared in the background")
        assert equal(cached(Of(lambda k: (torch.full((5,), k), k)), name=cache_name)[3], (torch.full((5,), 3), 3))
    old.cache.unlink()


# There are few such cases, because processes that are not forked import torch first, which takes
# seconds.
@pytest.mark.parametrize(
    ("workers", "method", "persistent"),
    [
        (3, "fork", False),
        (3, "fork", True),
        (1, "forkserver", True),
    ],
)
def test_in_a_dataloader(workers, method, persistent):
    dataset = cached(Squares(60))
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    for _ in range(3):
        labels = []
        for images, squares in loader:
            assert images.dtype == torch.uint8
            assert squares.dtype == torch.int64
            assert (images[:, 0, 0, 0].long() ** 2 == squares).all()
            labels += squares.tolist()
        assert sorted(labels) == [k * k for k in range(60)]
    stats = dataset.stats()
    assert (stats.stored, stats.ready) == (60, 60)
    assert stats.hits == 120
    del loader
    if not persistent:
        assert dataset.stats().clients_live == 1


def test_pickle_of_an_unnamed_one():
    dataset = cached(Squares(40))
    dataset[3]
    again = pickle.loads(pickle.dumps(dataset))
    assert 3 in again.cache
    again[4]
    assert 4 in dataset.cache


def test_inner_getitems_is_used():
    class Batched(Squares):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.batches = [*getattr(self, "batches", []), list(indices)]
            return [self[k] for k in indices]

    inner = Batched(40)
    dataset = cached(inner)
    dataset[3]
    assert all(map(equal, dataset.__getitems__([1, 3, 2]), map(Squares(40).__getitem__, [1, 3, 2])))
    assert inner.batches == [[1, 2], [1], [2]]  # the last two are for the comparison


def test_inner_getitems_must_give_samples():
    class Batched(Squares):
        def __getitems__(self, indices: list[int]) -> Any:
            return self.answer

    inner = Batched(40)
    dataset = cached(inner)
    for answer, words in (
        ({"image": 1, "label": 2}, "dict of 2; .*list of 2"),
        ([], "list of 0; .*list of 2"),
        (None, "NoneType; .*list of 2"),
    ):
        inner.answer = answer
        with pytest.raises(stocached.InvalidError, match=words):
            dataset.__getitems__([1, 2])


def test_gather_into_tensors_that_are_not_what_lies_there():
    with Cache.create(samples=2, shape=(3,), dtype="complex64") as cache:
        cache.put(0, torch.full((3,), 1 + 2j, dtype=torch.complex64))
        out = torch.zeros((1, 3), dtype=torch.complex64)
        with pytest.raises(stocached.SchemaError, match="conjugate"):
            cache.gather([0], out=out.conj())
        cache.gather([0], out=out)
        assert out.tolist() == [[1 + 2j] * 3]
        for tensor in (
            torch.zeros(3, device="meta", dtype=torch.complex64),
            torch.zeros(3, dtype=torch.complex64).to_sparse(),
        ):
            with pytest.raises(stocached.SchemaError, match="cannot be cached"):
                cache.put(1, tensor)


def test_invalid_datasets_and_caches_are_told():
    for dataset in ((k for k in range(5)), {1, 2, 3}):
        for make in (cached, lambda dataset, size: DataLoader(dataset, size=size)):
            with pytest.raises(
                stocached.InvalidError,
                match=r"a cache needs a dataset with len\(\) and \[index\], and a (generator|set) does not have both",
            ):
                make(dataset, size="8MiB")
    with pytest.raises(stocached.InvalidError, match="cache='8MiB' is no Cache; give name= and size="):
        cached(range(5), "8MiB")
