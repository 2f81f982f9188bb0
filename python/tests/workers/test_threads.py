"""Our threads can be started and ended during any signal handler."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from helpers import python
from processes import until

from stocached._common import threads
from stocached._common.background import Background


def interrupted(step: int, call: Callable[[], Any]) -> bool:
    """Calls a function, with Ctrl-C before the bytecode instruction of that number. False: it has
    fewer instructions."""
    at = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal at
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            at += 1
            if at == step:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks for it before it traces
    gc.disable()  # Python drops what is raised while it calls those that watch its collector, such as hypothesis
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    assert at < step, f"Ctrl-C before instruction {step} was lost"
    return False


def gathering() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stocached background"]


def test_an_interrupt_at_every_step_of_the_start_of_the_gather_thread():
    for step in itertools.count(1):
        background = Background()
        hit = interrupted(step, lambda: background.put(lambda: None))
        background.close()
        until(lambda: not gathering(), "the thread has ended")
        if not hit:
            break
    assert step > 100  # the call was traced


def test_a_thread_whose_start_was_left_half_way_can_be_joined(monkeypatch):
    """The handler of another signal may raise while Thread.start waits. The thread then has a
    number, but has not said that it runs."""
    hold, numbered = threading.Event(), threading.Event()

    class Held(threading.Thread):
        def _set_ident(self) -> None:
            super()._set_ident()
            numbered.set()
            hold.wait()

    thread = Held(target=lambda: None, daemon=True)

    def interrupt(*_: Any) -> None:
        numbered.wait()
        raise SystemExit

    monkeypatch.setattr(thread._started, "wait", interrupt)
    with pytest.raises(SystemExit):
        threads.start(thread)
    threads.join(thread, 1)
    hold.set()
    until(lambda: thread.native_id is not None and not thread.is_alive(), "it has ended")


def test_a_storm_of_interrupts_ends_in_keyboard_interrupt_alone():
    """Ctrl-C interrupts each epoch at some point, often while the gather thread starts or ends."""
    program = """
    import random, signal, sys, time
    import numpy as np
    from stocached import Loader

    class Numbers:
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return np.full(1000, index)

    unraised = []  # interrupts in finalizers, which Python drops too
    sys.unraisablehook = lambda hooked: unraised.append(repr(hooked.exc_value))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    loader = Loader(Numbers(), 8, size="8MiB")
    assert sum(len(batch) for batch in loader) == 64
    start = time.monotonic()
    for batch in loader:
        pass
    longest, interrupts, draws = time.monotonic() - start, 0, random.Random(1)
    for _ in range(400):
        batches = None
        try:
            signal.setitimer(signal.ITIMER_REAL, draws.uniform(1e-6, longest))
            batches = iter(loader)
            for batch in batches:
                assert (batch.min(axis=1) == batch.max(axis=1)).all()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
        if batches is not None:
            batches.close()
    assert interrupts > 0
    assert set(unraised) <= {"KeyboardInterrupt()"}, unraised
    for _ in range(2):
        assert sorted(int(row[0]) for batch in loader for row in batch) == list(range(64))
    loader.close()
    """
    python(program)


def test_threads_are_counted_during_garbage_collection():
    """sys._current_frames waits for ever if it frees a threading.local. The collection comes at
    each of its allocations once."""
    python(
        """
        import gc, threading
        from stocached._common import threads

        class Node: pass

        gc.set_threshold(50, 1000, 1000)
        for n in range(120):
            gc.collect()
            node = Node()
            node.self, node.local = node, threading.local()
            node.local.x = 1
            del node
            keep = [[] for _ in range(n % 60)]
            assert threading.get_ident() in threads.running()
        assert gc.isenabled()
        """,
        timeout=240,
    )
