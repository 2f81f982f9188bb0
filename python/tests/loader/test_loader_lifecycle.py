"""How iterators of the loader end, and that all they used is freed: breaks, errors, Ctrl-C, exits,
forks, timeouts, threads as workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from loader_datasets import Asleep, Numbers, check, drained, read
from processes import gone, limit, lives, until
from programs import FOLDER, run
from programs import Program as Started

from stocached import ClosedError, Loader, WorkerLostError, source

MANY = int(os.environ.get("STOCACHED_TEST_BREAKS", "0"))  # `make soak` sets it


def program(name: str, *arguments: object, timeout: float = 240) -> str:
    result = run(FOLDER / f"{name}.py", *arguments, timeout=timeout)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert result.stderr == "", result.stderr
    return result.stdout


# ------------------------------------------------------------ leaving an epoch


TIMES = {"cached": 16, "persistent": 16, "batches": 16, "thread": 16, "threads": 16, "fresh": 4, "forkserver": 2}


@pytest.mark.parametrize(("way", "times"), list(TIMES.items()))
def test_epochs_left_in_the_middle_leave_nothing(way, times):
    """By break, by an error, by the garbage collector and by close(). Processes, threads,
    descriptors and mappings are as before, and memory does not grow."""
    many = MANY if times > 12 else times  # starting workers 2,000 times would take too long
    slowest, _ = map(float, program("breaks", way, many or times, timeout=3600).split())
    assert slowest < limit(1) or way == "forkserver"  # starting workers takes longer there


@pytest.mark.parametrize(
    "settings",
    [{}, {"collate_fn": np.stack}, {"persistent_workers": True}, {"worker": "thread"}],
    ids=["rows", "batches", "kept", "thread"],
)
def test_leaving_does_not_wait_for_samples(settings):
    loader = Loader(Asleep(40, awake=4), 2, num_workers=2, **settings)
    batches = iter(loader)
    assert check(next(batches)) == [0, 1]
    pool = batches._runtime
    until(lambda: all(pool.task_queue.held(k) for k in range(2)), "both are in the middle of a sample")
    start = time.monotonic()
    batches.close()
    loader.close()
    assert time.monotonic() - start < limit(1)
    gone(pool.pids)
    with pytest.raises(StopIteration):
        next(batches)


def test_batches_of_an_epoch_that_was_left_do_not_get_into_the_next():
    """A persistent worker finishes its sample, in a buffer that the new epoch does not get before
    that."""
    loader = Loader(Numbers(60, seconds=0.01), 3, shuffle=True, seed=1, num_workers=3, persistent_workers=True)
    for epoch in range(12):
        batches = iter(loader)
        got = [check(next(batches)) for _ in range(20 if epoch % 4 == 3 else 2)]
        wanted = loader.sampler.order.epoch(epoch).indices().reshape(-1, 3).tolist()
        assert got == wanted[: len(got)]
        batches.close()
    loader.close()


def test_close_of_the_loader_ends_workers_and_its_iteration_says_so():
    for settings in ({}, {"persistent_workers": True}, {"collate_fn": np.stack}, {"worker": "thread"}):
        loader = Loader(Numbers(40), 4, num_workers=2, **settings)
        batches = iter(loader)
        next(batches)
        pids = batches._runtime.pids
        loader.close()
        gone(pids)
        with pytest.raises(ClosedError, match="the loader was closed"):
            next(batches)
        loader.close()
        assert read(loader) == list(range(40))
        loader.close()
    for settings in ({}, {"size": "16MiB"}):
        loader = Loader(Numbers(40), 4, **settings)
        batches = iter(loader)
        next(batches)
        loader.close()
        with pytest.raises(ClosedError, match="the loader was closed"):
            next(batches)


CONCURRENT = [
    {},
    {"size": "16MiB"},
    {"num_workers": 2},
    {"num_workers": 2, "collate_fn": np.stack},
    {"num_workers": 2, "worker": "thread", "size": "16MiB"},
]


@pytest.mark.parametrize("settings", CONCURRENT, ids=["plain", "cached", "rows", "batches", "threads"])
def test_two_iterations_of_one_loader_at_once(settings):
    """Each has its own workers, as in torch."""
    loader = Loader(Numbers(60), 4, shuffle=True, seed=2, **settings)
    for turn in range(0, 4, 2):
        pairs = [(check(a), check(b)) for a, b in zip(loader, loader)]
        wanted = [loader.sampler.order.epoch(turn + k).indices().reshape(-1, 4).tolist() for k in range(2)]
        assert pairs == list(zip(*wanted))
    loader.close()


@pytest.mark.parametrize("settings", [{}, {"collate_fn": np.stack}], ids=["rows", "batches"])
def test_second_iteration_ends_the_first_where_workers_are_kept(settings):
    """torch starts its one iterator again. Here the old iterator says that it was ended, not that
    its epoch is over."""
    loader = Loader(Numbers(60), 4, shuffle=True, seed=2, num_workers=2, persistent_workers=True, **settings)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(ClosedError, match="one at a time"):
        next(first)
    assert read(second) == loader.sampler.order.epoch(1).indices().tolist()
    with pytest.raises(StopIteration):
        next(second)
    loader.close()


def test_sampler_that_fails_loses_no_batch():
    def sampler():
        yield from range(24)
        raise KeyError("no more")

    for settings in (
        {"size": "16MiB"},
        {"num_workers": 2, "size": "16MiB"},
        {"num_workers": 2, "collate_fn": np.stack},
    ):
        seen, errors = drained(iter(Loader(Numbers(40), 4, sampler=sampler(), **settings)), KeyError)
        assert (seen, len(errors)) == (list(range(24)), 1)


# ------------------------------------------------------------ ends of the program


class Program:
    """endings.py, in its own group of processes."""

    def __init__(self, workers: int, method: str, ending: str) -> None:
        self.process = Started(FOLDER / "endings.py", workers, method, ending)
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.pid, *self.workers = map(int, line.split())
        self.start = time.monotonic()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()

    def finish(self) -> tuple[int, str, str]:
        """Returns status and output."""
        output, error = self.process.communicate(timeout=120)
        return self.process.returncode, output, error


@pytest.mark.parametrize(
    ("method", "ending"),
    [
        ("fork", "wait"),
        ("fork", "busy"),
        ("forkserver", "wait"),
        ("spawn", "wait"),
        ("thread", "wait"),
        ("rows", "wait"),
        ("rows", "persistent"),
    ],
)
def test_ctrl_c(method, ending):
    with Program(2, method, ending) as program:
        sent = time.monotonic()
        os.killpg(program.pid, signal.SIGINT)
        assert program.process.stdout.readline() == "interrupted\n", program.finish()
        assert time.monotonic() - sent < limit(1)
        code, _, error = program.finish()
        assert (code, error) == (0, "")
        gone(program.workers)


@pytest.mark.parametrize(
    ("method", "ending", "status"),
    [
        ("fork", "end", 0),
        ("fork", "os._exit", 8),
        ("fork", "error", 1),
        ("thread", "end", 0),
        ("thread", "exit", 7),
        ("rows", "end", 0),
        ("rows", "error", 1),
        ("streams", "end", 0),
    ],
)
def test_program_that_ends_in_the_middle_of_an_epoch(method, ending, status):
    with Program(3, method, ending) as program:
        code, _, error = program.finish()
        # 0.8 of them for workers that do not react, and the rest for the interpreter
        assert time.monotonic() - program.start < limit(1.5)
        assert code == status
        assert error == "" if ending != "error" else error.splitlines()[-1] == "ValueError: something is wrong"
        assert gone(program.workers) < limit(1)


def test_program_that_ends_while_hits_are_gathered():
    """Its threads must not write into memory that ends with the interpreter."""
    for _ in range(2):
        with Program(0, "fork", "gather") as program:
            code, _, error = program.finish()
            assert (code, error) == (0, "")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn", "rows"])
def test_workers_end_with_a_killed_parent(method):
    """Whatever sample they are loading."""
    with Program(4, method, "busy") as program:
        assert len(program.workers) == (2 if method == "rows" else 4)  # there are two rows
        assert all(map(lives, program.workers))
        os.kill(program.pid, signal.SIGKILL)
        assert gone(program.workers) < limit(1)


def test_terminated_workers_do_not_run_the_handlers_of_their_parent(tmp_path):
    """A program that saves a checkpoint on SIGTERM must not do so in its workers."""

    def save(signum, frame):
        (tmp_path / f"checkpoint-{os.getpid()}").touch()

    before = signal.signal(signal.SIGTERM, save)
    try:
        loader = Loader(Asleep(40), 2, num_workers=2)
        batches = iter(loader)
        pool = batches._runtime
        until(lambda: all(pool.task_queue.held(k) for k in range(2)), "both are in the middle of a sample")
        pids = pool.pids
        batches.close()
        gone(pids)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------ forks


@pytest.mark.parametrize("way", ["cached", "fresh", "batches", "thread"])
def test_fork_in_the_middle_of_an_epoch(way):
    assert program("forks", way) == "whole\n"


# ------------------------------------------------------------ time limits


def at_last(batches) -> list[int]:
    """The next batch, even if it is late: workers may start slowly."""
    end = time.monotonic() + 60
    while True:
        try:
            return check(next(batches))
        except RuntimeError as error:
            if "timed out" not in str(error) or time.monotonic() > end:
                raise


@pytest.mark.parametrize(
    "settings",
    [{}, {"collate_fn": np.stack}, {"worker": "thread"}, {"in_order": False}],
    ids=["rows", "batches", "thread", "any order"],
)
def test_timeout(settings):
    loader = Loader(Asleep(40, awake=4), 2, num_workers=2, timeout=0.4, **settings)
    batches = iter(loader)
    assert sorted(at_last(batches) + at_last(batches)) == [0, 1, 2, 3]
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out after 0.4 seconds"):
        next(batches)
    assert 0.4 <= time.monotonic() - start < limit(1)
    late = "^DataLoader timed out after 0.4 seconds: worker [01] did not answer while it (loaded|made).* sample.* raise timeout="
    with pytest.raises(RuntimeError, match=late):  # each call raises again while it lasts
        next(batches)
    batches.close()


@pytest.mark.parametrize("settings", [{}, {"collate_fn": np.stack}], ids=["rows", "batches"])
def test_batch_that_was_late_is_not_lost(settings):
    batches = iter(Loader(Numbers(8, seconds=0.3), 2, num_workers=1, timeout=0.2, **settings))
    got, late = [], 0
    while len(got) < 8:
        try:
            got += check(next(batches))
        except RuntimeError:
            late += 1
    assert got == list(range(8))
    assert late >= 2
    assert list(batches) == []


# ------------------------------------------------------------ threads as workers


class Moody(Numbers):
    """Samples that raise exceptions with a special meaning."""

    kinds = {5: ValueError, 9: KeyError, 13: SystemExit, 17: StopIteration, 21: KeyboardInterrupt}

    def __getitem__(self, index):
        if index in self.kinds:
            raise self.kinds[index](f"sample {index}")
        return super().__getitem__(index)


@pytest.mark.parametrize("collate", [None, np.stack], ids=["rows", "batches"])
def test_errors_in_threads(collate):
    batches = iter(Loader(Moody(16), 4, num_workers=2, worker="thread", collate_fn=collate))
    threads = list(batches._runtime._workers)
    assert check(next(batches)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="^sample 5$") as caught:
        next(batches)
    assert "worker thread" in str(caught.value.__cause__)
    with pytest.raises(KeyError, match="sample 9"):
        next(batches)
    with pytest.raises(RuntimeError, match="SystemExit"):  # one thread does not end the program
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    until(lambda: not any(thread.is_alive() for thread in threads), "all threads have ended")


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt])
def test_init_function_that_fails_in_a_thread(raised):
    def init(worker):
        raise raised("not today")

    with pytest.raises((ValueError, RuntimeError, KeyboardInterrupt), match="not today"):
        list(Loader(Numbers(16), 4, num_workers=2, worker="thread", worker_init_fn=init))


def _read_file(load, file):
    return (load(4 * file + k) for k in range(4))


KEPT = {  # `load` gives a sample of its number: the samples 0 to 39
    "rows": (lambda load: source(range(40)).map(load), {}),
    "batches": (lambda load: source(range(40)).map(load), {"collate_fn": np.stack}),
    "iterable": (lambda load: map(load, range(40)), {"num_workers": 1}),
    "lists": (lambda load: source(range(10)).flat_map(partial(_read_file, load)), {}),
    "stream": (lambda load: source(range(10)).flat_map(partial(_read_file, load)).batch(4, rows=True), {}),
    "threads": (lambda load: source(range(40)).map(load), {"worker": "thread"}),
}


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("way", list(KEPT))
def test_kept_workers_that_failed_for_good_are_not_kept(way, hangs, tmp_path):
    """As those whose init function failed once, and those that hang: the next epoch starts others."""
    end, once = threading.Event(), tmp_path / "once"

    def failed():
        return not once.exists() and once.write_text("") == 0

    def load(k):
        if hangs and k == 9 and failed():
            end.wait()
        return np.full(3, k)

    def init(worker):
        if not hangs and failed():
            raise ValueError("not today")

    class Samples:
        def __iter__(self):
            return make(load)

    make, settings = KEPT[way]
    dataset, batch = (Samples() if way == "iterable" else make(load)), {} if way == "stream" else {"batch_size": 4}
    settings = {"num_workers": 2, **batch, **settings, "persistent_workers": True, "worker_init_fn": init}
    loader = Loader(dataset, timeout=0.2 if hangs else 60, **settings)
    with pytest.raises((ValueError, RuntimeError), match="timed out|no batch in timeout" if hangs else "not today"):
        list(loader)
    once.touch()
    loader.timeout = 60
    for _ in range(2):
        batches = [each.items[each.mask] if way == "stream" else each for each in loader]
        assert sorted(np.concatenate(batches)[:, 0].tolist()) == list(range(40))
    end.set()
    loader.close()


def test_threads_in_the_middle_of_a_sample_are_left_alone():
    """They end after the sample, and write into no memory that is in use again."""
    loader = Loader(Numbers(64, seconds=0.2), 4, num_workers=4, worker="thread")
    kept, threads = [], []
    for _ in range(4):
        batches = iter(loader)
        threads += batches._runtime._workers
        kept.append((next(batches), batches.close())[0])
    assert [check(batch) for batch in kept] == [[0, 1, 2, 3]] * 4
    until(lambda: not any(thread.is_alive() for thread in threads), "all threads have ended")
    assert [check(batch) for batch in kept] == [[0, 1, 2, 3]] * 4


def test_a_thread_that_is_gone_is_an_error():
    batches = iter(Loader(Asleep(40, awake=4), 2, num_workers=1, worker="thread"))
    read([next(batches), next(batches)])
    batches._runtime.task_queue.stop()  # threads see it at the end of their sample
    worker = batches._runtime._workers[0]
    assert worker.is_alive(), "it is in the middle of a sample, and cannot be lost yet"
    batches.close()
    idle = iter(Loader(Numbers(4000), 2, num_workers=1, worker="thread"))
    next(idle)
    idle._runtime.task_queue.stop()
    with pytest.raises(WorkerLostError, match="worker thread 0"):
        list(idle)
