"""Datasets and steps of this package run no function of the program, so a loader makes the first
batches of the next epoch ahead."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from pictures import folder_of
from prepared import Made

from stocached import Loader, Order, image
from stocached._common.ours import only_ours
from stocached._datasets.cached_samples import CachedSamples
from stocached.prepare import BlockStorage, PreparedDataset, prepare


def folder(path):
    return image.Folder(folder_of(path, {"cat": 6, "dog": 6}), size=(8, 8))


@pytest.mark.parametrize("worker", ["native", "thread", "process"])
@pytest.mark.parametrize("size", [None, "16MiB"])
def test_pictures_of_the_next_epoch_are_made_ahead(tmp_path, worker, size):
    """No function of the program makes them. If the cache was cleared since, they are made again."""
    dataset, flip = folder(tmp_path), image.RandomHorizontalFlip()
    with contextlib.closing(
        Loader(dataset, 2, num_workers=2, worker=worker, shuffle=True, seed=5, persistent_workers=True,
               augment=flip, size=size)
    ) as loader:  # fmt: skip
        for epoch in range(3):
            wanted = Order(12, seed=5).epoch(epoch).indices() // 6
            assert np.concatenate([labels for _, labels in loader]).tolist() == wanted.tolist()
            begun = loader._next
            assert begun is not None
            assert all(batch.tasks for batch in begun._pending)
            if size is not None and epoch == 1:
                loader.cache.clear()
                assert iter(loader) is not begun
                loader.set_epoch(2)


def test_functions_of_the_program_are_found_wherever_a_dataset_has_them(tmp_path):
    pictures = folder(tmp_path / "pictures")
    prepare(Made(10), storage := BlockStorage(tmp_path / "blocks"))
    flip, program = image.RandomHorizontalFlip(), str
    for dataset, ours in (
        (pictures, True),
        (image.Folder(tmp_path / "pictures", transform=image.Compose([flip])), True),
        (image.Folder(tmp_path / "pictures", transform=program), False),
        (image.Folder(tmp_path / "pictures", target_transform=program), False),
        (type("Derived", (image.Folder,), {"__module__": __name__})(tmp_path / "pictures"), False),
        (PreparedDataset(storage), True),
        (PreparedDataset(storage, transform=program), False),
        (PreparedDataset(type("Storage", (BlockStorage,), {"__module__": __name__})(storage.folder)), False),
        (CachedSamples(pictures, size="16MiB"), True),
        (CachedSamples(pictures, size="16MiB", augment=program), False),
        ([1, 2, 3], False),
        (flip, True),
        (image.Compose([type("Step", (image.CenterCrop,), {"__module__": __name__})(4)]), False),
    ):
        assert only_ours(dataset) == ours, dataset
