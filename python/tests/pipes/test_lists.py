"""How a loader reads pipes without an index: errors, killed workers, states, ranks, and seeds of global generators."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import pickle
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chains import CHAINS, noisy, tagged
from helpers import outcomes, python
from programs import Program
from test_pipes import SEED, expected, items_of, read

import stocached
from stocached import InvalidError, Loader, Pipe, StateError, source
from stocached._loader import columns
from stocached._workers import serialization
from stocached._workers.task_queue import PLACE, TaskQueue

ELEMENTS = source(list(range(40)))
LISTS = ELEMENTS.flat_map(tagged)


def batches(pipe: Pipe, **arguments: Any) -> list[Any]:
    loader = Loader(pipe, seed=SEED, **arguments)
    made = [items_of(batch) for batch in loader]
    loader.close()
    return made


# ------------------------------------------------------------ errors


def fails(x: int) -> Iterator[int]:
    for k in range(4):
        if x % 10 == 7 and k == 2:
            raise KeyError(f"element {x} has no part {k}")
        yield 10 * x + k


def read_on(loader: Loader) -> list[Any]:
    """Batches and errors, up to the end."""
    return [said(one) if isinstance(one, KeyError) else one.tolist() for one in outcomes(iter(loader), KeyError)]


def said(error: KeyError) -> str:
    notes = "\n".join([str(error), *getattr(error, "__notes__", [])])
    return notes[notes.index("stocached: in") :].splitlines()[0]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_an_error_comes_after_the_items_before_it_and_the_loader_goes_on(workers: int):
    pipe = ELEMENTS.flat_map(fails).map(double).batch(8)
    made = read_on(Loader(pipe, num_workers=workers))
    assert made == read_on(Loader(pipe))
    errors = [one for one in made if isinstance(one, str)]
    assert [f"element {x} of source" in error for x, error in zip((7, 17, 27, 37), errors)] == [True] * 4
    assert all(".flat_map(fails) in test_lists.py, line" in error for error in errors)
    assert sum(len(one) for one in made if isinstance(one, list)) == 36 * 4 + 4 * 2


def double(x: int) -> int:
    return 2 * x


def unreadable(x: int) -> int:
    if x % 100 == 1:
        raise stocached.BadSampleError(f"{x} cannot be read")
    return x


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "pipe",
    [LISTS.map(unreadable), LISTS.map(unreadable).filter(bool), LISTS.flat_map(lambda x: [unreadable(x)])],
    ids=["last map", "map", "flat_map"],
)
def test_bad_samples_are_left_out_at_each_stage(pipe: Pipe, workers: int):
    loader = Loader(pipe.batch(8), num_workers=workers, bad_samples="skip")
    with pytest.warns(UserWarning, match="cannot be read"):
        made = [x for batch in loader for x in batch.tolist()]
    good = [x for x in LISTS if x % 100 != 1]
    assert [x for x in made if x] == [x for x in good if x]
    assert loader.stats().bad_samples == sum(x % 100 == 1 for x in LISTS)
    for bad in loader.stats().bad:
        assert str(bad) == f"{bad.index}: {bad.reason}"
        assert bad.index.startswith("element ")
    with pytest.raises(stocached.BadSampleError):
        list(Loader(pipe.batch(8), num_workers=workers))


def stops(x: int) -> int:
    return x if x != 701 else next(iter(()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "pipe", [LISTS.map(stops), LISTS.map(double).map(abs).map(lambda x: stops(x // 2)), LISTS.filter(stops)]
)
def test_a_function_that_raises_stop_iteration_ends_no_epoch(pipe: Pipe, workers: int):
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Loader(pipe.batch(8), num_workers=workers))
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Loader(source([700, 701]).map(stops).batch(1), num_workers=workers))
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(Loader(LISTS.batch(8, collate=lambda items: next(iter(()))), num_workers=workers))


def drawn_and_bad(x: int) -> int:
    random.random()
    return unreadable(x)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_of_functions_that_draw_and_of_sides_cost_no_other_item(workers: int):
    good = [x for x in LISTS if x % 100 != 1]
    with pytest.warns(UserWarning, match="cannot be read"):
        loader = Loader(LISTS.map(drawn_and_bad).batch(8), num_workers=workers, bad_samples="skip")
        assert [x for batch in loader for x in batch.tolist()] == good
        loader = Loader(LISTS.zip(LISTS.map(unreadable)).batch(8), num_workers=workers, bad_samples="skip")
        assert [x for batch in loader for x in batch[0].tolist()] == good


def never_readable(x: int) -> int:
    raise stocached.BadSampleError(f"{x} is damaged")


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_after_the_last_batch_are_counted(workers: int):
    last = ELEMENTS.map(lambda x: x if x < 32 else never_readable(x)).filter(lambda x: True)
    loader = Loader(last.batch(8), num_workers=workers, bad_samples="skip")
    with pytest.warns(UserWarning, match="is damaged"):
        assert len(list(loader)) == 4
    assert loader.stats().bad_samples == 8
    with pytest.raises(stocached.BadSampleError, match="all samples"), pytest.warns(UserWarning, match="is damaged"):
        list(Loader(ELEMENTS.flat_map(never_readable).batch(8), num_workers=workers, bad_samples="skip"))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("given", [8, 24, 40, 56])
def test_a_state_of_another_rank_counts_over_errors(workers: int, given: int):
    pipe = ELEMENTS.flat_map(fails).batch(8)
    whole = [x for one in read_on(Loader(pipe, rank=1, world_size=2)) if isinstance(one, list) for x in one]
    loader = Loader(pipe, rank=1, world_size=2, num_workers=workers)
    state = {**loader.state_dict(), "position": given, "window": 0, "skip": given, "span": 1, "ranks": [0, 2]}
    loader.load_state_dict(state)
    made = read_on(loader)
    assert [x for one in made if isinstance(one, list) for x in one] == whole[given:]
    loader.load_state_dict(state)
    iteration = iter(loader)
    with contextlib.suppress(KeyError):
        next(iteration)
        iteration = iter(())
    next(iteration, None)
    again = Loader(pipe, rank=1, world_size=2, num_workers=1 - min(workers, 1))
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [x for one in read_on(again) if isinstance(one, list) for x in one] == whole[given + 8 :]


# ------------------------------------------------------------ items of all kinds


def of_kinds(x: int) -> Iterator[Any]:
    """Items that are alike within some elements, and differ between others."""
    for k in range(x % 9):
        yield {"x": x, "name": f"{x}-{k}", "both": (float(k), np.full(3, k, np.int16)), "flag": k > 2, "raw": b"%d" % k}


def by_element(x: int) -> Iterator[Any]:
    for k in range(7):
        yield (k, 0.5 * k, np.float32(k), np.full((2, 3), k, np.uint8), str(k), [k, k + 1], None)[x // 6 % 7]


def of_odd_kinds(x: int) -> Iterator[Any]:
    """Kinds whose columns are not what they seem."""
    for k in range(7):
        one = k if x % 8 < 4 else float(k)
        pair = np.zeros((), [("a", np.int32)] if x % 2 else [("b", np.int32)])
        yield {
            "x": one,
            "meta": {},
            "none": (),
            "key": {1 if x % 2 else True: k},
            "large": 2**63 + k if k == 5 else k,
            "pair": pair,
        }


def of_numbers(x: int) -> Iterator[Any]:
    yield from (x if k % 5 else x + 0.5 for k in range(x % 9))


def of_numpy(x: int) -> Iterator[Any]:
    """Rows of a table: numbers of each type, and nulls in some elements."""
    for k in range(x % 9):
        row = {code: np.dtype(code).type(k) for code in "?bhilBHILefd"}
        yield {**row, "m": np.datetime64(k, "s")} if x % 7 == 3 else {**row, "d": None} if x % 5 == 2 else row


def test_rows_of_numbers_of_numpy_are_columns():
    assert columns.signature([*of_numpy(8)]) is not None


def sums(item: Any) -> Any:
    return item


@pytest.mark.parametrize(
    ("size", "function"),
    [(1, of_kinds), (1, by_element), (7, of_kinds), (7, by_element), (7, of_numbers), (7, of_odd_kinds), (7, of_numpy)],
)
def test_batches_of_any_items_are_those_of_one_process(function: Any, size: int):
    """Workers send batches of items that are alike, and entries of others; batches are made of parts of both."""
    for pipe in (ELEMENTS.flat_map(function), ELEMENTS.flat_map(function).map(sums)):
        alone, several = (read_all(Loader(pipe.batch(size), num_workers=workers)) for workers in (0, 3))
        assert repr(several) == repr(alone)
        assert [kinds_of(batch) for batch in several] == [kinds_of(batch) for batch in alone]


def read_all(loader: Any) -> list[Any]:
    """Batches and errors: some items make no batch."""
    found = outcomes(iter(loader), (ValueError, TypeError, RuntimeError))
    return [str(one).splitlines()[0] if isinstance(one, Exception) else one for one in found]


def kinds_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: kinds_of(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [kinds_of(one) for one in value]
    return type(value), getattr(value, "dtype", None), getattr(value, "shape", None)


# ------------------------------------------------------------ workers


def endless(x: int) -> Iterator[int]:
    return itertools.count(1000 * x)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_element_without_an_end_is_read_piece_by_piece(workers: int):
    loader = Loader(source([3, 4]).flat_map(endless).batch(10), num_workers=workers)
    for number, batch in enumerate(itertools.islice(loader, 200)):
        assert batch.tolist() == list(range(3000 + 10 * number, 3010 + 10 * number))


def large(x: int) -> Iterator[Any]:
    for k in range(20):
        yield np.full(1 << 20, (x * 20 + k) % 256, np.uint8)


def test_items_read_ahead_take_no_more_memory_than_allowed():
    """The workers read 400 MB as fast as they can, and the training loop takes its time."""
    loader = Loader(source(list(range(20))).flat_map(large).batch(4), num_workers=2, prefetch_bytes="16MiB")
    most = 0
    for number, batch in enumerate(loader):
        assert batch[:, -1].tolist() == [(4 * number + k) % 256 for k in range(4)]
        iteration = loader._current() if loader._current is not None else None
        assert iteration is not None
        most = max(most, os.fstat(iteration._runtime.task_queue.overflow.fd).st_blocks * 512)
    # 16 MiB and two answers of at most 20, in places twice as large at most, and what waits for other answers
    assert 4 << 20 < most <= (2 * (16 + 2 * 20) + 128) << 20


def test_the_memory_of_an_epoch_that_is_left_is_given_back():
    loader = Loader(source(list(range(20))).flat_map(large).batch(4), num_workers=2, persistent_workers=True)
    for _ in range(5):
        for batch in itertools.islice(loader, 3):
            assert len(batch) == 4
    assert [int(batch[0, 0]) for batch in loader] == [4 * number % 256 for number in range(100)]
    kept = loader._executor.kept
    assert kept is not None
    kept._reap()
    overflow = kept.task_queue.overflow.fd
    assert os.fstat(overflow).st_blocks * 512 < 129 << 20  # what waits for other answers
    loader.close()
    assert os.fstat(overflow).st_blocks * 512 < 1 << 20


def faults(x: int) -> list[int]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(10 << 20) for _ in range(5)]
    for block in blocks:
        block[::4096] = block[::4096]
    return [resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before]


def test_worker_processes_keep_memory_that_is_free():
    (made,) = Loader(source(list(range(6))).flat_map(faults).batch(6), num_workers=1)
    assert min(made) < 6_400  # 12,800 if the memory is new; a heap with holes may take some


@pytest.mark.parametrize(
    "items",
    [
        "source([*range(32)]).flat_map(lambda k: [bytes(16384) + b'%d' % k for _ in range(100)]).shuffle(seed=1, window=8)",
        "Loader(source([*range(512)]).map(lambda k: bytes(102400) + b'%d' % k).batch(64))",
    ],
)
def test_the_memory_of_a_window_or_batch_serves_the_next_one(items: str):
    program = f"""if True:
        import resource
        from stocached import Loader, source
        items = {items}
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for item in items:
                pass
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    assert int(python(program, timeout=120).stdout) < 1000  # 3,000 and 6,000 by itself


