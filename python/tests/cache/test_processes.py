"""One cache and many processes: fork, forkserver, spawn, pickles, and threads at the same time. `make test-stress` kills
such processes."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import random
import signal
import threading

import numpy as np
import pytest
from helpers import pattern, python
from processes import meanwhile

import stocached
from stocached import Cache, SetResult, State


@pytest.fixture
def cache():
    with Cache.create(samples=100, sample_bytes=1000) as cache:
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


@pytest.mark.parametrize(("name", "method"), [(None, "fork"), ("shared", "forkserver"), (None, "spawn")])
def test_children_share_the_cache(folder, name, method):
    context = multiprocessing.get_context(method)
    with Cache.create(name, samples=100, sample_bytes=1000, dir=folder if name else None) as cache:
        cache.put(99, pattern(99))
        with quiet_fork(), context.Pool(3) as pool:
            results = pool.starmap(fill_every_third, [(cache, k) for k in range(3)], chunksize=1)
            pool.close()
            pool.join()
        assert results == [["STORED"] * 33] * 3
        for k in range(100):
            assert (cache.get(k) == pattern(k)).all()
        assert cache.verify() == []
        assert cache.stats().clients_live == 1  # the children have ended, and so have their locks


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

    def work(rng: random.Random) -> None:
        k = rng.randrange(100)
        cache.put(k, pattern(k), overwrite=rng.random() < 0.5)
        out, hit = cache.gather(range(100))
        for row in np.flatnonzero(hit)[:3]:
            assert (out[row] == pattern(int(row))).all()

    children = []
    with quiet_fork(), meanwhile(*(functools.partial(work, random.Random(seed)) for seed in range(3))):
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
    assert statuses == [0] * 24
    assert cache.verify() == []
    assert State.WRITING not in cache.states()
    assert cache.stats().lost == 0


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
