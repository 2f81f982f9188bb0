"""One cache and many processes: fork, forkserver, spawn, pickles, threads at the same time, and
processes that are killed."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import pattern, python
from processes import until

import stocached
from stocached import Cache, SetResult, State

METHODS = ("fork", "forkserver", "spawn")
WORKER = Path(__file__).parents[1] / "stress_worker.py"


@pytest.fixture(params=["named", "unnamed"])
def cache(request, folder):
    with Cache.create(
        "shared" if request.param == "named" else None,
        samples=100,
        sample_bytes=1000,
        dir=folder if request.param == "named" else None,
    ) as cache:
        yield cache


def fill_every_third(cache: Cache, first: int) -> list[str]:
    """Runs in a child. Stores a third of the samples, and reads those of its parent."""
    assert (cache.get(99) == pattern(99)).all()
    return [cache.put(k, pattern(k)).name for k in range(first, 99, 3)]


@contextlib.contextmanager
def quiet_fork():
    """Python 3.12 and later warns of a fork while threads run. The cache does not cause that."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.mark.parametrize("method", METHODS)
def test_children_share_the_cache(cache, method):
    cache.put(99, pattern(99))
    context = multiprocessing.get_context(method)
    with quiet_fork(), context.Pool(3) as pool:
        results = pool.starmap(fill_every_third, [(cache, k) for k in range(3)], chunksize=1)
        pool.close()
        pool.join()
    assert results == [["STORED"] * 33] * 3
    for k in range(100):
        assert (cache.get(k) == pattern(k)).all()
    assert cache.verify() == []
    assert cache.stats().clients_live == 1  # the children have ended, and so have their locks


def child_of_fork(cache: Cache, wait: int) -> None:
    os.read(wait, 1)
    for k in range(50):
        cache.put(k, pattern(k))


def test_children_outlive_their_parent(cache):
    """The parent dies first. A grandchild that it started fills the cache, which this process still
    has."""
    reading, writing = os.pipe()
    with quiet_fork():
        parent = os.fork()
        if parent == 0:
            if os.fork() == 0:
                child_of_fork(cache, reading)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(parent, 0)[1] == signal.SIGKILL
    os.write(writing, b"g")
    until(lambda: all(k in cache for k in range(50)), "it is filled")
    os.close(reading)
    os.close(writing)
    assert cache.verify() == []


def test_pickle_of_an_unnamed_cache_finds_the_process():
    with Cache.create(samples=4, sample_bytes=1000) as cache:
        cache.put(0, pattern(0))
        python(
            """
            import pickle, sys
            cache = pickle.loads(bytes.fromhex(sys.argv[1]))
            assert cache.get(0) is not None and cache.put(1, bytes(1000))
            """,
            pickle.dumps(cache).hex(),
        )
        assert 1 in cache


def test_pickle_whose_process_is_gone():
    result = python(
        "import pickle; from stocached import Cache; cache = Cache.create(samples=4, sample_bytes=9); print(pickle.dumps(cache).hex())",
    )
    with pytest.raises(FileNotFoundError, match=r"process \d+, which pickled this unnamed cache.*name") as caught:
        pickle.loads(bytes.fromhex(result.stdout))
    assert isinstance(caught.value, stocached.CacheNotFoundError)


def test_pickle_of_another_descriptor_is_refused(folder):
    with (
        Cache.create(samples=4, sample_bytes=9) as one,
        Cache.create(samples=4, sample_bytes=9) as two,
        open(folder / "file", "wb") as file,
    ):
        kind, (cls, path, pid, fd, uuid, read_only, kept, disk) = one.__reduce__()
        with pytest.raises(stocached.FormatError, match="uuid"):
            kind(cls, path, pid, two._handle.info().fd, uuid, read_only)
        with pytest.raises(stocached.StocachedError):
            kind(cls, path, pid, file.fileno(), uuid, read_only)
        reading, writing = os.pipe()
        with pytest.raises(stocached.FormatError, match="no cache any more"):
            kind(cls, path, pid, reading, uuid, read_only)
        os.close(reading)
        os.close(writing)
        assert kind(cls, path, pid, fd, uuid, read_only).samples == 4


def test_pickle_of_a_named_cache_that_was_replaced(folder):
    cache = Cache.create("name", samples=4, sample_bytes=9, dir=folder)
    pickled = pickle.dumps(cache)
    cache.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickled)
    other = Cache.create("name", samples=4, sample_bytes=9, dir=folder)
    with pytest.raises(stocached.FormatError, match="another"):
        pickle.loads(pickled)
    other.close()


