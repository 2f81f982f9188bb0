"""Mistakes with the functions, indices, sizes and ranks that a program gives, and what the error or warning says."""

from __future__ import annotations

import contextlib
import pathlib
import pickle
import sys
import types
import warnings

import numpy as np
import pytest
from helpers import Of, python
from test_loader_again import BOTH

from stocached import (
    BadSampleError,
    Cache,
    CacheMemoryError,
    InvalidError,
    Loader,
    Order,
    StreamError,
    advise,
    image,
    prepare,
    source,
)
from stocached._datasets import notices
from stocached._datasets.cached_samples import CachedSamples
from stocached._loader.measuring_ours import OurTrial
from stocached.streams import Streams


class Pairs:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.full(4, index), index


# ------------------------------------------------------------ functions


@BOTH
@pytest.mark.parametrize("size", [None, "8MiB"])
def test_a_second_parameter_is_named_generator(kind, size):
    settings = {} if size is None else {"size": size}
    for function in (
        lambda image, label: (image, label),
        lambda sample, rng: sample,
        lambda sample, generator, more: sample,
    ):
        with pytest.raises(
            InvalidError, match=r"augment=<function .* gets one: the whole sample, .* must be named generator"
        ):
            kind()(Pairs(), 4, augment=function, **settings)
    loader = kind()(Pairs(), 4, **settings)
    loader.augment = lambda image, label: image
    with pytest.raises(InvalidError, match="named generator"):
        next(iter(loader))
    for function in (
        lambda sample, generator: generator.integers(9),
        lambda sample, more=3: sample,
        lambda *all: all[0],
        max,
    ):
        next(iter(kind()([(3, 5)] * 8, 4, augment=function)))


@BOTH
@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("t.parquet", r"\(source\('t.parquet'\), \.\.\.\)"),
        (b"train", r"\(source\('train'\), \.\.\.\)"),
        (pathlib.Path("train"), r"\(source\('train'\), \.\.\.\)"),
        (Pairs, r"Loader\(Pairs\): this is a class; give an object, Pairs\(\.\.\.\)"),
        (
            image.convert(types.SimpleNamespace(transform=image.CenterCrop(3))),
            r"write dataset, augment = image\.convert\(\.\.\.\), and then \w+\(dataset, \.\.\., augment=augment\)",
        ),
    ],
)
def test_what_is_no_dataset_is_refused(kind, dataset, said):
    with pytest.raises(InvalidError, match=said):
        kind()(dataset, 3)


@BOTH
def test_functions_that_get_no_generator(kind):
    with pytest.raises(InvalidError, match=r"batch_augment=.* takes 2 arguments, and gets one: the batch, such as"):
        kind()(Pairs(), 4, batch_augment=lambda images, labels: images)
    with pytest.raises(InvalidError, match=r"augment=.* takes 2 arguments, and gets one: the whole sample"):
        CachedSamples(Pairs(), size="8MiB", augment=lambda sample, generator: sample)


@BOTH
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [None, "8MiB"])
def test_the_error_of_a_step_says_what_it_was_given(kind, workers, size):
    def step(image):
        raise TypeError(f"img should be PIL Image. Got {type(image)}")

    loader = kind()(Pairs(), 4, num_workers=workers, augment=step, **({} if size is None else {"size": size}))
    with pytest.raises(TypeError, match="img should be PIL Image") as raised:
        next(iter(loader))
    said = f"{raised.value}\n" + "\n".join(getattr(raised.value, "__notes__", []))
    assert "stocached: augment=<function" in said
    assert "was called with sample 0, a tuple of (numpy.ndarray of int64 (4,), int)" in said
    loader.close()


@BOTH
@pytest.mark.parametrize("workers", [0, 1])
def test_a_return_that_is_missing(kind, workers):
    loader = kind()(Pairs(), 4, num_workers=workers, augment=lambda sample: None)
    with pytest.raises(
        InvalidError, match=r"sample 0: augment=.* returned None for a tuple of .* Is a return missing\?"
    ):
        next(iter(loader))
    loader.close()
    with pytest.raises(InvalidError, match=r"batch_augment= returned None"):
        next(iter(kind()(Pairs(), 4, num_workers=0, batch_augment=lambda batch: None)))
    assert next(iter(kind()(Pairs(), 4, augment=lambda sample: None, collate_fn=len))) == 4


