"""When workers are native: worker=None chooses, and worker="native" says why it cannot."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_samples import dataset_of, folder_of_small, labels_of, read, shards_of_small, tar_of, usual
from pictures import encoded, picture

from stocached import InvalidError, Loader, image
from stocached._loader import worker_choice

N, BATCH = 24, 6


@pytest.fixture
def root(tmp_path) -> Path:
    return folder_of_small(tmp_path / "train", N)


def stack(samples: list[Any]) -> Any:
    return np.stack([picture for picture, _ in samples]), np.array([label for _, label in samples])


def same(worker: int) -> None:
    pass


def brighter(sample: Any, generator: Any) -> Any:
    return sample[0] // 2, sample[1]


class Brighter:
    """With a repr as that of torchvision's Compose."""

    def __call__(self, sample: Any, generator: Any) -> Any:
        return brighter(sample, generator)

    def __repr__(self) -> str:
        return "Brighter(\n    by half,\n" + 100 * "    and more,\n" + ")"


def plus_one(label: int) -> int:
    return label + 1


class Own(image.Folder):
    def __getitem__(self, index: int) -> Any:
        pixels, label = super().__getitem__(index)
        return 255 - pixels, label


class Slow(image.Shards):
    def read(self, index: int) -> Any:
        return super().read(index)


def shards(root: Path) -> Path:
    return shards_of_small(root.parent / "shards", N)


def labelled(root: Path, label: str, text: str) -> image.Shards:
    """A shard whose labels have such a text."""
    data, members = encoded(picture(60, 50)), {}
    for k in range(N):
        members |= {f"{k}.jpg": data, f"{k}.{label}": text.encode()}
    return image.Shards(tar_of(root.parent / "one.tar", members), size=48)


class Whole(image.Folder):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Named(image.Folder):
    """Has more, and loads as a Folder."""

    def __repr__(self) -> str:
        return "mine"


class Mine:
    """A dataset of a user that has an attribute of this name."""

    pipeline = "data/2024"

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return np.full((4, 4, 3), index, np.uint8), index


decode = image.Decode(48)
# dataset of the root, arguments of the loader, and why workers cannot be native
CANNOT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "own __getitem__": (lambda root: Own(root, size=48), {}, "Own has a __getitem__ of its own"),
    "__getitems__": (lambda root: Whole(root, size=48), {}, "whole batches"),
    "target": (lambda root: image.Folder(root, size=48, target_transform=plus_one), {}, "target_transform="),
    "floats in the cache": (
        lambda root: image.Folder(root, image.Compose([decode, image.ToDtype("float32")])), {"size": "8MiB"},
        "other steps than Resize and CenterCrop before the cache",
    ),
    "function": (lambda root: image.Folder(root, transform=np.flipud, size=48), {}, "no step of stocached.image"),
    "random transform": (
        lambda root: image.Folder(root, image.Compose([decode, image.RandomCrop(30)])), {}, "give it as augment=",
    ),
    "another dataset": (lambda root: Mine(), {}, "the dataset is a Mine, not a Folder or Shards"),
    "collate": (lambda root: image.Folder(root, size=48), {"collate_fn": stack}, "collate_fn="),
    "own read": (lambda root: Slow(shards(root) / "*.tar", size=48), {}, "Slow has a read of its own"),
    "shards, target": (
        lambda root: dataset_of(shards(root), size=48, target_transform=plus_one), {}, "target_transform=",
    ),
    "labels are mappings": (
        lambda root: labelled(root, "json", '{"label": 3}'), {}, "the label of sample 0 is a dict, not a whole number",
    ),
    "labels are fractions": (lambda root: labelled(root, "json", "3.0"), {}, "the label of sample 0 is a float"),
    "no batches": (lambda root: image.Folder(root, size=48), {"batch_size": None}, "batch_size=None"),
    "augment": (lambda root: image.Folder(root, size=48), {"augment": brighter}, "augment=.* is no step"),
    "augment of several lines": (
        lambda root: image.Folder(root, size=48), {"augment": Brighter()}, r"augment=Brighter\( by half,.*\.\.\. is no step",
    ),
}  # fmt: skip


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(worker_choice, "_said", set())
    return caplog


@pytest.mark.parametrize("name", CANNOT)
def test_processes_where_c_cannot(root, name, said):
    """The loader says why: once, in one line, with what to change. Not of datasets that are none of ours."""
    dataset, settings, why = CANNOT[name]
    settings = {"batch_size": BATCH, "shuffle": True, "seed": 3, **settings}
    with pytest.raises(InvalidError, match=rf'^worker="native": .*{why}.*; worker="thread" and "process" take it$'):
        Loader(dataset(root), num_workers=2, worker="native", **settings)
    for workers in (0, 1, 1):
        loader = Loader(dataset(root), num_workers=workers, **settings)
        assert workers == 0 or loader.worker == "process"
        next(iter(loader))
        loader.close()
        assert len(said.messages) == (workers > 0 and name != "another dataset")
    if name == "another dataset":
        return
    (line,) = said.messages
    assert re.fullmatch(rf"workers are processes, .*: .*{why}.*\. worker=\"process\" hides this", line)
    assert "\n" not in line
    assert said.records[0].levelname == "WARNING"