def test_non_dumpable_process_says_to_use_a_name():
    """A process may forbid others to inspect it. That does not stop root, so root runs both sides
    as another user."""
    output = python(
        """
        import ctypes, os, pickle
        from stocached import Cache
        def drop():
            if os.geteuid() == 0: os.setgid(65534), os.setuid(65534)
        (reading, writing), (held, hold) = os.pipe(), os.pipe()
        owner = os.fork()
        if owner == 0:
            drop()
            cache = Cache.create(samples=4, sample_bytes=9)
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
            os.write(writing, pickle.dumps(cache))
            os.close(hold)
            os.read(held, 1)
            os._exit(0)
        os.close(held)
        drop()
        try: pickle.loads(os.read(reading, 10_000))
        except PermissionError as error: print(type(error).__name__, error)
        os.close(hold)
        os.waitpid(owner, 0)
        """
    ).stdout
    assert "CachePermissionError" in output, output
    assert "name=" in output


def test_forks_while_threads_work(cache):
    """Children are forked in the middle of other threads' sets and gathers. They neither finish nor
    undo them, and do not hang."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not stop.is_set():
                k = rng.randrange(100)
                cache.put(k, pattern(k), overwrite=rng.random() < 0.5)
                out, hit = cache.gather(range(100))
                for row in np.flatnonzero(hit)[:3]:
                    assert (out[row] == pattern(int(row))).all()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    children = []
    with quiet_fork():
        for seed in range(24):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # ends a child that hangs
                code = 1
                try:
                    rng = random.Random(seed)
                    for _ in range(20):
                        k = rng.randrange(100)
                        cache.put(k, pattern(k), overwrite=True)
                        value = cache.get(k, copy=True)
                        assert value is None or (value == pattern(k)).all()
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    stop.set()
    for thread in threads:
        thread.join(60)
    assert statuses == [0] * 24
    assert not problems
    assert cache.verify() == []
    assert State.WRITING not in cache.states()
    assert cache.stats().lost == 0


def test_same_slot_at_the_same_time(cache):
    """Exactly one of many processes stores a sample, and all its bytes come from that process."""
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(6), context.SimpleQueue()

    def work(me: int) -> None:
        for k in range(50):
            barrier.wait(30)
            queue.put((k, cache.put(k, pattern(k, salt=me)).name, me))

    with quiet_fork():
        processes = [context.Process(target=work, args=(me,)) for me in range(6)]
        for process in processes:
            process.start()
    results = [queue.get() for _ in range(300)]
    for process in processes:
        process.join()
    for k in range(50):
        winners = [me for index, result, me in results if index == k and result == "STORED"]
        assert len(winners) == 1
        assert (cache.get(k) == pattern(k, salt=winners[0])).all()
        assert {result for index, result, me in results if index == k} <= {"STORED", "EXISTS", "BUSY"}


def test_epochs_of_workers_that_start_and_are_killed():
    """32 workers at a time start and are killed, in three epochs. The client table has 40 records, so it would be full in
    the second one. It never fills, and no claim stays."""
    epochs, workers = 3, 32
    with Cache.create(samples=256, sample_bytes=20_000, clients=40) as cache, quiet_fork():
        for epoch in range(epochs):
            children = []
            hear, tell = os.pipe()
            for me in range(workers):
                child = os.fork()
                if child == 0:
                    os.nice(15)  # so that the parent keeps forking and killing
                    rng = random.Random(epoch * 1000 + me)
                    for number in itertools.count():  # until it is killed
                        k = rng.randrange(256)
                        cache.put(k, pattern(k, 20_000), overwrite=True)
                        cache.get(rng.randrange(256), copy=True)
                        if number == 0:
                            os.write(tell, b"x")
                children.append(child)
            os.close(tell)
            for _ in children:
                os.read(hear, 1)  # each has begun
            os.close(hear)
            for child in children:
                os.kill(child, signal.SIGKILL)
            assert [os.waitpid(child, 0)[1] for child in children] == [signal.SIGKILL] * workers
        cache.recover()
        assert State.WRITING not in cache.states()
        assert cache.verify() == []
        stats = cache.stats()
        assert stats.clients_live == 1
        assert stats.lost == stats.corrupt == 0
        for k in range(256):
            cache.put(k, pattern(k, 20_000))
        assert cache.states().tolist() == [State.READY] * 256
        out, hit = cache.gather(range(256))
        assert hit.all()
        for k, row in enumerate(out):
            assert (row == pattern(k, 20_000)).all()


def test_claim_of_a_killed_process_is_reclaimed_by_the_next_put(cache):
    """SIGKILL between claim and publish: the next put, here or in a new process, reclaims the
    sample."""
    with quiet_fork():
        child = os.fork()
        if child == 0:
            from stocached import _native

            claim = _native.Claim()
            _native.claim(cache._handle, 7, 1000, 0, claim)
            _native.write(claim, 0, pattern(7).ctypes.data, 500)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert cache.states()[7] == State.WRITING
    assert cache.get(7) is None
    assert cache.put(7, pattern(7)) is SetResult.STORED
    assert (cache.get(7) == pattern(7)).all()
    assert cache.stats().recovered == 1


def test_stopped_writer_keeps_its_claim(cache):
    with quiet_fork():
        child = os.fork()
        if child == 0:
            from stocached import _native

            claim = _native.Claim()
            _native.claim(cache._handle, 7, 1000, 0, claim)
            _native.write(claim, 0, pattern(7).ctypes.data, 1000)
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(_native.publish(claim))
    os.waitpid(child, os.WUNTRACED)
    assert cache.put(7, pattern(8)) is SetResult.BUSY
    with pytest.raises(TimeoutError, match="not cleared"):
        cache.clear(timeout=0.2)
    assert cache.put(8, pattern(8)) is SetResult.STORED
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0
    assert (cache.get(7) == pattern(7)).all()


@pytest.mark.parametrize("variable", [False, True])
def test_stress_workers_find_nothing_torn(folder, variable):
    """Runs two workers of the stress test at a time, and kills one now and then. `make test-stress` does so for longer,
    with workers in Go and C too."""
    kind = dict(variable=True, size="48MiB", dtype="uint8") if variable else dict(slots=20)
    cache = Cache.create("stress", samples=32, sample_bytes=50_000, dir=folder, **kind)

    def start(seed: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, WORKER, cache.path, "32", "1.5", str(seed)], stderr=subprocess.PIPE, text=True
        )

    steady = start(1)
    for seed in range(2, 4):
        victim = start(seed)
        time.sleep(0.7)
        victim.kill()
        victim.communicate()
    error = steady.communicate(timeout=240)[1]
    assert steady.returncode == 0, error
    assert cache.verify() == []
    cache.recover()
    assert State.WRITING not in cache.states()
    assert cache.stats().stored > 0
    cache.close()


def test_stress_payload_is_the_one_of_the_contract():
    sys.path.insert(0, str(WORKER.parent))
    import stress_worker

    with np.errstate(over="ignore"):
        assert stress_worker.payload(5, 7, 1234, 45).tobytes().hex() == (
            "05000000000000000700000000000000d20400000000000000b77615df6feacff6bb854794aefff9898ee19516"
        )
        data = stress_worker.payload(5, 7, 1234, 45).copy()
        assert stress_worker.torn(5, data) is None
        assert "holds sample 5" in stress_worker.torn(6, data)
        data[40] ^= 1
        assert "byte 40 of 45" in stress_worker.torn(5, data)


def test_unrelated_programs_share_a_named_cache(folder):
    with Cache.create("named", samples=4, sample_bytes=1000, dir=folder) as cache:
        cache.put(0, pattern(0))
        path = cache.path
    python(
        """
        import sys; from stocached import Cache
        with Cache.attach(sys.argv[1]) as cache:
            assert cache.put(1, cache.get(0)), "stored"
        """,
        path,
    )
    with Cache.attach(path) as cache:
        assert (cache.get(1) == pattern(0)).all()


def test_small_tmpfs_is_full_not_fatal(tmp_path):
    """A tmpfs of 16 MiB. Create refuses a cache that does not fit, and names the numbers. A set
    without space returns FULL."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs takes root")
    if (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16M", "stocached-test", tmp_path], check=False).returncode
        != 0
    ):
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        with pytest.raises(MemoryError, match=r"\d"):
            Cache.create("large", samples=100, sample_bytes=2**20, dir=tmp_path, reserve=True)
        assert list(tmp_path.iterdir()) == []
        with Cache.create("small", samples=60, sample_bytes=100_000, dir=tmp_path) as cache:
            filler = tmp_path / "filler"
            with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(2**16))
            results = [cache.put(k, pattern(k, 100_000)) for k in range(60)]
            assert results[-1] is SetResult.FULL
            filler.unlink()
            again = [cache.put(k, pattern(k, 100_000)) for k in range(60)]
            # the cache may check memory again only after a while
            assert SetResult.STORED in again or SetResult.FULL in again
            for k in np.flatnonzero(cache.states() == State.READY).tolist():
                assert (cache.get(k) == pattern(k, 100_000)).all()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_fork_while_a_thread_loads(cache):
    """A child is forked in the middle of its parent's get_or_load. It does not wait for the thread
    that loads, because it does not have that thread."""
    entered, go = threading.Event(), threading.Event()

    def slow(index: int) -> np.ndarray:
        entered.set()
        assert go.wait(30)
        return pattern(index)

    thread = threading.Thread(target=cache.get_or_load, args=(4, slow))
    thread.start()
    assert entered.wait(30)
    with quiet_fork():
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(0 if (cache.get_or_load(4, pattern) == pattern(4)).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    thread.join()
    assert (cache.get(4) == pattern(4)).all()


def test_a_cache_of_another_version_is_replaced_once_it_has_no_users(folder):
    old = Cache.create("old", samples=10, sample_bytes=8, dir=folder)
    with open(old.path, "r+b") as file:
        file.seek(8)  # layout_version
        file.write(bytes([9, 0, 0, 0]))
    with pytest.raises(stocached.VersionError, match=rf"layout 9, .*processes {os.getpid()} \("):
        Cache.create("old", samples=20, sample_bytes=8, dir=folder)
    old.close()
    with Cache.create("old", samples=20, sample_bytes=8, dir=folder) as new:
        assert new.samples == 20
