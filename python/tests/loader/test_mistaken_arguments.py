"""Mistakes with the functions, indices, sizes and ranks that a program gives, and what the error or warning says."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from test_loader_again import BOTH

from stocached import BadSampleError, Cache, CacheMemoryError, InvalidError, Loader, StreamError
from stocached._datasets import notices
from stocached._datasets.cached_samples import CachedSamples


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
    assert [cached[index][1] for index in (3, np.int8(3), np.array(3), -37, True)] == [3, 3, 3, 3, 1]
    for index in ((3,), "3", 3.0, None):
        with pytest.raises(InvalidError, match="names no sample"):
            cached[index]


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf" in done.stdout


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
