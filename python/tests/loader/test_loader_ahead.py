"""What a loader makes ahead: as many batches as it is told and as fit, and the first ones of the
next epoch, but nothing that runs a function of the program."""

from __future__ import annotations

import contextlib
import functools
import mmap
import pickle
import time

import numpy as np
import pytest
from processes import until

from stocached import Loader, Order, SetResult

N, BATCH = 100, 2


class Large:
    """64 KiB a sample. For threads only, because it notes what is loaded."""

    def __init__(self):
        self.loaded = []

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.loaded.append(index)
        return self.sample(index)

    def sample(self, index):
        return np.full(1 << 16, index, np.uint8)


def loads(dataset, **settings):
    return Loader(dataset, BATCH, **{"num_workers": 2, "worker": "thread", "prefetch_factor": 10, **settings})


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
    [{}, {"collate_fn": np.stack}, {"size": "6MiB", "allow_random": True}],
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


class Told(Large):
    """The program tells it the epoch through memory that workers share. For threads and for processes."""

    def __init__(self):
        super().__init__()
        self.epoch = np.frombuffer(mmap.mmap(-1, 8), np.int64)

    def sample(self, index):
        return {"index": np.int64(index), "epoch": np.int64(self.epoch[0])}


def told(sample, epoch):
    return {**sample, "augmented": np.int64(epoch[0])}


PARTLY = {"size": "4.3MiB", "allow_random": True, "policy": "first-come"}
WHOLE = {"size": "16MiB", "allow_random": True}


@pytest.mark.parametrize(
    ("settings", "worker"),
    [({}, "process"), ({"collate_fn": list}, "process"), ({}, "thread"), (PARTLY, "thread"), (WHOLE, "process")],
    ids=["rows", "batches", "rows of threads", "partly", "cached"],
)
def test_the_functions_of_the_program_run_in_the_epoch_that_asks_for_them(settings, worker):
    """Between two epochs the program tells its dataset and its augment= the epoch."""
    dataset = Told()
    augment = functools.partial(told, epoch=dataset.epoch)
    for options in ({"seed": 1}, {"shuffle": True}, {"order": "sequential"}):
        with contextlib.closing(
            loads(dataset, worker=worker, augment=augment, persistent_workers=True, **options, **settings)
        ) as loader:
            for epoch in range(3):
                dataset.epoch[0] = epoch
                for batch in loader:
                    assert {int(sample["augmented"]) for sample in samples_of(batch)} == {epoch}
                    if "size" not in settings:
                        assert {int(sample["epoch"]) for sample in samples_of(batch)} == {epoch}


def samples_of(batch):
    if isinstance(batch, list):
        return batch
    return [dict(zip(batch, values)) for values in zip(*batch.values())]


@pytest.mark.parametrize("settings", [{}, PARTLY, {"augment": dict}, {**WHOLE, "augment": dict}])
def test_no_sample_is_loaded_before_the_program_asks_for_its_epoch(settings):
    dataset = Told()
    with contextlib.closing(loads(dataset, seed=5, persistent_workers=True, **settings)) as loader:
        batches = iter(loader)
        for _ in range(N // BATCH):
            next(batches)
        count = len(dataset.loaded)
        assert settled(dataset.loaded, count) == count
        begun = loader._next
        assert begun is None or not any(batch.tasks for batch in begun._pending)
        assert loader.state_dict()["epoch"] == 0, "the state is that of the training loop"
        assert loader.state_dict()["position"] == N
        assert next(batches, None) is None
        wanted = Order(N, "sequential").epoch(1).indices().tolist()
        assert [int(i) for batch in loader for i in batch["index"]] == wanted


def change(cache, index, how):
    """Another client changes the cache."""
    other = pickle.loads(pickle.dumps(cache))
    if how == "clear":
        other.clear()
    else:
        assert other.put(index, {"index": index, "epoch": 1}, overwrite=True) == SetResult.STORED
    other.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["clear", "overwrite"])
def test_hits_that_were_gathered_ahead_are_those_of_the_cache_when_the_epoch_begins(workers, how):
    dataset = Told()
    with contextlib.closing(
        Loader(dataset, BATCH, num_workers=workers, worker="thread" if workers else None, seed=5,
               persistent_workers=workers > 0, prefetch_factor=2 if workers else None, **WHOLE)
    ) as loader:  # fmt: skip
        list(loader)
        batches = iter(loader)
        for _ in range(N // BATCH):
            next(batches)
        begun = loader._next
        assert len(begun._pending) == max(2 * workers, 2)
        assert not any(batch.tasks for batch in begun._pending)
        until(lambda: all(batch.filled.is_set() for batch in begun._pending), "its first batches are gathered")
        dataset.epoch[0] = 1
        change(loader.cache, 0, how)
        assert next(batches, None) is None
        epochs = np.concatenate([batch["epoch"] for batch in loader])
        assert epochs.tolist() == ([1] * N if how == "clear" else [1] + [0] * (N - 1))


def test_the_next_epoch_is_gathered_without_workers():
    loader = Loader(Large(), BATCH, shuffle=True, seed=5, size="16MiB")
    list(loader)
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
    list(loader)
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
