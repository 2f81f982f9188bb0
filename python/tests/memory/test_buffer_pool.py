"""Arrays are used again when no reference to them is left, and never before."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from processes import in_threads

from stocached._memory import buffer_pool
from stocached._memory.buffer_pool import BufferPool


def make() -> BufferPool:
    return BufferPool(lambda: np.empty(1000, np.uint8), 1000)


def test_what_is_dropped_comes_again():
    pool = make()
    first = pool.take()[1]
    assert {pool.take()[1] for _ in range(10)} == {first}
    array, address = pool.take()
    assert array.ctypes.data == address == first


def test_what_is_held_does_not():
    pool = make()
    arrays = [pool.take()[0] for _ in range(50)]
    views = [array[5:10] for array in arrays]
    buffers = [memoryview(array) for array in arrays]
    addresses = {array.ctypes.data for array in arrays}
    assert len(addresses) == 50
    del arrays
    assert pool.take()[1] not in addresses
    del views
    assert pool.take()[1] not in addresses
    del buffers
    again = [pool.take() for _ in range(60)]
    assert {address for _, address in again} >= addresses


def test_bounded():
    pool = BufferPool(lambda: np.empty(2**24, np.uint8), 2**24)
    arrays = [pool.take()[0] for _ in range(10)]
    assert len(pool._kept) == 4
    del arrays
    pool = BufferPool(lambda: np.empty(2**27, np.uint8), 2**27)
    pool.take()
    assert pool._kept == []


def test_a_pair_that_is_held_holds_its_array():
    pool = make()
    fresh = pool.take()
    assert pool.take()[0] is not fresh[0]
    used = pool.take()
    assert pool.take()[0] is not used[0]


def test_another_thread_at_any_step():
    # Another thread takes an array while this one does so. Here this thread does it itself, between
    # two lines.
    for step in range(20):
        # keeps one array, so each take replaces it
        pool = BufferPool(lambda: np.empty(10, np.uint8), buffer_pool._PER_POOL)
        held = pool.take()[0]
        others, lines = [], 0

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal lines
            if frame.f_code is not BufferPool.take.__code__:
                return None
            if event == "line":
                if lines == step:
                    others.append(pool.take()[0])
                lines += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            taken = pool.take()[0]
        finally:
            sys.settrace(before)
        assert taken is not held, step
        assert all(other is not held and other is not taken for other in others), step
        if lines <= step:
            break
    assert step > 5


def test_threads_never_share_one():
    pool = make()

    def work(me: int) -> None:
        held = []
        for turn in range(3000):
            array = pool.take()[0]
            array[:] = me
            held.append(array)
            if len(held) > 5:
                assert all((other == me).all() for other in held), turn
                held.clear()

    in_threads(6, work)
