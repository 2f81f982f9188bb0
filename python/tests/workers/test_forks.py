"""None of our threads lives while the process forks, and their work continues after the fork."""

from __future__ import annotations

import functools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import python
from processes import in_child, until

from stocached import Loader, source
from stocached._common import threads
from stocached._common.background import Background
from stocached._loader.gather import Batch

# A loader with a cache forks once for its looks at samples, before its workers.
# The last function called before a fork checks that, as Python 3.12 and later do. OpenBLAS ends its
# threads even later.
HEAD = f"""
    import multiprocessing, os, sys
    multiprocessing.set_start_method("fork")  # the default before Python 3.14
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    threads = []
    os.register_at_fork(before=lambda: threads.append(len(os.listdir("/proc/self/task"))))
    sys.path.insert(0, {str(Path(__file__).parents[1])!r})
    import signal, threading, time
    import numpy as np
    from loader_datasets import Numbers, read, check
    from processes import gone
    from stocached import Loader

    def helpers():
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("stocached")]
"""


def test_workers_that_are_replaced_while_hits_are_gathered():
    """Half of the samples are hits, so the gather thread is working when the worker dies."""
    program = """
    loader = Loader(Numbers(400), 10, num_workers=2, restart_workers=True, persistent_workers=True, size="5MiB")
    read(loader)                            # the loader knows the structure of samples only then
    hits = loader.stats().hits
    killed = 0
    for epoch in range(3):
        found = []
        for number, batch in enumerate(loader):
            found += check(batch)
            if number in (5, 15, 25):
                assert helpers() == ["stocached background"], helpers()
                pid = loader._executor.kept.pids[killed % 2]
                os.kill(pid, signal.SIGKILL)
                gone([pid])
                killed += 1
                time.sleep(0.3)             # longer than the loader goes without a check
        assert found == list(range(400)), found
    assert loader.stats().hits > hits
    assert loader._executor.kept.restarts == killed == 9
    loader.close()
    assert threads == [1] * (1 + 2 + 9), threads
    """
    python(HEAD + program)


def test_workers_that_are_started_while_another_loader_gathers():
    """Such as workers of a validation loader in the middle of training, and the program's own
    processes."""
    program = """
    training = Loader(Numbers(200), 10, num_workers=2, persistent_workers=True, size="8MiB")
    assert read(training) == list(range(200))
    batches = iter(training)
    found = check(next(batches))
    for k in range(4):
        assert helpers() == ["stocached background"], helpers()
        assert read(Loader(Numbers(40), 10, num_workers=2)) == list(range(40))
        found += check(next(batches))
        child = os.fork()
        if child == 0:
            os._exit(0 if not helpers() else 1)
        assert os.waitpid(child, 0)[1] == 0
        found += check(next(batches))
    assert found + read(batches) == list(range(200))
    training.close()
    assert threads == [1] * (1 + 2 + 4 * 3), threads
    """
    python(HEAD + program)


def test_epochs_whose_workers_are_not_kept():
    """The thread of an epoch has ended when the workers of the next one start."""
    program = """
    for number, method in enumerate(["thread gone", "epoch left"]):
        loader = Loader(Numbers(100), 10, num_workers=1, size="8MiB")
        for epoch in range(10):
            for k, batch in enumerate(loader):
                if method == "epoch left" and k == 4:
                    break
        del batch
        loader.close()
    assert set(threads) == {1}, threads
    assert len(threads) == 2 * (1 + 10), threads
    """
    python(HEAD + program)


def test_streams_go_on_after_a_fork():
    program = """
    from stream_files import Files, collect, expected
    from stocached.streams import Streams
    lengths = [60] * 4 + [30] * 8
    for known in (False, True):
        streams = Streams(range(12), 4, Files(lengths), lengths=lengths if known else None, num_workers=2, multiprocessing_context="fork", timeout=60)
        want = expected(lengths, 4)
        batches = iter(streams)
        found, seen = collect(batches, 2), set()
        for _ in range(40):
            seen.update(helpers())
            child = os.fork()
            if child == 0:
                os._exit(0 if not helpers() else 1)
            assert os.waitpid(child, 0)[1] == 0
            found += collect(batches, 1)
        other = collect(iter(Streams(range(12), 4, Files(lengths), num_workers=2, multiprocessing_context="fork", timeout=60)))
        assert other == want
        assert found + collect(batches) == want
        batches.close()
        assert helpers() == []
        assert seen == (set() if known else {"stocached background"}), seen
    assert set(threads) == {1}, threads
    """
    python(HEAD + program)


