"""Autotune tries workers, threads and prefetch: what it chooses, and that nothing else changes."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from processes import held, nothing_new

from stocached import InvalidError, Order, get_worker_info
from stocached._loader import autotune as _autotune
from stocached._loader import autotune_search as _search
from stocached._loader.autotune import Trial, autotune
from stocached.loader import Loader


class Sleeping:
    """Loads that wait: more workers are always faster."""

    def __init__(self, seconds: float = 0.003, n: int = 4000, shape: tuple[int, ...] = (8,)) -> None:
        self.seconds, self.n, self.shape = seconds, n, shape
        self.pids: set[int] = set()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> np.ndarray:
        self.pids.add(os.getpid())
        time.sleep(self.seconds)
        return np.full(self.shape, index, np.int32)


def everything(loader) -> object:
    """The state that must not change, except for processes, threads and descriptors."""
    return (
        loader.state_dict(),
        loader.stats(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        {name: value if isinstance(value, (int, str, float)) else id(value) for name, value in vars(loader).items()},
    )


def test_more_workers_where_loads_wait():
    loader = Loader(Sleeping(0.02), batch_size=4, shuffle=True, num_workers=1)
    before, had = everything(loader), held()
    tuned = autotune(loader, seconds=2.4, workers=[1, 4])
    assert everything(loader) == before
    nothing_new(had)
    assert tuned.settings == {"num_workers": 4, "prefetch_factor": 2, "gather_threads": None}
    assert tuned.chosen.samples_per_second > 1.5 * tuned.current.samples_per_second
    assert [trial.num_workers for trial in tuned.trials] == [1, 4, 1, 4, 1, 4]
    assert all(trial.batches >= 3 or trial.seconds >= 4 * 2.4 / 12 for trial in tuned.trials)
    assert all(trial.batches > 0 and trial.seconds > 0 and trial.first_batch_seconds > 0.02 for trial in tuned.trials)
    lines = str(tuned).splitlines()
    assert lines[0].startswith("6 trials in ")
    assert lines[1].split() == ["workers", "prefetch", "threads", "samples/s", "waiting", "hits", "first", "batch"]
    assert [line.split()[:2] == ["->", "4"] for line in lines[2:8]] == [False, True] * 3
    assert lines[8] == "chosen: num_workers=4, prefetch_factor=2"
    assert "times the" in lines[9]
    again = Loader(**(loader.settings | tuned.settings))
    assert next(iter(again)).shape == (4, 8)
    again.close()


def test_no_more_than_the_step_needs():
    for _ in range(3):  # other work on the machine may make any setting look best
        tuned = autotune(
            Loader(Sleeping(0.001), batch_size=2, num_workers=3), step_seconds=0.1, seconds=3, workers=[1, 2, 3]
        )
        assert all(trial.waiting < 0.5 for trial in tuned.trials)
        if tuned.settings["num_workers"] < 3 or "as good" in tuned.why:
            return
    pytest.fail(tuned.why)


class Model:
    """A machine whose speed follows a rule, so that the choice depends on no clock. Loads take 10
    ms, batches have 10 samples, and `cpus` loads run at once."""

    cpus, threads, notes = 8, 1, ()

    def __init__(self, own: Trial, step: float = 0.0, hits: float = 0.0) -> None:
        self.own, self.step, self.hits = own, step, hits
        self.has_step = step > 0

    def measure(self, setting: Trial) -> Trial:
        load = 0.1 * (1 - self.hits) / min(max(setting.num_workers, 1), self.cpus)
        load += self.hits * 0.001 / (setting.gather_threads or self.threads)
        if setting.num_workers and (setting.prefetch_factor or 2) < 4:
            load *= 1.1  # for single slow samples
        # without workers hits are gathered in the background, and misses are loaded on demand
        hidden = setting.num_workers or self.hits == 1
        took = max(load, self.step) if hidden else load + self.step
        return replace(
            setting,
            samples_per_second=10 / took,
            waiting=1 - self.step / took,
            hit_rate=self.hits,
            batches=5,
            seconds=1.0,
            loads=self.hits < 1,
        )


@pytest.mark.parametrize(
    ("own", "step", "hits", "chosen"),
    [
        ((1, 2), 0.0, 0.0, (8, 2, None)),  # as many as CPUs: 16 are not faster
        ((8, 2), 0.0, 0.0, (8, 2, None)),  # unchanged
        ((32, 2), 0.0, 0.0, (8, 2, None)),  # fewer are as fast
        ((1, 2), 0.05, 0.0, (4, 2, None)),  # 0.0275 s a batch: 2 workers take 0.055
        ((2, 2), 0.05, 0.0, (4, 2, None)),
        ((4, 2), 0.2, 0.0, (1, 2, None)),
        ((0, None), 0.0, 0.0, (8, 2, None)),
        ((1, 2), 0.0, 1.0, (0, None, 8)),  # only gathers
        ((4, 2), 0.05, 1.0, (0, None, None)),
        ((4, 2), 0.2, 0.5, (1, 2, None)),
    ],
)
def test_what_is_chosen(own, step, hits, chosen):
    setting = Trial(own[0], own[1], None, 0, 0, 0, 0, 0, 0)
    search = _search.Search(Model(setting, step, hits), [0, 1, 2, 4, 8, 16, 32])
    tuned, current, why = search.run()
    assert current.num_workers == own[0]
    assert (tuned.num_workers, tuned.prefetch_factor, tuned.gather_threads) == chosen, why
    if hits == 1:
        # more are not tried, because they have nothing to load
        assert max(trial.num_workers for trial in search.trials) == own[0]
    assert (
        tuned.samples_per_second >= 0.95 * max(trial.samples_per_second for trial in search.trials)
        or tuned.waiting <= 0.05
    )


def test_a_step_is_called_with_the_batches():
    seen = []

    def step(batch) -> None:
        seen.append(batch[:, 0].tolist())
        time.sleep(0.01)

    loader = Loader(Sleeping(0.0005), batch_size=4, num_workers=1)
    tuned = autotune(loader, step=step, seconds=1, workers=[1])
    assert tuned.chosen.num_workers == 1
    assert tuned.chosen.samples_per_second < 4 / 0.01
    assert all(batch == list(range(batch[0], batch[0] + 4)) for batch in seen)  # not shuffled, and read in order


def test_trials_read_other_samples_each():
    dataset, seen = Sleeping(0.0005, n=100_000), []
    loader = Loader(dataset, batch_size=4, shuffle=True, seed=5, num_workers=1)
    autotune(loader, step=lambda batch: seen.extend(batch[:, 0].tolist()), seconds=1, workers=[1, 2])
    assert len(set(seen)) == len(seen) > 20


def test_an_order_of_ours_is_read_as_it_is():
    order = Order(1000, "blocks", 7, 2, 10)
    loader = Loader(Sleeping(0.0002, n=1000), batch_size=10, order=order, num_workers=1)
    seen: list[list[int]] = []
    autotune(loader, step=lambda batch: seen.append(batch[:, 0].tolist()), seconds=0.5, workers=[1])
    batches = order.epoch(2**32).indices().reshape(-1, 10).tolist()
    places = [batches.index(batch) for batch in seen[:4]]
    assert len(places) >= 2
    assert places[0] == 0
    assert places == sorted(set(places))  # what was read ahead when a trial ended is left out
    assert loader.state_dict()["epoch"] == 0


def test_the_cache_is_looked_into_and_left_alone():
    dataset = Sleeping(0.002, n=400, shape=(64, 64))
    loader = Loader(dataset, batch_size=8, shuffle=True, seed=1, num_workers=1, size="16MiB")
    for batch, _ in enumerate(loader):
        if batch == 25:
            break
    cache = loader.cache
    before, had, states, counted = everything(loader), held(), cache.states().tolist(), cache.stats()
    tuned = autotune(loader, seconds=1.5, workers=[1, 2])
    assert everything(loader) == before
    nothing_new(had)
    assert cache.states().tolist() == states
    assert (cache.stats().stored, cache.stats().ready, cache.stats().clients_live) == (
        counted.stored,
        counted.ready,
        counted.clients_live,
    )
    have = counted.ready / 400
    assert 0.4 < have < 0.7
    assert abs(np.mean([trial.hit_rate for trial in tuned.trials]) - have) < 0.25
    assert (
        any(trial.gather_threads == 1 for trial in tuned.trials)
        or len(os.sched_getaffinity(0)) == 1
        or tuned.chosen.hit_rate <= 0.05
    )


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_as_many_threads_as_the_loader_has_are_not_tried_again(threads):
    loader = Loader(Sleeping(0.0, n=40), batch_size=4, size="8MiB", gather_threads=threads)
    bench = _autotune.Bench(loader, print, False, 1.0)
    assert bench.threads == iter(loader).context.threads
    bench.close()


def test_an_empty_cache_is_said_to_be_one():
    cache_of = Loader(Sleeping(0.0002, n=3), batch_size=1, num_workers=1, size="8MiB")
    cache_of.cache.clear()
    assert (
        "its cache is empty: these are the rates of a first epoch" in autotune(cache_of, seconds=0.5, workers=[1]).notes
    )


def test_the_dataset_is_not_used_here():
    dataset = Sleeping(0.0005)
    autotune(Loader(dataset, batch_size=4, num_workers=2), seconds=0.5, workers=[1, 2])
    assert os.getpid() not in dataset.pids
    autotune(Loader(dataset, batch_size=4), seconds=0.5, workers=[0])
    assert os.getpid() in dataset.pids


def test_the_dataset_is_not_used_here_for_0_workers():
    dataset = Sleeping(0.0005)
    tuned = autotune(Loader(dataset, batch_size=4, num_workers=1), seconds=0.5, workers=[0, 1])
    assert {0, 1} == {trial.num_workers for trial in tuned.trials}
    assert os.getpid() not in dataset.pids
    with pytest.raises(InvalidError, match="workers= has 0: the dataset would run in a forked child"):
        autotune(Loader(dataset, batch_size=4, num_workers=1), step=len, workers=[0, 1])


class Connects(Sleeping):
    """A dataset that worker_init_fn= connects, as one of a database."""

    connected = False

    def __getitem__(self, index: int) -> Any:
        assert self.connected, "worker_init_fn= has not run"
        return super().__getitem__(index)


def test_a_dataset_that_needs_worker_init_fn_is_tried_with_workers_only():
    def connect(number: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.connected = True

    loader = Loader(Connects(0.0005), batch_size=4, num_workers=1, worker_init_fn=connect)
    tuned = autotune(loader, seconds=0.5)
    assert 0 not in {trial.num_workers for trial in tuned.trials}
    assert "0 workers are not tried: nothing would call worker_init_fn=" in str(tuned)
    with pytest.raises(AssertionError, match="has not run"):  # as without workers
        autotune(loader, seconds=0.5, workers=[0, 1])


def test_samplers_are_not_asked():
    class Sampler:
        asked = 0

        def __iter__(self):
            Sampler.asked += 1
            return iter(range(100))

        def __len__(self) -> int:
            return 100

    class BatchSampler(Sampler):
        batch_size = 5

        def __iter__(self):
            Sampler.asked += 1
            return iter([[1, 2], [3]])

    tuned = autotune(Loader(Sleeping(0.0005), batch_size=4, sampler=Sampler(), num_workers=1), seconds=0.3, workers=[1])
    assert Sampler.asked == 0
    assert tuned.notes == ("sampler= is not asked, so that it stays where it is: samples in a shuffled order",)
    assert "sampler= is not asked" in str(tuned)
    sizes = set()
    autotune(
        Loader(Sleeping(0.0005), batch_sampler=BatchSampler(), num_workers=1),
        step=lambda batch: sizes.add(len(batch)),
        seconds=0.3,
        workers=[1],
    )
    assert (Sampler.asked, sizes) == (0, {5})
    with pytest.raises(InvalidError, match="batch_sampler has no batch_size"):
        autotune(Loader(Sleeping(), batch_sampler=[[1], [2]]), seconds=0.3)


def test_iterable_datasets():
    class Numbers:
        def __iter__(self):
            for number in range(100_000):
                time.sleep(0.0005)
                yield np.array([number, os.getpid()])

    pids: set[int] = set()
    loader = Loader(Numbers(), batch_size=4, num_workers=1)
    tuned = autotune(loader, step=lambda batch: pids.update(batch[:, 1].tolist()), seconds=0.6, workers=[1, 2])
    assert tuned.chosen.samples_per_second > 20
    assert os.getpid() not in pids
    with pytest.raises(InvalidError, match="an iterable dataset would be read in this process"):
        autotune(loader, workers=[0, 1])


def test_errors_of_the_dataset_come_out_and_leave_nothing():
    class Broken(Sleeping):
        def __getitem__(self, index: int) -> np.ndarray:
            raise KeyError("no such file")

    loader = Loader(Broken(), batch_size=4, num_workers=2)
    before, had = everything(loader), held()
    with pytest.raises(KeyError, match="no such file"):
        autotune(loader, seconds=1)
    assert everything(loader) == before
    nothing_new(had)

    def step(_) -> None:
        raise ZeroDivisionError

    loader = Loader(Sleeping(), batch_size=4, num_workers=2)
    with pytest.raises(ZeroDivisionError):
        autotune(loader, step=step, seconds=1)
    nothing_new(had)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": print, "step_seconds": 1}, "give one of them"),
        ({"step_seconds": -1}, "step_seconds=-1"),
        ({"seconds": 0}, "seconds=0"),
        ({"workers": []}, "one at least"),
        ({"workers": [-1, 2]}, "numbers of 0 or more"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(InvalidError, match=message):
        autotune(Loader(Sleeping(), batch_size=4), **arguments)


def test_other_loaders_are_refused():
    with pytest.raises(InvalidError, match="got a list"):
        autotune([1, 2])
    with pytest.raises(InvalidError, match="the dataset is empty"):
        autotune(Loader([], batch_size=4))


def trial(workers: int, rate: float, prefetch: int | None = 2, threads: int | None = None) -> Trial:
    return Trial(workers, prefetch, threads, rate, 1.0, 0.0, 0.1, 10, 1.0)


def test_what_takes_least_is_chosen_among_what_is_about_as_good():
    search = _search.Search(None, [])
    # the step takes the rest of the time
    assert search._least([replace(trial(1, 80), waiting=0.04), replace(trial(2, 100), waiting=0.0)]).num_workers == 1
    assert search._least([trial(1, 96), trial(2, 98), trial(8, 100)]).num_workers == 2
    assert search._least([trial(4, 100, threads=4), trial(4, 98, threads=2)]).gather_threads == 2
    assert search._least([trial(4, 100, prefetch=8), trial(4, 99, prefetch=4)]).prefetch_factor == 4
    mean = _search._mean([trial(2, 90), trial(2, 110)])
    assert (mean.samples_per_second, mean.batches, mean.seconds) == (100, 20, 2.0)


def test_what_is_tried_unless_it_is_said():
    cpus = len(os.sched_getaffinity(0))
    tried = _autotune._candidates(Loader(Sleeping(), num_workers=3), None)
    assert {0, 1, 2, 3, cpus} <= set(tried)
    assert tried == sorted(tried)
    assert max(tried) <= max(4 * cpus, 3)
    iterable = _autotune._candidates(Loader(iter(range(9)), num_workers=1), None)
    assert 0 not in iterable  # it would be read in this process


def test_no_workers_are_tried_and_leave_nothing_here(tmp_path):
    """A dataset that opens its file for the first sample: workers that are forked later would share
    the file."""
    path = tmp_path / "samples"
    path.write_bytes(bytes(range(200)))

    class File:
        file: Any = None

        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> np.ndarray:
            if self.file is None:
                self.file = open(path, "rb")  # noqa: SIM115
            self.file.seek(index)
            return np.frombuffer(self.file.read(1), np.uint8).repeat(1000)

    dataset = File()
    loader = Loader(dataset, batch_size=10, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    before, had = everything(loader), held()
    tuned = autotune(loader, seconds=1)
    assert 0 in [trial.num_workers for trial in tuned.trials]
    assert dataset.file is None
    assert everything(loader) == before
    nothing_new(had)
    without = replace(tuned.chosen, num_workers=0, prefetch_factor=None)
    again = Loader(**(loader.settings | without.settings))
    assert [int(row[0]) for batch in again for row in batch] == list(range(200))
    dataset.file.close()
