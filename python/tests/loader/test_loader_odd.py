"""The loader in rare cases: unusual samplers, batches larger than the task queue, states after
errors, small batch pools, and caches without gather."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest
from helpers import Of, outcomes
from loader_datasets import Numbers, check, read, sample
from processes import until

from stocached import InvalidError, Loader, source
from stocached._datasets.cached_samples import CachedSamples


def drained(batches):
    """The first sample of each batch, and the names of errors."""
    found = itertools.islice(outcomes(batches), 50)
    return [type(one).__name__ if isinstance(one, Exception) else check(one)[0] for one in found]


class Forward(Numbers):
    """Its attribute is not that of datasets of this package."""

    ahead = 5


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_may_have_an_attribute_named_ahead(workers):
    for dataset in (Forward(12), CachedSamples(Forward(12))):
        loader = Loader(dataset, batch_size=4, num_workers=workers)
        assert drained(iter(loader)) == [0, 4, 8]
        loader.close()


# ------------------------------------------------------------ caches without gather


def add(sample):
    return sample + 1000


def test_augment_of_the_dataset_is_not_lost_in_later_epochs():
    loader = Loader(CachedSamples(Numbers(16), size="16MiB", augment=add), 4, num_workers=2, persistent_workers=True)
    for _ in range(4):
        assert [batch[:, 0].tolist() for batch in loader] == [
            [1000 + k for k in range(at, at + 4)] for at in range(0, 16, 4)
        ]
    loader.close()


LONGER = Of(lambda index: np.full(4 + index % 3, index), 16)
NAMED = Of(lambda index: {"number": np.full(4, index), "name": f"number {index}"}, 16)


@pytest.mark.parametrize("dataset", [LONGER, NAMED], ids=["variable", "strings"])
def test_samples_that_are_no_columns_in_later_epochs(dataset):
    # the cache ends with the copy
    loader = Loader(copy.copy(dataset), 1, size="16MiB", num_workers=2, persistent_workers=True)
    first = [str(batch) for batch in loader]
    for _ in range(3):
        assert [str(batch) for batch in loader] == first
    loader.close()


# ------------------------------------------------------------ samplers


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [None, "16MiB"], ids=["uncached", "cached"])
def test_negative_indices_count_from_the_end(workers, size):
    both = Of(lambda index: sample(index % 8), 8)
    loader = Loader(both, 2, sampler=[-1, np.int64(-8), 3, -3], num_workers=workers, size=size)
    for _ in range(3):
        assert [check(batch) for batch in loader] == [[7, 0], [3, 5]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, np.stack], ids=["rows", "batches"])
@pytest.mark.parametrize("kind", [set, tuple, iter, np.array], ids=["set", "tuple", "iterator", "array"])
def test_batches_of_a_sampler_may_be_anything_that_can_be_iterated_over(workers, collate, kind):
    loader = Loader(
        Numbers(8), batch_sampler=[kind([1, 2]), kind([3]), kind([4, 5])], num_workers=workers, collate_fn=collate
    )
    assert [check(batch) for batch in loader] == [[1, 2], [3], [4, 5]]


def test_a_column_of_numbers_has_the_type_of_their_arrays():
    kinds = [int, bool, float, complex, np.uint8, np.int64, np.longlong, np.float16, np.complex64]
    columns, large = [[kind(1), kind(0)] for kind in kinds], 2**63
    columns += [
        [np.datetime64("2020"), np.datetime64("2021-02-03")],
        [large, large],
        [large, 1],
        [-large, large - 1],
        [1, True],
        [1, 2.5],
        [np.int8(3), np.int16(4)],
    ]
    columns += [[large * 2, 1]]  # numbers that make a column of objects
    for column in columns:
        (batch,) = Loader(column, 2)
        wanted = np.stack([np.asarray(number) for number in column])
        assert (batch.dtype, batch.tolist()) == (wanted.dtype, wanted.tolist()), column


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_that_are_arrays_reach_the_dataset_as_they_are(workers):
    pairs, sampler = Of(lambda pair: sample(int(sum(pair))), 8), [np.array([1, 2]), np.array([0, 4]), np.array([5, 0])]
    loader = Loader(pairs, 2, sampler=sampler, num_workers=workers)
    assert [check(batch) for batch in loader] == [[3, 4], [5]]


@pytest.mark.parametrize(
    ("size", "in_order", "count", "batch"),
    [(None, True, 5, 1500), ("16MiB", False, 3, 2100)],
    ids=["uncached, many of them", "cached, any order, one alone"],
)
def test_batches_that_the_board_has_no_room_for_at_once(count, batch, size, in_order):
    many = [list(range(at, at + batch)) for at in range(0, count * batch, batch)]
    small = Of(lambda index: np.array([index, -index]), count * batch)
    loader = Loader(small, batch_sampler=many, num_workers=3, prefetch_factor=1, size=size, in_order=in_order)
    batches = iter(loader)
    assert batches._runtime.task_queue._capacity == 4096
    got = [rows.tolist() for rows in batches]
    assert sorted(got) == [[[k, -k] for k in indices] for indices in many]
    assert not in_order or got == sorted(got)


@pytest.mark.parametrize(
    ("settings", "batch_size"),
    [
        *(({"size": "16MiB"}, size) for size in (100_000, 10**12, 2**62)),
        ({"num_workers": 2}, 2**62),
        ({"size": "16MiB", "num_workers": 2}, 10**12),
    ],
)
def test_a_batch_size_far_beyond_the_dataset_gives_all_samples_in_one_batch(settings, batch_size):
    large = Of(lambda index: np.full(10_000, index), 16)
    loader = Loader(large, batch_size, **settings)
    for _ in range(2):
        assert [batch[:, 0].tolist() for batch in loader] == [list(range(16))]
    loader.close()
    repeated = Loader(large, batch_size, sampler=[*range(16)] * 20, **settings)
    assert [batch[:, -1].tolist() for batch in repeated] == [[*range(16)] * 20]
    repeated.close()


@pytest.mark.parametrize("collate", [None, np.stack], ids=["rows", "batches"])
def test_error_in_a_large_batch_is_of_this_batch_alone(collate):
    class Holes(Numbers):
        def __getitem__(self, index):
            if index == 1000:
                raise KeyError(index)
            return np.full(2, index)

    many = [range(at, at + 2100) for at in range(0, 6300, 2100)]
    loader = Loader(Holes(6300), batch_sampler=many, num_workers=3, prefetch_factor=1, collate_fn=collate)
    batches = iter(loader)
    with pytest.raises(KeyError, match="1000"):
        next(batches)
    assert [batch[:, 0].tolist() for batch in batches] == [list(many[1]), list(many[2])]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: Loader(range(3), 1, seed=1, rank=4, world_size=5, ends="drop"),
            r'ends="drop" .* all 3 samples, for 5',
        ),
        (lambda: Loader(source(range(3)).batch(1), rank=0, world_size=5, ends="drop"), "all 3 samples, for 5 ranks"),
        (lambda: Loader(range(3), 4, drop_last=True), "drop_last=True leaves out its batch, which has 3 of 4 samples"),
        (lambda: Loader(range(3), 4, shuffle=True, drop_last=True, num_workers=1), "3 of 4 samples"),
        (lambda: Loader(source([1] * 3).filter(bool).batch(4, drop_last=True), num_workers=1), "3 of 4 items"),
    ],
)
def test_an_epoch_of_which_nothing_is_left_says_why(make, why):
    loader = make()
    for epoch in range(2):
        with pytest.warns(UserWarning, match=f"epoch {epoch} has no batch: .*{why}") as said:
            assert list(loader) == []
        assert next(one for one in said if one.category is UserWarning).filename == __file__  # others: of forks


@pytest.mark.parametrize(
    "more", [{"seed": 1}, {"shuffle": True}, {"ends": "drop", "rank": 0, "world_size": 2, "seed": 1}]
)
def test_an_epoch_that_goes_on_at_its_end_says_nothing(more, recwarn):
    loader = Loader(range(7), 2, drop_last=True, **more)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    after = Loader(range(7), 2, drop_last=True, **more)
    after.load_state_dict(loader.state_dict())
    assert list(after) == []
    assert not recwarn.list


def test_empty_dataset_says_so():
    with pytest.raises(InvalidError, match="the dataset is empty"):
        Loader([], 4)
    with pytest.raises(InvalidError, match="the dataset is empty"):
        Loader([], 4, shuffle=True, size="16MiB")
    assert list(Loader([], 4, sampler=[], num_workers=1)) == []


# ------------------------------------------------------------ states


class Holes(Numbers):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError("five")
        return super().__getitem__(index)


WAYS = [{}, {"num_workers": 2}, {"num_workers": 2, "collate_fn": np.stack}, {"num_workers": 2, "worker": "thread"}]
IDS = ["here", "rows", "batches", "threads"]


@pytest.mark.parametrize("own", [False, True], ids=["ours", "own"])
@pytest.mark.parametrize("settings", WAYS, ids=IDS)
def test_state_after_a_batch_that_failed(settings, own):
    order = {"sampler": list(range(16))} if own else {"seed": 1}
    loader = Loader(Holes(16), 4, **order, **settings)
    batches = iter(loader)
    assert check(next(batches))[0] == 0
    with pytest.raises(ValueError, match="five"):
        next(batches)
    again = Loader(Numbers(16), 4, **order)
    again.load_state_dict(loader.state_dict())
    assert read(again) == list(range(4, 16)), "a program that goes on from the error gets the batch again"
    assert check(next(batches))[0] == 8
    again.load_state_dict(loader.state_dict())
    assert read(again) == list(range(12, 16)), "a program that went on after the error gets the later batches"


def test_state_after_a_batch_that_batch_augment_failed_for():
    calls = []

    def augment(batch):
        calls.append(None)
        if len(calls) == 2:
            raise ValueError("two")
        return batch

    loader = Loader(Numbers(16), 4, seed=1, batch_augment=augment)
    assert drained(iter(loader))[:3] == [0, "ValueError", 8]
    calls.clear()
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="two"):
        next(batches)
    next(batches)
    assert loader.state_dict()["position"] == 12


def test_batch_augment_that_raises_stop_iteration_does_not_end_the_epoch():
    def augment(batch):
        return next(iter([])) if batch[0, 0] == 4 else batch

    assert drained(iter(Loader(Numbers(16), 4, batch_augment=augment))) == [0, "RuntimeError", 8, 12]


class Late(Numbers):
    def __getitem__(self, index):
        if index == 2:
            time.sleep(30)
        return super().__getitem__(index)


@pytest.mark.parametrize("settings", [{}, {"collate_fn": np.stack}], ids=["rows", "batches"])
@pytest.mark.parametrize("order", [{"seed": 1}, {"sampler": list(range(16))}], ids=["ours", "own"])
def test_state_where_batches_overtake_one_loses_none(order, settings):
    loader = Loader(Late(16), 2, num_workers=3, in_order=False, **order, **settings)
    batches = iter(loader)
    got = [check(next(batches))[0] for _ in range(3)]
    assert 2 not in got, "it takes half a minute"
    state = loader.state_dict()
    batches.close()
    first = min(set(range(0, 16, 2)) - set(got))
    assert first <= 2, "0 where its worker started late"
    again = Loader(Numbers(16), 2, **order)
    again.load_state_dict(state)
    if "seed" in order:  # the state is one position
        assert read(again) == list(range(first, 16))
    else:  # batches that overtook it do not come again
        assert read(again) == [x for k in range(0, 16, 2) if k not in got for x in (k, k + 1)]


class Once:
    """A sampler that fails the first time."""

    def __init__(self) -> None:
        self.failed = False

    def __iter__(self):
        if not self.failed:
            self.failed = True
            raise OSError("once")
        return iter(range(16))

    def __len__(self) -> int:
        return 16


def test_state_is_not_lost_where_iterating_fails():
    before = Loader(Numbers(16), 4, sampler=list(range(16)))
    batches = iter(before)
    next(batches)
    after = Loader(Numbers(16), 4, sampler=Once())
    after.load_state_dict(before.state_dict())
    np.random.seed(7)
    state = np.random.get_state()[1].tolist()
    with pytest.raises(OSError, match="once"):
        read(after)
    assert np.random.get_state()[1].tolist() == state, "the random numbers of the program do not change"
    assert read(after) == list(range(4, 16))


# ------------------------------------------------------------ small batch pools, interruptions


@pytest.mark.parametrize(
    "settings", [{}, {"persistent_workers": True}, {"collate_fn": np.stack}], ids=["rows", "kept", "batches"]
)
@pytest.mark.parametrize("buffers", [3, 4, 6])
def test_small_rings_have_less_made_ahead_and_warn_of_nothing(buffers, settings):
    loader = Loader(Numbers(80), 4, seed=1, num_workers=2, pool_bytes=buffers * 24576, **settings)
    for _ in range(3):
        assert sorted(read(loader)) == list(range(80))  # in all tests a warning is an error
    loader.close()


def test_ring_that_is_too_small_for_any_loop_says_how_large_it_must_be():
    loader = Loader(Numbers(80), 4, num_workers=2, pool_bytes=16384)
    with warnings.catch_warnings(record=True) as caught:
        # not the warnings of Python 3.12 and later about forks while pytest has threads
        warnings.simplefilter("always", UserWarning)
        assert read(loader) == list(range(80))
    told = [str(warning.message) for warning in caught]
    assert len(told) == 1
    assert "3 are needed" in told[0]
    assert "Raise it to 49152" in told[0]
    assert read(Loader(Numbers(80), 4, num_workers=2, pool_bytes=49152)) == list(range(80))


class LateAndSaid(Late):
    """Says when the late sample is being loaded."""

    def __init__(self, n, note):
        super().__init__(n)
        self.note = note

    def __getitem__(self, index):
        if index == 2:
            self.note.touch()
        return super().__getitem__(index)


def test_ctrl_c_while_kept_workers_are_told_of_an_epoch(tmp_path):
    dataset = LateAndSaid(16, tmp_path / "note")
    loader = Loader(dataset, 2, num_workers=2, persistent_workers=True, collate_fn=np.stack)
    batches = iter(loader)
    check(next(batches))
    until(dataset.note.exists, "the second batch is being made, which takes half a minute")
    signals = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        signals.start()
        iter(loader)  # waits for that batch
    signals.join()
    assert not loader._executor.kept.usable, "its workers may hold requests of the interrupted epoch"
    assert check(next(iter(loader))) == [0, 1]
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_cache_that_is_emptied_in_the_middle_of_an_epoch(workers):
    loader = Loader(Numbers(40), 4, size="16MiB", num_workers=workers)
    assert read(loader) == list(range(40))
    got = []
    for batch in loader:
        got += check(batch)
        loader.cache.clear()
    assert got == list(range(40))


@pytest.mark.parametrize("workers", [0, 2])
def test_cache_that_is_closed_in_the_middle_of_an_epoch(workers):
    loader = Loader(Numbers(40), 4, size="16MiB", num_workers=workers)
    read(loader)
    batches = iter(loader)
    next(batches)
    loader.cache.close()
    assert "ClosedError" in drained(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_sampler_of_the_users_use_memory_again(workers):
    """As much as the first of them takes. Larger ones get memory of their own."""
    wanted = [[4, 0, 2], [5], [9, 8, 7, 6, 3, 1], [0, 4], [3, 2, 1]]
    loader = Loader(
        Numbers(10), batch_sampler=wanted, num_workers=workers, persistent_workers=workers > 0, size="16MiB"
    )
    for _ in range(4):
        batches = iter(loader)
        kept, got = [], []
        for batch in batches:
            kept.append((batch, batch.copy()))
            got.append(check(batch))
        assert got == wanted
        for batch, before in kept:
            np.testing.assert_array_equal(batch, before)
        addresses = {batch.ctypes.data for batch, _ in kept}
    batch_pool = batches._runtime.own
    assert batch_pool.buffer_bytes >= 3 * 8 * 500
    assert addresses & {address for _, address, _ in batch_pool._buffers.values()}, (
        "no batch of the last epoch lies in the pool"
    )
    loader.close()


def test_a_sampler_without_batches_and_one_that_fails_at_once():
    def broken():
        raise KeyError("no batches today")
        yield

    class Once:
        def __iter__(self):
            return broken()

    for size in (None, "16MiB"):
        assert list(Loader(Numbers(10), batch_sampler=[], size=size)) == []
        with pytest.raises(KeyError, match="no batches today"):
            next(iter(Loader(Numbers(10), batch_sampler=Once(), size=size)))
        with pytest.raises(KeyError, match="no batches today"):
            next(iter(Loader(Numbers(10), batch_sampler=Once(), size=size, num_workers=1)))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_over_a_batch_of_an_unusual_type_stays_itself(workers):
    """A dataset's __getitems__ may give any object, which has no samples to look at."""

    class Batches(Numbers):
        def __getitems__(self, indices):
            return object()

    loader = Loader(Batches(8), 4, num_workers=workers, collate_fn=lambda batch: batch.missing)
    with pytest.raises(AttributeError, match="'object' object has no attribute 'missing'"):
        next(iter(loader))