def test_the_loader_says_nothing_where_there_is_nothing_to_change(root, said):
    read(Loader(Mine(), BATCH, num_workers=2, augment=image.RandomCrop(2)))
    read(Loader(Own(root, size=48), BATCH, num_workers=2, worker="process"))
    read(Loader(Own(root, size=48), BATCH, num_workers=2, worker="thread"))
    read(Loader(image.Folder(root, size=48), BATCH, num_workers=2))
    assert said.messages == []


CAN: dict[str, tuple[Any, dict[str, Any]]] = {
    "sized": (lambda root: image.Folder(root, size=48), {}),
    "subclass": (lambda root: Named(root, size=48), {"size": "8MiB"}),
    "compose": (lambda root: image.Folder(root, image.Compose([image.Decode(48)])), {}),
    "folded": (
        lambda root: image.Folder(root, image.Compose([image.Decode(), image.Resize(50), image.CenterCrop(48)])), {},
    ),
    "stretched": (
        lambda root: image.Folder(root, image.Compose([image.Decode(), image.Resize((40, 48))])), {"size": "8MiB"},
    ),
    "centre, cached": (
        lambda root: image.Folder(root, image.Compose([decode, image.CenterCrop(30)])), {"size": "8MiB"},
    ),
    "longest side, cached": (
        lambda root: image.Folder(root, image.Resize(30, max_size=33)),
        {"size": "8MiB", "augment": image.RandomCrop(32, pad_if_needed=True)},
    ),
    "floats in encoded": (
        lambda root: image.Folder(root, image.Compose([decode, image.ToDtype("float32")])),
        {"size": "8MiB", "store": "encoded"},
    ),
    "a step": (lambda root: image.Folder(root, size=48), {"augment": image.RandomCrop(30)}),
    "shards": (lambda root: dataset_of(shards(root), size=48), {}),
    "shards, cached": (lambda root: dataset_of(shards(root), short_side=50), {"size": "8MiB", "augment": usual()}),
    "shards, encoded": (lambda root: dataset_of(shards(root), size=48), {"size": "8MiB", "store": "encoded"}),
    "pictures alone": (lambda root: dataset_of(shards(root), size=48, label=""), {"augment": usual()}),
    "labels are json": (lambda root: labelled(root, "json", " -12 "), {}),
    "no order": (lambda root: image.Folder(root, size=48), {"seed": None, "shuffle": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", CAN)
def test_native_where_c_can(root, name, by_python):
    dataset, settings = CAN[name]
    settings = {"batch_size": BATCH, "shuffle": True, "seed": 3, **settings}
    loader = Loader(dataset(root), num_workers=2, **settings)
    assert loader.worker == "native"
    got = read(loader)
    assert by_python == []
    assert pickle.loads(pickle.dumps(loader)).worker == "native"
    loader.close()
    assert got == read(Loader(dataset(root), num_workers=0, **settings))


def test_functions_of_workers_get_processes(root):
    """worker_init_fn= is for the process of a worker. It may be asked to run in threads."""
    dataset = image.Folder(root, size=48)
    assert Loader(dataset, BATCH, num_workers=2, seed=1, worker_init_fn=same).worker == "process"
    assert Loader(dataset, BATCH, num_workers=2, seed=1, worker_init_fn=same, worker="native").worker == "native"
    assert Loader(dataset, BATCH, num_workers=2, multiprocessing_context="spawn").worker == "process"
    for worker in ("process", "thread"):
        assert Loader(dataset, BATCH, num_workers=2, worker=worker).worker == worker
    with pytest.raises(InvalidError, match='must be "process", "thread" or "native"'):
        Loader(dataset, BATCH, num_workers=2, worker="c")


def test_worker_init_fn_that_is_set_later_runs_in_processes(root, tmp_path):
    """Lightning sets it when it has the loader, and it seeds the generators of its process."""
    loader = Loader(image.Folder(root, size=48), BATCH, num_workers=2, seed=1)
    note = tmp_path / "pids"
    note.touch()

    def init(worker: int) -> None:
        with note.open("a") as file:
            file.write(f"{os.getpid()}\n")

    loader.worker_init_fn = init
    read(loader)
    pids = note.read_text().split()
    assert len(pids) == 2
    assert str(os.getpid()) not in pids
    loader.close()


def test_augment_that_is_set_later_counts(root, by_python):
    loader = Loader(image.Folder(root, size=48), BATCH, num_workers=2, seed=1)
    plain = read(loader)
    loader.augment = brighter
    pictures = [np.asarray(pixels) for pixels, _ in loader]
    assert [(pixels.tobytes()) for pixels in pictures] == [
        (np.frombuffer(data, np.uint8) // 2).tobytes() for _, _, data, _ in plain
    ]
    loader.augment = image.CenterCrop(20)
    by_python.clear()
    assert read(loader)[0][0] == (BATCH, 20, 20, 3)
    assert loader.worker == "native"
    assert by_python == []
    loader.worker = "thread"  # what the program sets stays
    read(loader)
    assert sorted(by_python) == list(range(N))
    assert loader.worker == "thread"


# ------------------------------------------------------------ a folder that changes


def test_changed_entries_are_seen_in_the_next_epoch(root):
    """By C as by Python. A new entry may lie where an old one lay."""
    dataset = image.Folder(root, size=48)
    (root / "other.jpg").write_bytes(encoded(picture(60, 50, seed=99)))
    (root / "other.png").write_bytes(encoded(picture(60, 50, seed=98), "PNG"))
    loader = Loader(dataset, BATCH, num_workers=2, seed=1)
    assert read(loader) == read(Loader(dataset, BATCH, seed=1))
    for name, label in (("other.jpg", 7), ("other.png", 8)):
        for k in range(0, N, 5):
            dataset.samples[k] = None  # type: ignore[call-overload]
            dataset.samples[k] = (str(root / name), label)
        got = read(loader)
        assert labels_of(got)[::5] == [label] * 5
        assert got == read(Loader(dataset, BATCH, seed=1))
    loader.close()


def test_entries_that_are_lists_may_be_changed_in_place(root):
    dataset = image.Folder(root, size=48)
    dataset.samples = [[path, label] for path, label in dataset.samples]  # type: ignore[misc]
    loader = Loader(dataset, BATCH, num_workers=2, seed=1)
    read(loader)
    dataset.samples[3][1] = 9  # type: ignore[index]
    assert labels_of(read(loader))[3] == 9


@pytest.mark.parametrize("label", [0.5, True, "cat", np.int64(3), 2**70], ids=str)
@pytest.mark.parametrize("store", [{}, {"size": "8MiB"}], ids=["none", "cached"])
def test_labels_that_are_no_integers(root, label, store):
    """Python makes these batches: C would cut the numbers off."""
    dataset = image.Folder(root, size=48)
    dataset.samples[:] = [(path, label) for path, _ in dataset.samples]
    try:
        plain = Loader(dataset, BATCH, worker="thread", num_workers=2, **store)
    except Exception as error:
        with pytest.raises(type(error)):
            Loader(dataset, BATCH, num_workers=2, **store)
        return
    loader = Loader(dataset, BATCH, num_workers=2, **store)
    assert loader.worker == "process"
    (pictures, labels), (_, want) = next(iter(loader)), next(iter(plain))
    assert list(labels) == list(want) == [label] * BATCH
    assert pictures.shape == (BATCH, 48, 48, 3)
    loader.close()
    plain.close()


def test_steps_that_fail_raise_in_the_place_of_other_workers(root):
    """A crop that is larger than the picture."""
    errors: dict[str, list[str]] = {}
    for worker in ("native", "thread"):
        loader = Loader(
            image.Folder(root, size=48), BATCH, num_workers=2, worker=worker, augment=image.RandomCrop(60), size="8MiB"
        )
        batches, errors[worker] = iter(loader), []
        for _ in range(N // BATCH):
            with pytest.raises(InvalidError) as caught:
                next(batches)
            errors[worker].append(str(caught.value))
        with pytest.raises(StopIteration):
            next(batches)
        loader.close()
    assert errors["native"] == errors["thread"]
    assert "larger than the picture" in errors["native"][0]


WORKERS: dict[str, dict[str, Any]] = {
    "native": {"num_workers": 2, "worker": "native"},
    "threads": {"num_workers": 2, "worker": "thread"},
    "processes": {"num_workers": 2, "worker": "process"},
    "none": {},
    "own collate_fn": {"num_workers": 2, "worker": "process", "collate_fn": stack},
}


@pytest.mark.parametrize(
    ("workers", "store"),
    [
        *((workers, {}) for workers in WORKERS),
        *((workers, {"size": "8MiB"}) for workers in ("native", "processes")),
        ("native", {"size": "8MiB", "store": "encoded"}),
    ],
    ids=str,
)
def test_errors_of_steps_name_the_sample_and_its_file(root, workers, store):
    """Of one picture that is too small, and of a random box that rounds to no pixels: native workers give both back."""
    small = Path(image.Folder(root).samples[7][0])
    small.write_bytes(encoded(picture(30, 20)))
    for step, index, why in (
        (image.RandomCrop(40), 7, "RandomCrop of 40 x 40 is larger than the picture: 20 x 30"),
        (image.RandomResizedCrop(24, ratio=(1e-6, 1e-6)), 0, "a side of a box has 0 pixels"),
    ):
        for dataset in (image.Folder(root), dataset_of(shards(root))):
            if index and isinstance(dataset, image.Shards):
                continue
            loader = Loader(dataset, BATCH, augment=step, **WORKERS[workers], **store)
            with pytest.raises(InvalidError) as caught:
                read(loader)
            loader.close()
            assert f"sample {index}: {dataset.name(index)}: {why}" in str(caught.value)
