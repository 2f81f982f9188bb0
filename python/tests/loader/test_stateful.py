"""Datasets, iterators and samplers with `state_dict()` and `load_state_dict()`: a loader's state
contains theirs, also from workers."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import random

import numpy as np
import pytest
from helpers import Of, stopped

from stocached import InvalidError, Loader, StateError, get_worker_info


def as_list(samples):
    return samples if isinstance(samples, int) else list(samples)


def part():
    """Which worker this is, and of how many."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Iterates:
    """An iterator with a state."""

    def __init__(self, first, end, reads):
        self.at, self.end, self.reads = first, end, reads

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.end:
            raise StopIteration
        with self.reads.get_lock():
            self.reads.value += 1
        self.at += 1
        return self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class ByIterator:
    """Each worker has its own part. The parts differ in length, and one is empty. `reads` counts
    over all processes."""

    sizes = (7, 0, 12)

    def __init__(self):
        self.reads = multiprocessing.get_context("fork").Value("q", 0)

    def __iter__(self):
        worker, workers = part()
        ends = [0, *np.cumsum(self.sizes).tolist()]
        if workers == 1:
            return Iterates(0, ends[-1], self.reads)
        return Iterates(ends[worker], ends[worker + 1], self.reads)


class ByItself:
    """A dataset with a state, which counts epochs."""

    def __init__(self):
        self.reads = multiprocessing.get_context("fork").Value("q", 0)
        self.at = self.epoch = 0
        self.goes_on = False

    def __iter__(self):
        worker, workers = part()
        if not self.goes_on:
            self.at = 0
        self.goes_on = False
        while self.at < 6 + 3 * worker + (10 if workers == 1 else 0):
            with self.reads.get_lock():
                self.reads.value += 1
            self.at += 1
            yield 100 * worker + self.at, self.epoch
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]
        self.goes_on = True


def plain(batch):
    return np.asarray(batch).tolist()


def lists(batches):
    return [plain(batch) for batch in batches]


