"""Caches that a server fills. Each test runs the real server."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import types
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import numpy as np
import pytest
from helpers import pattern, python
from processes import in_threads, limit
from served import expected, until, write_pictures, write_records

import stocached
from stocached import Cache, _native
from stocached._cache import fetch_calls


@pytest.fixture
def cache(server):
    """A cache of 100 records of 1,000 bytes that a server fills."""
    server.records()
    with Cache.attach(server.name) as cache:
        yield cache


def shuffled(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(n)


def epoch(cache: Cache, seed: int = 0, batch: int = 16) -> None:
    """Reads every sample once and compares it."""
    order = shuffled(cache.samples, seed)
    for start in range(0, cache.samples, batch):
        indices = order[start : start + batch]
        out, ok = cache.fetch(indices)
        assert ok.all()
        assert (out == expected(indices)).all()


# ------------------------------------------------------------ what comes, and what is counted


def test_a_cold_epoch_is_all_misses_and_the_next_one_all_hits(server, cache):
    epoch(cache)
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.ready) == (0, 100, 100)
    assert server.reads() == 100
    epoch(cache, seed=1)
    stats = cache.stats()
    assert (stats.hits, stats.misses) == (100, 100)
    assert server.reads() == 100


def test_outputs(server, cache):
    rows = np.zeros((4, 1000), np.uint8)
    out, ok = cache.fetch([1, 2, 3, 4], rows)
    assert out is rows
    assert ok.tolist() == [True] * 4
    assert (rows == expected([1, 2, 3, 4])).all()
    wide = np.zeros((3, 1500), np.uint8)
    cache.fetch([5, 1, 6], wide[:, :1000], threads=2)
    assert (wide[:, :1000] == expected([5, 1, 6])).all()
    assert not wide[:, 1000:].any()
    out, ok = cache.fetch([])
    assert out.shape == (0, 1000)
    assert ok.shape == (0,)
    out, ok = cache.fetch(np.array([9]), timeout=60)
    assert (out[0] == pattern(9)).all()
    assert ok.all()


def test_a_full_cache_sends_what_has_no_slot(server):
    server.records(64, 65536, size="5MiB")
    with Cache.attach(server.name) as cache:
        assert 0 < cache.slots < 40
        for seed in range(3):
            order = shuffled(64, seed)
            out, ok = cache.fetch(order)
            assert ok.all()
            assert (out == expected(order, 65536)).all()
        assert cache.stats().ready == cache.slots
        assert cache.stats().hits == 2 * cache.slots


def test_a_fetch_of_hits_sends_no_message(server, cache):
    """It works while the server does not answer."""
    epoch(cache)
    server.pause()
    for seed in range(3):
        epoch(cache, seed)
    server.resume()


# ------------------------------------------------------------ variable size, fields

FILES = {"a/0.txt": b"nought", "a/1.txt": b"", "b/2.txt": b"x" * 5000, "b/3.txt": b"three"}


def test_samples_of_any_size_come_in_the_order_asked_for(server):
    server.files(FILES, size="64MiB")
    files = list(FILES.values())
    with Cache.attach(server.name) as cache:
        assert cache.variable
        for _ in range(2):
            assert cache.fetch([3, 0, 1, 3, 2]) == [files[k] for k in (3, 0, 1, 3, 2)]
        assert (cache.stats().hits, cache.stats().misses) == (5, 5)
        assert server.reads() == 4
        assert cache.fetch([]) == []
        assert all(type(value) is bytes for value in cache.fetch(range(4)))
        with pytest.raises(stocached.InvalidError, match="without out="):
            cache.fetch([1], np.zeros((1, 10), np.uint8))


def test_fields_of_any_size(server):
    server.files(FILES, {"labels": "folders"}, size="64MiB")
    with Cache.attach(server.name) as cache:
        cache.fetch([2])
        values = cache.fetch([3, 2, 0])
    assert [value["data"] for value in values] == [FILES["b/3.txt"], FILES["b/2.txt"], FILES["a/0.txt"]]
    assert [int(value["label"]) for value in values] == [1, 1, 0]
    values[0]["label"][...] = 9  # the array belongs to the caller


ORDER = [0, 2, 4, 1, 3, 5]  # order in which write_pictures() numbers its pictures: ant/0, ant/2, ant/4, cat/1, ...


def test_several_fields_of_fixed_size(server):
    write_pictures(server)
    with Cache.attach(server.name) as cache:
        cache.fetch([4])
        out, ok = cache.fetch([5, 4, 0])
        assert ok.all()
        assert out["image"].shape == (3, 3, 4, 4)
        assert out["label"].tolist() == [1, 1, 0]
        assert [int(row[0, 0, 0]) for row in out["image"]] == [40 * ORDER[k] for k in (5, 4, 0)]
        assert (cache.stats().hits, cache.stats().misses) == (1, 3)
        only = {"label": np.full(4, -1)}
        out, ok = cache.fetch([1, 2, 3, 4], only)
        assert out is only
        assert only["label"].tolist() == [0, 0, 1, 1]
        assert ok.all()
        again, hit = cache.gather(range(6))
        assert hit.all()
        assert [int(row[2, 3, 3]) for row in again["image"]] == [255 - 40 * k for k in ORDER]


# ------------------------------------------------------------ samples that fail


def test_a_missing_file_fails_alone(server):
    server.files(FILES, size="64MiB")
    with Cache.attach(server.name) as cache:
        cache.fetch([0])
        (server.data / "b/2.txt").unlink()
        (server.data / "b/3.txt").write_bytes(b"other")  # with another time
        with pytest.raises(stocached.FetchError, match=r"sample 2: READ: .*b/2\.txt.*\(and 1 more\)") as caught:
            cache.fetch([0, 2, 1, 3])
        error = caught.value
        assert isinstance(error, OSError)
        assert [(f.position, f.index, f.kind) for f in error.failures] == [(1, 2, "READ"), (3, 3, "CHANGED")]
        assert "b/3.txt" in error.failures[1].message
        assert error.out == [b"nought", None, b"", None]
        assert error.ok.tolist() == [True, False, True, False]
        assert cache.fetch([0, 2, 1, 3], errors="return") == [b"nought", None, b"", None]
        (server.data / "b/2.txt").write_bytes(FILES["b/2.txt"])
        assert cache.fetch([1, 2], errors="return") == [b"", None]  # another file, by its time


def test_a_file_that_is_no_image_fails_alone(server):
    pictures = write_pictures(server)
    server.stop()
    broken = pictures[4][: len(pictures[4]) - 30]  # ant/4.png, sample 2
    (server.data / "ant/4.png").write_bytes(broken)
    server.path.unlink()
    server.start()
    with Cache.attach(server.name) as cache:
        with pytest.raises(stocached.FetchError, match=r"sample 2: DAMAGED: .*ant/4\.png") as caught:
            cache.fetch([1, 2, 3])
        assert caught.value.ok.tolist() == [True, False, True]
        assert caught.value.out["label"].tolist() == [0, 0, 1]
        out, ok = cache.fetch([2, 0], errors="return")
        assert ok.tolist() == [False, True]
        assert not out["image"][0].any()
        assert out["image"][1].any()
        out["image"][...] = 7
        _, ok = cache.fetch([2, 5], {"image": out["image"]}, errors="return")
        assert ok.tolist() == [False, True]


def test_a_server_may_send_any_code_and_message(monkeypatch):
    monkeypatch.setattr(_native, "fetch_end", lambda *_: None)
    failure = _native.Failure(position=2, index=7, code=99, message=b"no \xff")
    (said,) = fetch_calls._failures(types.SimpleNamespace(failures=[failure], failed=1))
    assert (said.position, said.index, said.kind, said.message) == (2, 7, "code 99", "no \ufffd")


def test_wrong_use(server, cache):
    for call, kind, message in (
        (lambda: cache.fetch([1, 100]), stocached.SampleIndexError, "index 100"),
        (lambda: cache.fetch([-1]), stocached.SampleIndexError, "index -1"),
        (lambda: cache.prefetch([1, 100]), stocached.SampleIndexError, "index 100"),
        (lambda: cache.fetch([1.5]), stocached.InvalidError, "float64"),
        (lambda: cache.fetch([1], errors="ignore"), stocached.InvalidError, "errors='ignore'"),
        (lambda: cache.fetch([1], timeout=-1), stocached.InvalidError, "timeout=-1; it must be seconds"),
        (lambda: cache.fetch([1], timeout="soon"), stocached.InvalidError, "timeout='soon'"),
        (lambda: cache.fetch([1], timeout=float("nan")), stocached.InvalidError, "timeout=nan"),
        (lambda: cache.fetch([1], threads=-1), stocached.InvalidError, "threads=-1 is not a whole number"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert cache.fetch([1], timeout=float("inf"))[1].all()
    cache.close()
    for call in (lambda: cache.fetch([1]), lambda: cache.prefetch([1])):
        with pytest.raises(stocached.ClosedError):
            call()


def test_a_cache_that_no_server_has(server, cache, folder):
    with (
        Cache.create(samples=4, sample_bytes=9) as unnamed,
        pytest.raises(stocached.InvalidError, match="without a name"),
    ):
        unnamed.fetch([1])
    with Cache.create("own", samples=4, sample_bytes=9, dir=folder) as own:
        own.put(1, bytes(9))
        assert own.fetch([1])[1].all()
        with pytest.raises(stocached.CacheNotFoundError, match="own"):
            own.fetch([1, 2])


# ------------------------------------------------------------ a server that is away


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_calls_without_a_timeout_wait_for_a_server_that_restarts(server, cache, end):
    getattr(server, end)()  # one that stops in order removes its socket
    with ThreadPoolExecutor(2) as pool:
        fetched = pool.submit(cache.fetch, [3])
        with pytest.warns(
            UserWarning,
            match=f"waiting up to 60 s for the server of the cache '{server.name}': none answers on .*; or check the name: stocached ls",
        ) as said:
            attached = pool.submit(Cache.attach, server.name)
            assert not wait([fetched, attached], 3, FIRST_COMPLETED).done  # clients waited 2 seconds once
            until(lambda: said.list)
            server.start()
            assert (fetched.result()[0] == expected([3])).all()
            attached.result().close()
    with pytest.raises(stocached.InvalidError, match="timeout"):
        Cache.attach(server.name, timeout=-1)


def test_a_folder_of_servers_on_demand_is_no_server_to_wait_for(monkeypatch, tmp_path):
    monkeypatch.setenv("STOCACHED_SOCKETS_DIR", str(tmp_path))
    (tmp_path / "on-demand-1").mkdir(mode=0o700)
    with pytest.raises(stocached.CacheNotFoundError, match="; no server on .*start it with"):
        Cache.attach("mistyped")


def test_a_server_that_is_stopped_during_an_attach(server):
    server.records()
    server.pause()
    with ThreadPoolExecutor(1) as pool, pytest.warns(UserWarning, match="none answers on"):
        attached = pool.submit(Cache.attach, server.name)
        assert not wait([attached], 2.5).done
        server.resume()
        attached.result().close()


def test_without_a_server_a_miss_says_what_to_start(server, cache):
    cache.fetch([1])
    server.kill()
    start = time.monotonic()
    with pytest.raises(stocached.NoServerError, match="stocached serve -c") as caught:
        cache.fetch([1, 2], timeout=0.3)
    assert isinstance(caught.value, ConnectionError)
    assert 0.2 < time.monotonic() - start < limit(1.9)  # much less than without a timeout
    with pytest.raises(stocached.NoServerError):
        cache.prefetch([2], timeout=0.1)
    assert (cache.fetch([1])[0] == expected([1])).all()
    server.start()
    assert (cache.fetch([2])[0] == expected([2])).all()
    assert cache.stats().ready == 2


def test_a_server_that_does_not_answer(server, cache):
    cache.fetch([1])
    server.pause()
    start = time.monotonic()
    with pytest.raises(stocached.CacheTimeoutError, match="busy or stopped") as caught:
        cache.fetch([1, 2], timeout=0.3)
    assert isinstance(caught.value, TimeoutError)
    assert time.monotonic() - start < limit(5)
    server.resume()
    assert (cache.fetch([2, 3])[0] == expected([2, 3])).all()


def test_other_data_are_another_cache(server, cache):
    cache.fetch([1])
    server.stop()
    write_records(server.data, 120)
    server.start()
    assert (cache.fetch([1])[0] == expected([1])).all()  # the same bytes as before
    with pytest.raises(stocached.ReplacedError, match="attach again"):
        cache.fetch([1, 2])
    with Cache.attach(server.name) as again:
        assert again.samples == 120
        assert again.fetch([110])[1].all()


# ------------------------------------------------------------ signals, threads, processes

SLOW = {"latency": "30s", "concurrency": 1}


@pytest.mark.parametrize(
    "call", [lambda cache: cache.fetch([1], timeout=30), lambda cache: Cache.attach("another", timeout=30)]
)
def test_ctrl_c_while_a_server_is_away(server, cache, call):
    server.kill()
    start = time.monotonic()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        call(cache)
    assert time.monotonic() - start < limit(5)
    timer.join()


@pytest.mark.parametrize("away", [True, False])
def test_a_signal_that_another_thread_took(server, away):
    """No signal interrupts the wait in that case, so the call must check regularly."""
    server.records(limits=SLOW)
    cache = Cache.attach(server.name)
    if away:
        server.kill()
    thread = threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        cache.fetch([1], timeout=60)
    assert time.monotonic() - start < limit(5)
    thread.join()
    cache.close()


def test_handlers_of_signals_run_while_a_fetch_waits(server):
    """A handler that raises nothing does not disturb the wait. One that raises ends it."""
    server.records(limits={"latency": "1s", "concurrency": 1})
    came: list[float] = []
    cache = Cache.attach(server.name)
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        assert (cache.fetch([1])[0] == expected([1])).all()
        ended = time.monotonic()
        assert sum(moment < ended - 0.1 for moment in came) > 5
        assert server.reads() == 1

        def refuse(number, frame):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise LookupError("enough")

        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, refuse)
        with pytest.raises(LookupError, match="enough"):
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            while True:
                cache.fetch([2])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (cache.fetch([3])[0] == expected([3])).all()
    cache.close()


def test_an_exception_of_a_handler_comes_once(server, monkeypatch):
    """A handler may raise at any step of a call. The exception comes out of that call, and never
    out of later ones."""
    server.records(limits={"latency": "2ms", "concurrency": 1})
    raised, caught, random = [0], 0, np.random.default_rng(1)
    lost: list[str] = []  # exceptions in finalizers, which Python drops
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: lost.append(f"{ignored.err_msg} {ignored.object}"))

    def refuse(number, frame):
        raised[0] += 1
        raise LookupError("enough")

    cache, before = Cache.attach(server.name), signal.signal(signal.SIGALRM, refuse)
    try:
        for _ in range(300):
            end, gone = time.monotonic() + 10, len(lost)
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 6e-3))
                while len(lost) == gone and time.monotonic() < end:
                    cache.clear()
                    cache.fetch([1])
                    cache.fetch([1])
            except LookupError:
                caught += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert raised[0] == caught + len(lost) == 300
    assert not any("ctypes" in where for where in lost), lost
    for index in range(20):
        assert (cache.fetch([index])[0] == expected([index])).all()
    cache.close()


def test_an_exception_after_another(server, cache):
    """A handler raises while the library asks it, and another one after the library has returned.
    The first exception must not come out of the next call."""
    calls = []

    def twice(options, error):
        everyone = (call for call in gc.get_objects() if type(call) is fetch_calls._Call)
        # a call of the test before may be incomplete
        call = next(call for call in everyone if getattr(call, "options", None) is options)
        call.raised = LookupError("the first one")
        calls.append(call)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_calls.ask(twice, 0)
    assert len(calls) == 1
    assert cache.fetch([1, 2])[1].all()
    assert cache.prefetch([3]) == 1


def test_the_last_idle_call_goes_to_one_thread(cache, monkeypatch):
    class Contended(list):
        """Another thread takes the last call as soon as one thread has checked that there is
        one."""

        def __len__(self):
            n = super().__len__()
            self.clear()
            return n

    monkeypatch.setattr(fetch_calls, "_idle", Contended(fetch_calls._idle))
    for _ in range(3):
        assert cache.fetch([1])[1].all()
        assert cache.prefetch([5]) >= 0


def test_many_threads_share_a_handle(server):
    server.records(400, limits={"latency": "1ms"})
    with Cache.attach(server.name) as cache:
        in_threads(8, lambda seed: epoch(cache, seed))
        assert server.reads() == 400
        stats = cache.stats()
        assert stats.hits + stats.misses == 8 * 400
        assert stats.misses >= 400


def read_in_child(cache: Cache, seed: int) -> int:
    epoch(cache, seed)
    return os.getpid()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_children(server, cache, method):
    """Each child opens its own connection, and does not touch its parent's."""
    import warnings

    cache.fetch([0])  # opens a connection
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context(method).Pool(3) as pool:
            pids = pool.starmap(read_in_child, [(cache, seed) for seed in range(6)], chunksize=1)
            pool.close()
            pool.join()
    assert os.getpid() not in pids
    epoch(cache, 9)
    assert server.reads() == 100
    stats = cache.stats()
    assert stats.hits + stats.misses == 701
    assert stats.clients_live == 2


