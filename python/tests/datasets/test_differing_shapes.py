"""Samples whose shapes differ: which caches take them, which kind is chosen by default, and which
processes warn of uncached ones."""

from __future__ import annotations

import mmap
import warnings

import numpy as np
import pytest
from helpers import Of

from stocached import InvalidError, Loader, SchemaError

N = 48


class Pictures:
    """Every third picture is upright, but not the first, the middle and the last one."""

    def __init__(self, n=N):
        self.n = n

    def __len__(self):
        return self.n

    def odd(self, index):
        return index % 3 == 1 and index not in (0, (self.n - 1) // 2, self.n - 1)

    def __getitem__(self, index):
        return {"image": np.full((4, 6) if self.odd(index) else (6, 4), index % 256, np.uint8), "label": index}


class Upright(Pictures):
    def odd(self, index):
        return True


def pick(samples):
    """A collate function that takes pictures of any shape."""
    return [(sample["image"].shape, int(sample["image"][0, 0]), sample["label"]) for sample in samples]


EXPECTED = pick([Pictures()[index] for index in range(N)])
ODD = sum(shape == (4, 6) for shape, *_ in EXPECTED)


def epochs(loader, count=2):
    for _ in range(count):
        assert [sample for batch in loader for sample in batch] == EXPECTED


def ways(**settings):
    """For each way to use a cache: a function that reads the pictures twice, and the cache."""
    import torch

    from stocached.torch import CachedDataset, DataLoader

    for workers in (0, 2):
        for kind in (Loader, DataLoader):
            loader = kind(Pictures(), 8, num_workers=workers, collate_fn=pick, size="16MiB", **settings)
            yield (lambda: epochs(loader)), loader.cache
    dataset = CachedDataset(Pictures(), size="16MiB", **settings)
    yield (lambda: epochs(torch.utils.data.DataLoader(dataset, 8, num_workers=2, collate_fn=pick))), dataset.cache


@pytest.mark.torch
def test_variable_true_caches_every_shape_in_every_way_in():
    for read, cache in ways(variable=True):
        read()
        stats = cache.stats()
        assert (cache.variable, stats.stored, stats.passed, stats.hits) == (True, N, 0, N)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_variable_false_caches_the_most_frequent_shape_and_one_warning_tells_of_the_others():
    for read, cache in ways(variable=False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read()
        stats = cache.stats()
        assert (cache.variable, stats.stored, stats.passed, stats.hits) == (False, N - ODD, 2 * ODD, N - ODD)
        (text,) = [str(one.message) for one in caught if "uncached" in str(one.message)]
        assert f"({ODD} loads so far)" in text
        assert "value 'image' has shape (4, 6), and the cache takes (6, 4)" in text
        assert "variable=True caches samples of any shape" in text


@pytest.mark.torch
def test_shapes_that_agree_in_the_first_samples_do_not_decide():
    """300 pictures, a third of them upright, but none of the three that are compared. Every one is
    cached, so 67 % of three epochs are hits."""
    from stocached.torch import DataLoader

    for make in (Loader, DataLoader):
        loader = make(Pictures(300), 20, collate_fn=pick, size="16MiB")
        for _ in range(3):
            list(loader)
        assert loader.cache.variable
        assert loader.stats().hits == 600


def test_the_trial_loads_a_small_part_of_the_dataset():
    for n, loads in ((40, 3), (100, 7), (10_000, 17)):
        tried = np.frombuffer(mmap.mmap(-1, n), np.uint8)  # shared with the process that loads them

        class Counted(Upright):
            def __getitem__(self, index):
                tried[index] = 1
                return super().__getitem__(index)

        assert Loader(Counted(n), 8, size="16MiB").cache.variable is False
        assert tried.sum() == loads


def test_a_sample_that_is_tried_for_its_shape_alone_may_fail():
    class Broken(Upright):
        def __getitem__(self, index):
            if index not in (0, 149, 299):
                raise OSError("damaged")
            return super().__getitem__(index)

    assert Loader(Broken(300), 8, size="16MiB").cache.samples == 300


# ------------------------------------------------------------ warnings


def test_workers_say_nothing_themselves(capfd):
    loader = Loader(
        Pictures(),
        4,
        num_workers=2,
        collate_fn=pick,
        size="16MiB",
        variable=False,
        multiprocessing_context="fork",
    )
    with pytest.warns(UserWarning, match=rf"sample \d+ and others \({ODD} loads so far\) went uncached") as caught:
        epochs(loader, 1)
    assert len([one for one in caught if "multi-threaded" not in str(one.message)]) == 1  # Python 3.12 warns of forks
    assert capfd.readouterr().err == ""


def test_an_epoch_that_is_left_early_tells_what_it_has_seen():
    loader = Loader(Pictures(), 4, collate_fn=pick, size="16MiB", variable=False)
    with pytest.warns(
        UserWarning, match="sample 1 went uncached and will be loaded each time: value 'image' has shape"
    ):
        batches = iter(loader)
        next(batches)
        batches.close()


def test_reasons_are_counted_apart():
    kinds = {1: np.zeros((2, 2), np.uint8), 2: np.zeros((2, 2), np.uint8), 5: np.zeros((9, 1), np.uint8), 7: "text"}

    mixed = Of(lambda index: {"image": kinds.get(index, np.zeros((6, 4), np.uint8)), "label": index}, N)
    loader = Loader(mixed, 8, collate_fn=len, size="16MiB", variable=False)
    with pytest.warns(UserWarning, match="uncached") as caught:
        assert sum(loader) == N
    (text,) = [str(one.message) for one in caught]
    assert "sample 1 and others (4 loads so far)" in text
    assert "2 times value 'image' has shape (2, 2)" in text
    assert "1 times value 'image' has shape (9, 1)" in text
    assert "1 times value 'image' is str, not array of uint8" in text


def test_samples_of_another_kind_are_not_promised_anything_by_variable():
    mixed = Of(lambda index: index if index != 7 else "text", N)
    with pytest.warns(
        UserWarning,
        match=r"sample 7 went uncached .*: the sample is str, not int\. To have them cached, make them like the others",
    ) as caught:
        list(Loader(mixed, 8, collate_fn=len, size="16MiB"))
    assert "variable=" not in str(caught[0].message)


def test_a_cache_of_the_users_has_advice_of_its_own():
    from stocached import Cache

    fields = {"image": ((6, 4), "uint8"), "label": ((), "int64")}
    with (
        Cache.create(samples=N, fields=fields) as cache,
        pytest.warns(UserWarning, match="created with variable=True, and with None for the dimensions"),
    ):
        list(Loader(Pictures(), 8, collate_fn=len, cache=cache))


# ------------------------------------------------------------ mistakes


def test_invalid_variable(cache_name):
    with pytest.raises(InvalidError, match="variable= is for a cache that is made here; give size="):
        Loader(Pictures(), 8, variable=True)
    with pytest.raises(
        InvalidError, match=r"variable=False is for samples of one size; value 'image' may differ in size"
    ):
        Loader([{"image": "a text"}] * 4, 2, size="16MiB", variable=False)
    fixed = Loader(Pictures(), 8, name=cache_name, size="16MiB", variable=False)
    with pytest.raises(
        SchemaError,
        match=rf"exists for samples of one shape, and variable=True was asked for; .*stocached rm {cache_name}",
    ):
        Loader(Pictures(), 8, name=cache_name, variable=True)
    assert Loader(Pictures(), 8, name=cache_name).cache.variable is False  # the existing cache decides
    fixed.cache.unlink()


@pytest.mark.parametrize(
    ("error", "of_dataset", "of_keys"),
    [
        (FileNotFoundError(2, "No such file", "0.png"), True, False),
        (KeyError(0), True, True),
        (TypeError("an index is a pair"), True, True),
        (InvalidError("image.Crop is larger than 0.png"), False, False),
    ],
)
def test_a_sample_that_fails_on_trial_says_that_it_was_one(error, of_dataset, of_keys):
    class Missing(Pictures):
        def __getitem__(self, index):
            raise error

    with pytest.raises(type(error)) as caught:
        Loader(Missing(), 8, size="16MiB")
    told = "\n".join(getattr(caught.value, "__notes__", [str(caught.value)]))
    assert "sample 0 was loaded on trial" in told
    assert ("an error of the dataset" in told) == of_dataset
    assert ("needs samples by number" in told) == of_keys
