"""Generators that no sample draws from are not seeded for each sample. The drawn numbers are the
same as if all were, whichever worker loads a sample."""

from __future__ import annotations

import random

import numpy as np
import pytest
from loader_datasets import Numbers

from stocached import Loader, _native
from stocached._loader.numpy_backend import NumpyBackend
from stocached._random import generators
from stocached._random.generators import NumpyGenerator, PythonGenerator, Seeding
from stocached._random.sample_seeds import epoch_seed, sample_seed
from stocached._workers.task_queue import TaskQueue

DRAWS = {
    "random.random": (PythonGenerator, random.random),
    "random.getrandbits": (PythonGenerator, lambda: random.getrandbits(1)),
    "random.shuffle": (PythonGenerator, lambda: random.shuffle([1, 2, 3])),
    "random.gauss": (PythonGenerator, lambda: random.gauss(0, 1)),
    "random.choice": (PythonGenerator, lambda: random.choice("ab")),
    "random.seed": (PythonGenerator, lambda: random.seed(77)),
    # every word once: as many are left as before
    "random.randbytes": (PythonGenerator, lambda: random.randbytes(4 * 624)),
    "numpy.random.rand": (NumpyGenerator, np.random.rand),
    "numpy.random.rand(312)": (NumpyGenerator, lambda: np.random.rand(312)),  # the same here
    "numpy.random.randn": (NumpyGenerator, np.random.randn),
    "numpy.random.randint": (NumpyGenerator, lambda: np.random.randint(2)),
    "numpy.random.permutation": (NumpyGenerator, lambda: np.random.permutation(3)),
    "numpy.random.bytes": (NumpyGenerator, lambda: np.random.bytes(1)),
    "numpy.random.seed": (NumpyGenerator, lambda: np.random.seed(77)),
}


@pytest.fixture(autouse=True)
def states_kept():
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


@pytest.mark.parametrize("draw", list(DRAWS))
def test_every_draw_is_noticed(draw):
    kind, function = DRAWS[draw]
    for generator in (PythonGenerator(), NumpyGenerator()):
        generator.seed(5)
        drawn = generator.watch()
        assert drawn is not None, "the generators of this Python and NumPy have another layout than documented"
        assert not drawn()
        function()
        assert drawn() == isinstance(generator, kind)
        assert drawn() == isinstance(generator, kind)


class Counted:
    """A generator that counts, and knows whether a sample drew from it."""

    def __init__(self, watched: bool = True) -> None:
        self.seeds: list[int] = []
        self.draws, self.watched = 0, watched

    def seed(self, seed):
        self.seeds.append(seed)

    def draw(self):
        self.draws += 1
        return self.seeds[-1]

    def watch(self):
        before = self.draws
        return (lambda: self.draws != before) if self.watched else None


def load(seeding, seed, function):
    return seeding.load(seed, function, function)


def test_one_that_is_drawn_from_later_is_seeded_from_then_on():
    late, other = Counted(), Counted()
    seeding = Seeding([late, other])
    load(seeding, 1, lambda: None)
    load(seeding, 2, lambda: None)
    assert late.seeds == other.seeds == [1]
    times = []
    assert load(seeding, 3, lambda: (times.append(1), late.draw())[1]) == 3
    assert len(times) == 2  # the first load did not count
    assert load(seeding, 4, lambda: (times.append(1), late.draw())[1]) == 4
    assert len(times) == 3
    load(seeding, 5, lambda: None)
    assert late.seeds == other.seeds == [1, 3, 4, 5]


def test_errors_that_come_of_an_unseeded_generator_come_again_or_not():
    late = Counted()
    seeding = Seeding([late])

    def fail():
        if late.draw() != 3:
            raise ValueError("not seeded")
        return "seeded"

    with pytest.raises(ZeroDivisionError):
        load(seeding, 1, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load(seeding, 2, lambda: 1 / 0)
    assert late.seeds == [1]
    assert load(seeding, 3, fail) == "seeded"
    with pytest.raises(ValueError, match="not seeded"):
        load(seeding, 4, fail)


def test_seeds_of_tasks_are_those_of_samples():
    indices = np.array([0, 1, 5, 2**40, 2**62, -1, -(2**63)])
    for seed, epoch in [(0, 0), (2**64 - 1, 7), (12345, 2**50)]:
        queue, tasks = TaskQueue(16), (_native.Task * 16)()
        queue.push_samples(indices, np.arange(len(indices)), 0, 0, epoch_seed(seed, epoch), 0)
        assert queue.take(0, tasks, 16, 0) == len(indices)
        assert [task.argument for task in tasks[: len(indices)]] == [
            sample_seed(seed, epoch, int(index)) for index in indices
        ]


class Noisy(Numbers):
    """Some samples have a random part: from one generator, from another, or from both."""

    first = 3  # the first one of them

    def __getitem__(self, index):
        sample = super().__getitem__(index).astype(np.float64)
        if index % 7 == self.first:
            sample[-1] = random.random()
        if index % 11 == self.first + 2:
            sample[-2] = np.random.rand()
        return sample


@pytest.mark.parametrize("first", [3, 0], ids=["late", "at once"])
@pytest.mark.parametrize("known", [True, False], ids=["watched", "unknown"])
def test_random_samples_are_those_of_a_generator_that_is_seeded_for_each(first, known, monkeypatch):
    if not known:
        monkeypatch.setattr(generators, "_python_is_known", lambda: False)
        monkeypatch.setattr(generators, "_numpy_is_known", lambda: False)
    dataset, key, backend = Noisy(300), sample_seed(3, 0, 0), NumpyBackend()
    dataset.first = first
    for workers in (1, 3):
        rows = np.concatenate(list(Loader(dataset, 16, seed=3, num_workers=workers)))
        for index, row in enumerate(rows):
            backend.seed_sample(sample_seed(key, 0, index))
            np.testing.assert_array_equal(row, dataset[index])


def noise(sample):
    sample[0] += 1  # in place: if it ran twice, the result would be 2
    if sample[1] == 1_000_003 + 250:  # only for that sample
        sample[2] = np.random.randint(1 << 30)
    return sample


def test_augment_that_draws_late_and_works_in_place():
    def rows():
        loader = Loader(Numbers(400), 8, num_workers=2, size="16MiB", augment=noise, seed=1)
        list(loader)
        loader.set_epoch(0)
        return np.concatenate(list(loader))

    once, again = rows(), rows()
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(once[:, 0], np.arange(400) + 1)
    assert once[250, 2] < 1 << 30
