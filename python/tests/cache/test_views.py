"""Views live as long as a reference to them: after close, after the cache object, in any order of
garbage collection, and to the end of the interpreter."""

from __future__ import annotations

import gc
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers import pattern, python
from processes import until

from stocached import Cache

VARIABLE = {"box": ((None, 4), "float32"), "name": ((None,), "bytes")}


def maps() -> list[str]:
    """Maps of unnamed caches in this process."""
    return [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:stocached:" in line
    ]  # maps of loaders of other tests do not count


@pytest.fixture(autouse=True)
def no_map_is_left():
    gc.collect()
    until(lambda: not maps(), "the maps of other tests have ended")
    yield
    gc.collect()
    assert not maps()


def test_view_outlives_close_and_cache():
    cache = Cache.create(samples=4, sample_bytes=1000)
    cache.put(1, pattern(1))
    view, part = cache.get(1), cache.get(1)[10:20]
    cache.close()
    assert (view == pattern(1)).all()
    del cache, view
    gc.collect()
    assert (part == pattern(1)[10:20]).all()
    assert len(maps()) == 1  # the payload; the control part ended with the handle
    del part
    assert not maps()


def test_views_of_fields_and_variable_samples_outlive_the_cache():
    with Cache.create(samples=4, fields={"a": ((1000,), "uint8"), "b": ((), "int64")}) as cache:
        cache.put(0, {"a": pattern(0), "b": 17})
        fields = cache.get(0)
    with Cache.create(samples=4, fields=VARIABLE, variable=True, size="64MiB") as cache:
        cache.put(0, {"box": np.ones((3, 4), np.float32), "name": b"abc"})
        variable = cache.get(0)
    del cache
    gc.collect()
    assert (fields["a"] == pattern(0)).all()
    assert fields["b"] == 17
    assert variable["name"] == b"abc"
    assert variable["name"].readonly
    assert variable["box"].sum() == 12


class Holder:
    """Is part of a reference cycle, and reads its view when it is finalised."""

    seen: list[bool] = []

    def __init__(self, cache: Cache, keep_cache: bool) -> None:
        self.view = cache.get(0)
        self.cache = cache if keep_cache else None
        self.cycle = self

    def __del__(self) -> None:
        Holder.seen.append(bool((self.view == pattern(0)).all()))
        if self.cache is not None:
            try:
                # works, or raises ClosedError: the collector may have finalised the handle first
                again = self.cache.get(0)
            except ValueError:
                return
            Holder.seen.append(bool((again == pattern(0)).all()))


@pytest.mark.parametrize("keep_cache", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cycles_are_collected_in_any_order(keep_cache, reverse):
    Holder.seen.clear()
    caches = [Cache.create(samples=1, sample_bytes=1000) for _ in range(10)]
    holders = []
    for cache in caches:
        cache.put(0, pattern(0))
        holders.append(Holder(cache, keep_cache))
        cache.holder = holders[-1]  # the cache is in the cycle too
    if reverse:
        holders.reverse()
        caches.reverse()
    alive = [weakref.ref(holder) for holder in holders]
    del caches, cache, holders
    gc.collect()
    assert not any(ref() for ref in alive)
    assert len(Holder.seen) >= 10
    assert all(Holder.seen)


EXIT = """
    import sys, numpy as np, stocached
    from stocached import Cache
    cache = Cache.create(samples=4, sample_bytes=1000)
    cache.put(0, np.full(1000, 3, np.uint8))
    view = cache.get(0)
    class Last:
        def __init__(self, view, cache): self.view, self.cache = view, cache
        def __del__(self):
            assert bytes(self.view[::499]) == b"\3\3\3"  # a NumPy method might import a module, which fails when the interpreter ends
            try: self.cache.get(0)
            except Exception: pass
    {how}
"""


@pytest.mark.parametrize(
    "how",
    [
        "last = Last(view, cache); last.me = last",
        "sys.modules['zzz_kept'] = Last(view, cache)",
        "del cache",
        "cache.close(); np.kept = view; stocached.kept = Last(view, cache)",
        "import atexit; atexit.register(lambda: (view.sum(), cache.closed or cache.get(0)))",
        "import threading; threading.Thread(target=lambda: [cache.get(0) for _ in range(20000)]).start()",
    ],
)
def test_interpreter_exits_with_views_alive(how):
    python(EXIT.format(how=how))


def test_close_while_other_threads_read():
    """The handle ends when the last call returns: no use after free, only ClosedError."""
    python(
        """
        import threading, numpy as np, stocached
        from stocached import Cache
        for round in range(30):
            cache = Cache.create(samples=8, sample_bytes=200_000)
            for k in range(8): cache.put(k, np.full(200_000, k, np.uint8))
            started, outcomes = threading.Barrier(4), []
            def work():
                started.wait()
                try:
                    while True:
                        out, hit = cache.gather(range(8), threads=2)
                        assert hit.all() and (out[:, 0] == range(8)).all()
                        cache.put(3, np.zeros(200_000, np.uint8), overwrite=False)
                        cache.stats()
                except stocached.ClosedError:
                    outcomes.append("closed")
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads: thread.start()
            started.wait()
            cache.close()
            for thread in threads: thread.join()
            assert outcomes == ["closed"] * 3, outcomes
        """
    )


def test_store_into_the_map_kills_only_the_process_that_does_it(folder):
    """The memory of the cache is mapped read-only. A process that bypasses NumPy's check dies, and
    the bytes stay."""
    cache = Cache.create("kept", samples=4, sample_bytes=1000, dir=folder)
    cache.put(0, pattern(0))
    result = python(
        """
        import ctypes, sys, stocached
        view = stocached.Cache.attach(sys.argv[1]).get(0)
        ctypes.memset(view.ctypes.data, 0, 1000)
        """,
        cache.path,
        check=False,
    )
    assert result.returncode == -11, result
    assert (cache.get(0) == pattern(0)).all()
    assert cache.verify() == []


def test_views_can_be_pickled_as_copies():
    with Cache.create(samples=1, sample_bytes=1000) as cache:
        cache.put(0, pattern(0))
        copy = pickle.loads(pickle.dumps(cache.get(0)))
        cache.put(0, pattern(1), overwrite=True)
        assert (copy == pattern(0)).all()  # NumPy 2.5 keeps it read-only, older versions do not
