"""get_worker_info: an iterable dataset gives each worker a part of itself, with torch and
without."""

from __future__ import annotations

import numpy as np
import pytest

import stocached
from stocached import Loader


class Parts:
    """An iterable dataset. With `seen` it returns what it knows about its worker."""

    def __init__(self, count, seen=False):
        self.count, self.seen = count, seen

    def __iter__(self):
        info = stocached.get_worker_info()
        if self.seen:
            yield (
                None
                if info is None
                else (info.id, info.num_workers, info.seed, info.dataset.count, type(info).__module__)
            )
            return
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, self.count, step)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_sample_comes_once(method):
    loader = Loader(Parts(23), 4, num_workers=2, multiprocessing_context=method)
    assert sorted(int(k) for batch in loader for k in batch) == list(range(23))


def test_what_it_says():
    told = list(Loader(Parts(5, seen=True), None, num_workers=3))
    assert [info[:2] for info in told] == [(0, 3), (1, 3), (2, 3)]
    assert len({info[2] - info[0] for info in told}) == 1, "a seed is the base seed plus the id"
    assert all(info[3] == 5 for info in told)
    assert list(Loader(Parts(5, seen=True), None)) == [None]
    assert list(Loader(Parts(5, seen=True), None, num_workers=1, worker="thread")) == [None]
    assert stocached.get_worker_info() is None


class Opened:
    """Reads from a file that the worker has opened."""

    file = None

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.file is None and stocached.get_worker_info() is not None:
            raise RuntimeError("no worker has opened the file")
        return np.full(3, index)


def open_file(worker):
    info = stocached.get_worker_info()
    assert info.id == worker
    info.dataset.file = "a file"


@pytest.mark.parametrize(
    "settings",
    [{}, {"size": "16MiB"}, {"size": "16MiB", "persistent_workers": True}, {"size": "16MiB", "collate_fn": np.stack}],
    ids=["no cache", "cache", "kept workers", "own collate"],
)
def test_its_dataset_is_that_of_the_user(settings):
    """Not the cache around it, because init functions of workers open the dataset's files."""
    loader = Loader(Opened(), 5, num_workers=2, worker_init_fn=open_file, **settings)
    for _ in range(2):
        assert sorted(int(row[0]) for batch in loader for row in batch) == list(range(40))
    loader.close()


@pytest.mark.torch
@pytest.mark.parametrize("ours", [False, True])
def test_it_knows_torchs_workers(ours):
    import torch

    from stocached.torch import DataLoader

    class TorchParts(Parts, torch.utils.data.IterableDataset):
        pass

    kind = DataLoader if ours else torch.utils.data.DataLoader
    assert sorted(kind(TorchParts(23), None, num_workers=2)) == list(range(23))
    told = list(kind(TorchParts(5, seen=True), None, num_workers=2))
    assert [tuple(info[:2]) for info in told] == [(0, 2), (1, 2)]