@BOTH
@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"size": "8MiB"}, {"size": "8MiB", "num_workers": 1}])
@pytest.mark.filterwarnings("ignore:.*went uncached")
def test_a_sample_that_is_none(kind, settings):
    forgets = Of(lambda index: np.full(3, index) if index != 5 else None, 40)
    loader = kind()(forgets, 4, **settings)
    with pytest.raises((InvalidError, TypeError, RuntimeError)) as raised:  # torch's own, or ours
        list(loader)
    notes = getattr(raised.value, "__notes__", [])
    assert any("stocached: sample 5 of Of is None" in text for text in (*notes, str(raised.value)))
    loader.close()
    kept = list(kind()(forgets, 4, collate_fn=lambda batch: sum(x is not None for x in batch), **settings))
    assert kept == [4, 3] + [4] * 8


@BOTH
@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"size": "8MiB"}, {"size": "8MiB", "num_workers": 1}])
def test_a_dataset_that_raises_stop_iteration_ends_no_epoch(kind, settings):
    stops = Of(lambda index: next(iter([np.full(3, index)] * (index != 5))), 40)
    loader = kind()(stops, 4, **settings)
    with pytest.raises(RuntimeError, match=r"the dataset raised StopIteration\(\) for index 5"):
        list(loader)
    loader.close()


def stops(*_):
    raise StopIteration("mine")


STOPS = {
    r"augment=<function stops> raised": lambda: ([*range(8)], {"augment": stops}),
    r"collate_fn=<function stops> raised": lambda: ([*range(8)], {"collate_fn": stops}),
    r"collate_fn=<function stops> raised StopIteration\(mine\)": lambda: (None, {"collate_fn": stops}),
    r"batch_augment= raised": lambda: ([*range(8)], {"batch_augment": stops}),
    r"\.map\(stops\) raised": lambda: (source([*range(8)]).map(stops), {}),
    r"\.flat_map\(stops\) raised": lambda: (source([*range(8)]).flat_map(stops), {}),
    r"worker_init_fn raised": lambda: ([*range(8)], {"worker_init_fn": stops, "num_workers": 1}),
}


@BOTH
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("said", list(STOPS))
def test_a_function_that_raises_stop_iteration_is_named_and_ends_no_epoch(kind, said, workers):
    loader, (dataset, settings) = kind(), STOPS[said]()
    if dataset is None:
        base = sys.modules["torch.utils.data"].IterableDataset if "torch" in loader.__module__ else object
        dataset = type("Iterable", (base,), {"__iter__": lambda self: iter(range(8))})()
    with pytest.raises(RuntimeError, match=said):
        list(loader(dataset, 4, **{"num_workers": workers} | settings))


@BOTH
def test_a_dataset_that_grows_under_an_order(kind):
    class Grows(list):
        pass

    data = Grows(range(8))
    loader = kind()(data, 4, seed=1)
    assert sum(map(len, loader)) == 8
    data += [8]
    with pytest.warns(UserWarning, match=r"has 9 samples now and had 8, .* order of 8; make another loader"):
        assert sum(map(len, loader)) == 8
    assert sum(map(len, loader)) == 8  # and no other warning


@pytest.mark.torch
def test_a_loader_without_torch_and_what_is_of_torch():
    torch = pytest.importorskip("torch")

    loader = Loader(Of(lambda index: float(torch.rand(1)), 40), 4, num_workers=2)
    drawn = [number for _ in range(2) for batch in loader for number in batch]
    assert len({*drawn}) == 80  # no worker, and no epoch, draws as another
    with pytest.raises(InvalidError, match=r"give it to stocached\.torch\.DataLoader"):
        Loader(torch.utils.data.ChainDataset([]), 4)


