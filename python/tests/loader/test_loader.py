"""The loader: equal batches for all ways to make them, states, orders, and samples of all kinds."""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import itertools
import json
import os
import threading
import time
import warnings

import numpy as np
import pytest
from helpers import Of, stopped
from processes import until

from stocached import InvalidError, Loader, SampleIndexError, StateError
from stocached._memory.batch_pool import BatchPool
from stocached._workers.task_queue import DONE, TaskQueue, _Place

N = 61
Point = collections.namedtuple("Point", "place value")


class Numbers:
    """Samples that contain their index."""

    def __init__(self, n=N, seconds=0.0):
        self.n, self.seconds = n, seconds

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if not 0 <= index < self.n:
            raise SampleIndexError(f"no sample {index}")
        if self.seconds:
            time.sleep(self.seconds)
        return {"image": np.full((2, 3), index, np.float32), "label": int(index)}


def add_noise(sample, generator):
    return {"image": sample["image"] + generator.random((2, 3), np.float32), "label": sample["label"]}


def add_global_noise(sample):
    return {"image": sample["image"] + np.random.random((2, 3)).astype(np.float32), "label": sample["label"]}


def labels(batches):
    return [batch["label"].tolist() for batch in batches]


def flat(lists):
    return [item for items in lists for item in items]


def same(a, b):
    assert labels(a) == labels(b)
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x["image"], y["image"])


WAYS = [(0, "process"), (1, "process"), (5, "process"), (2, "thread"), (5, "thread")]


@pytest.mark.parametrize(
    ("size", "augment"),
    [(None, add_noise), ("16MiB", None), ("16MiB", add_noise), (4_200_000, add_noise)],
    ids=["uncached-augment", "cached-plain", "cached-augment", "part-augment"],
)
def test_batches_do_not_depend_on_how_they_are_made(size, augment):
    expected = None
    for workers, kind in WAYS:
        loader = Loader(
            Numbers(), 7, shuffle=True, seed=5, num_workers=workers, worker=kind, size=size, augment=augment
        )
        epochs = [list(loader) for _ in range(2)]
        assert sorted(flat(labels(epochs[0]))) == list(range(N))
        assert labels(epochs[0]) != labels(epochs[1])
        if augment is not None:
            assert not np.array_equal(epochs[0][0]["image"], np.floor(epochs[0][0]["image"])), "nothing was added"
        expected = expected or epochs
        for epoch, wanted in zip(epochs, expected):
            same(epoch, wanted)
        if size == "16MiB" and kind == "process":
            assert (loader.stats().misses, loader.stats().hits) == (N, N)
        loader.close()


def test_global_random_numbers_of_augment_depend_on_seed_epoch_and_index_alone():
    runs = []
    for workers in (0, 2, 3):
        loader = Loader(Numbers(), 8, shuffle=True, seed=9, num_workers=workers, augment=add_global_noise)
        runs.append([list(loader) for _ in range(2)])
    for run in runs[1:]:
        for epoch, wanted in zip(run, runs[0]):
            same(epoch, wanted)
    images = {index: image for batch in runs[0][0] for index, image in zip(batch["label"].tolist(), batch["image"])}
    again = {index: image for batch in runs[0][1] for index, image in zip(batch["label"].tolist(), batch["image"])}
    assert all(not np.array_equal(images[k], again[k]) for k in range(N)), "the same noise in two epochs"


def test_augment_leaves_the_programs_random_numbers_alone():
    np.random.seed(3)
    wanted = np.random.random(5)
    loader = Loader(Numbers(), 8, seed=9, augment=add_global_noise)
    np.random.seed(3)
    base = loader._backend.generator_state(loader.generator)
    list(loader)
    loader._backend.put_generator_state(loader.generator, base)
    np.testing.assert_array_equal(np.random.random(5), wanted)


# ------------------------------------------------------------ states


