"""get_worker_info: how an iterable dataset gives each worker a part of itself, without torch, and with it."""

from __future__ import annotations

import pytest

import stocached
from stocached import Loader


class Parts:
    """An iterable dataset; with `seen` it says what it is told of its worker."""

    def __init__(self, count, seen=False):
        self.count, self.seen = count, seen

    def __iter__(self):
        info = stocached.get_worker_info()
        if self.seen:
            yield None if info is None else (info.id, info.num_workers, info.seed, info.dataset.count, type(info).__module__)
            return
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, self.count, step)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_each_sample_comes_once(method):
    loader = Loader(Parts(23), 4, num_workers=2, multiprocessing_context=method)
    assert sorted(int(k) for batch in loader for k in batch) == list(range(23))


def test_what_it_says():
    told = list(Loader(Parts(5, seen=True), None, num_workers=3))
    assert [info[:2] for info in told] == [(0, 3), (1, 3), (2, 3)]
    assert len({info[2] - info[0] for info in told}) == 1, "seeds are one number and the id"
    assert all(info[3] == 5 for info in told)
    assert list(Loader(Parts(5, seen=True), None)) == [None]
    assert list(Loader(Parts(5, seen=True), None, num_workers=1, worker="thread")) == [None]
    assert stocached.get_worker_info() is None


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