def test_nothing_but_none():
    nothing = Of(lambda index: None, 40)
    for loader in (Loader(nothing, 4), Loader(source(nothing).batch(4, pad=0))):
        with pytest.raises(InvalidError, match="a batch has no place for None"):
            next(iter(loader))


# ------------------------------------------------------------ indices


@BOTH
@pytest.mark.parametrize(
    ("index", "workers"), [((3,), 0), ("3", 1), (3.0, 0), (None, 0), ([3], 1), (np.array([3]), 0), (np.float32(3), 0)]
)
def test_an_index_that_is_no_whole_number(kind, index, workers):
    for settings in ({"sampler": [0, 1, index, 2], "batch_size": 2}, {"batch_sampler": [[0, 1], [index, 2]]}):
        loader = kind()(Pairs(), size="8MiB", num_workers=workers, **settings)
        with pytest.raises(InvalidError, match="names no sample: indices are whole numbers"):
            list(loader)
        loader.close()


def test_whole_numbers_of_any_type():
    cached = CachedSamples(Pairs(), size="8MiB")
    assert [cached[index][1] for index in (3, np.int8(3), np.array(3), -37)] == [3, 3, 3, 3]
    for index in ((3,), [3], "3", b"3", 3.0, float("nan"), None, True, np.True_, [True], np.array([3])):
        for dataset in (cached, source(Pairs())):
            with pytest.raises(InvalidError, match="names no sample"):
                dataset[index]
        with pytest.raises(TypeError):
            index in cached.cache  # noqa: B015


# ------------------------------------------------------------ numbers

PIPE = source(list(range(8)))
LISTS = PIPE.flat_map(lambda k: [k])
SHARD = Order(40).epoch(0).shard(0, 4)
WHOLE = {  # what takes a whole number, and so none of WRONG
    "batch_size": lambda kind, v: kind(Pairs(), v),
    "num_workers": lambda kind, v: kind(Pairs(), num_workers=v),
    "prefetch_factor": lambda kind, v: kind(Pairs(), num_workers=1, prefetch_factor=v),
    "seed": lambda kind, v: kind(Pairs(), seed=v),
    "gather_threads": lambda kind, v: kind(Pairs(), gather_threads=v),
    "snapshot_every_n_steps": lambda kind, v: kind(Pairs(), snapshot_every_n_steps=v),
    "pool_bytes": lambda kind, v: kind(Pairs(), pool_bytes=v),
    "rank": lambda kind, v: kind(Pairs(), seed=1, rank=v, world_size=4),
    "set_epoch": lambda kind, v: kind(Pairs(), seed=1).set_epoch(v),
    ".cache": lambda kind, v: kind(PIPE.cache("8MiB", disk=v, disk_dir="/tmp")),
    ".batch": lambda kind, v: PIPE.batch(v),
    ".pack": lambda kind, v: LISTS.pack(v),
    ".shuffle window": lambda kind, v: LISTS.shuffle(window=v),
    ".shuffle draws": lambda kind, v: PIPE.shuffle(weights=[1] * 8, draws=v),
    ".flat_map": lambda kind, v: PIPE.flat_map(lambda k: [k], count=v),
    ".measure": lambda kind, v: LISTS.measure(v),
    "parts": lambda kind, v: source(lambda k: [k], parts=v),
    "Shard.indices": lambda kind, v: SHARD.indices(v),
    "Shard.batches": lambda kind, v: SHARD.batches(v),
    "BlockSampler": lambda kind, v: prepare.BlockSampler(v),
    "BlockSampler.set_epoch": lambda kind, v: prepare.BlockSampler(4).set_epoch(v),
    "split": lambda kind, v: prepare.split(v, 0.2),
    "DatasetInfo": lambda kind, v: prepare.DatasetInfo({"a": ((), "int64")}, v, "x").checked(),
    "Streams": lambda kind, v: Streams([[1]] * 8, v),
    "Streams snapshots": lambda kind, v: Streams([[1]] * 8, 2, snapshot_every_n_steps=v),
    "samples": lambda kind, v: Cache.create(samples=v, shape=(4,)),
    "shape": lambda kind, v: Cache.create(samples=4, shape=(v,)),
    "Resize": lambda kind, v: image.Resize((v, 8)),
    "max_pixels": lambda kind, v: image.Decode(max_pixels=v),
}
REAL = {
    "timeout": lambda kind, v: kind(Pairs(), num_workers=1, timeout=v),
    "Streams timeout": lambda kind, v: Streams([[1]] * 8, 2, timeout=v),
    "clear": lambda kind, v: Cache.create(samples=4, shape=(4,)).clear(v),
    "split part": lambda kind, v: prepare.split(40, v),
    "ColorJitter": lambda kind, v: image.ColorJitter(v),
    "Normalize": lambda kind, v: image.Normalize(0.5, v),
    "advise": lambda kind, v: advise(kind(Pairs()), v),
}
WRONG = [True, np.True_, float("nan"), "x", [[3]], {}]