@pytest.mark.parametrize(
    ("before", "after"),
    [((0, 1), (0, 2)), ((0, 4), (0, 1)), ((2, 1), (0, 2)), ((0, 2), (3, 1)), ((1, 2), (2, 4))],
)
def test_resumed_at_every_batch_with_other_workers_and_ranks(before, after):
    """No sample is lost and none repeats, for any number of workers and ranks before and after. With processes, after
    some of the batches."""
    (workers, world), (new_workers, new_world) = before, after
    settings = {"shuffle": True, "seed": 4, "ends": "uneven", "batch_size": 4}
    steps = N // world // 4
    for stop in (0, steps // 2, steps) if workers or new_workers else range(steps + 1):
        seen, states = [], []
        for rank in range(world):
            got, state = stopped(
                Loader(Numbers(), num_workers=workers, rank=rank, world_size=world, **settings),
                stop,
                plain=lambda batch: batch["label"].tolist(),
            )
            seen += flat(got)
            states.append(state)
        assert all(state == states[0] for state in states), "ranks differ in their state"
        for rank in range(new_world):
            loader = Loader(Numbers(), num_workers=new_workers, rank=rank, world_size=new_world, **settings)
            loader.load_state_dict(states[0])
            assert loader.state_dict() == states[0]
            seen += flat(labels(loader))
            second = labels(loader)
            assert second == labels(_at_epoch(Loader(Numbers(), rank=rank, world_size=new_world, **settings), 1))
        assert sorted(seen) == list(range(N)), f"stopped after {stop} batches"


def _at_epoch(loader, epoch):
    loader.set_epoch(epoch)
    return loader


def test_a_shuffle_without_a_seed_resumes_in_another_program():
    first = Loader(Numbers(), 7, shuffle=True)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    rest = [[batch["label"].tolist() for batch in epoch] for epoch in (batches, first)]
    second = Loader(Numbers(), 7, shuffle=True, num_workers=2, augment=lambda sample, generator: sample)
    with pytest.raises(StateError, match="the state lacks position"):
        second.load_state_dict({name: state[name] for name in state if name != "position"})
    drawn = second.sampler.order
    for other in (Loader(Numbers(5), 7, shuffle=True), Loader(Numbers(), 7), Loader(Numbers(), 7, sampler=range(N))):
        with pytest.raises(StateError, match="make it with the same samples, chain or order="):
            second.load_state_dict(other.state_dict())
    assert second.sampler.order == drawn
    second.load_state_dict(state)
    assert [[batch["label"].tolist() for batch in second] for _ in range(2)] == rest
    assert second.seed == copy.copy(second).seed == first.seed == first.sampler.order.seed


@pytest.mark.parametrize("order", [{"shuffle": True, "seed": 1}, {"sampler": range(N)}], ids=["ours", "own"])
def test_set_epoch_of_the_epoch_of_a_state_goes_on_where_it_is(order):
    """A training loop that continues calls `set_epoch(epoch)` before each epoch, also for the epoch
    of the state."""
    loader = Loader(Numbers(), 6, **order)
    loader.set_epoch(3)
    batches = iter(loader)
    first = [next(batches)["label"].tolist() for _ in range(4)]
    state = loader.state_dict()
    wanted = [first + labels(batches), labels(loader)]
    again = Loader(Numbers(), 6, **order)
    again.load_state_dict(state)
    got = []
    for epoch in (3, 4):
        again.set_epoch(epoch)
        got.append(labels(again))
    assert [first + got[0], got[1]] == wanted
    again.set_epoch(3)
    assert labels(again) == wanted[0], "the state is used up"
    again.load_state_dict(state)
    again.set_epoch(4)
    assert labels(again) == wanted[1], "another epoch begins at its start"


# ------------------------------------------------------------ kinds of samples


def mixed(index):
    return Point(
        (np.arange(3) + index, f"sample {index}"),
        [index * 0.5, {"raw": bytes([index]), "none": None, "set": {index}}],
    )


@pytest.mark.parametrize(("workers", "kind"), [(0, "process"), (2, "process"), (2, "thread")])
def test_samples_of_all_kinds(workers, kind):
    for _ in range(2):
        batches = list(Loader(Of(mixed, 10), 4, num_workers=workers, worker=kind))
        assert [len(batch.value[0]) for batch in batches] == [4, 4, 2]
        batch = batches[1]
        assert type(batch) is Point
        np.testing.assert_array_equal(batch.place[0], [[4, 5, 6], [5, 6, 7], [6, 7, 8], [7, 8, 9]])
        assert batch.place[1] == [f"sample {k}" for k in range(4, 8)]
        np.testing.assert_array_equal(batch.value[0], [2, 2.5, 3, 3.5])
        assert batch.value[1] == {
            "raw": [bytes([k]) for k in range(4, 8)],
            "none": [None] * 4,
            "set": [{k} for k in range(4, 8)],
        }


# ------------------------------------------------------------ work is shared within a batch


class EightAtOnce(Numbers):
    """Each sample waits for seven others that load at the same time, and raises BrokenBarrierError
    if they do not."""

    def __init__(self, n):
        super().__init__(n, seconds=0.01)  # workers take slow samples one by one
        self.barrier = threading.Barrier(8, timeout=60)

    def __getitem__(self, index):
        self.barrier.wait()
        return super().__getitem__(index)


def test_misses_of_one_batch_are_loaded_at_the_same_time():
    """8 workers load sixteen samples in two rounds. The worker that began does not load all of
    them."""
    assert flat(labels(Loader(EightAtOnce(16), 16, num_workers=8, worker="thread"))) == list(range(16))


# ------------------------------------------------------------ memory


def test_two_rings_have_one_limit():
    shared, own = BatchPool(5 * 4096), BatchPool(5 * 4096, shared=False)
    shared.resize(4096)
    own.resize(4096)
    shared.share_limit(own)
    leases = [batch_pool.take() for batch_pool in (shared, own, shared, own, shared)]
    assert None not in leases
    with pytest.warns(UserWarning, match="the 5 batches of 4,096 bytes"):
        assert own.take() is None
    assert shared.take() is None
    first = leases.pop(0)
    first.array()[:] = 1
    del first
    leases.append(own.take())
    assert leases[-1] is not None, "the shared pool has one buffer less in use"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shared.take() is None, "the pool warns only once"
    del leases[0]
    assert not shared.take().array().any(), "the idle buffer was freed when the other pool needed memory"


def test_lease_outlives_slices_and_views():
    batch_pool = BatchPool(1 << 20)
    batch_pool.resize(4096)

    def leased():
        lease = batch_pool.take()
        return lease.array()[64:1088].view(np.float32).reshape(16, 16)

    rows = leased()
    number = batch_pool._made
    for keep in (rows[3:], rows.T, rows.reshape(-1)[5:7], memoryview(rows[2]), rows[:, None]):
        assert len(batch_pool._idle) == 0
        other = keep
    del rows
    assert len(batch_pool._idle) == 0, "the last one is still in use"
    del keep
    del other
    assert len(batch_pool._idle) == number
    again = leased()
    assert batch_pool._made == number
    assert len(batch_pool._idle) == number - 1
    del again


def test_dropped_batches_need_no_garbage_collection():
    """Their memory is used again at once: buffers in use, buffers of later batches, and one
    more."""
    gc.collect()
    gc.disable()
    try:
        for workers in (0, 2):
            batches = iter(Loader(Numbers(), 4, size="16MiB", num_workers=workers))
            for _ in batches:
                pass
            assert batches._runtime.batch_pool._made <= batches._context.ahead + 2
    finally:
        gc.enable()


def texts():
    """Samples that are in no row: workers send them whole."""
    return Of(lambda index: {"text": bytes([index]) * 100_000}, 40)


def test_memory_of_samples_that_workers_send_is_given_back():
    loader = Loader(texts(), 4, num_workers=2, persistent_workers=True)
    kept = []
    for epoch in range(4):
        for batch in itertools.islice(loader, 3 if epoch == 2 else None):  # epoch 2 is left while workers load
            kept += batch["text"]
    assert [text[0] for text in kept] == [*range(40), *range(40), *range(12), *range(40)]
    assert all(text == text[:1] * 100_000 for text in kept)
    queue = loader._executor.kept.task_queue
    assert not queue._lent  # all places came back
    most = os.fstat(queue.overflow.fd).st_blocks * 512
    assert 400_000 < most < 4_200_000  # 14 MB were sent: five batches and four that were abandoned
    loader.close()
    assert os.fstat(queue.overflow.fd).st_blocks * 512 < 100_000


def test_what_a_worker_still_writes_to_is_lent_to_no_other(tmp_path, monkeypatch):
    """One worker has taken bytes for its answer, and writes them when its epoch has been left and the next one's first
    batches are loaded."""
    go, took, on, wrote = (tmp_path / name for name in ("go", "took", "on", "wrote"))
    reserve, done = _Place.reserve, TaskQueue.done

    def reserves(self, length):
        at = reserve(self, length)
        with contextlib.suppress(FileExistsError):  # one worker alone waits
            if go.exists():
                took.touch(exist_ok=False)
                took.write_text(str(os.getpid()))
                until(on.exists)
        return at

    def answers(self, worker, tasks, count):
        done(self, worker, tasks, count)
        if on.exists() and took.read_text() == str(os.getpid()):
            wrote.touch()

    monkeypatch.setattr(_Place, "reserve", reserves)
    monkeypatch.setattr(TaskQueue, "done", answers)
    loader = Loader(texts(), 4, num_workers=2, persistent_workers=True)
    kept = [*loader]
    go.touch()
    left = iter(loader)
    until(took.exists)
    left.close()
    batches = iter(loader)
    states = loader._executor.kept.task_queue.states
    for batch in batches._pending:
        until(lambda batch=batch: (states(batch.first, batch.tasks) == DONE).all())
    on.touch()
    until(wrote.exists)
    kept += batches
    assert [text for batch in kept for text in batch["text"]] == 2 * [texts()[k]["text"] for k in range(40)]
    loader.close()


# ------------------------------------------------------------ figures and arguments


@pytest.mark.parametrize("number", [1, 1.5, np.float32(2), np.zeros(())])
def test_a_none_or_a_text_beside_a_number_makes_a_list(number):
    """Whichever comes first."""
    for other in (None, "a"):
        for column in ([number, other], [other, number]):
            (batch,) = Loader([{"x": each} for each in column], 2)
            assert batch["x"] == column


def test_iterable_dataset_has_no_cache():
    for settings in ({"size": "1GiB"}, {"seed": 1}, {"augment": add_noise}, {"shuffle": True}):
        with pytest.raises(InvalidError, match="iterable"):
            Loader(set(range(3)), **settings)


def test_workers_errors_reach_the_parent_with_their_traceback():
    for workers, kind in ((0, "process"), (2, "process"), (2, "thread")):
        batches = iter(Loader(Numbers(), sampler=[1, 2, 99, 3], batch_size=2, num_workers=workers, worker=kind))
        next(batches)
        with pytest.raises(SampleIndexError, match="no sample 99") as caught:
            next(batches)
        if workers:
            cause = str(caught.value.__cause__)
            assert "in __getitem__" in cause
            assert f"worker {kind}" in cause
        batches.close()
