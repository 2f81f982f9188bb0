"""Native workers of torch's DataLoader: its batches, and a training that learns as with torchvision."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_samples import MEAN, STD, folder_of_small
from pictures import encoded
from torch_helpers import CachedDataset, DataLoader, torch

from stocached import InvalidError, image
from stocached._loader import worker_choice

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("dtype", "store"),
    [("float32", {}), ("uint8", {"size": "16MiB"}), ("float16", {"size": "16MiB", "variable": True})],
)
def test_batches(tmp_path, store, dtype, by_python):
    """In the order of torch's generator, with the same random numbers for any number of workers."""
    root = folder_of_small(tmp_path, 24)
    steps = [image.RandomResizedCrop(32), image.RandomHorizontalFlip(), image.ColorJitter(0.3)]
    augment = image.Compose([*steps, image.ToDtype(dtype, scale=True)])
    found = []
    for workers in (0, 1, 2):
        dataset = image.Folder(root, size=48, layout="chw")
        torch.manual_seed(5)
        loader = DataLoader(dataset, 6, shuffle=True, num_workers=workers, augment=augment, **store)
        batches = [(pictures.clone(), labels.clone()) for _ in range(2) for pictures, labels in loader]
        assert batches[0][0].dtype == getattr(torch, dtype)
        found.append(batches)
        assert loader.worker == "native"
        loader.close()
    for batches in found[1:]:
        assert len(batches) == len(found[0])
        for (a, b), (c, d) in zip(batches, found[0]):
            assert torch.equal(a, c)
            assert torch.equal(b, d)
    assert by_python == []


def same(worker: int) -> None:
    pass


@pytest.mark.parametrize(
    ("settings", "why", "advised"),
    [
        ({"worker_init_fn": same}, worker_choice.APART, {"worker_init_fn": None}),
        ({"worker_init_fn": same, "in_order": False}, worker_choice.APART, {"worker_init_fn": None, "seed": 1}),
        ({"worker_init_fn": same, "seed": 1}, worker_choice.APART, {"worker_init_fn": None}),
        ({"in_order": False}, worker_choice.OUT_OF_ORDER, {"seed": 1}),
        ({"in_order": False}, worker_choice.OUT_OF_ORDER, {"augment": image.RandomCrop(30)}),
        ({"collate_fn": list}, worker_choice.WHOLE, {"collate_fn": None}),
        (
            {"collate_fn": list, "worker_init_fn": same},
            worker_choice.WHOLE,
            {"collate_fn": None, "worker_init_fn": None},
        ),
    ],
)
def test_the_reason_why_workers_are_processes(tmp_path, monkeypatch, caplog, settings, why, advised):
    """Without seed= or augment=, torch lets a worker make whole batches. The advice is enough for native workers."""
    monkeypatch.setattr(worker_choice, "_said", set())
    dataset = image.Folder(folder_of_small(tmp_path, 24), size=48)
    loader = DataLoader(dataset, 6, num_workers=2, **settings)
    assert loader.worker == "process"
    assert [why in line for line in caplog.messages] == [True]
    if settings.get("seed") is None:
        with pytest.raises(InvalidError, match=f'^worker="native": {re.escape(why)}'):
            DataLoader(dataset, 6, num_workers=2, worker="native", **settings)
    assert DataLoader(dataset, 6, num_workers=2, **{**settings, **advised}).worker == "native"


def test_errors_of_steps_name_the_file_of_a_subset_and_of_a_cached_dataset(tmp_path):
    dataset, larger = image.Folder(folder_of_small(tmp_path, 24)), image.RandomCrop(70)
    path = dataset.samples[20][0]
    want = rf"sample 1: {re.escape(path)}: RandomCrop of 70 x 70 is larger than the picture"
    part = torch.utils.data.Subset(torch.utils.data.Subset(dataset, range(2, 24)), [-1, 18])
    for worker, store in itertools.product(("native", "process"), ({}, {"size": "8MiB"})):
        batches = DataLoader(part, 1, sampler=[1], num_workers=2, seed=None, augment=larger, worker=worker, **store)
        with pytest.raises(InvalidError, match=want):
            list(batches)
    cached = CachedDataset(part, size="8MiB", augment=larger)
    for read_it in (
        lambda: cached[1],
        lambda: cached.__getitems__([1]),
        lambda: list(torch.utils.data.DataLoader(cached, 1, sampler=[1])),
    ):
        with pytest.raises(InvalidError, match=want):
            read_it()


# ------------------------------------------------------------ a training

CLASSES, SIDE = 4, 32
REAL = os.environ.get("STOCACHED_TEST_PICTURES", "")  # a folder with folders of pictures, for `make test-learning`


