"""How many items the lists of a cache have: who learns it, and what does not change it (docs/spec/segment.md, Lengths)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
from typing import Any

import numpy as np
import pytest

from stocached import BadSampleError, Cache, InvalidError, Loader, Pipe, ReadOnlyError, SampleIndexError, source
from stocached._cache import opening
from stocached._pipes.visits import Window

N = 60
BYTES = 100_000  # an item that makes a small cache full
pytestmark = pytest.mark.filterwarnings("ignore:stocached. a bad sample was left out:UserWarning")


def count(n: int) -> int:
    return n * 7 % 5


def items(n: int) -> list[int]:
    return [n] * count(n)


def large(n: int) -> list[Any]:
    return [np.full(BYTES, n, np.uint8)] * count(n)


def known(pipe: Pipe) -> list[int | None]:
    """Of the cache at the end of a pipe; None: not known."""
    return [int(word) - 1 if word else None for word in pipe._stage.kept.cache._learned_lengths()]


ALL = [count(n) for n in range(N)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", [None, "cost", "lru"])
def test_who_reads_a_list_learns_its_length(workers: int, policy: Any):
    pipe = source(range(N)).flat_map(items).cache("8MiB", policy=policy)
    loader = Loader(pipe.shuffle(seed=1).batch(7), num_workers=workers)
    assert known(pipe) == [None] * N
    for _ in range(2):  # misses, and hits
        assert sum(len(batch) for batch in loader) == sum(ALL)
        assert known(pipe) == ALL
    cache = pipe._stage.kept.cache
    for n in range(N):
        cache._learn_length(n, 99)
    assert sum(len(batch) for batch in loader) == sum(ALL)
    assert cache.stats().hits >= 2 * N
    assert known(pipe) == ALL


@pytest.mark.parametrize("policy", [None, "lru"])
def test_lengths_of_lists_that_do_not_fit_or_were_evicted(policy: Any):
    pipe = source(range(N)).flat_map(large).cache("6MiB", policy=policy)
    assert sum(1 for _ in pipe) == sum(ALL)
    stats = pipe._stage.kept.cache.stats()
    assert stats.ready < N
    assert stats.evicted > 0 if policy else stats.full > 0
    assert known(pipe) == ALL


def test_a_list_larger_than_the_cache_has_a_length():
    pipe = source([1, 300, 2]).flat_map(lambda n: [np.zeros(n * BYTES, np.uint8)] * n).cache("6MiB")
    for _ in zip(range(2), pipe):
        pass
    assert known(pipe) == [1, 300, None]


def test_lists_with_a_bad_item_and_random_ones_have_none():
    def torn(n: int) -> int:
        if n == 3:
            raise BadSampleError("it is torn")
        return n

    pipe = source(range(N)).flat_map(items).map(torn).cache("8MiB")
    assert sum(len(batch) for batch in Loader(pipe.batch(7), bad_samples="skip")) == sum(ALL) - ALL[3]
    assert known(pipe) == [*ALL[:3], None, *ALL[4:]]
    pipe = source(range(N)).flat_map(items).cache("8MiB", allow_random=True)
    assert sum(1 for _ in pipe) == sum(ALL)
    assert known(pipe) == [None] * N


def deadly(n: int) -> Any:
    """Ends its process in the middle of a list, if it is told to."""
    for k in range(count(n)):
        if n == int(os.environ.get("KILLED_AT", "-1")) and k == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield n


def read_part(name: str, first: int, at: int) -> None:
    """Reads every second list; is killed at one."""
    pipe = source(range(N)).flat_map(deadly).cache("8MiB", name=name)
    rows = pipe._stage.rows
    os.environ["KILLED_AT"] = str(at)
    visits = [pipe._stage.visit_of(n) for n in range(first, N, 2)]
    assert len(list(pipe._stage.items(visits, Window()))) == sum(ALL[first::2])
    rows.cache.close()


def test_processes_learn_for_each_other_and_a_killed_one_leaves_what_it_had_learned():
    name, context = f"lengths-{os.getpid()}", multiprocessing.get_context("spawn")
    killed = next(n for n in range(31, N, 2) if count(n) > 1)
    pipe = source(range(N)).flat_map(deadly).cache("8MiB", name=name)
    try:
        cache = pipe._stage.kept.cache
        dying = context.Process(target=read_part, args=(name, 1, killed))
        living = context.Process(target=read_part, args=(name, 0, -1))
        for process in (dying, living):
            process.start()
        for process in (dying, living):
            process.join(300)
        assert (dying.exitcode, living.exitcode) == (-signal.SIGKILL, 0)
        assert known(pipe) == [ALL[n] if n % 2 == 0 or n < killed else None for n in range(N)]
        assert sum(1 for _ in pipe) == sum(ALL)
        assert known(pipe) == ALL
        with Cache.attach(name, read_only=True) as other:
            assert (other._learned_lengths() == np.array(ALL) + 1).all()
            assert not other._learns
            with pytest.raises(ReadOnlyError):
                other._learn_length(0, 1)
        cache.clear()
        assert known(pipe) == [None] * N
    finally:
        Cache.attach(name).unlink()


def test_what_is_refused_and_what_is_impossible():
    for pipe in (source(range(N)).cache("8MiB"), source(range(N)).map(str).cache("8MiB", variable=True)):
        list(pipe)
        cache = pipe._stage.kept.cache
        assert not cache._learns
        assert not cache._learned_lengths().any()
        with pytest.raises(InvalidError):
            cache._learn_length(0, 1)
    with pytest.raises(InvalidError, match="lengths: only a variable-size cache"):
        opening.create(Cache, None, None, samples=9, sample_bytes=8, policy="first-come", lengths=True)
    name = f"lengths-words-{os.getpid()}"
    options = {"samples": 4, "size": "8MiB", "variable": True, "policy": "first-come", "lengths": True}
    with opening.create(Cache, name, None, **options) as cache:
        try:
            for i, items in ((4, 0), (-1, 0)):
                with pytest.raises(SampleIndexError):
                    cache._learn_length(i, items)
            with pytest.raises(InvalidError):
                cache._learn_length(0, 2**32)
            for i, items in enumerate((0, 1, 2**32 - 1, 5)):
                cache._learn_length(i, items)
            assert cache._learned_lengths().tolist() == [1, 2, 2**32, 6]
            with open(cache.path or "", "r+b") as file:
                offset = struct.unpack("<Q", os.pread(file.fileno(), 8, 176))[0]
                os.pwrite(file.fileno(), struct.pack("<3Q", 2**32 + 1, 2**64 - 1, 1 << 63), offset)
            assert cache._learned_lengths().tolist() == [0, 0, 0, 6]
            cache._learn_length(1, 3)
            assert cache._learned_lengths().tolist() == [0, 4, 0, 6]
        finally:
            cache.unlink()