# ------------------------------------------------------------ prefetch, attach


def test_prefetch_has_samples_read_meanwhile(server, cache):
    cache.fetch([1, 2])
    assert cache.prefetch([1, 2, 3, 4, 5]) == 3
    until(lambda: all(k in cache for k in range(1, 6)))
    assert cache.prefetch(range(1, 6)) == 0
    assert cache.prefetch([]) == 0
    assert cache.stats().misses == 2
    cache.fetch(range(1, 6))
    assert cache.stats().hits == 5
    assert server.reads() == 5


def test_attach_by_name_through_the_server(server, cache):
    assert not os.path.exists(f"/dev/shm/stocached-{os.geteuid()}/{server.name}")
    assert cache.name == server.name
    assert cache.path == str(server.path)
    with Cache.attach(server.path) as by_path, Cache.attach(server.name, read_only=True) as reader:
        assert by_path.uuid == cache.uuid == reader.uuid
        assert reader.read_only
        assert by_path.fetch([3])[1].all()
        assert reader.fetch([3, 4])[1].all()
    with Cache.attach(server.name, fingerprint=cache.fingerprint) as same:
        assert same.uuid == cache.uuid
    with pytest.raises(stocached.FingerprintError, match="other"):
        Cache.attach(server.name, fingerprint="other")