def scene(random: np.random.Generator, kind: int) -> np.ndarray:
    """A picture as cameras make them: the amplitudes of its waves fall with their frequency (1 / f), its channels go
    together, and it has a bright or dark object whose shape is the class: disc, square, stripes, ring."""
    from PIL import Image

    height, width = random.integers(72, 110, 2).tolist()
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)) + 0.01
    noise = np.fft.ifft2(np.fft.fft2(random.normal(size=(4, height, width))) / frequency).real
    noise /= noise.std(axis=(1, 2), keepdims=True)
    pixels = 125 + 35 * noise[3] + 12 * noise[:3]
    y, x = np.mgrid[:height, :width]
    y, x = y - height * random.uniform(0.42, 0.58), x - width * random.uniform(0.42, 0.58)
    side = min(height, width) * random.uniform(0.25, 0.35)
    away = np.hypot(y, x)
    shape = [
        away < side,
        (abs(y) < 0.9 * side) & (abs(x) < 0.9 * side),
        (abs(y) < side) & (abs(x) < side) & (y % (side / 2) < side / 4),
        (away < side) & (away > 0.55 * side),
    ][kind]
    tone = random.choice([-1, 1]) * random.uniform(60, 90) + random.uniform(-15, 15, (3, 1))
    pixels[:, shape] = pixels[:, shape] * 0.4 + 75 + tone
    return np.array(Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8).transpose(1, 2, 0)))


def drawn(root: Path) -> tuple[int, float]:
    random = np.random.default_rng(7)
    for kind in range(CLASSES):
        (root / f"kind-{kind}").mkdir()
        for k in range(48):
            (root / f"kind-{kind}" / f"{k:02}.jpg").write_bytes(encoded(scene(random, kind)))
    return 6, 0.75


def real(root: Path) -> tuple[int, float]:
    """JPEGs of the pictures of four folders, as many of each, on white where they are transparent."""
    from PIL import Image

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # a few are posters, which the sizes below leave out
        return _real(root, Image)


def _real(root: Path, Image: Any) -> tuple[int, float]:
    for name in ("animals", "food", "people", "transportation"):
        (root / name).mkdir()
        made = 0
        for file in sorted(Path(REAL, name).rglob("*.png")):
            with Image.open(file) as opened:
                if made == 150 or min(opened.size) < 64 or opened.size[0] * opened.size[1] > 1_000_000:
                    continue
                opened.thumbnail((400, 400))
                seen = opened.convert("RGBA")
            Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB").save(
                root / name / f"{made:03}.jpg", quality=90
            )
            made += 1
        assert made == 150, f"{REAL}/{name} has {made} pictures that the test can use"
    return 12, 0.85


# The standard deviation of the mean loss of each epoch between seeds, of torchvision's pipeline alone, or that of all
# epochs, if it is larger: 16 seeds of drawn pictures, 12 of real ones, measured before the test had its limit. And the
# seeds that the test runs.
NOISE = {
    drawn: ([0.086, 0.086, 0.109, 0.100, 0.100, 0.086], 3),
    real: ([0.021, 0.022, 0.023, 0.021, 0.021, 0.021, 0.025, 0.021, 0.021, 0.032, 0.021, 0.025], 6),
}
LIMIT = 4  # standard errors: with twelve epochs, noise alone is beyond it in one of 1,300 runs


@pytest.fixture(scope="module", params=[drawn, *([real] if REAL else [])], ids=lambda make: make.__name__)
def scenes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """A folder of JPEGs of four classes; the epochs in which a small network learns something of them; its loss then, at
    most, as a part of the loss of a guess; the noise of its losses, and how many seeds to run."""
    root = tmp_path_factory.mktemp("scenes")
    return root, *request.param(root), *NOISE[request.param]


def trained(loader: Any, epochs: int, seed: int) -> list[float]:
    """The mean losses of the epochs of a small CNN."""
    nn = torch.nn
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 5, 2, 2), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24),
        nn.ReLU(), nn.Conv2d(24, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(128, CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(epochs):
        total, seen = 0.0, 0
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(labels)
            seen += len(labels)
        losses.append(total / seen)
    return losses


@pytest.mark.timeout(1200)  # with real pictures it takes minutes
def test_training_learns_as_with_torchvision(scenes):
    """The same model, order and number of epochs; boxes, flips and colours are random in each. For each epoch, the mean
    losses over the seeds differ by less than LIMIT standard errors of their difference. Both learn."""
    from torchvision import datasets, transforms

    root, epochs, most, noise, seeds = scenes
    steps = (SIDE, (0.5, 1.0)), (0.3, 0.3, 0.3)
    theirs = transforms.Compose(
        [
            transforms.RandomResizedCrop(*steps[0]),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(*steps[1]),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    dataset, augment = image.convert(datasets.ImageFolder(str(root), theirs))
    torch.set_num_threads(1)  # more only wait for each other with so small a model
    losses: dict[str, list[list[float]]] = {"ours": [], "torchvision's": []}
    for seed in range(seeds):
        torch.manual_seed(100 + seed)
        ours = DataLoader(dataset, 16, shuffle=True, num_workers=2, augment=augment, size="64MiB")
        assert ours.worker == "native"
        losses["ours"].append(trained(ours, epochs, seed))
        assert ours.stats().hits > 0
        ours.close()
        torch.manual_seed(100 + seed)
        plain = torch.utils.data.DataLoader(datasets.ImageFolder(str(root), theirs), 16, shuffle=True)
        losses["torchvision's"].append(trained(plain, epochs, seed))
    a, b = (np.array(losses[name]) for name in losses)
    apart = np.abs(a.mean(0) - b.mean(0))
    limit = LIMIT * np.array(noise) * np.sqrt(2 / seeds)
    report = f"{a.round(3)} {b.round(3)} apart {apart.round(3)} limit {limit.round(3)}"
    print(report)
    assert (apart < limit).all(), report
    assert max(a[:, -1].max(), b[:, -1].max()) < most * np.log(CLASSES), report
