"""The usual random augmentations in a dataset, each with some probability: whether a cache accepts
the samples.

STOCACHED_TEST_AUGMENTATIONS=200 runs that many seeds of each augmentation, with every probability
and every way to use a cache: `make soak`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import Of
from torch_helpers import TORCH_WARNINGS, CachedDataset, DataLoader, torch

from stocached import NondeterministicDatasetError
from stocached._checks.fills import Fills
from stocached._checks.randomness import Guard, examine, remedy_of
from stocached._random import generators

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS, pytest.mark.filterwarnings("ignore")]

N, PROBABILITIES = 1000, (0.05, 0.1, 0.25, 0.5)
SOAK = int(os.environ.get("STOCACHED_TEST_AUGMENTATIONS", "0"))
SEEDS = 200 if SOAK else 100
PROBED = (0, (N - 1) // 2, N - 1)

A: Any
v1: Any
v2: Any


@pytest.fixture(autouse=True, scope="module")
def imported():
    """Imports the packages. Not at collection, because that takes seconds in each process that runs
    tests."""
    global A, v1, v2
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # otherwise it asks the package index for its newest version
    reason = "torchvision and albumentations are not installed: tools/setup.sh torch does it"
    A = pytest.importorskip("albumentations", reason=reason)
    v1 = pytest.importorskip("torchvision.transforms", reason=reason)
    v2 = pytest.importorskip("torchvision.transforms.v2", reason=reason)


def picture() -> Any:
    """A picture of 3 x 12 x 12 in colour, which is not symmetric."""
    return torch.linspace(0, 1, 3 * 12 * 12).reshape(3, 12, 12)


def on_arrays(transform: Any) -> Callable[[Any], Any]:
    """An augmentation of albumentations, which takes pictures as NumPy arrays and has its own
    generators."""
    return lambda image: torch.from_numpy(
        np.array(transform(image=image.permute(1, 2, 0).numpy())["image"].transpose(2, 0, 1))
    )


def flip_by(draw: Callable[[], float]) -> Callable[[float], Callable[[Any], Any]]:
    return lambda p: lambda image: image.flip(-1) if draw() < p else image


def own_numpy(p: float) -> Callable[[Any], Any]:
    return flip_by(np.random.default_rng(np.random.randint(2**31)).random)(p)


# Augmentations that draw from the global generators, and augmentations with their own generators.
AMBIENT = {
    "v1.RandomHorizontalFlip": lambda p: v1.RandomHorizontalFlip(p),
    "v1.RandomErasing": lambda p: v1.RandomErasing(p),
    "v1.RandomGrayscale": lambda p: v1.RandomGrayscale(p),
    "v1.RandomApply ColorJitter": lambda p: v1.RandomApply([v1.ColorJitter(0.4, 0.4)], p),
    "v2.RandomHorizontalFlip": lambda p: v2.RandomHorizontalFlip(p),
    "v2.RandomSolarize": lambda p: v2.RandomSolarize(0.5, p),
    "v2.RandomInvert": lambda p: v2.RandomInvert(p),
    "numpy.random": flip_by(np.random.rand),
}
OWN = {
    "A.HorizontalFlip": lambda p: on_arrays(A.Compose([A.HorizontalFlip(p=p)], seed=np.random.randint(2**31))),
    "A.RandomBrightnessContrast": lambda p: on_arrays(
        A.Compose([A.RandomBrightnessContrast(p=p)], seed=np.random.randint(2**31))
    ),
    "A.CoarseDropout": lambda p: on_arrays(A.Compose([A.CoarseDropout(p=p)], seed=np.random.randint(2**31))),
    "numpy.random.default_rng": own_numpy,
}
ALL = AMBIENT | OWN
OF_EACH_LIBRARY = [
    "v1.RandomErasing",
    "v2.RandomSolarize",
    "numpy.random",
    "A.CoarseDropout",
    "numpy.random.default_rng",
]


def augmented(name: str, p: float) -> Of:
    """Augmented pictures, except for those that a cache probes when it is made: these look harmless."""
    transform = ALL[name](p)
    return Of(lambda index: picture() if index in PROBED else transform(picture()), N)


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    # torch.manual_seed also stores the seed for devices, which takes longer than a try
    torch.default_generator.manual_seed(number)


@pytest.fixture(autouse=True)
def states_kept():
    with generators.kept():
        yield


def encode(image: Any) -> list[tuple[str, Any]]:
    return [("", image.numpy().copy())]


def take_back(fills: Fills) -> str:
    return ""


def by_check(dataset: Of) -> None:
    """What a cache does with each sample, without storing it."""
    for index in PROBED:
        assert examine([index], [dataset[index]], False, lambda index=index: [dataset[index]], encode) is None
    guard = Guard(Fills(), remedy_of("a test"), encode, take_back)
    for index in range(N):
        sample, stays = guard.load(index, lambda index=index: dataset[index])
        assert stays
        guard.stored(index, sample, lambda index=index: dataset[index])


def by_cached(dataset: Of) -> None:
    cached = CachedDataset(dataset)
    try:
        for index in range(N):
            cached[index]
    finally:
        cached.cache.close()


def by_loader(workers: int) -> Callable[[Of], None]:
    def read(dataset: Of) -> None:
        loader = DataLoader(dataset, 50, num_workers=workers, size="64MiB")
        try:
            list(loader)
        finally:
            loader.close()

    return read


WAYS = {"CachedDataset": by_cached, "0 workers": by_loader(0), "2 workers": by_loader(2)}


def accepted(name: str, p: float, way: Callable[[Of], None], seeds: int) -> int:
    """Number of tries that raise no error."""
    count = 0
    for number in range(seeds):
        seed(number)
        try:
            way(augmented(name, p))
            count += 1
        except NondeterministicDatasetError:
            pass
    return count


def judge(name: str, p: float, count: int, seeds: int) -> None:
    print(f"{name:28} p = {p:<5} accepted {count} of {seeds}")
    if name in AMBIENT:
        assert count == 0
    elif p >= 0.1:
        assert count <= max(0.02 * seeds, 1)


# The rarer an augmentation is, the harder it is to notice.
@pytest.mark.parametrize(
    ("name", "p"), [(name, p) for name in ALL for p in (PROBABILITIES if SOAK else (0.05 if name in AMBIENT else 0.1,))]
)
def test_the_check(name, p):
    seeds = SEEDS // 4 if name in AMBIENT and not SOAK else SEEDS  # none is accepted
    judge(name, p, accepted(name, p, by_check, seeds), seeds)


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("p", PROBABILITIES if SOAK else (0.1,))
@pytest.mark.parametrize("name", list(ALL) if SOAK else OF_EACH_LIBRARY)
def test_each_way_in(name, p, way):
    seeds = SOAK or (1 if way == "2 workers" else 5)  # starting workers takes long
    judge(name, p, accepted(name, p, WAYS[way], seeds), seeds)