@BOTH
@pytest.mark.parametrize("name", [*WHOLE, *REAL])
def test_what_is_no_number_is_refused_and_numbers_of_numpy_are_taken(kind, name, monkeypatch):
    monkeypatch.setattr(OurTrial, "run", lambda *_: pytest.fail("it was measured"))
    make = WHOLE.get(name) or REAL[name]
    for wrong in [*WRONG, *([2.5, -2.0] if name in WHOLE else [])]:
        with pytest.raises(InvalidError if kind() is Loader else (ValueError, TypeError)):  # torch's own
            make(kind(), wrong)
    if name != "advise":
        for right in (3, np.int64(3), np.array(3), np.uint8(3)):
            with contextlib.suppress(CacheMemoryError):
                make(kind(), right)


# ------------------------------------------------------------ names


def test_errors_can_be_printed():
    """A name that is not UTF-8 has surrogates."""
    name = b"caf\xe9.jpg".decode(errors="surrogateescape")
    for error in (
        BadSampleError("broken", name),
        StreamError(f"{name}: gone", name),
        InvalidError(name),
        FileNotFoundError(name),
    ):
        if not isinstance(error, FileNotFoundError):
            assert r"caf\udce9.jpg" in str(error)
            str(error).encode()
            str(pickle.loads(pickle.dumps(error))).encode()
    assert BadSampleError("broken", name).file == name
    attach = "stocached.Cache.attach(b'/tmp/caf\\xe9'.decode(errors='surrogateescape'))"
    code = f"import stocached\ntry:\n    {attach}\nexcept stocached.StocachedError as error:\n    print(error)"
    assert "caf" in python(code).stdout


# ------------------------------------------------------------ sizes


def test_a_size_that_is_too_small_says_what_would_do():
    with pytest.raises(CacheMemoryError) as raised:
        Cache.create(samples=1000, shape=(1 << 20,), size="1MiB")
    assert str(raised.value).endswith(
        "more than the size of 1.00 MiB; 1004.00 MiB hold all samples, 504.00 MiB half of them, 5.00 MiB one"
    )
    # the tables of the most samples and all their slots are too large: what one takes is said all the same
    for made in ({"slots": 20}, {"variable": True}, {"variable": True, "policy": "lru"}):
        with pytest.raises(CacheMemoryError, match=r" needs? \d+\.\d\d MiB, more than the size of 1\.00 MiB; give "):
            Cache.create(samples=1000, shape=(-1 if "variable" in made else 1,), size="1MiB", **made)
    with pytest.raises(
        CacheMemoryError, match=r"a cache for the smallest of 1000 samples \(at least \d+ bytes\) needs"
    ):
        Cache.create(samples=1000, shape=(-1,), size="1KiB", variable=True)
    with pytest.raises(CacheMemoryError, match=r"MiB one\. A size without a unit is bytes"):
        Loader(Pairs(), 4, size=1)


# ------------------------------------------------------------ ranks


