"""Functions of the user that change what they get: each epoch they get samples as the dataset gives them, and the dataset
keeps its own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from test_loader_again import BOTH

from stocached import Cache, Loader
from stocached._datasets.cached_samples import CachedSamples

N, WIDE = 16, 65536
pytestmark = pytest.mark.filterwarnings("ignore:.*went uncached")


@dataclasses.dataclass
class Record:
    x: np.ndarray
    name: str


class Kept:
    """Gives its own objects."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


class InBatches(Kept):
    def __getitems__(self, indices):
        return [self.samples[index] for index in indices]


def array():
    return np.zeros(WIDE, np.float32)


def views():
    return list(np.zeros((N, WIDE), np.float32))


# By name: samples, and a function that adds 1 to them in place and returns what it read before.
SAMPLES = {
    "array": (views, lambda sample: sample),
    "tuple": (lambda: [(row, "text") for row in views()], lambda sample: sample[0]),
    "list": (lambda: [[row, 3] for row in views()], lambda sample: sample[0]),
    "nested": (lambda: [{"a": [{"b": row}, None], "c": 1} for row in views()], lambda sample: sample["a"][0]["b"]),
    "dataclass": (lambda: [Record(row, "x") for row in views()], lambda sample: sample.x),
    "other shapes": (lambda: [np.zeros(WIDE + k % 2, np.float32) for k in range(N)], lambda sample: sample),
}


def raised(find):
    def change(sample, generator=None):
        inner = find(sample)
        inner += 1
        if isinstance(sample, list):
            sample[1] = 7
        return inner[0] + 0

    return change


def added_each_epoch(loader, dataset=None):
    """Each epoch begins with the dataset's own samples."""
    for _ in range(3):
        assert {float(value) for batch in loader for value in np.atleast_1d(batch)} == {1.0}
    loader.close()
    assert dataset is None or max(float(sample.max()) for sample in dataset.samples) == 0


@pytest.mark.parametrize("size", [None, "6MiB", "16MiB"], ids=["no cache", "full", "whole"])
@pytest.mark.parametrize("name", SAMPLES)
def test_augment_in_place(name, size):
    make, find = SAMPLES[name]
    for kind in (Kept, InBatches):
        dataset = kind(make())
        variable = {"variable": False} if size and name == "other shapes" else {}
        loader = Loader(dataset, 4, augment=raised(find), **({"size": size} if size else {}), **variable)
        added_each_epoch(loader)
        assert all(float(find(sample).max()) == 0 for sample in dataset.samples)
        assert name != "list" or all(sample[1] == 3 for sample in dataset.samples)


@pytest.mark.parametrize("worker", ["process", "thread"])
@pytest.mark.parametrize("workers", [1, 2])
def test_augment_in_place_in_workers(worker, workers):
    for size in (None, "6MiB", "16MiB"):
        dataset = Kept(views())
        more = {"size": size} if size else {}
        loader = Loader(dataset, 4, augment=raised(lambda x: x), num_workers=workers, worker=worker, **more)
        added_each_epoch(loader, dataset)


@BOTH
@pytest.mark.parametrize("size", [None, "6MiB", "16MiB"], ids=["no cache", "full", "whole"])
def test_batches_of_single_samples(kind, size):
    """Without batch_size, a batch is a sample as it is."""
    dataset = Kept(views())
    loader = kind()(dataset, None, batch_augment=raised(lambda x: x), **({"size": size} if size else {}))
    added_each_epoch(loader, dataset)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", ["6MiB", "16MiB"], ids=["full", "whole"])
def test_collate_fn_and_batch_augment(workers, size):
    def first(samples):
        return [raised(lambda x: x)(sample) for sample in samples], samples

    dataset = InBatches(views())
    loader = Loader(
        dataset,
        4,
        size=size,
        collate_fn=first,
        batch_augment=lambda made: [made[0], made[1][0].fill(9)][0],
        num_workers=workers,
        worker="thread",
    )
    added_each_epoch(loader, dataset)


@pytest.mark.parametrize("kind", [Kept, InBatches])
def test_a_cached_dataset_that_the_program_reads(kind):
    dataset = kind(views())
    for augment in (None, lambda x: x):
        cached = CachedSamples(dataset, size="6MiB", augment=augment)
        for _ in range(3):
            for sample in [cached[3], cached[N - 1], *cached.__getitems__(range(N))]:
                assert float(sample.max()) == 0
                sample += 1
    assert max(float(sample.max()) for sample in dataset.samples) == 0


def test_a_cache_that_is_only_read(cache_name):
    dataset = Kept(views())
    CachedSamples(dataset, name=cache_name, size="16MiB")[0]
    cached = CachedSamples(dataset, Cache.attach(cache_name, read_only=True))
    for _ in range(2):
        cached[5].fill(1)
    assert float(dataset.samples[5].max()) == 0


def test_samples_that_the_program_cannot_write():
    """A hit can be written, so a miss can be too."""
    data = np.zeros((N, 4)).tobytes()
    dataset = Kept([np.frombuffer(data, np.float64)[4 * k : 4 * k + 4] for k in range(N)])
    loader = Loader(dataset, 4, size="16MiB", augment=lambda x: x.__iadd__(1))
    assert [float(batch.max()) for _ in range(2) for batch in loader] == [1.0] * 8


@pytest.mark.torch
def test_tensors_and_pictures():
    torch, image = pytest.importorskip("torch"), pytest.importorskip("PIL.Image")
    from stocached.torch import DataLoader

    def marked(picture):
        before = picture.getpixel((0, 0))
        picture.putpixel((0, 0), before + 1)
        return torch.tensor(before)

    pictures = Kept([image.new("L", (4, 4)) for _ in range(N)])
    loader = DataLoader(pictures, 4, augment=marked)
    assert [int(batch.max()) for _ in range(2) for batch in loader] == [0] * 8
    rows = torch.zeros(N, WIDE, requires_grad=True)
    tensors = torch.utils.data.TensorDataset(rows.detach(), torch.zeros(N, 3).t().contiguous().t())
    for size in ("6MiB", "16MiB"):
        loader = DataLoader(tensors, 4, size=size, augment=lambda pair: [part.add_(1) for part in pair])
        for _ in range(3):
            assert {float(value) for batch in loader for part in batch for value in part.unique()} == {1.0}
    assert all(float(part.max()) == 0 for part in tensors.tensors)


def test_batches_of_the_default_copy_no_sample_twice(monkeypatch):
    """A row of a batch is a copy already."""
    from stocached._datasets import misses

    monkeypatch.setattr(misses, "own_copy", lambda sample: pytest.fail("a copy"))
    for workers in (0, 1):
        loader = Loader(Kept(views()), 4, size="16MiB", num_workers=workers, worker="thread")
        assert len([batch for _ in range(2) for batch in loader]) == 8
        loader.close()