def test_memory_of_the_overflow_is_lent_to_the_next_answers():
    queue = TaskQueue(16)
    worker = pickle.loads(pickle.dumps(queue))  # a process of its own, as it were

    def held() -> int:
        return os.fstat(queue.overflow.fd).st_blocks * 512

    def sent(number: int, lent: int, size: int = 3 << 20) -> tuple[tuple[int, int], Any]:
        value = np.full(size, number, np.uint8), b"%d" % number
        return serialization.send(worker, value, lent), value

    def received(place: tuple[int, int]) -> Any:
        return serialization.receive(queue, *place)[0]

    first, other = queue.lend(), queue.lend()
    places = [sent(number, lent) for number, lent in enumerate((first, other, first))]
    assert len({place for place, _ in places}) == 3
    kept = [(received(place), value) for place, value in places]
    assert held() < 10 << 20
    queue.unlend(first)
    for number in range(10, 20):  # as often as it is lent, while `other` is not
        lent = queue.lend()
        assert lent == first
        again = sent(number, lent)
        kept.append((received(again[0]), again[1]))
        queue.unlend(lent)
    assert held() < 10 << 20  # no new memory
    for made, value in kept:  # what a program keeps is its own
        assert made[0].tobytes() == value[0].tobytes()
        assert made[1] == value[1]
    assert received(places[1][0])[1] == b"1"
    with pytest.raises(KeyError):
        queue.unlend(first)  # nobody has it

    lent = queue.lend()  # too small for all: the others lie elsewhere, until they are read
    places = [sent(number, lent, 40 << 20) for number in range(2)]
    assert [place[0] // PLACE == lent // PLACE for place, _ in places] == [True, False]
    assert [received(place)[1] for place, _ in places] == [b"0", b"1"]
    assert held() < 46 << 20
    queue.unlend(lent)
    queue.unlend(other)

    lents = [queue.lend() for _ in range(4)]
    for lent in lents:
        received(sent(0, lent, 40 << 20)[0])
        queue.unlend(lent)
    assert 100 << 20 < held() < (128 << 20) + (1 << 16)
    queue.free_spare()
    assert held() < 1 << 16

    lents = [queue.lend() for _ in range(1100)]  # for answers that wait to be read
    assert set(lents[1024:]) == {0}  # to map a place for each would reach the kernel's limit
    for lent in lents:
        queue.unlend(lent)
    assert queue.lend()


@pytest.mark.parametrize(
    ("limit", "bytes_", "told"),
    [(32, 1000, ""), (1024, 12_000_000, ""), (32, 1_000_000, "may write files of 33554432 bytes at most")],
)
def test_where_files_must_be_short(limit: int, bytes_: int, told: str):
    """limit: in MiB. Places are used again, so an epoch may have more bytes than a file."""
    program = f"""if True:
        import resource
        from stocached import Loader, SystemCallError
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit} << 20,) * 2)
        items = [bytes([k]) * {bytes_} for k in range(95)]
        loader = Loader(items, 2, num_workers=1)
        try:
            assert [item for batch in loader for item in batch] == items
        except SystemCallError as error:
            assert {told!r} and {told!r} in str(error), error
        else:
            assert not {told!r}
    """
    python(program, timeout=120)


def slow_then_large(x: int) -> Iterator[Any]:
    time.sleep(0.02)
    yield from (bytes([x]) * (6 << 20) for _ in range(2))


def test_a_run_is_as_long_as_all_its_answers_take():
    pipe = source(list(range(12))).flat_map(slow_then_large).shuffle(window=1).batch(1)
    iterator = iter(Loader(pipe, num_workers=2))
    assert sorted(batch[0][0] for batch in iterator) == sorted([*range(12)] * 2)
    assert iterator._length == 1  # so that both workers read windows; the last answer of one is quick


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_read_the_same(method: str):
    pipe = LISTS.map(noisy).shuffle(window=9).map(noisy).batch(8)
    assert batches(pipe, num_workers=2, multiprocessing_context=method) == batches(pipe)


def slow_parts(x: int) -> Iterator[int]:
    for k in range(x % 5):
        os.stat("/")
        yield 100 * x + k


def kills(x: int) -> int:
    """Ends its process four times, each time at another item: at the fifth death in one task, no other worker is started."""
    path = Path(os.environ["STOCACHED_TEST_KILLS"])
    if x % 9000 == 201:
        try:
            (path / str(x)).touch(exist_ok=False)
        except FileExistsError:
            return x
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@pytest.mark.parametrize("below", [True, False])
def test_killed_workers_lose_and_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: bool):
    """They are killed while they read items, and while they make batches."""
    monkeypatch.setenv("STOCACHED_TEST_KILLS", str(tmp_path))
    elements = source(list(range(300))).shuffle(seed=1).flat_map(slow_parts)
    pipe = (elements.map(kills) if below else elements.filter(kills_and_stays)).batch(7)
    loader = Loader(pipe, seed=SEED, num_workers=3, restart_workers=True)
    made = [x for batch in loader for x in batch.tolist()]
    assert len(list(tmp_path.iterdir())) == 4
    assert made == [x for batch in Loader(elements.batch(7), seed=SEED) for x in batch.tolist()]