WAYS = {
    "here": {},
    "a thread": {"num_workers": 1, "worker": "thread"},
    "workers": {"num_workers": 3},
    "kept": {"num_workers": 3, "persistent_workers": True},
    "samples": {"num_workers": 2, "batch_size": None},
    "every 4, kept": {"num_workers": 2, "snapshot_every_n_steps": 4, "persistent_workers": True},
    "at the start alone": {"num_workers": 2, "snapshot_every_n_steps": 0},
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("kind", [ByIterator, ByItself])
def test_an_iterable_dataset_goes_on_where_it_was(kind, way):
    """In each epoch, before its first batch, after each batch, and after its end. The dataset is
    not read from its start."""
    settings = {"batch_size": 2, "collate_fn": as_list} | WAYS[way]
    loads = Loader(kind(), **settings)
    epochs = [lists(loads) for _ in range(3)]
    loads.close()
    stops = [(0, 0), (0, 5 % len(epochs[0])), (1, 3), (0, len(epochs[0]))]
    if settings.get("num_workers", 0) > 1:
        stops = stops[kind is ByItself :: 2]  # starting workers takes long
    for epoch, stop in stops:
        got, state = stopped(Loader(kind(), **settings), stop, epoch, plain)
        after = Loader(kind(), **settings)
        after.load_state_dict(state)
        assert after.state_dict() == state
        rest = lists(after)
        assert got + rest == epochs[epoch], f"epoch {epoch}, stopped after {stop} batches"
        read = (
            sum(len(batch) if settings["batch_size"] else 1 for batch in rest)
            if kind is ByIterator
            else sum(map(len, rest))
        )
        since = 3 if settings.get("snapshot_every_n_steps") == 4 else 0  # batches
        if settings.get("snapshot_every_n_steps") != 0 and settings["batch_size"]:
            assert read <= after.dataset.reads.value <= read + since * settings["batch_size"]
        # otherwise each epoch has the dataset as the program has it
        if way in ("here", "a thread", "kept", "every 4, kept"):
            assert lists(after) == epochs[epoch + 1], "the next epoch"
        after.close()


@pytest.mark.parametrize("way", ["here", "every 4, kept", "workers"])
@pytest.mark.parametrize("kind", [ByIterator, ByItself])
def test_a_state_between_epochs(kind, way):
    settings = {"batch_size": 2, "collate_fn": as_list} | WAYS[way]
    loads = Loader(kind(), **settings)
    epochs = [lists(loads) for _ in range(3)]
    loads.close()
    _, state = stopped(Loader(kind(), **settings), None, 1)
    after = Loader(kind(), **settings)
    after.load_state_dict(state)
    assert [lists(after), lists(after)] == epochs[1:]
    after.close()


class Walk:
    """A map-style dataset with a state: each sample is a step of a walk that the worker takes."""

    def __init__(self, count=20):
        self.count, self.place = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.place = 3 * self.place + index
        return self.place % 1009

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def with_noise(sample, generator):
    return sample + generator.random()


@pytest.mark.parametrize(
    ("way", "augment"),
    [(way, None) for way in ("here", "a thread", "workers", "kept", "every 4, kept", "at the start alone")]
    + [("here", with_noise), ("workers", with_noise)],
)
def test_a_map_style_dataset_with_a_state(way, augment):
    """Each worker makes whole batches, in turn. A sample depends on those that the same worker has
    loaded before."""
    settings = {"batch_size": 2, "sampler": list(range(20)), "augment": augment} | WAYS[way]
    np.random.seed(1)
    loads = Loader(Walk(), **settings)
    epochs = [lists(loads) for _ in range(2)]
    loads.close()
    for stop in (0, 3, 10):
        np.random.seed(1)
        got, state = stopped(Loader(Walk(), **settings), stop, plain=plain)
        after = Loader(Walk(), **settings)
        after.load_state_dict(state)
        assert got + lists(after) == epochs[0]
        assert lists(after) == epochs[1]
        after.close()


def test_the_dataset_is_not_asked_where_its_state_does_not_matter():
    """With an order of ours a state is one position, for any number of workers."""
    before = Loader(Walk(), 2, seed=1, num_workers=2)
    batches = iter(before)
    next(batches)
    assert set(before.state_dict()) == {"version", "order", "epoch", "position"}
    for refused in ({"worker": "thread", "num_workers": 2}, {"num_workers": 2, "restart_workers": True}):
        with pytest.raises(InvalidError, match="dataset has a state"):
            Loader(Walk(), 2, sampler=[1], **refused)
        Loader(Walk(), 2, seed=1, **refused).close()


# ------------------------------------------------------------ samplers


class Sampler:
    """A sampler with a state, and a new shuffle for each epoch."""

    def __init__(self, drawn):
        self.epoch, self.at, self.drawn = 0, 0, drawn

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(11).tolist()
        while self.at < 11:
            self.at += 1
            self.drawn.append(order[self.at - 1])
            yield order[self.at - 1]
        self.at, self.epoch = 0, self.epoch + 1

    def __len__(self):
        return 11

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


class SamplerByIterator:
    def __init__(self, drawn):
        self.drawn = drawn

    def __iter__(self):
        reads = multiprocessing.get_context("fork").Value("q", 0)
        return Iterates(0, 11, reads)

    def __len__(self):
        return 11


class BatchSampler(Sampler):
    def __iter__(self):
        for first in super().__iter__():
            yield [first, (first + 1) % 11]


@pytest.mark.parametrize(
    ("kind", "workers", "every"),
    [(kind, workers, 1) for kind in ("sampler", "iterator", "batch_sampler") for workers in ("here", "batches")]
    + [
        ("sampler", "rows", 1),
        ("iterator", "cached", 1),
        ("sampler", "batches", 3),
        ("iterator", "rows", 3),
        ("batch_sampler", "here", None),
    ],
)
def test_samplers_go_on_where_they_were(kind, workers, every):
    ways = {
        "here": {},
        "rows": {"num_workers": 2},
        "batches": {"num_workers": 2, "collate_fn": as_list},
        "cached": {"size": "8MiB"},
    }

    def loader(drawn):
        settings = {
            "sampler": {"batch_size": 2, "sampler": Sampler(drawn)},
            "iterator": {"batch_size": 2, "sampler": SamplerByIterator(drawn)},
        }
        return Loader(
            Of(int, 11),
            **settings.get(kind, {"batch_sampler": BatchSampler(drawn)}),
            **ways[workers],
            snapshot_every_n_steps=every,
        )

    loads = loader([])
    epochs = [lists(loads) for _ in range(3)]
    loads.close()
    stops = [(0, 2), (1, len(epochs[1])), (1, 4), (2, 0)]
    for epoch, stop in stops if workers == "here" else stops[: 3 if kind == "sampler" else 2]:
        drawn = []
        got, state = stopped(loader([]), stop or None, epoch, plain)
        after = loader(drawn)
        after.load_state_dict(state)
        rest = lists(after)
        assert got + rest == epochs[epoch]
        if every == 1 and stop:
            assert len(drawn) <= 2 * len(rest), "it does not start again"
        if epoch < 2:
            assert lists(after) == epochs[epoch + 1]
        after.close()


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize("kind", [ByIterator, ByItself, Walk])
def test_another_number_of_workers(kind):
    settings = {"batch_size": 2} | ({"sampler": list(range(20))} if kind is Walk else {})
    for stop in (0, 1):
        _, state = stopped(Loader(kind(), num_workers=2, **settings), stop, plain=plain)
        for workers in (0, 3):
            with pytest.raises(StateError, match=f"num_workers=2, this loader has {workers}"):
                Loader(kind(), num_workers=workers, **settings).load_state_dict(state)


def test_a_dataset_that_has_no_state():
    before = Loader(ByItself(), 2)
    next(iter(before))
    after = Loader(Counting(), 2)
    after.load_state_dict(before.state_dict())
    for _ in range(2):
        with pytest.raises(
            StateError, match="a state of the dataset, and the dataset of this loader has no load_state_dict"
        ):
            iter(after)


# ------------------------------------------------------------ batches that fail, and that overtake


class Counting:
    """An iterable dataset without a state."""

    def __iter__(self):
        worker, workers = part()
        yield from range(worker, 23, workers)


def fails_at_three(samples):
    if 3 in samples:
        raise ValueError("three")
    return list(samples)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("kind", [Counting, ByIterator])
@pytest.mark.parametrize("workers", [0, 3])
def test_after_a_batch_that_failed(kind, workers, every):
    settings = {"batch_size": 2, "num_workers": workers, "collate_fn": fails_at_three, "snapshot_every_n_steps": every}
    before = Loader(kind(), **settings)
    batches, got = iter(before), []
    while len(got) < 4:
        with contextlib.suppress(ValueError):
            got.append(next(batches))
    state = before.state_dict()
    rest = lists(batches)
    after = Loader(kind(), **settings)
    after.load_state_dict(state)
    assert lists(after) == rest


class Waits:
    """Samples below `end` wait until the gate is open."""

    def __init__(self, gate, end, count=24):
        self.gate, self.end, self.count = gate, end, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index < self.end:
            assert self.gate.wait(60)
        return index


class WaitsIterating:
    """The first worker waits in its third batch."""

    def __init__(self, gate):
        self.gate = gate

    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id, 24, info.num_workers):
            if index == 2 * info.num_workers:
                assert self.gate.wait(60)
            yield index


