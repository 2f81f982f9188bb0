"""Fingerprints derived from datasets and transforms of torch, torchvision and Hugging Face."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from torch_helpers import TORCH_WARNINGS, torch

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]

if torch is not None:
    from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split

    import stocached
    from stocached._checks.derived_fingerprint import derive
    from stocached.torch import CachedDataset, DataLoader


def import_torchvision():
    """Imports torchvision. Not at collection, because that takes seconds in each process that runs
    tests."""
    global v1, v2, CIFAR10, FakeData, ImageFolder
    from torchvision import transforms as v1
    from torchvision.datasets import CIFAR10, FakeData, ImageFolder
    from torchvision.transforms import v2


@pytest.fixture(autouse=True, scope="module")
def imported():
    pytest.importorskip("torchvision")
    import_torchvision()


# names in transforms()
TRANSFORMS = ["v1", "v2", "interpolation", "Lambda", "a module", "weights", "order", "a partial", "a dtype"]


def pictures(root, transform=None):
    """An ImageFolder of 24 pictures."""
    from PIL import Image

    if not root.exists():
        for k in range(24):
            (root / "abc"[k % 3]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 10, 3), 10 * k, np.uint8)).save(root / "abc"[k % 3] / f"{k}.png")
    return ImageFolder(str(root), transform)


def whole(derived):
    return "?" not in str(derived) and not derived.sampled


def transforms():
    """Pairs of transforms that give tensors of equal shape."""
    return {
        "v1": [v1.Compose([v1.Resize((4, 4)), v1.ToTensor(), v1.Normalize([mean], [1.0])]) for mean in (0.5, 0.4)],
        "v2": [
            v2.Compose([v2.Resize((4, 4)), v2.ToImage(), v2.ToDtype(torch.float32, scale=scale)])
            for scale in (True, False)
        ],
        "interpolation": [
            v2.Resize((4, 4), interpolation=mode)
            for mode in (v2.InterpolationMode.NEAREST, v2.InterpolationMode.BILINEAR)
        ],
        "Lambda": [v1.Compose([v1.ToTensor(), v1.Lambda(function)]) for function in (lambda x: x + 1, lambda x: x + 2)],
        "a module": [torch.nn.Sequential(v2.Resize((4, 4)), torch.nn.Flatten(start)) for start in (1, 0)],
        "weights": [torch.nn.Conv2d(3, 3, 1).requires_grad_(False) for _ in range(2)],
        "order": [
            torch.nn.Sequential(*order)
            for order in ((torch.nn.ReLU(), torch.nn.Tanh()), (torch.nn.Tanh(), torch.nn.ReLU()))
        ],
        "a partial": [functools.partial(v1.functional.resize, size=(4, size)) for size in (4, 5)],
        "a dtype": [functools.partial(torch.as_tensor, dtype=dtype) for dtype in (torch.float32, torch.float64)],
    }


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, tmp_path):
    assert list(transforms()) == TRANSFORMS
    a, b = transforms()[name]
    one, other = derive(pictures(tmp_path / "data", a)), derive(pictures(tmp_path / "data", b))
    assert whole(one)
    assert name == "weights" or derive(pictures(tmp_path / "data", transforms()[name][0])) == one
    assert one.changed(other) == "the code of the dataset or of its transform"


def test_datasets_of_torch_and_torchvision(tmp_path):
    tensors = TensorDataset(torch.arange(3000.0).reshape(1000, 3), torch.arange(1000))
    changed = TensorDataset(tensors.tensors[0].clone(), tensors.tensors[1])
    changed.tensors[0][700, 1] += 1
    whole_ones = [
        (tensors, changed),
        (Subset(tensors, range(500)), Subset(tensors, range(1, 501))),
        (Subset(tensors, [3, 1]), Subset(tensors, [1, 3])),
        (ConcatDataset([tensors, changed]), ConcatDataset([changed, tensors])),
        (Subset(ConcatDataset([tensors, tensors]), [5]), Subset(ConcatDataset([tensors, changed]), [5])),
        tuple(random_split(tensors, [0.5, 0.5], torch.Generator().manual_seed(seed))[0] for seed in (1, 2)),
        (Subset(pictures(tmp_path / "data"), range(20)), Subset(pictures(tmp_path / "data"), range(19))),
    ]
    for one, other in whole_ones:
        assert whole(derive(one)), one
        assert derive(one).changed(derive(other)) == "the data of the dataset", one
    cifar = CIFAR10.__new__(CIFAR10)  # without its download
    cifar.__dict__.update(root=str(tmp_path), train=True, transform=None, target_transform=None, transforms=None)
    cifar.__dict__.update(data=np.zeros((100, 4, 4, 3), np.uint8), targets=[0] * 100)
    assert whole(derive(cifar))
    assert derive(FakeData()).data.endswith("?")


def test_datasets_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    assert whole(derive(one))
    assert derive(one).changed(derive(datasets.Dataset.from_dict({"x": [1, 2, 4]}))) == "the data of the dataset"
    assert derive(one).changed(derive(one.select([0, 1]))) == "the data of the dataset"
    assert derive(Subset(one, [1])).changed(derive(Subset(one.with_format("torch"), [1]))) == "the data of the dataset"


# ------------------------------------------------------------ in a cache


def fill(dataset, name, size="16MiB"):
    list(DataLoader(dataset, 10, name=name, size=size))


def tensors(transform):
    return v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), transform])


@pytest.mark.parametrize(
    "make",
    [lambda dataset, **more: CachedDataset(dataset, **more), lambda dataset, **more: DataLoader(dataset, 10, **more)],
)
def test_another_transform_of_equal_shape_is_refused(make, tmp_path, cache_name):
    """Pictures of one colour look the same when they are flipped, so the samples do not show the
    change."""
    fill(pictures(tmp_path / "data", tensors(v2.Lambda(v2.functional.horizontal_flip))), cache_name)
    with pytest.raises(
        stocached.FingerprintError,
        match=rf"the code of the dataset or of its transform changed since then.*stocached rm {cache_name}",
    ):
        make(pictures(tmp_path / "data", tensors(v2.Lambda(v2.functional.vertical_flip))), name=cache_name)
    make(pictures(tmp_path / "data", tensors(v2.Lambda(v2.functional.horizontal_flip))), name=cache_name)
