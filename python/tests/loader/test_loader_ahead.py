"""What a loader makes ahead: as many batches as it is told and as fit, and the first ones of the
next epoch."""

from __future__ import annotations

import time

import numpy as np
import pytest
from processes import until

from stocached import Loader, Order

N, BATCH = 100, 2


class Large:
    """64 KiB a sample. For threads only, because it notes what is loaded."""

    def __init__(self):
        self.loaded = []

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.loaded.append(index)
        return np.full(1 << 16, index, np.uint8)


def stack(samples):
    return np.stack(samples)


def loads(dataset, **settings):
    return Loader(dataset, BATCH, num_workers=2, worker="thread", prefetch_factor=10, **settings)


def settled(loaded, least):
    """How many samples are loaded when no more come. There are at least `least`."""
    until(lambda: len(loaded) >= least, f"{least} samples are loaded")
    count, since = -1, time.monotonic()
    while time.monotonic() - since < 0.3:
        if len(loaded) != count:
            count, since = len(loaded), time.monotonic()
        time.sleep(0.01)
    return count


@pytest.mark.parametrize(
    "settings",
    [{}, {"collate_fn": stack}, {"size": "6MiB", "allow_random": True}],
    ids=["rows", "batches", "part of them cached"],
)
def test_no_more_is_loaded_ahead_than_its_bytes_allow(settings):
    """The loader begins 20 batches before it knows how large they are. Then it makes four of 128
    KiB ahead, or as many as it had."""
    for limit, ahead in (("512KiB", 4), ("512MiB", 20), (1, 1)):
        dataset = Large()
        loader = loads(dataset, prefetch_bytes=limit, **settings)
        dataset.loaded.clear()  # the probed samples
        batches = iter(loader)
        for _ in range(24):
            next(batches)
        exactly = BATCH * (24 + ahead)
        if "collate_fn" in settings:  # their memory is a quarter larger
            assert settled(dataset.loaded, BATCH * 24) <= exactly
        else:
            assert settled(dataset.loaded, exactly) == exactly
        batches.close()


@pytest.mark.parametrize(("limit", "ahead"), [("512MiB", 2), ("256KiB", 2), ("255KiB", 1)])
def test_no_more_is_gathered_ahead_than_its_bytes_allow(limit, ahead):
    loader = Loader(Large(), BATCH, size="16MiB", prefetch_bytes=limit)
    batches = iter(loader)
    next(batches)
    assert len(batches._pending) == ahead


def test_the_next_epoch_begins_while_the_training_loop_has_the_last_batches():
    dataset = Large()
    loader = loads(dataset, shuffle=True, seed=5, persistent_workers=True)
    batches = iter(loader)
    for _ in range(N // BATCH):
        next(batches)
    wanted = Order(N, seed=5).epoch(1).indices().tolist()
    assert settled(dataset.loaded, N + 20 * BATCH) == N + 20 * BATCH
    assert sorted(dataset.loaded) == sorted([*range(N), *wanted[: 20 * BATCH]])
    assert loader.state_dict()["epoch"] == 0, "the state is that of the training loop"
    assert loader.state_dict()["position"] == N
    assert next(batches, None) is None
    assert [batch[:, 0].tolist() for batch in loader] == [wanted[at : at + BATCH] for at in range(0, N, BATCH)]
    assert settled(dataset.loaded, 2 * N + 20 * BATCH) == 2 * N + 20 * BATCH, "a sample was loaded twice"
    loader.close()


def test_the_next_epoch_is_gathered_without_workers():
    loader = Loader(Large(), BATCH, shuffle=True, seed=5, size="16MiB")
    for _ in loader:
        pass
    batches = iter(loader)
    for _ in range(N // BATCH):
        next(batches)
    begun = loader._next
    until(
        lambda: all(batch.filled is not None and batch.filled.is_set() for batch in begun._pending),
        "its first batches are gathered",
    )
    assert len(begun._pending) == 2
    assert next(batches, None) is None
    assert iter(loader) is begun


def test_the_next_epoch_is_not_gathered_beside_batches_that_nothing_hides(monkeypatch):
    monkeypatch.setattr(
        "stocached._loader.gather_iterator._MIN_OVERLAP_NS", 10**12
    )  # ns: the training loop counts as computing nothing, however slow this machine is
    loader = Loader(Large(), BATCH, shuffle=True, seed=5, size="16MiB")
    for _ in loader:
        pass
    batches = iter(loader)
    for _ in range(N // BATCH - 1):
        next(batches)
        assert loader._next is None
    next(batches)
    assert loader._next is not None


def test_a_sampler_of_the_users_is_not_asked_before_its_epoch():
    dataset = Large()
    loader = loads(dataset, sampler=range(N), persistent_workers=True)
    batches = iter(loader)
    for _ in range(N // BATCH):
        next(batches)
    assert settled(dataset.loaded, N) == N
    loader.close()
