"""Workers of streams: at the same time within a batch, killed, hung, abandoned. Nothing that they
used stays."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
from multiprocessing import get_context

import numpy as np
import pytest
from processes import held, is_inside, limit, nothing_new, until
from stream_files import Files, collect, expected, kill, loader, pids, streams

from stocached import ClosedError, StreamError
from stocached._workers import processes

BOTH = pytest.mark.parametrize("of", [streams, loader], ids=["streams", "loader"])


class FourAtOnce(Files):
    """Items except the first of a file wait for three others that are read at the same time, and
    raise BrokenBarrierError if there are none."""

    def __init__(self, lengths):
        super().__init__(lengths)
        self.barrier = get_context("fork").Barrier(4, timeout=50)

    def __call__(self, file):
        for k, value in enumerate(super().__call__(file)):
            if k:  # the first item of the first row comes alone, because it defines the structure of items
                self.barrier.wait()
            yield value


def test_rows_of_a_batch_are_read_at_the_same_time():
    lengths = [20] * 8
    assert collect(streams(lengths, 8, num_workers=4, read=FourAtOnce(lengths), shuffle=False)) == expected(
        lengths, 8, shuffle=False
    )


class Counted(Files):
    """Counts the items that have been read."""

    def __init__(self, lengths):
        super().__init__(lengths)
        self.count = get_context("fork").Value("i", 0)

    def __call__(self, file):
        for value in super().__call__(file):
            with self.count:
                self.count.value += 1
            yield value


def test_rows_are_read_ahead_of_the_training_loop():
    lengths = [40] * 4
    read = Counted(lengths)
    batches = iter(streams(lengths, 4, num_workers=2, read=read, shuffle=False))
    next(batches)
    until(lambda: read.count.value >= 4 * 4, "three batches more are read ahead")
    assert collect(batches) == expected(lengths, 4, shuffle=False)[1:]


@BOTH
@pytest.mark.parametrize(
    ("how", "known"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGSEGV, True), ("exit", False)]
)
def test_a_killed_worker_is_named_with_its_file(how, known, of):
    def read(file):
        for k in range(10):
            if (file, k) == (5, 4):
                if how == "exit":
                    os._exit(7)
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # instead of pytest's faulthandler
                os.kill(os.getpid(), how)
            yield np.array([file, k])

    before = held()
    loader = of([10] * 8, 4, num_workers=2, read=read, shuffle=False, known=known)
    batches = iter(loader)
    pid = pids(batches)[1]
    with pytest.raises(StreamError) as caught:
        for _ in batches:
            pass
    expected_how = "exited with status 7" if how == "exit" else f"was killed by {how.name}"
    assert f"worker 1 (process {pid}) {expected_how} while it read file 5 (5) for row 1" in str(caught.value)
    assert caught.value.number == 5
    assert ("memory" in str(caught.value)) == (how == signal.SIGKILL)
    state = loader.state_dict()
    assert (state["epoch"], state["step"]) == (0, 14)
    again = of([10] * 8, 4, read=lambda file: (np.array([file, k]) for k in range(10)), shuffle=False, known=known)
    again.load_state_dict(state)
    batch = next(iter(again))
    assert (batch.files[1], batch.positions[1]) == (5, 4)
    del caught, _, loader, batches, again, batch
    nothing_new(before)


@BOTH
def test_killed_at_random_moments(of):
    """Each time the result is an error that names the worker, or all batches are right. It is
    quick, the state continues at the exact batch, and nothing stays."""
    lengths, rng, kills, batch, again = [5, 9, 2, 7] * 10, random.Random(7), 0, None, None
    want = expected(lengths, 4)
    before = held()
    for _ in range(int(os.environ.get("STOCACHED_TEST_KILLS", "12"))):
        loader = of(lengths, 4, num_workers=2)
        batches, found = iter(loader), []
        timer = threading.Timer(rng.random() * 0.05, kill, (rng.choice(pids(batches)),))
        timer.start()
        try:
            for batch in batches:
                found += collect([batch])
        except StreamError as error:
            if "was killed by SIGKILL" not in str(error):
                raise
            kills += 1
            assert loader.state_dict()["step"] == len(found)
            again = of(lengths, 4, num_workers=1)
            again.load_state_dict(loader.state_dict())
            found += collect(again)
        assert found == want
        begin = time.monotonic()
        del batches
        assert time.monotonic() - begin < limit(1)
        timer.cancel()
        timer.join()
    del loader, again, batch
    nothing_new(before)
    assert kills > 0


def test_a_worker_s_init_function():
    def init(number):
        os.environ["STREAM_WORKER"] = str(number)

    def read(file):
        yield np.array([file, int(os.environ["STREAM_WORKER"])])

    batch = next(iter(streams([1] * 4, 4, num_workers=2, read=read, shuffle=False, worker_init_fn=init)))
    assert batch.items.tolist() == [[0, 0], [1, 1], [2, 0], [3, 1]]

    def broken(number):
        raise OSError(f"no device for {number}")

    with pytest.raises(StreamError, match="(?s)worker 0 broke down:.*no device for 0"):
        next(iter(streams([1] * 4, 4, num_workers=1, worker_init_fn=broken)))


@BOTH
def test_timeout_names_the_late_worker(of):
    def read(file):
        yield np.zeros(3)
        time.sleep(60 if file == 2 else 0)
        yield np.zeros(3)

    before = held()
    for timeout in (0.5, 2.5, 12.5):  # longer than workers take to start, and to begin the next file
        batches = iter(of([2] * 4, 4, num_workers=2, read=read, shuffle=False, timeout=timeout))
        with contextlib.suppress(StreamError):
            next(batches)
            break
    begin = time.monotonic()
    with pytest.raises(StreamError, match=rf"no batch in timeout={timeout} s; worker 0 reads file 2 \(2\) for row 2"):
        next(batches)
    assert time.monotonic() - begin < timeout + limit(1)  # the sleeping worker was ended too
    assert next(batches, None) is None
    del batches
    nothing_new(before)


@BOTH
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_nothing_is_left_after_a_break(known, of):
    loader = of([50] * 8, 4, num_workers=2, known=known)
    rng = random.Random(3)
    collect(loader, 1)
    before = held()
    for _ in range(int(os.environ.get("STOCACHED_TEST_BREAKS", "4"))):
        most = rng.randrange(4)
        for k, _batch in enumerate(loader):
            if k >= most:
                break
        del _batch
        if rng.random() < 0.2:
            with pytest.raises(KeyError):
                for _batch in loader:
                    raise KeyError("in the training loop")
            del _batch
    nothing_new(before)


@BOTH
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_close_by_another_thread_ends_a_next_that_waits(known, of):
    def read(file):
        yield np.zeros(3)
        time.sleep(100)

    batches, first, raised = iter(of([2] * 4, 4, num_workers=2, read=read, known=known)), threading.Event(), []

    def wait():
        next(batches)
        first.set()
        with pytest.raises((StreamError, ClosedError)) as caught:
            next(batches)
        raised.append(str(caught.value))

    thread = threading.Thread(target=wait)
    thread.start()
    assert first.wait(60)
    until(lambda: is_inside(thread, "stocached"), "the second next() has begun")
    begin = time.monotonic()
    batches.close()
    assert time.monotonic() - begin < limit(5)
    thread.join()
    assert "closed" in raised[0]


@BOTH
def test_the_first_batch_of_each_epoch_waits_for_no_later_item(of):
    def read(file):
        yield np.zeros(3)
        time.sleep(100)  # longer than the timeout of 60 s

    loader = of([2] * 2, 2, num_workers=2, read=read)
    for _ in range(2):
        batches = iter(loader)
        next(batches)
        batches.close()


def test_an_iterator_without_references_is_closed_at_once():
    loader = streams([5] * 8, 4, num_workers=2)
    before = held()
    batches = iter(loader)
    batch = next(batches)
    assert held() - before
    begin = time.monotonic()
    del batches
    assert time.monotonic() - begin < limit(1)
    del batch
    loader.batch_pool = None
    assert not [one for one in held() - before if not isinstance(one, tuple)], "no process and no thread"
    batches = iter(loader)
    batches.itself = [batches]  # only the garbage collector finds this one
    next(batches)
    del batches
    gc.collect()
    loader.batch_pool = None
    nothing_new(before)


def test_end_of_a_worker_that_is_in_the_middle_of_an_item(tmp_path):
    def read(file):
        yield np.zeros(3)
        (tmp_path / str(os.getpid())).touch()
        time.sleep(100)

    batches = iter(streams([2] * 4, 4, num_workers=2, read=read))
    next(batches)
    until(lambda: len(list(tmp_path.iterdir())) == 2, "both are in the middle of an item")
    begin = time.monotonic()
    batches.close()
    assert time.monotonic() - begin < limit(1)
    assert next(batches, None) is None


def test_generators_in_workers_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_GRACE", 60.0)  # seconds that workers have for it

    def read(file):
        try:
            for _ in range(1000):
                yield np.zeros(3)
        finally:
            (tmp_path / f"{file}").touch()

    batches = iter(streams([2] * 4, 4, num_workers=2, read=read))
    next(batches)
    batches.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]


def test_a_forked_child_has_batches_of_its_own():
    """The memory of the parent's last iteration is not that of the child's next one."""

    def read(file):
        for _ in range(300):
            yield np.full(1000, os.getppid())

    loader = streams([300] * 4, 4, num_workers=2, read=read)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    status = 1
    try:
        if child == 0:
            with pytest.raises(ClosedError, match="belongs to the process that began it"):
                next(batches)
        batches.close()
        for batch in loader:
            assert (batch.items == os.getpid()).all()
        status = 0
    finally:
        if child == 0:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