@pytest.fixture
def two_ranks(monkeypatch):
    monkeypatch.setattr(notices, "_said_private", False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


@BOTH
def test_ranks_that_make_private_caches_are_told_once(kind, two_ranks):
    with pytest.warns(UserWarning, match=r'2 ranks of this job .* private cache.*name="my-dataset"') as caught:
        for _ in range(2):
            kind()(Pairs(), 4, size="8MiB")
    assert len(caught) == 1


@BOTH
def test_ranks_that_arguments_alone_name(kind, monkeypatch):
    monkeypatch.setattr(notices, "_said_private", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind()(Pairs(), 4, size="8MiB", seed=1, rank=1, world_size=2)  # the other one says it
    with pytest.warns(UserWarning, match="2 ranks of this job may run on this machine, and each makes a private cache"):
        kind()(Pairs(), 4, size="8MiB", seed=1, rank=0, world_size=2)
    monkeypatch.setattr(notices, "_said_private", False)
    with pytest.warns(UserWarning, match="3 ranks of this job run on this machine"):
        kind()(Pairs(), 4, size="8MiB", seed=1, rank=0, world_size=6, affinity="node", local_world_size=3)


def test_ranks_that_need_no_name(two_ranks, monkeypatch, cache_name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(Pairs(), 4)
        Loader(Pairs(), 4, size="8MiB", name=cache_name)
        monkeypatch.setenv("LOCAL_RANK", "1")
        Loader(Pairs(), 4, size="8MiB")
        monkeypatch.setenv("LOCAL_RANK", "0")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # the other rank is on another machine
        Loader(Pairs(), 4, size="8MiB")


# ------------------------------------------------------------ torch


@pytest.mark.torch
def test_a_random_folder_of_pictures(tmp_path):
    pytest.importorskip("torchvision")
    from PIL import Image
    from torch.utils.data import Subset
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from stocached import NondeterministicDatasetError, source
    from stocached.torch import DataLoader

    (tmp_path / "a").mkdir()
    for k in range(6):
        Image.fromarray(np.random.default_rng(k).integers(0, 255, (40, 50, 3), np.uint8)).save(
            tmp_path / "a" / f"{k}.png"
        )
    random = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
    for wrap in (lambda dataset: dataset, lambda dataset: Subset(dataset, range(5))):
        with pytest.raises(
            NondeterministicDatasetError, match=r"image.convert\(dataset\).*augment=augment.*allow_random=True"
        ):
            DataLoader(wrap(ImageFolder(tmp_path, random)), 2, size="8MiB")
        with pytest.raises(
            NondeterministicDatasetError, match=r"image.convert\(dataset\), and write .*\.map\(augment\)"
        ):
            next(iter(Loader(source(wrap(ImageFolder(tmp_path, random))).cache("8MiB").batch(2))))
    own = transforms.Compose([transforms.Lambda(lambda x: x), random])
    with pytest.raises(NondeterministicDatasetError) as raised:
        DataLoader(ImageFolder(tmp_path, own), 2, size="8MiB")
    assert "convert" not in str(raised.value)


@pytest.mark.torch
def test_a_shared_cache_takes_a_size_and_says_what_is_cut():
    torch = pytest.importorskip("torch")
    from stocached import SharedCache

    cache = SharedCache("1MiB", 10, (4,))
    assert len(cache) == 10
    with pytest.raises(InvalidError, match="size_limit_gib='1 giga' is not a size"):
        SharedCache("1 giga", 10, (4,))
    with pytest.raises(TypeError, match=r"size_limit_gib='4096' has no unit; write GiB as a number"):
        SharedCache("4096", 10, (4,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.set_slot(0, torch.tensor([1.0, 2.0, 3.0, 255.0]))  # no value is lost
        cache.set_slot(1, 7)
    with pytest.warns(
        UserWarning, match=r"stores torch.uint8, and set_slot got torch.float32: fractions.*dtype=torch.float32"
    ) as caught:
        for k in range(2, 5):
            cache.set_slot(k, torch.full((4,), 0.5))
    assert len(caught) == 1
