"""Batches that the program keeps never change, whatever part of them it keeps. Their memory is used
again when no reference is left."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from loader_datasets import SIZE, Numbers, check, read, sample

from stocached import Loader

N, BATCH = 180, 5
SETTINGS = {
    "cached": {"size": "16MiB"},
    "drawn": {"size": "16MiB", "sampler": list(range(N))},
    "rows": {"num_workers": 2, "persistent_workers": True},
    "cached rows": {"num_workers": 2, "persistent_workers": True, "size": 4_600_000},
    "batches": {"num_workers": 2, "persistent_workers": True, "collate_fn": np.stack},
    "threads": {"num_workers": 2, "persistent_workers": True, "worker": "thread"},
    "plain": {},
}


def digest(value) -> str:
    return hashlib.sha1(value.tobytes()).hexdigest()


VIEWS = {
    "array": lambda batch: batch,
    "slice": lambda batch: batch[2:4, 10:400],
    "row": lambda batch: batch[3],
    "reshaped": lambda batch: batch.reshape(-1, 4)[7:, ::2],
    "transposed": lambda batch: batch.T[5:90],
    "other dtype": lambda batch: batch.view(np.uint16)[1:],
    "memoryview": lambda batch: memoryview(batch),
    "part of a memoryview": lambda batch: memoryview(batch)[1:3],
    "from its buffer": lambda batch: np.frombuffer(batch, np.int64)[SIZE : 2 * SIZE],
    "ctypes": lambda batch: np.ctypeslib.as_array(np.ctypeslib.as_ctypes(batch)),
    "pickle buffer": lambda batch: memoryview(pickle.PickleBuffer(batch)),
}


def keep(settings, views, epochs=4) -> None:
    loader = Loader(Numbers(N), BATCH, **settings)
    kept = []
    for _ in range(epochs):
        for k, batch in enumerate(loader):
            check(batch)
            if k % 3 == 0:
                view = views[len(kept) % len(views)](batch)
                kept.append((view, digest(view)))
            del batch
    assert len(kept) >= 2 * len(views)
    for k, (view, was) in enumerate(kept):
        assert digest(view) == was, f"{views[k % len(views)]} of a batch has changed"
    loader.close()


@pytest.mark.parametrize("way", list(SETTINGS))
def test_kept_batches_never_change(way):
    keep(SETTINGS[way], list(VIEWS.values()))


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 2])
def test_kept_batches_of_tensors_never_change(workers):
    import torch

    from stocached.torch import DataLoader

    class Tensors(torch.utils.data.Dataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            return {
                "image": torch.from_numpy(sample(index)).view(20, 25),
                "label": index,
                "half": torch.full((3,), index, dtype=torch.bfloat16),
            }

    for settings in ({"size": "16MiB"}, {}, {"collate_fn": lambda samples: torch.utils.data.default_collate(samples)}):
        loader = DataLoader(Tensors(), BATCH, num_workers=workers, **settings)
        kept = []
        for _ in range(3):
            for k, batch in enumerate(loader):
                check(batch["image"].view(-1, SIZE).numpy())
                if k % 3 == 0:
                    view = [batch["image"][1:], batch["image"].view(-1)[7:], batch["label"], batch["half"][2:]][
                        k // 3 % 4
                    ]
                    kept.append((view, view.clone()))
        assert len(kept) == 3 * N // BATCH // 3
        assert all(torch.equal(view, was) for view, was in kept)


@pytest.mark.parametrize("way", ["cached", "rows", "cached rows", "batches", "threads"])
def test_memory_comes_back_when_the_last_view_is_gone(way):
    loader = Loader(Numbers(N), BATCH, **{**SETTINGS[way], "shuffle": "sampler" not in SETTINGS[way], "seed": 1})
    read(loader)
    read(loader)
    batches = iter(loader)
    batch_pool = batches._runtime.batch_pool
    made = batch_pool._made
    assert made > 0
    view = next(batches)[1:3].reshape(-1)[5:50]
    was, number = view.copy(), int(view[0])
    for batch in batches:
        assert not np.shares_memory(batch, view)
    np.testing.assert_array_equal(view, was)
    del batch
    batches.close()
    loader.close()
    gc.collect()
    assert batch_pool._made <= made + 2, "a batch that is kept takes one buffer"
    in_use = [each._made - len(each._idle) for each in {batches._runtime.batch_pool, batches._runtime.own}]
    assert sum(in_use) == 1, "only the buffer of the view is in use"
    assert int(view[0]) == number
    del view
    gc.collect()
    assert len(batch_pool._idle) == batch_pool._made


@pytest.mark.parametrize("way", ["cached", "rows", "cached rows", "batches", "threads"])
def test_ring_has_a_limit_and_what_lies_beyond_is_right_as_well(way):
    loader = Loader(Numbers(N), BATCH, pool_bytes=20 * 32768, **SETTINGS[way])
    read(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = [batch for _ in range(2) for batch in loader]
    told = [str(warning.message) for warning in caught if "the program keeps batches" in str(warning.message)]
    assert len(told) == 1
    assert read(kept) == 2 * list(range(N))
    batch_pool = loader._executor.kept.batch_pool if loader._executor.kept is not None else None
    del kept
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:  # one warning is enough
        warnings.simplefilter("always")
        assert read(loader) == list(range(N))
        assert caught == []
    if batch_pool is not None:
        assert batch_pool._made * batch_pool.buffer_bytes <= 20 * 32768
    loader.close()


def use(batch):
    for _ in range(50):
        check(batch)


def test_batches_may_end_in_any_thread():
    loader = Loader(Numbers(N), BATCH, size="16MiB")
    read(loader)
    with ThreadPoolExecutor(N // BATCH) as pool:
        calls = [pool.submit(use, batch) for batch in loader]
    for call in calls:
        call.result()


def look(connection, batch) -> None:
    """Reads the batch in a forked child."""
    connection.recv()
    connection.send(check(batch))


def test_forked_child_sees_the_batch_that_its_parent_held_then():
    """A process that writes images, say, while training goes on. It shares the memory, which is not
    used again while the parent keeps the batch."""
    context = get_context("fork")
    loader = Loader(Numbers(N), BATCH, size="16MiB")
    read(loader)
    batches = iter(loader)
    batch = next(batches)
    here, there = context.Pipe()
    process = context.Process(target=look, args=(there, batch))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warns of forks while threads run
        process.start()
    for _ in batches:
        pass
    here.send("now")
    assert here.recv() == check(batch)
    process.join()
    assert process.exitcode == 0
    assert os.getpid() != process.pid
