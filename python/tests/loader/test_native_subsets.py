"""torch's Subsets of pictures are read by native workers. Orders and random numbers depend on the index in the Subset,
labels and files on the index in the dataset below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_samples import dataset_of, folder_of_small, labels_of, read, shards_of_small, usual
from torch_helpers import TORCH_WARNINGS, DataLoader, torch

from stocached import FingerprintError, InvalidError, SchemaError

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]

N, BATCH = 40, 6
CHOSEN = [20, 3, -1, 3, *range(5, 25), 39, 0]
STORES: dict[str, dict[str, Any]] = {
    "none": {},
    "fixed": {"size": "16MiB"},
    "variable": {"size": "16MiB", "variable": True},
    "encoded": {"size": "16MiB", "store": "encoded"},
}


@pytest.fixture(scope="module", params=["folder", "shards"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = {"folder": folder_of_small, "shards": shards_of_small}[request.param]
    return make(tmp_path_factory.mktemp(request.param), N)


def pictures(root: Path) -> Any:
    return dataset_of(root, size=48, layout="chw")


def subset(dataset: Any, indices: Any) -> Any:
    return torch.utils.data.Subset(dataset, indices)


def loader_of(dataset: Any, workers: int = 2, **settings: Any) -> Any:
    given = {"shuffle": True, "seed": 3, "augment": usual(), **settings}
    return DataLoader(dataset, BATCH, num_workers=workers, **given)


@pytest.fixture(scope="module")
def want(root) -> Any:
    """Two epochs of CHOSEN."""
    whole = pictures(root)
    return read(loader_of([whole[index] for index in CHOSEN], 0), 2)


@pytest.mark.parametrize(
    ("workers", "store"),
    [(0, "none"), (1, "none"), (5, "none"), (0, "fixed"), (5, "fixed"), (1, "variable"), (5, "encoded")],
)
def test_batches_of_a_cold_and_a_warm_epoch(root, want, workers, store, by_python):
    loader = loader_of(subset(pictures(root), CHOSEN), workers, **STORES[store])
    assert loader.worker == "native"
    assert read(loader, 2) == want
    assert by_python == []
    stats = loader.stats()
    assert (stats.hits, stats.misses) == ((len(CHOSEN),) * 2 if STORES[store] else (0, 2 * len(CHOSEN)))
    loader.close()


@pytest.mark.parametrize("store", ["none", "fixed", "encoded"])
def test_other_workers_make_the_same(root, want, store):
    for worker in ("process", "thread"):
        loader = loader_of(subset(pictures(root), CHOSEN), worker=worker, **STORES[store])
        assert read(loader, 2) == want
        loader.close()


KINDS: dict[str, Any] = {
    "list": list,
    "array": np.array,
    "small array": lambda indices: np.array(indices, np.int8),
    "tensor": lambda indices: torch.tensor(indices),
    "list of tensors": lambda indices: list(torch.tensor(indices)),
    "list of numbers of NumPy": lambda indices: list(np.array(indices)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_indices_of_any_kind(root, want, kind, by_python):
    loader = loader_of(subset(pictures(root), KINDS[kind](CHOSEN)))
    assert loader.worker == "native"
    assert read(loader, 2) == want
    assert by_python == []
    loader.close()


@pytest.mark.parametrize("indices", [range(30, 4, -2), range(0)], ids=["range", "none"])
def test_ranges(root, indices, by_python):
    loader = loader_of(subset(pictures(root), indices), shuffle=False, seed=None)
    assert labels_of(read(loader)) == [pictures(root)[k][1] for k in indices]
    assert by_python == []
    loader.close()


def test_a_random_split_and_a_subset_of_a_subset(root, by_python):
    """A sample is in one part alone."""
    parts = torch.utils.data.random_split(pictures(root), [0.75, 0.25], torch.Generator().manual_seed(1))
    assert sorted(index for part in parts for index in part.indices) == list(range(N))
    inner = subset(parts[0], [5, -1, *range(8)])
    for part in (*parts, inner):
        native, process = (loader_of(part, worker=worker) for worker in (None, "process"))
        assert (native.worker, len(part)) == ("native", sum(len(batch[1]) for batch in native))
        assert by_python == []
        assert read(native) == read(process, 2)[len(process) :]
        native.close()
        process.close()


@pytest.mark.parametrize(
    ("store", "other"),
    [("none", {"workers": 0}), ("fixed", {"worker": "process"}), ("encoded", {"workers": 5}), ("none", {"workers": 5})],
    ids=str,
)
def test_another_loader_goes_on_in_the_middle(root, want, store, other):
    first = loader_of(subset(pictures(root), CHOSEN), **STORES[store])
    batches = iter(first)
    for _ in range(2):
        next(batches)
    state = first.state_dict()
    del batches
    first.close()
    second = loader_of(subset(pictures(root), CHOSEN), **STORES[store], **other)
    second.load_state_dict(state)
    assert read(second) == want[2 : len(want) // 2]
    assert read(second) == want[len(want) // 2 :]
    second.close()


def test_two_subsets_have_caches_of_their_own(root, by_python):
    """They are of one dataset object. Each cache has the samples of its Subset, by their index there."""
    whole = pictures(root)
    parts = [range(20), range(20, 40)]
    loaders = [loader_of(subset(whole, part), size="8MiB") for part in parts]
    plain = [read(loader_of([whole[index] for index in part], 0), 2) for part in parts]
    assert loaders[0].cache.uuid != loaders[1].cache.uuid
    assert [loader.cache.samples for loader in loaders] == [20, 20]
    got: list[Any] = [[], []]
    for _ in range(2):
        for k, loader in enumerate(loaders):
            got[k] += read(loader)
    assert got == plain
    assert [loader.stats().hits for loader in loaders] == [20, 20]
    assert by_python == []
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("other", [range(10, 30), range(30)], ids=["other samples", "another number"])
def test_a_named_cache_belongs_to_one_subset(root, other, by_python, cache_name):
    """The same one attaches, and finds all in it. For another Subset there is an error."""
    first = loader_of(subset(pictures(root), range(20)), name=cache_name, size="8MiB")
    want = read(first)
    again = loader_of(subset(pictures(root), range(20)), name=cache_name, size="8MiB")
    assert again.worker == "native"
    assert read(again) == want
    assert (again.stats().hits, by_python) == (20, [])
    with pytest.raises((FingerprintError, SchemaError), match=cache_name):
        loader_of(subset(pictures(root), other), name=cache_name, size="8MiB")
    first.close()
    again.close()


@pytest.mark.parametrize(
    ("indices", "why"), [([0, N], "indices that its dataset of 40 samples has not"), ([0, 1.0], "not whole numbers")]
)
def test_indices_that_are_none(root, indices, why):
    """Other workers read the samples, and raise the dataset's own error for such an index."""
    chosen = loader_of(subset(pictures(root), indices), shuffle=False)
    assert chosen.worker == "process"
    with pytest.raises((IndexError, TypeError), match="list ind|out of range|as an integer"):
        read(chosen)
    chosen.close()
    with pytest.raises(InvalidError, match=why):
        loader_of(subset(pictures(root), indices), worker="native")


def test_a_class_of_the_users(root):
    """It may do anything with the samples."""

    class Darker(torch.utils.data.Subset):  # type: ignore[type-arg, name-defined, misc]
        def __getitem__(self, index: int) -> Any:
            pixels, label = super().__getitem__(index)
            return pixels // 2, label

        __getitems__ = None  # type: ignore[assignment]

    darker = loader_of(Darker(pictures(root), CHOSEN), shuffle=False, augment=None, worker="thread")
    assert loader_of(Darker(pictures(root), CHOSEN)).worker == "process"
    assert (next(iter(darker))[0][0].numpy() == pictures(root)[CHOSEN[0]][0] // 2).all()
    darker.close()