def kills_in_large(x: int) -> Iterator[Any]:
    for k, item in enumerate(large(x)):
        kills(201 + 9000 * (x // 5) if x % 5 == 3 and k == 18 else 0)
        yield item


def test_memory_of_answers_that_killed_workers_had_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOCACHED_TEST_KILLS", str(tmp_path))
    pipe = source(list(range(20))).flat_map(kills_in_large).batch(4)
    loader = Loader(pipe, num_workers=2, restart_workers=True, prefetch_bytes="16MiB")
    for number, batch in enumerate(loader):
        assert all((row == (4 * number + k) % 256).all() for k, row in enumerate(batch))
    assert len(list(tmp_path.iterdir())) == 4


def kills_and_stays(x: int) -> bool:
    kills(x)
    return True


def drawn_by_modules(x: int) -> Iterator[Any]:
    for k in range(x % 4):
        yield x, k, random.randrange(1000), int(np.random.randint(1000))


def drawn_below(item: Any) -> Any:
    return (*item, random.randrange(1000))


@pytest.mark.parametrize("chain", ["read", "made", "both", "cached"])
def test_global_generators_are_seeded_for_each_element_and_item(chain: str):
    elements = LISTS.cache("8MiB") if chain == "cached" else ELEMENTS
    pipe = elements.flat_map(drawn_by_modules if chain != "made" else lambda x: [(x, k) for k in range(x % 4)])
    if chain in ("made", "both"):
        pipe = pipe.map(drawn_below)
    one = batches(pipe.batch(5), num_workers=1)
    assert batches(pipe.batch(5), num_workers=3) == one
    numbers = [item[-1] for batch in one for item in batch]
    assert len(set(numbers)) > 0.9 * len(numbers)


# ------------------------------------------------------------ ranks and states


def test_windows_become_smaller_if_ranks_would_have_none():
    pipe = LISTS.shuffle()
    alone = sorted(x for batch in batches(pipe.batch(4)) for x in batch)
    shares = [[x for batch in batches(pipe.batch(4), rank=r, world_size=4) for x in batch] for r in range(4)]
    assert all(shares)
    loader = Loader(pipe.batch(4), rank=1, world_size=4)
    next(iter(loader))
    assert loader.state_dict()["span"] == 40 // 16
    assert sorted(itertools.chain.from_iterable(shares)) == alone


@pytest.mark.parametrize("name", ["flat_map, generator", "window, flat_map below", "mix, windows", "cache of lists"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_a_rank_continues_with_that_rank_and_with_the_others(name: str, workers: int):
    pipe = CHAINS[name]().pipe.batch(2)
    for rank, other in ((0, 0), (0, 1), (1, 1), (1, 0)):
        loader = Loader(pipe, seed=SEED, rank=rank, world_size=2)
        iteration = iter(loader)
        next(iteration), next(iteration)
        state = json.loads(json.dumps(loader.state_dict()))
        again = Loader(pipe, seed=SEED, rank=other, world_size=2, num_workers=workers)
        again.load_state_dict(state)
        assert read(again) == expected(CHAINS[name](), 0, rank=other, ranks=2, size=2)[2:]


def test_another_number_of_ranks_is_refused_within_an_epoch():
    loader = Loader(LISTS.batch(4), seed=SEED, rank=0, world_size=2)
    start = loader.state_dict()
    next(iter(loader))
    other = Loader(LISTS.batch(4), seed=SEED, rank=0, world_size=3)
    other.load_state_dict(start)
    with pytest.raises(StateError, match="world_size=2, and this job has 3; ranks share the windows"):
        other.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="windows of 7 elements, this pipe has windows of 1"):
        loader.load_state_dict(loader.state_dict() | {"span": 7})


_GO_ON = """
import json, sys
sys.path[:0] = {path!r}
from chains import CHAINS
from stocached import Loader
from test_pipes import read
loader = Loader(CHAINS[{name!r}]().pipe.batch(4), seed={seed}, num_workers={workers})
loader.load_state_dict(json.loads({state!r}))
print(json.dumps(read(loader)))
"""


def test_another_process_continues_from_a_state():
    name = "join, cache"
    whole, states = expected(CHAINS[name](), 0), []
    loader = Loader(CHAINS[name]().pipe.batch(4), seed=SEED, num_workers=2)
    for _ in loader:
        states.append(json.dumps(loader.state_dict()))
    for at, workers in ((0, 3), (len(whole) // 2, 0), (len(whole) - 2, 1)):
        path = [path for path in sys.path if path.endswith(("tests", "pipes"))]
        program = _GO_ON.format(path=path, name=name, seed=SEED, workers=workers, state=states[at])
        output, error = Program(program).communicate()
        assert json.loads(output or "null") == whole[at + 1 :], error


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ELEMENTS.shuffle(window=4), "all are shuffled"),
        (lambda: ELEMENTS.shuffle().flat_map(tagged, count=3), "shuffle below it"),
        (lambda: LISTS.flat_map(tagged, count=3), "leave count= out"),
        (lambda: ELEMENTS.flat_map(tagged, count=[1, 2]), "2 numbers, and there are 40 elements"),
        (lambda: LISTS.shuffle(window=0), "window=0"),
        (lambda: LISTS.shuffle(seed=1).map(double).shuffle(seed=2), "below .shuffle"),
        (lambda: LISTS.shuffle().cache("8MiB"), "mixes the items"),
        (lambda: LISTS.zip(source(list(range(40))).flat_map(tagged)), "same source object"),
        (lambda: stocached.mix([LISTS, LISTS], stop="all"), 'stop="first"'),
        (lambda: source(tagged), "parts="),
        (lambda: source([1], parts=2), "function of a part"),
        (lambda: source(tagged, parts=0), "parts=0"),
        (lambda: Loader(LISTS.batch(2), ends="pad", rank=0, world_size=2), 'ends="pad" needs an index'),
        (lambda: Loader(LISTS.batch(2), affinity="node"), "affinity= needs an index"),
    ],
)
def test_wrong_chains_and_arguments_are_refused(make: Any, words: str):
    with pytest.raises(InvalidError, match=words):
        make()


def test_a_wrong_count_is_an_error_that_names_the_element():
    with pytest.raises(InvalidError, match=r"element 1 of source\(list, 40 elements\) has 1 items, and count= says 3"):
        ELEMENTS.flat_map(tagged, count=3)[3]


def test_lists_of_unequal_lengths_are_not_zipped():
    base = source([1, 2, 3])
    with pytest.raises(InvalidError, match="1, 2 items of element 0"):
        list(base.flat_map(lambda x: [x]).zip(base.flat_map(lambda x: [x, x])))


def test_a_loader_without_a_length_says_what_gives_one():
    loader = Loader(LISTS.batch(4), num_workers=2)
    with pytest.raises(TypeError, match="count="):
        len(loader)
    assert len(Loader(ELEMENTS.flat_map(lambda x: [x, x], count=2).batch(8))) == 10


def test_only_the_last_batch_is_short_and_drop_last_drops_it():
    for workers in (0, 2):
        sizes = list(map(len, batches(LISTS.batch(7), num_workers=workers)))
        assert set(sizes[:-1]) == {7}
        assert sizes[-1] == 80 % 7
        assert len(batches(LISTS.batch(7, drop_last=True), num_workers=workers)) == 80 // 7


def test_a_batch_of_more_than_may_be_read_ahead_comes():
    """Its items are of several runs, and each of them takes more memory than allowed."""
    pipe = source(list(range(20))).flat_map(large)
    made = [batch[:, 0].tolist() for batch in Loader(pipe.batch(64), num_workers=3, prefetch_bytes="1MiB")]
    assert [x for batch in made for x in batch] == [k % 256 for k in range(400)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_without_items_warns_with_the_stage_and_its_counts(workers: int):
    pipe = LISTS.filter(never).map(str)
    loader = Loader(pipe.batch(4), num_workers=workers)
    for epoch in range(2):
        message = rf"^stocached: epoch {epoch} has no batch: .filter\(never\) gave none of the 80 items that it got$"
        with pytest.warns(UserWarning, match=message) as seen:
            assert list(loader) == []
        ours = [one for one in seen if one.category is UserWarning]  # Python 3.12 warns of pytest-xdist's thread
        assert [Path(one.filename).name for one in ours] == ["test_lists.py"]
    loader.close()
    assert not list(Loader(LISTS.batch(100, drop_last=True), num_workers=workers))  # as the program asks for it


def never(item: Any) -> bool:
    return False


class Repeats:
    def __call__(self, x: int) -> list[int]:
        return [x] * 3


@pytest.mark.parametrize("kind", ["partial", "object"])
def test_a_state_fits_a_chain_whose_functions_have_other_addresses(kind: str):
    """As in another process."""

    def pipe() -> Pipe:
        def repeats(times: int, x: int) -> list[int]:
            return [x] * times

        function = functools.partial(repeats, 3) if kind == "partial" else Repeats()
        functions.append(function)
        return ELEMENTS.flat_map(function).batch(4)

    functions: list[Any] = []
    loader, again = Loader(pipe()), Loader(pipe())
    assert repr(functions[0]) != repr(functions[1])
    next(iter(loader))
    again.load_state_dict(loader.state_dict())
    assert next(iter(again)).tolist() == [1, 1, 2, 2]


class Sends:
    """Gives its bytes to a pickle as they are."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Sends, (pickle.PickleBuffer(self.data),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sends) and bytes(self.data) == bytes(other.data)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("make", [lambda data: np.frombuffer(data, np.uint8).reshape(-1, 4).T, Sends, bytearray])
def test_workers_send_large_bytes_that_cannot_be_written_to(make: Callable[[bytes], Any]):
    """C's pickler gives such memory to its file as it is."""
    items = [make(bytes(range(256)) * (1 << 10)), make(b"cold")] * 3
    pipe = source(range(3)).flat_map(lambda _: items[:2]).batch(2, collate=list)
    given = [item for batch in Loader(pipe, num_workers=1) for item in batch]
    assert all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in zip(given, items, strict=True))


def test_a_generator_of_a_flat_map_is_its_own():
    """Stages below draw between its draws, in any kind of pipe."""

    def read(file: int, generator: Any) -> Any:
        for _ in range(4):
            yield generator.random()

    plain = source(range(5)).flat_map(read)
    drawing = plain.map(lambda x, generator: (x, generator.random()))
    assert [x for x, _ in drawing] == list(plain)