class Gate:
    """A gatherer that fills its batches when the test says so."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.open = threading.Semaphore(0)

    def fill(self, batch: Any) -> None:
        self.began.append(batch)
        self.open.acquire()
        batch.filled.set()


def test_batches_that_wait_for_the_thread_are_filled_after_a_fork(monkeypatch):
    gate = Gate()
    background = Background()
    batches = [Batch(number, 0, None) for number in range(3)]  # type: ignore[arg-type]
    for batch in batches:
        batch.filled = threads.Latch()
        background.put(functools.partial(gate.fill, batch))
    until(lambda: len(gate.began) == 1, "the thread is busy")
    busy = background._thread
    in_child(lambda: True)  # the thread does not end in time and goes on
    assert busy is not None
    assert busy.is_alive()
    join = background._join

    def release_and_join() -> None:
        gate.open.release()
        join()

    with monkeypatch.context() as patched:
        patched.setattr(Background, "timeout", 60.0)
        patched.setattr(background, "_join", release_and_join)
        in_child(lambda: True)  # it ends in time, and another thread starts with the remaining batches
    until(lambda: len(gate.began) == 2, "the thread goes on")
    assert batches[0].filled.is_set()
    assert not busy.is_alive()
    assert background._thread is not busy
    gate.open.release(2)
    until(lambda: all(batch.filled.is_set() for batch in batches), "all are filled")
    assert gate.began == batches
    background.close()
    assert not background._thread.is_alive()


def test_a_child_has_the_pipes_of_which_a_thread_was_computing_one(monkeypatch: pytest.MonkeyPatch):
    first, second, begun, ended = source(range(3)), source(range(3)), threading.Event(), threading.Event()
    visits = type(first._stage).visits

    def slow(self: Any, *args: Any) -> Any:
        if self is first._stage:
            begun.set()
            ended.wait()
        return visits(self, *args)

    monkeypatch.setattr(type(first._stage), "visits", slow)
    thread = threading.Thread(target=first.__getitem__, args=(0,))
    thread.start()
    begun.wait()
    child = os.fork()
    if not child:
        os._exit(second[1])
    try:
        until(lambda: os.waitpid(child, os.WNOHANG) == (child, 1 << 8))
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        ended.set()
        thread.join()


class OneFile:
    """Samples of one file. way: how it is read."""

    def __init__(self, path: Path, way: str) -> None:
        self.path, self.way, self.file, self.pid = path, way, path.open("rb", buffering=0), os.getpid()

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        if self.way == "reopened" and self.pid != os.getpid():
            self.file.close()  # its descriptor is free again
            self.file, self.pid = self.path.open("rb", buffering=0), os.getpid()
        if self.way == "pread":
            return np.frombuffer(os.pread(self.file.fileno(), 8, index * 8), np.int64)
        self.file.seek(index * 8)
        return np.frombuffer(self.file.read(8).ljust(8), np.int64)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("way", "workers"), [("read", 2), ("read", 1), ("reopened", 2), ("pread", 2)])
def test_a_file_whose_position_workers_share_is_warned_of_once(tmp_path, way, workers, persistent, recwarn):
    path = tmp_path / "numbers.bin"
    np.arange(200).tofile(path)
    data = OneFile(path, way)
    loader = Loader(data, 4, num_workers=workers, multiprocessing_context="fork", persistent_workers=persistent)
    for _ in range(1 + persistent):
        given = np.concatenate([batch.ravel() for batch in loader])
        assert (way, workers) == ("read", 2) or given.tolist() == list(range(200))
    wanted = 1 if (way, workers) == ("read", 2) else 0
    assert [str(path) in str(one.message) for one in recwarn if "share its position" in str(one.message)] == [
        True
    ] * wanted
    data.file.close()