def test_a_cache_that_cannot_be_seen(server):
    """As in another mount namespace. The segment comes through the socket, or from the process that
    pickled it."""
    server.records()
    server.path.unlink()
    with Cache.attach(server.name) as cache:
        assert (cache.name, cache.path) == (server.name, None)
        assert (cache.fetch([1, 2])[0] == expected([1, 2])).all()
        code = """
            import pickle, sys
            cache = pickle.loads(bytes.fromhex(sys.argv[1]))
            assert cache.fetch([1, 5])[1].all() and cache.stats().hits == 1
            """
        python(code, pickle.dumps(cache).hex())
        assert 5 in cache
        with pytest.raises(stocached.InvalidError, match=f"no file of the cache '{server.name}'"):
            cache.unlink()


def test_attach_to_what_is_not_there(server, cache):
    with pytest.raises(stocached.CacheNotFoundError, match=r"no such cache.*NOT_FOUND"):
        Cache.attach("no-such-cache")
    with pytest.raises(stocached.CacheNotFoundError, match="no such cache"):
        Cache.attach(server.segments / "no-such-cache")
    server.kill()
    with pytest.raises(stocached.CacheNotFoundError, match=r"no such cache.*stocached serve -c"):
        Cache.attach(server.name, timeout=0.1)
    shutil.rmtree(server.sockets)
    start = time.monotonic()
    with pytest.raises(
        stocached.CacheNotFoundError, match=rf"no server on {server.sockets}/data.sock.*stocached serve -c"
    ) as caught:
        Cache.attach(server.name)
    assert time.monotonic() - start < limit(1)
    assert caught.value.errno == 2


def test_the_default_place_of_the_socket(monkeypatch):
    from stocached._cache import handle as _handle

    monkeypatch.delenv("STOCACHED_SOCKETS_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with Cache.create(f"placed-{os.getpid()}", samples=1, sample_bytes=1, dir="/dev/shm", unlink="last") as cache:
        for environment, path in (
            ({}, f"/tmp/stocached-{os.getuid()}/data.sock"),
            ({"XDG_RUNTIME_DIR": "/nowhere/run"}, "/nowhere/run/stocached/data.sock"),
            ({"XDG_RUNTIME_DIR": "run"}, f"/tmp/stocached-{os.getuid()}/data.sock"),
            ({"STOCACHED_SOCKETS_DIR": "/nowhere/else"}, "/nowhere/else/data.sock"),
        ):
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            assert _handle.data_socket() == path
            if path.startswith("/nowhere"):
                with pytest.raises(stocached.NoServerError, match=f"no server on {path}"):  # where the library searches
                    cache.fetch([0], timeout=0.01)