def opened(gate):
    gate.set()
    return gate


def gates():
    return multiprocessing.get_context("fork").Event()


@pytest.mark.parametrize("settings", [{}, {"collate_fn": as_list}], ids=["default", "own"])
@pytest.mark.parametrize("workers", [2, 3])
def test_one_slow_worker_does_not_hold_up_the_others(settings, workers):
    """With in_order=False a worker holds at most two batches that others cannot make."""
    gate = gates()
    batches = iter(
        Loader(Waits(gate, 1), 1, sampler=range(24), num_workers=workers, in_order=False, timeout=60, **settings)
    )
    got = lists(next(batches) for _ in range(22))
    assert [0] not in got
    gate.set()
    assert sorted(got + lists(batches)) == [[k] for k in range(24)]


def test_states_of_batches_that_overtake_each_other():
    """No sample is lost, and none repeats. The same holds for a state of a loader that has
    continued from such a state."""
    order = {"sampler": range(24), "num_workers": 2, "in_order": False}
    gate = gates()
    first = Loader(Waits(gate, 2), 2, **order)
    batches = iter(first)
    got = lists(next(batches) for _ in range(5))
    state = first.state_dict()
    batches.close()
    second = Loader(Waits(gates(), 2), 2, **order)
    second.load_state_dict(json.loads(json.dumps(state)))
    batches = iter(second)
    got += lists(next(batches) for _ in range(3))
    state = second.state_dict()
    batches.close()
    for settings in (order, order | {"num_workers": 0}, order | {"in_order": True}):
        third = Loader(Waits(opened(gates()), 2), 2, **settings)
        third.load_state_dict(state)
        assert sorted(got + lists(third)) == [[k, k + 1] for k in range(0, 24, 2)]


def test_states_of_iterable_datasets_that_overtake_each_other():
    """Each worker continues after the batches that it has given, independent of the others."""
    gate = gates()
    first = Loader(WaitsIterating(gate), 1, num_workers=2, in_order=False)
    batches = iter(first)
    got = lists(next(batches) for _ in range(8))
    assert [4] not in got
    state = first.state_dict()
    batches.close()
    second = Loader(WaitsIterating(opened(gates())), 1, num_workers=2, in_order=False)
    second.load_state_dict(json.loads(json.dumps(state)))
    assert sorted(got + lists(second)) == [[k] for k in range(24)]


# ------------------------------------------------------------ random numbers


def draws(index):
    """A sample with numbers from the generators of random and numpy.random."""
    return index, random.random(), np.random.random(), random.gauss(0, 1), np.random.standard_normal()


class DrawsIterating:
    def __iter__(self):
        worker, workers = part()
        order = np.random.permutation(10).tolist()
        yield from ((10 * worker + k, random.random()) for k in order[: 10 - workers])


class PythonsShuffle:
    """Draws from the generators of random and numpy.random too."""

    def __iter__(self):
        order = np.random.permutation(24).tolist()
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return 24


