"""Workers take, load, write and answer several fast samples at a time, and slow ones one by one.
Errors and deaths still belong to one sample."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from loader_datasets import Deadly, Numbers, check, drained, read

from stocached import CorruptError, Loader, WorkerLostError
from stocached._datasets.cached_samples import CachedSamples
from stocached._loader.worker import LoaderWorker
from stocached._workers.task_queue import TaskQueue


@pytest.fixture
def runs(monkeypatch):
    """How many samples worker threads have answered at a time."""
    counts: list[int] = []
    done = TaskQueue.done

    def counted(queue, worker, tasks, count):
        counts.append(count)
        done(queue, worker, tasks, count)

    monkeypatch.setattr(TaskQueue, "done", counted)
    return counts


def test_cheap_samples_are_done_many_at_a_time(runs):
    assert read(Loader(Numbers(2000), 64, num_workers=1, worker="thread")) == list(range(2000))
    assert sum(runs) == 2000
    assert runs[0] == 1  # no worker knows yet how long a sample takes
    assert max(runs) > 1


def test_slow_samples_are_done_one_by_one(runs):
    assert read(Loader(Numbers(60, 0.003), 20, num_workers=3, worker="thread")) == list(range(60))
    assert set(runs) == {1}


def plus_one(sample):
    sample += 1
    return sample


class Few(Numbers):
    """Errors and samples of another kind, between fast ones."""

    def __getitem__(self, index):
        if index in (70, 71, 93):
            raise ValueError(f"no sample {index}")
        sample = super().__getitem__(index)
        return sample[:, None] if index == 120 else sample.astype(np.float32) if index == 123 else sample


@pytest.mark.parametrize("worker", ["process", "thread"])
def test_errors_and_odd_samples_between_others(worker):
    seen, errors = drained(iter(Loader(Few(160), 8, num_workers=2, worker=worker)), ValueError)
    errors = [str(error) for error in errors]
    assert "no sample 71" not in "".join(errors)  # the first error of a batch is raised
    assert len(errors) == 3  # samples of other shapes cannot be stacked either
    assert seen == [index for index in range(160) if index // 8 not in (8, 11, 15)]


@pytest.mark.parametrize("at", [64, 70, 95])
def test_a_death_among_cheap_samples_is_of_one_of_them(at, tmp_path):
    with pytest.raises(WorkerLostError, match=rf"while it loaded sample {at}\b"):
        list(Loader(Deadly(128, at, "os._exit", tmp_path / "note"), 32, num_workers=1))


def test_one_that_kills_every_worker_costs_five_and_its_neighbours_none(tmp_path):
    loader = Loader(Deadly(400, 170, "SIGKILL", tmp_path / "note"), 32, num_workers=1, restart_workers=True)
    batches = iter(loader)
    seen = [check(next(batches)) for _ in range(5)]
    with pytest.raises(WorkerLostError, match=r"while it loaded sample 170.*it is number 5 that this has happened to"):
        next(batches)
    assert seen == [list(range(32 * k, 32 * k + 32)) for k in range(5)]


class Uneven(Numbers):
    def __getitem__(self, index):
        time.sleep(0.2 if index % 50 == 49 else 0)
        return super().__getitem__(index)


def test_times_are_of_each_sample(tmp_path):
    loader = Loader(Uneven(300), 50, num_workers=1, trace=tmp_path / "run.json")
    list(loader)
    recorder = loader._recorder
    spans = recorder._rows()
    is_load = spans["name"] == recorder.name("load")
    loads = spans[is_load & (spans["index"] >= 0) & (spans["end"] > spans["start"])]
    took = {int(span["index"]): (int(span["end"]) - int(span["start"])) / 1e9 for span in loads}
    assert sorted(took) == list(range(300))
    slow = {index for index, seconds in took.items() if seconds > 0.15}
    assert slow >= set(range(49, 300, 50))
    assert len(slow) < 9, f"{slow}: one or two may have been kept waiting; their neighbours are many more"
    ends = sorted((int(span["start"]), int(span["end"])) for span in loads)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends)), "one worker does one thing at a time"


@pytest.mark.parametrize("worker", ["process", "thread"])
def test_a_cache_that_fails_is_an_error_of_the_sample(worker, monkeypatch):
    peek = CachedSamples.peek

    def fail(*_):
        raise CorruptError("several")

    def fail_once(cached, index):
        if index == 77:
            raise CorruptError("sample 77")
        return peek(cached, index)

    loader = Loader(Numbers(160), 8, num_workers=2, worker=worker, size="16MiB", augment=plus_one)
    list(loader)
    monkeypatch.setattr(CachedSamples, "peek_several", fail)
    monkeypatch.setattr(CachedSamples, "peek", fail_once)
    seen, errors = drained(map(lambda batch: batch - 1, iter(loader)), CorruptError)  # noqa: C417 - a generator ends with its first error
    assert ["sample 77" in str(error) for error in errors] == [True]
    assert seen == [index for index in range(160) if index // 8 != 9]


def test_what_goes_wrong_beside_the_samples_is_an_error_and_no_death(monkeypatch):
    def fail(*_):
        raise OSError(5, "no layout")

    loader = Loader(Numbers(64), 8, num_workers=1)
    monkeypatch.setattr(LoaderWorker, "_learn_layout", fail)
    with pytest.raises(OSError, match="no layout"):
        list(loader)
