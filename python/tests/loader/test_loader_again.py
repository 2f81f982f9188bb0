"""Loaders made again from another loader: by its attributes, as frameworks do, by its arguments, by
copies and by pickles."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import json
import pickle
import re
import typing
import weakref

import numpy as np
import pytest
from helpers import python
from processes import in_child
from torch_marks import TORCH_WARNINGS

from stocached import Cache, InvalidError, Loader, Order
from stocached._loader.options import Options

N = 40


class Numbers:
    def __init__(self, n=N):
        self.n, self.lift, self.loads = n, 0, 0

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.loads += 1
        return np.full(4, index + self.lift, np.int64)


def lift(sample):
    return sample + 1000


def thirds(batch):
    return batch[::3]


def torch_loader():
    pytest.importorskip("torch")
    from stocached.torch import DataLoader

    return DataLoader


BOTH = pytest.mark.parametrize(
    "kind",
    [lambda: Loader, pytest.param(torch_loader, marks=[pytest.mark.torch, *TORCH_WARNINGS])],
    ids=["numpy", "torch"],
)


def read(loader):
    return [int(sample[0]) for batch in loader for sample in batch]


def again(loader, **changes):
    """Makes a loader from the attributes, with another sampler, like Lightning."""
    parameters = inspect.signature(type(loader).__init__).parameters
    arguments = {
        name: value
        for name, value in vars(loader).items()
        if name in parameters and parameters[name].default is not value
    }
    return type(loader)(**(arguments | {"sampler": None, "shuffle": False, "batch_sampler": None} | changes))


# ------------------------------------------------------------ arguments


@BOTH
def test_every_option_is_a_parameter_and_an_attribute(kind, tmp_path):
    cache = Cache.create(samples=N, fields={"0": ((4,), "int64")}, size="8MiB")
    given = {
        "cache": cache, "augment": lift, "batch_augment": thirds, "worker": "thread", "restart_workers": True, "seed": 3, "rank": 1, "world_size": 2,
        "ends": "drop", "prefetch_bytes": "1MiB", "pool_bytes": "3MiB", "gather_threads": 1, "snapshot_every_n_steps": 3, "trace": tmp_path / "run.json",
        "allow_random": True, "bad_samples": "skip",
    }  # fmt: skip
    others = {
        "size": "8MiB",
        "name": None,
        "fingerprint": "one",
        "variable": False,
        "policy": "cost",
        "disk": "32MiB",
        "disk_dir": tmp_path,
        "disk_policy": "fifo",
        "store": "decoded",  # the others are for pictures: test_stores.py
        "order": Order(N, seed=3),
        "affinity": "node",  # on several ranks: test_affinity.py
        "local_world_size": 1,
    }
    parameters = inspect.signature(kind().__init__).parameters
    for field in dataclasses.fields(Options):
        assert parameters[field.name].default == field.default, field.name
        assert field.name in given | others, f"a test of {field.name}"
    made_here = given | others | {"cache": None, "seed": None}
    for settings in (given, made_here, made_here | {"variable": True, "policy": None, "disk_policy": None}):
        loader = kind()(Numbers(), 5, num_workers=1, **settings)
        made = again(loader, sampler=loader.sampler)
        for name, value in settings.items():
            for one in (loader, made):
                assert getattr(one, name) == (loader.cache if name == "cache" else value), name
        assert made.cache is loader.cache is not None
        assert made.cache.variable == (loader.variable or False)
        assert read(made) == read(loader)
        assert made.sampler is not loader.sampler


@BOTH
def test_options_are_listed_once_and_shown_everywhere(kind):
    document, signature = kind().__doc__, inspect.signature(kind())
    assert str(signature).startswith("(dataset: 'Any', batch_size: 'int | None' = 1, shuffle: ")
    for field in dataclasses.fields(Options):
        assert signature.parameters[field.name].annotation == field.type
        assert re.search(rf"\b{field.name}(=|: |, \w)", document), field.name
    assert typing.get_type_hints(kind().__init__)["seed"] == (int | None)
    name = kind().__name__
    with pytest.raises(TypeError, match=rf"^{name}.__init__\(\) got an unexpected keyword argument 'sed'"):
        kind()(Numbers(), sed=3)
    with pytest.raises(TypeError, match=rf"^{name}.__init__\(\) missing 1 required positional argument: 'dataset'"):
        kind()()


@pytest.mark.torch
def test_torch_arguments_stay():
    DataLoader = torch_loader()
    loader = DataLoader(
        Numbers(),
        5,
        num_workers=1,
        pin_memory="copy",
        prefetch_factor=3,
        persistent_workers=True,
        in_order=False,
        timeout=7,
    )
    made = again(loader)
    for name in ("pin_memory", "prefetch_factor", "persistent_workers", "in_order", "timeout", "batch_size"):
        assert getattr(made, name) == getattr(loader, name), name
    assert loader.pin_memory == "copy"


# ------------------------------------------------------------ one cache


def lengths(samples):
    return [[len(samples)]]


def higher(sample):
    return sample + 2000


@BOTH
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_workers": 1},
        {"num_workers": 1, "persistent_workers": True},
        {"size": "16MiB"},
        {"size": "16MiB", "num_workers": 1, "persistent_workers": True},
        {"size": "16MiB", "num_workers": 1, "persistent_workers": True, "worker": "thread", "seed": 1},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_functions_that_are_set_between_epochs_count_from_the_next_one_on(kind, settings):
    loader = kind()(Numbers(), 10, **settings)
    collate = loader.collate_fn
    assert sorted(read(loader)) == list(range(N))
    loader.augment = lift
    assert sorted(read(loader)) == list(range(1000, 1000 + N))
    loader.augment = higher
    assert sorted(read(loader)) == list(range(2000, 2000 + N))
    loader.augment, loader.batch_augment = None, thirds
    assert len(read(loader)) == 4 * 4
    loader.batch_augment, loader.collate_fn = None, lengths
    assert read(loader) == read(copy.copy(loader)) == [10] * 4
    loader.collate_fn = collate
    assert sorted(read(loader)) == list(range(N))
    loader.close()


@BOTH
def test_a_dataset_has_one_cache(kind):
    dataset = Numbers()
    first = kind()(dataset, 5, size="8MiB")
    read(first)
    loaded = dataset.loads
    others = [again(first)]
    assert dataset.loads == loaded
    others += [
        kind()(dataset, 8, size="8MiB", shuffle=True),
        copy.copy(first),
        pickle.loads(pickle.dumps(first)),
        copy.deepcopy(first),
    ]
    assert others[0].cache is others[1].cache is others[2].cache is first.cache
    assert all(other.cache.uuid == first.cache.uuid for other in others)
    tried = dataset.loads - loaded
    for other in others:
        assert sorted(read(other)) == list(range(N))
        assert other.stats().misses == 0
    assert dataset.loads == loaded + tried
    separate = [kind()(dataset, 5, size="9MiB"), kind()(Numbers(), 5, size="8MiB")]
    assert len({loader.cache.uuid for loader in [first, *separate]}) == 3


@BOTH
def test_a_cache_with_a_name(kind, cache_name):
    loader = kind()(Numbers(), 5, name=cache_name, fingerprint="one")
    others = [
        again(loader),
        copy.copy(loader),
        pickle.loads(pickle.dumps(again(loader))),
        pickle.loads(pickle.dumps(loader)),
    ]
    assert {other.cache.uuid for other in others} == {loader.cache.uuid}
    assert all(read(other) == list(range(N)) for other in others)


@BOTH
def test_a_cache_goes_with_its_dataset(kind):
    dataset = Numbers()
    first = kind()(dataset, 5, size="8MiB")
    kept = weakref.ref(first.cache)
    read(first)
    del first
    gc.collect()
    second = kind()(dataset, 5, size="8MiB")
    assert kept() is second.cache
    read(second)
    assert second.stats().misses == 0
    other = kind()(dataset, 5, size="9MiB")
    del second
    gc.collect()
    assert kept() is None, "a dataset keeps one cache"
    kept = weakref.ref(other.cache)
    del other, dataset
    gc.collect()
    assert kept() is None


@BOTH
def test_a_cache_of_a_list_goes_with_its_loaders(kind):
    """No weak reference can refer to a list."""
    dataset = [np.full(4, k) for k in range(N)]
    first = kind()(dataset, 5, size="8MiB")
    second = again(first)
    kept = weakref.ref(first.cache)
    del first
    gc.collect()
    assert kept() is second.cache
    del second
    gc.collect()
    assert kept() is None


@BOTH
def test_a_cache_that_was_closed(kind):
    dataset = Numbers()
    loader = kind()(dataset, 5, size="8MiB")
    loader.cache.close()
    assert read(kind()(dataset, 5, size="8MiB")) == list(range(N))


@BOTH
def test_a_dataset_that_was_changed_has_a_cache_of_its_own(kind):
    dataset = Numbers()
    first = kind()(dataset, 5, size="8MiB")
    read(first)
    dataset.lift = 500
    second = kind()(dataset, 5, size="8MiB")
    assert read(second) == [500 + k for k in range(N)]
    assert second.cache is not first.cache
    dataset.n = N - 1
    third = kind()(dataset, 5, size="8MiB")
    assert read(third) == [500 + k for k in range(N - 1)]
    del second, third
    gc.collect()
    dataset.n = N
    assert read(kind()(dataset, 5, size="8MiB")) == [500 + k for k in range(N)]


class Dice(Numbers):
    draws = np.random.default_rng(1)

    def __getitem__(self, index):
        return self.draws.integers(1000, size=4)


@BOTH
def test_a_random_dataset_that_is_allowed_keeps_its_cache(kind):
    dataset, options = Dice(), {"size": "16MiB", "allow_random": True}
    first = kind()(dataset, 4, **options)
    seen = read(first)
    for other in (again(first), kind()(dataset, 4, **options)):
        assert other.cache is first.cache
        assert read(other) == seen
    cache = first.cache
    del first, other
    gc.collect()
    assert kind()(dataset, 4, **options).cache is cache


@BOTH
def test_a_cache_and_how_another_one_was_made(kind):
    dataset = Numbers()
    loader = kind()(dataset, 5, size="8MiB")
    assert kind()(dataset, 5, size="8MiB", cache=loader.cache).cache is loader.cache
    other = Cache.create(samples=N, fields={"0": ((4,), "int64")}, size="8MiB")
    for cache, size in ((loader.cache, "9MiB"), (other, "8MiB")):
        with pytest.raises(InvalidError, match="leave them out or leave out cache="):
            kind()(dataset, 5, size=size, cache=cache)


@BOTH
def test_a_dataset_with_a_cache(kind):
    from stocached._datasets.cached_samples import CachedSamples

    cached = CachedSamples(Numbers(), size="8MiB")
    loader = kind()(cached, 5, augment=lift)
    assert loader.cache is cached.cache
    made = again(loader)
    assert read(made) == [1000 + k for k in range(N)]
    assert made.cache is cached.cache
    with pytest.raises(InvalidError, match="has a cache already"):
        kind()(cached, 5, size="8MiB")
    with pytest.raises(InvalidError, match="has a cache already"):
        kind()(cached, 5, cache=Cache.create(samples=N, fields={"0": ((4,), "int64")}, size="8MiB"))


def test_a_forked_process_has_the_same_cache():
    dataset = Numbers()
    loader = Loader(dataset, 5, size="8MiB")
    read(loader)
    in_child(
        lambda: all(
            other.cache.uuid == loader.cache.uuid and read(other) == list(range(N))
            for other in (again(loader), Loader(dataset, 5, size="8MiB"))
        )
    )


def test_a_pickle_in_another_process():
    loader = Loader(range(N), 4, size="8MiB")
    read_all = "print(json.dumps([[int(k) for batch in loader for k in batch], loader.cache.uuid.hex(), loader.stats().misses]))"
    code = f"import json, pickle, sys; loader = pickle.loads(bytes.fromhex(sys.argv[1])); {read_all}"
    list(loader)
    sent = pickle.dumps(loader).hex()
    samples, uuid, misses = json.loads(python(code, sent).stdout)
    assert (samples, uuid, misses) == (list(range(N)), loader.cache.uuid.hex(), 0)
    own = loader.cache.uuid.hex()
    del loader
    gc.collect()
    samples, uuid, misses = json.loads(python(code, sent).stdout)  # the cache is gone, so the process makes another one
    assert (samples, misses) == (list(range(N)), N)
    assert uuid != own


def test_a_trace_is_of_the_loader_that_is_read(tmp_path):
    loader = Loader(Numbers(), 5, trace=tmp_path / "run.json")
    made = again(loader)
    read(made)
    made.close()
    del loader
    gc.collect()
    assert json.loads((tmp_path / "run.json").read_text())["otherData"]["ranks"][0]["events"] > 8


# ------------------------------------------------------------ epochs


def epoch(number):
    return Order(N, seed=1).epoch(number).indices().tolist()


@BOTH
def test_the_sampler_is_told_the_epoch(kind):
    for settings in ({}, {"size": "8MiB"}, {"num_workers": 1, "persistent_workers": True}):
        loader = kind()(Numbers(), 5, shuffle=True, seed=1, **settings)
        loader.sampler.set_epoch(3)
        assert read(loader) == epoch(3)
        assert read(loader) == epoch(4)
        loader.sampler.set_epoch(3)
        loader.sampler.set_epoch(4)
        assert read(loader) == epoch(4), "the same epoch again"
        with pytest.raises(InvalidError, match="epoch=-1"):
            loader.sampler.set_epoch(-1)
        loader.close()


@BOTH
def test_the_sampler_is_told_the_epoch_of_an_iteration_that_is_made(kind):
    """Lightning makes the first iterator before it tells the sampler the epoch, and in a later fit
    makes it twice."""
    for settings in ({}, {"size": "8MiB"}, {"num_workers": 1}, {"num_workers": 1, "collate_fn": list}):
        loader = kind()(Numbers(), 5, shuffle=True, seed=1, **settings)
        first = iter(loader)
        loader.sampler.set_epoch(0)
        assert read(first) == epoch(0)
        assert loader.state_dict()["epoch"] == 1
        first = iter(loader)
        loader.sampler.set_epoch(1)
        assert loader.state_dict()["epoch"] == 1
        second = iter(loader)
        assert read(second) == epoch(1)
        third = iter(loader)
        loader.sampler.set_epoch(7)
        assert read(third) == epoch(7), "not the epoch that the iterator was made for"
        assert read(loader) == epoch(8)
        fourth = iter(loader)
        next(fourth)
        loader.sampler.set_epoch(2)
        assert len(read(fourth)) == N - 5, "an iterator that has given a batch goes on"
        assert read(loader) == epoch(2)
        assert [read([batch])[0] for batch in next(zip(loader, loader))] == [epoch(3)[0], epoch(4)[0]]


@BOTH
def test_a_state_goes_before_what_the_sampler_is_told(kind):
    loader = kind()(Numbers(), 5, shuffle=True, seed=1)
    loader.set_epoch(2)
    next(iter(loader))
    state = loader.state_dict()
    other = kind()(Numbers(), 5, shuffle=True, seed=1)
    other.load_state_dict(state)
    other.sampler.set_epoch(0)
    assert read(other) == epoch(2)[5:]


@pytest.mark.torch
def test_samplers_of_ours_are_distributed_samplers():
    import torch

    loader = torch_loader()(Numbers(), 5, seed=1, rank=1, world_size=3)
    sampler = loader.sampler
    assert isinstance(sampler, torch.utils.data.DistributedSampler)
    assert (sampler.rank, sampler.num_replicas, sampler.num_samples, sampler.total_size) == (1, 3, 14, 42)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(copy.deepcopy(sampler)) == list(sampler)
    with pytest.raises(InvalidError, match="give one of them"):
        torch_loader()(Numbers(), 5, seed=1, sampler=torch.utils.data.DistributedSampler(Numbers(), 3, 1))


@pytest.mark.torch
@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"size": "8MiB"}], ids=["plain", "workers", "cached"])
def test_a_state_has_the_epoch_of_a_distributed_sampler(settings):
    import torch

    def made(rank=0):
        dataset = Numbers()
        return torch_loader()(
            dataset, 5, sampler=torch.utils.data.DistributedSampler(dataset, 2, rank, seed=3), **settings
        )

    loader, orders = made(), []
    for number in range(3):
        loader.sampler.set_epoch(number)
        orders.append(read(loader))
    loader.sampler.set_epoch(2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = made()
    other.load_state_dict(state)
    assert read(other) == orders[2][5:]
    later = iter(other)
    other.sampler.set_epoch(1)  # after the iterator was made, which has asked the sampler ahead
    assert read(later) == orders[1]
