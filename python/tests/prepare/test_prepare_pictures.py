"""Folders and shards of pictures that stocached.prepare prepares."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_samples import dataset_of, folder_of_small, read, shards_of_small, tar_of
from pictures import encoded, picture
from prepared import PROGRAM, tree

from stocached import InvalidError, Loader, NondeterministicDatasetError, image
from stocached.prepare import BlockStorage, InTheWayError, PreparedDataset, prepare

N = 30
MEAN = (0.485, 0.456, 0.406)
KINDS: dict[str, tuple[dict[str, Any], tuple[tuple[int | None, ...], str]]] = {
    "of one size": ({"size": 32}, ((32, 32, 3), "uint8")),
    "planes": ({"size": (20, 30), "layout": "chw"}, ((3, 20, 30), "uint8")),
    "short side": ({"short_side": 24}, ((None, None, 3), "uint8")),
    "steps": ({"transform": image.Compose([image.Resize(30), image.CenterCrop(24)])}, ((24, 24, 3), "uint8")),
    "longest side": ({"transform": image.Resize(20, max_size=24)}, ((None, None, 3), "uint8")),
    "floats": (
        {"size": 16, "transform": image.Compose([image.ToDtype("float32", scale=True), image.Normalize(MEAN, MEAN)])},
        ((16, 16, 3), "float32"),
    ),
    "files": ({}, ((None,), "bytes")),
}


@pytest.fixture(scope="module", params=["folder", "shards"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = {"folder": folder_of_small, "shards": shards_of_small}[request.param]
    return make(tmp_path_factory.mktemp(request.param), N)


@pytest.mark.parametrize(("processes", "kind"), [*((0, kind) for kind in KINDS), (2, "of one size"), (2, "files")])
def test_what_is_prepared_is_what_the_dataset_gives(root, tmp_path, kind, processes):
    settings, field = KINDS[kind]
    dataset, storage = dataset_of(root, **settings), BlockStorage(tmp_path / "out", block_bytes=4096)
    assert prepare(dataset, storage, processes=processes)
    info = storage.load_dataset_info()
    assert dict(info.fields) == {"image": field, "label": ((), "int64")}
    if isinstance(dataset, image.Folder):
        assert json.loads(info.notes["classes"]) == dataset.classes
    prepared = PreparedDataset(storage)
    assert len(prepared) == N
    for k in range(N):
        sample, (want, label) = prepared[k], dataset.read(k) if kind == "files" else dataset[k]
        assert sample["label"] == label
        got = sample["image"]
        assert got == want if kind == "files" else (got.dtype, got.tobytes()) == (want.dtype, want.tobytes())
    assert not prepare(dataset_of(root, **settings), storage), "it is prepared already"
    assert (
        subprocess.run([PROGRAM, "source", "verify", tmp_path / "out"], capture_output=True, check=False).returncode
        == 0
    )


def test_the_number_of_processes_does_not_matter(root, tmp_path):
    for processes in (0, 1, 3):
        prepare(dataset_of(root, size=32), BlockStorage(tmp_path / str(processes)), processes=processes)
    assert tree(tmp_path / "0") == tree(tmp_path / "1") == tree(tmp_path / "3")


@pytest.mark.parametrize("files", [True, False], ids=["files", "pictures"])
def test_loaders_read_it(root, tmp_path, files):
    """Files are decoded by a transform. Batches are those of the dataset, for any number of workers."""
    dataset = dataset_of(root, size=32)
    storage = BlockStorage(tmp_path / "out")
    prepare(dataset_of(root) if files else dataset, storage)
    decode = image.Compose([image.Decode(32)]) if files else None
    order: dict[str, Any] = {"shuffle": True, "seed": 3, "augment": image.RandomCrop(24)}
    want = read(Loader(dataset, 8, **order), 2)
    for workers, size in ((0, None), (2, None), (2, "8MiB")):
        loader = Loader(PreparedDataset(storage, transform=decode), 8, num_workers=workers, size=size, **order)
        got = [(batch["image"], batch["label"]) for _ in range(2) for batch in map(copied, loader)]
        assert [(a.tobytes(), b.tolist()) for a, b in got] == [(data, labels) for _, _, data, labels in want]
        loader.close()


def copied(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(values) for name, values in batch.items()}


@pytest.mark.torch
def test_a_subset(root, tmp_path):
    import torch.utils.data as utils

    dataset, indices = dataset_of(root, size=32), [20, 3, -1, 3, *range(5, 15)]
    storage = BlockStorage(tmp_path / "out")
    prepare(utils.Subset(utils.Subset(dataset, indices), range(1, 9)), storage)
    got = [storage.load_sample(k)["image"].tobytes() for k in range(len(storage))]
    assert got == [dataset[index][0].tobytes() for index in indices[1:9]]
    with pytest.raises(InTheWayError):
        prepare(utils.Subset(dataset, range(8)), storage)


def test_pictures_without_labels(tmp_path):
    tar_of(tmp_path / "a.tar", {f"{k}.jpg": encoded(picture(40 + k, 30)) for k in range(5)})
    dataset, storage = image.Shards(tmp_path / "a.tar", size=16), BlockStorage(tmp_path / "d")
    prepare(dataset, storage)
    assert all(np.array_equal(storage.load_sample(k), dataset[k]) for k in range(5))


def test_the_fingerprint_names_the_samples(root, tmp_path):
    """It changes with each that changes them, and with nothing else."""

    folders: list[Any] = []

    def made(**settings: Any) -> str:
        storage = BlockStorage(tmp_path / f"d{len(folders)}")
        folders.append(storage)
        prepare(dataset_of(root, **settings), storage)
        return storage.load_dataset_info().fingerprint

    first = made(size=32)
    assert made(size=32) == first
    files = made()
    assert len({first, files, made(size=33), made(size=32, layout="chw"), made(size=32, fast=True)}) == 5
    path = min([*root.glob("*.tar"), *root.glob("*/*.jpg")])
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    try:
        assert made(size=32) != first
        assert made() != files
    finally:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert made(size=32) == first


def test_labels_count(tmp_path):
    root = folder_of_small(tmp_path, 8)
    dataset, prints = image.Folder(root, size=16), set()
    for label in (0, 7):
        dataset.targets[0] = label
        dataset.samples[0] = (dataset.samples[0][0], label)
        storage = BlockStorage(tmp_path / f"d{label}")
        prepare(dataset, storage)
        assert storage.load_sample(0)["label"] == label
        prints.add(storage.load_dataset_info().fingerprint)
    assert len(prints) == 2


class Own(image.Folder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


def plus_one(label: int) -> int:
    return label + 1


CANNOT: dict[str, tuple[Any, str]] = {
    "function": (lambda root: image.Folder(root, transform=np.flipud), "transform=.*is no step"),
    "target": (lambda root: image.Folder(root, target_transform=plus_one), "target_transform=.*is a function"),
    "own __getitem__": (lambda root: Own(root), "Own has a __getitem__ of its own"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_functions_have_no_fingerprint(tmp_path, name):
    dataset, why = CANNOT[name]
    root = folder_of_small(tmp_path, 4)
    with pytest.raises(InvalidError, match=rf"^prepare: .*{why}.*; give functions to PreparedDataset\(transform=\)"):
        prepare(dataset(root), BlockStorage(tmp_path / "d"))


def test_labels_that_are_no_numbers(tmp_path):
    tar_of(tmp_path / "a.tar", {"0.jpg": encoded(picture(40, 30)), "0.json": b'{"label": 3}'})
    with pytest.raises(InvalidError, match="labels are .*; they must be numbers"):
        prepare(image.Shards(tmp_path / "a.tar", size=16), BlockStorage(tmp_path / "d"))
    with pytest.warns(UserWarning, match=r"cat \(class 0, no file\)"):
        empty = image.Folder(tmp_path_with_a_class(tmp_path), allow_empty=True, size=16)
    with pytest.raises(InvalidError, match="the dataset is empty"):
        prepare(empty, BlockStorage(tmp_path / "e"))


def tmp_path_with_a_class(root: Path) -> Path:
    (root / "empty" / "cat").mkdir(parents=True)
    return root / "empty"


def test_random_steps_are_refused(tmp_path):
    root, storage = folder_of_small(tmp_path / "in", 8), BlockStorage(tmp_path / "out")
    random = image.Compose([image.Decode(40), image.RandomCrop(8)])
    with pytest.raises(NondeterministicDatasetError):
        prepare(image.Folder(root, random), storage)
    assert not (tmp_path / "out").exists()


def test_a_broken_file_is_named(tmp_path):
    root = folder_of_small(tmp_path / "in", 8)
    path = sorted(root.glob("*/*.jpg"))[3]
    path.write_bytes(path.read_bytes()[:500])
    for processes in (0, 2):
        with pytest.raises(image.DecodeError, match=path.name):
            prepare(image.Folder(root, size=16), BlockStorage(tmp_path / "out"), processes=processes)