@pytest.mark.parametrize(
    ("kind", "workers", "kept"), [("map", 0, False), ("iterable", 0, False), ("map", 2, False), ("iterable", 2, True)]
)
def test_random_numbers_repeat(kind, workers, kept):
    """Draws in the dataset and in the sampler repeat after a state, in this epoch and in the next
    one."""

    def loader():
        order = {"sampler": PythonsShuffle()} if kind == "map" else {}
        settings = {"num_workers": workers, "collate_fn": as_list, "persistent_workers": kept}
        return Loader(Of(draws, 24) if kind == "map" else DrawsIterating(), 2, **order, **settings)

    def seed(number):
        random.seed(number)
        np.random.seed(number)

    seed(3)
    loads = loader()
    epochs = [list(loads) for _ in range(3)]
    loads.close()
    for epoch, stop in ((0, 3), (1, 2), (1, len(epochs[1])), (2, 0)):
        seed(3)
        got, state = stopped(loader(), stop or None, epoch, plain=lambda batch: batch)
        seed(4)
        after = loader()
        after.load_state_dict(state)
        assert got + list(after) == epochs[epoch], f"epoch {epoch}, stopped after {stop} batches"
        if epoch < 2:
            assert list(after) == epochs[epoch + 1]
        after.close()


def test_random_numbers_of_an_order_of_ours_do_not_depend_on_workers():
    """Also with collate_fn=: the index of a sample seeds its numbers."""

    def loader(workers, **settings):
        return Loader(Of(draws, 24), 2, shuffle=True, seed=5, num_workers=workers, **settings)

    whole = [tuple(sample) for batch in loader(2, collate_fn=as_list) for sample in batch]
    assert [sample for batch in loader(3) for sample in zip(*(column.tolist() for column in batch))] == whole
    before = loader(2, collate_fn=as_list)
    batches = iter(before)
    got = [next(batches) for _ in range(3)]
    after = loader(1, collate_fn=as_list)
    after.load_state_dict(before.state_dict())
    assert [tuple(sample) for batch in [*got, *after] for sample in batch] == whole


def test_the_programs_generators_stand_where_they_did(monkeypatch):
    """Unless the state is of another rank, which has its own numbers. The loader restores the
    program's present numbers when an epoch has begun."""
    random.seed(1), np.random.seed(1)
    before = Loader(Of(int, 11), 2, sampler=PythonsShuffle())
    batches = iter(before)
    next(batches)
    random.random(), np.random.random()
    state = json.loads(json.dumps(before.state_dict()))
    numbers = random.random(), np.random.random()
    after = Loader(Of(int, 11), 2, sampler=PythonsShuffle())
    after.load_state_dict(state)
    next(iter(after))
    assert (random.random(), np.random.random()) == numbers
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    random.seed(5)
    expected = random.random()
    random.seed(5)
    after.load_state_dict(state)
    assert random.random() == expected


# ------------------------------------------------------------ worker_init_fn


def seeds_generators(worker):
    random.seed(100 + worker)
    np.random.seed(100 + worker)


def test_worker_init_fn_that_seeds():
    """Its seeds count if the index does not seed samples: without augment=, seed= and order=."""

    def run(**settings):
        loads = Loader(
            Of(draws, 24), 4, num_workers=2, worker_init_fn=seeds_generators, **{"sampler": range(24)} | settings
        )
        return [[column.tolist() for column in batch] for batch in loads]

    random.seed(1), np.random.seed(1)
    first = run()
    random.seed(2), np.random.seed(2)
    assert run() == first
    random.seed(100)
    assert first[0][1] == [(random.random(), random.gauss(0, 1))[0] for _ in range(4)]
    assert run(sampler=None, seed=1) == run(sampler=None, seed=1) != run(sampler=None, seed=2)


def test_the_workers_of_an_iteration():
    """Tools read them from `_workers`, as in torch's loader, also after they have ended."""
    for settings in ({}, {"collate_fn": as_list}):
        loads = Loader(Of(int, 11), 2, num_workers=2, **settings)
        batches = iter(loads)
        workers = batches._workers
        assert all(worker.is_alive() for worker in workers)
        assert len({worker.pid for worker in workers}) == 2
        list(batches)
        assert [worker.exitcode is not None for worker in batches._workers] == [True, True]
    assert not hasattr(iter(Loader(Of(int, 11), 2)), "_workers")


def test_the_workers_of_an_iteration_that_is_left():
    """The loader keeps what a state needs of the iterator, and not the iterator."""
    loads = Loader(ByItself(), 2, num_workers=2)
    batches = iter(loads)
    next(batches)
    workers = batches._workers
    del batches
    gc.collect()
    assert [worker.exitcode is not None for worker in workers] == [True, True]
    assert loads.state_dict()["batches"] == 1
