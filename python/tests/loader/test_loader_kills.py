"""Workers of the loader that die: by a signal or by the user's code, between two samples or in the
middle of one, once or two hundred times."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from loader_datasets import Deadly, Numbers, Stream, read
from processes import gone, limit
from programs import FOLDER, run

from stocached import InvalidError, Loader, WorkerLostError
from stocached._workers.task_queue import TaskQueue
from stocached._workers.tasks import ROW_AND_OBJECTS

ROOT = Path(__file__).parents[3]
SAID = {
    "SIGKILL": "was killed by SIGKILL",
    "SIGSEGV": "was killed by SIGSEGV",
    "os._exit": "exited with status 3",
    "sys.exit": "exited with status 4",
}


WAYS = {
    "rows": ({"batch_size": 4}, "while it loaded sample 21"),
    "batches": ({"batch_size": 4, "collate_fn": np.stack}, "while it made the batch of samples 20, 21, 22, 23"),
    "samples": ({"batch_size": None}, "while it loaded sample 21"),
    "iterable": ({"batch_size": 4}, "while it read its part of the dataset"),
}


@pytest.mark.parametrize(
    ("way", "how"), [*(("rows", how) for how in SAID), *((way, "SIGKILL") for way in WAYS if way != "rows")]
)
def test_lost_worker_is_an_error_that_names_worker_reason_and_sample(way, how, tmp_path):
    settings, doing = WAYS[way]
    dataset = Deadly(40, 21, how, tmp_path / "note")
    batches = iter(Loader(Stream(dataset) if way == "iterable" else dataset, num_workers=2, **settings))
    pids = batches._runtime.pids
    with pytest.raises(WorkerLostError) as caught:
        list(batches)
    took = time.monotonic() - float((tmp_path / "note").read_text())
    assert took < limit(1)
    text = str(caught.value)
    assert any(f"worker {number} (process {pid})" in text for number, pid in enumerate(pids)), text
    assert SAID[how] in text
    assert doing in text
    assert ("restart_workers=True" in text) == (way != "iterable")
    with pytest.raises(WorkerLostError):  # the loader does not forget it, after a batch that was complete before
        list(batches)
    batches.close()
    gone(pids)


@pytest.mark.parametrize(
    ("settings", "cached"), [({}, True), ({"collate_fn": np.stack}, False)], ids=["rows, cached", "batches"]
)
def test_worker_killed_while_it_has_nothing_to_do(settings, cached):
    loader = Loader(Numbers(600), 2, num_workers=2, size="64MiB" if cached else None, **settings)
    if cached:
        list(loader)
    batches = iter(loader)
    pids = batches._runtime.pids
    next(batches)
    time.sleep(0.3)  # the loader has made all that it may make ahead
    os.kill(pids[1], signal.SIGKILL)
    start = time.monotonic()
    torchs = rf"DataLoader worker \(pid {pids[1]}\) is killed by signal: Killed"  # programs search logs for this text
    with pytest.raises(WorkerLostError, match=rf"worker 1 \(process {pids[1]}\) was killed by SIGKILL.*{torchs}"):
        for _ in batches:
            time.sleep(0.01)
    assert time.monotonic() - start < limit(1)
    batches.close()
    gone(pids)


@pytest.mark.parametrize("settings", [{}, {"collate_fn": np.stack}], ids=["rows", "batches"])
def test_persistent_workers_are_replaced_after_one_was_lost(settings):
    loader = Loader(Numbers(60), 4, num_workers=2, persistent_workers=True, **settings)
    assert read(loader) == list(range(60))
    pids = loader._executor.kept.pids
    os.kill(pids[0], signal.SIGKILL)
    gone(pids[:1])
    with pytest.raises(WorkerLostError, match=rf"worker 0 \(process {pids[0]}\) was killed by SIGKILL"):
        time.sleep(0.3)  # noticing it may take that long
        list(loader)  # whether it has begun ahead or not
    assert read(loader) == list(range(60))
    gone(pids)
    loader.close()


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"batch_size": 4}, "SIGKILL"),
        ({"batch_size": 4}, "sys.exit"),
        ({"batch_size": 4, "collate_fn": np.stack}, "SIGKILL"),
        ({"batch_size": None}, "os._exit"),
    ],
    ids=["rows", "rows that exit", "batches", "samples"],
)
def test_restarted_worker_loads_the_sample_again(settings, how, tmp_path):
    loader = Loader(
        Deadly(40, 21, how, tmp_path / "note", once=True),
        num_workers=2,
        restart_workers=True,
        persistent_workers=True,
        **settings,
    )
    for _ in range(2):
        assert read(loader) == list(range(40))
    assert loader._executor.kept.restarts == 1
    loader.close()


@pytest.fixture(scope="session")
def fault_library():
    """The C library with fault points. make leaves one alone that is up to date."""
    subprocess.run(
        ["make", "--no-print-directory", "-s", "-C", ROOT / "cclient", "../build/libstocached-fault.so"], check=True
    )
    return ROOT / "build" / "libstocached-fault.so"


def killed_in_a_fill(points, kind, library, folder):
    """By each point: the restarts, the hits of the second epoch and the reclaimed claims, as the program prints them."""
    done = subprocess.run(
        [sys.executable, FOLDER / "killed_in_a_fill.py", folder, kind, *points],
        env=os.environ | {"STOCACHED_LIB_PATH": str(library)},
        capture_output=True,
        text=True,
        timeout=120 * len(points),
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [point for point, *_ in rows] == points
    return {point: tuple(map(int, numbers)) for point, *numbers in rows}


@pytest.mark.parametrize("kind", ["fixed", "variable"])
def test_worker_killed_in_a_fill_loses_no_sample(kind, fault_library, tmp_path):
    points = ["claim.word", "write.half", "publish.meta", "publish.word"]
    for point, numbers in killed_in_a_fill(points, kind, fault_library, tmp_path).items():
        reclaimed = int(point != "publish.word")  # after that step the sample is READY
        assert numbers == (1, 40, reclaimed), point


@pytest.mark.parametrize("policy", ["lru", "chains"])
def test_worker_killed_in_an_eviction_loses_no_slot(policy, fault_library, tmp_path):
    points = ["evict.listed", "evict.retired", "evict.moved", "evict.emptied", "evict.unlisted"]
    if policy == "chains":
        points[2:3] = ["abort.slot", "slot.taken"]
    for point, (restarts, _, reclaimed) in killed_in_a_fill(points, policy, fault_library, tmp_path).items():
        assert restarts == 1, point
        assert reclaimed >= 1, point


def test_restarted_worker_does_all_that_the_lost_one_held(tmp_path):
    """A worker takes up to 32 samples at a time where they are loaded quickly."""
    dataset = Deadly(400, 350, "SIGKILL", tmp_path / "note", once=True)
    assert read(Loader(dataset, 200, num_workers=1, restart_workers=True, timeout=30)) == list(range(400))


@pytest.mark.parametrize("part", [0.1, 0.9])
def test_worker_killed_while_it_answers_for_several_samples(part, tmp_path, monkeypatch):
    """The first answer has the texts of all, in memory that was lent before."""
    answer = TaskQueue.done

    def killed(self, worker, tasks, count):
        together = count > 8 and any(task.result == ROW_AND_OBJECTS for task in tasks[:count])
        if together and (tmp_path / "go").exists() and not (tmp_path / "note").exists():
            (tmp_path / "note").touch()
            answer(self, worker, tasks, max(1, int(count * part)))
            os.kill(os.getpid(), signal.SIGKILL)
        answer(self, worker, tasks, count)

    monkeypatch.setattr(TaskQueue, "done", killed)
    items = [{"k": k, "text": f"text {k}"} for k in range(400)]
    loader = Loader(items, 100, num_workers=1, restart_workers=True, persistent_workers=True, timeout=30)
    batches = [*loader]
    (tmp_path / "go").touch()
    batches += [*loader, *loader]
    assert (tmp_path / "note").exists()
    assert [text for batch in batches for text in batch["text"]] == 3 * [item["text"] for item in items]
    assert [k for batch in batches for k in batch["k"].tolist()] == 3 * [*range(400)]
    assert not loader._executor.kept.task_queue._lent  # all places came back
    loader.close()


@pytest.mark.parametrize("settings", [{}, {"collate_fn": np.stack}], ids=["rows", "batches"])
def test_worker_killed_between_epochs_is_restarted(settings):
    loader = Loader(Numbers(40), 4, num_workers=2, restart_workers=True, persistent_workers=True, **settings)
    for epoch in range(3):
        assert read(loader) == list(range(40))
        os.kill(loader._executor.kept.pids[epoch % 2], signal.SIGKILL)
    loader.close()


@pytest.mark.parametrize("settings", [{}, {"collate_fn": np.stack}], ids=["rows", "batches"])
def test_sample_that_ends_every_worker_is_not_tried_for_ever(settings, tmp_path):
    loader = Loader(Deadly(40, 21, "SIGKILL", tmp_path / "note"), 4, num_workers=2, restart_workers=True, **settings)
    with pytest.raises(WorkerLostError, match=r"sample.* 21.* number 5 that this has happened to"):
        list(loader)


def dies_at_once(worker):
    os._exit(9)


def test_workers_that_die_of_being_started_are_not_started_for_ever():
    with pytest.raises(
        WorkerLostError, match=r"status 9 before its first task, perhaps in worker_init_fn; it is number \d+"
    ):
        list(Loader(Numbers(40), 4, num_workers=2, restart_workers=True, worker_init_fn=dies_at_once))


def second_hangs(worker):
    time.sleep(600 * worker)


def test_worker_that_does_not_start_is_told_once():
    """The others do all the work, so there is no error."""
    batches = iter(Loader(Numbers(40), 4, num_workers=2, worker_init_fn=second_hangs))
    told = "worker 1 has not started after 30 s, perhaps because of worker_init_fn; the others do all the work"
    pool = batches._runtime
    next(batches)
    pool._start_by = pool._checked_at = 0.0
    with pytest.warns(UserWarning, match=told):
        next(batches)
    pool._checked_at = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(batches)) == 8


def test_iterable_dataset_cannot_be_restarted():
    """A new worker would start its part again, and no process knows how far the old one was."""
    with pytest.raises(InvalidError, match=r"restart_workers=True needs a dataset with len\(\) and \[index\]"):
        Loader(Stream(Numbers(4)), num_workers=1, restart_workers=True)


def test_lost_worker_is_noticed_if_other_code_waits_for_all_children(tmp_path):
    """With SIGCHLD ignored there is no status to wait for, and multiprocessing believes that every
    child lives. It must not send SIGTERM to their numbers at exit: other processes may have these."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        batches = iter(Loader(Deadly(40, 21, "SIGKILL", tmp_path / "note"), 4, num_workers=2))
        pids = batches._runtime.pids
        with pytest.raises(WorkerLostError, match="is gone.* while it loaded sample 21"):
            list(batches)
        start = time.monotonic()
        batches.close()
        assert time.monotonic() - start < limit(1)
        gone(pids)
        assert not {child.pid for child in multiprocessing.active_children()} & set(pids)
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("way", ["rows", "cached", "evicting", "batches"])
def test_kills_at_random_moments(way):
    """STOCACHED_TEST_KILLS sets a larger number, for `make soak`."""
    kills = int(os.environ.get("STOCACHED_TEST_KILLS", "20" if way == "cached" else "10"))
    result = run(FOLDER / "kills.py", way, kills, timeout=60 + kills)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    killed, restarts, epochs = map(int, result.stdout.split())
    assert killed == kills
    assert 0.9 * kills <= restarts <= kills
    assert epochs > 1
    assert result.stderr == ""
