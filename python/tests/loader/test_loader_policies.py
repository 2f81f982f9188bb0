"""Loaders over caches that evict."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import Numbers, check, read, sample
from processes import busy_machine, compute, meanwhile

from stocached import Cache, InvalidError, Loader, advise
from stocached._order.order import WeightedOrder

N = 400
CONTROL = 4_200_000  # bytes of a segment besides its slots, about
EVICT = ["cost", "random", "clock", "fifo", "lru", "lfu"]


class Unequal(Numbers):
    """One sample in eight takes 20 times as long as the others. Counts its loads in a file."""

    def __init__(self, n: int, file: Path) -> None:
        super().__init__(n)
        self.file = file

    def __getitem__(self, index: int) -> Any:
        with self.file.open("a") as file:
            file.write(f"{index}\n")
        time.sleep(0.004 if index % 8 == 0 else 0.0002)
        return sample(index)

    def loads(self) -> list[int]:
        """The samples loaded since the last call."""
        text = self.file.read_text() if self.file.exists() else ""
        self.file.write_text("")
        return [int(line) for line in text.split()]


# Hits that `stocached simulate --samples 1000 --size 25% --policy fifo --batch 16 --seed 1 --epochs 4 --ahead A` predicts.
PREDICTED = {2: [0, 50, 58, 38], 0: [0, 42, 48, 33]}


@pytest.mark.parametrize(("ahead", "settings"), [(2, {}), (0, {"collate_fn": lambda batch: batch})])
def test_hits_are_those_that_simulate_predicts(ahead, settings):
    """Of simulate.md: how many batches a loader without workers looks up before it stores what they missed."""
    # A few more or less: a thread may store what a batch missed while the next one is looked up. On a busy machine, it
    # may do so in most batches, so the nearest of ten runs counts.
    runs = []
    for _ in range(10):
        got = hits_of_epochs(**settings)
        off = {other: int(np.abs(got - predicted).sum()) for other, predicted in PREDICTED.items()}
        runs.append((got.tolist(), off))
        if off[ahead] == min(off.values()) < 12:
            return
    raise AssertionError(runs)


def hits_of_epochs(**settings: Any) -> Any:
    samples, hits = np.zeros((1000, 8), np.uint8), [0]
    with Cache.create(samples=1000, shape=8, policy="fifo", slots=250) as cache:
        loader = Loader(samples, 16, shuffle=True, seed=1, cache=cache, **settings)
        for _ in range(4):
            for batch in loader:
                del batch
            hits.append(loader.stats().hits)
    return np.diff(hits)


SETTINGS = {
    "none": {},
    "two": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker": "thread"},
    "ahead": {"num_workers": 2, "prefetch_factor": 6, "persistent_workers": True},
    "augment": {"num_workers": 2, "augment": np.copy},
}


@pytest.mark.parametrize(
    ("policy", "settings"),
    [(policy, "none") for policy in EVICT] + [(policy, way) for policy, way in zip(EVICT, list(SETTINGS)[1:])],
)
def test_every_sample_of_every_epoch(policy, settings):
    """The cache has a slot for a tenth of the samples, and each miss may take a hit's slot."""
    size = CONTROL + 40 * 4000
    loader = Loader(Numbers(N), 32, shuffle=True, seed=1, size=size, policy=policy, **SETTINGS[settings])
    assert loader.cache.policy == policy
    assert 30 < loader.cache.slots < N // 5
    for _ in range(3):
        assert sorted(read(loader)) == list(range(N))
    stats = loader.stats()
    assert stats.samples == 3 * N
    assert stats.hits < 1.5 * N
    assert stats.hits > 0 or settings == "ahead"  # 12 of 13 batches are planned when the cache has others
    assert loader.cache.stats().evicted > 0 or policy == "cost"
    loader.close()


@pytest.mark.parametrize(
    ("policy", "settings"),
    [("cost", {}), ("clock", {}), ("cost", {"num_workers": 2}), ("clock", {"num_workers": 2, "worker": "thread"})],
    ids=["cost, none", "clock, none", "cost, processes", "clock, threads"],
)
def test_resumed_in_the_middle_of_an_epoch(policy, settings, cache_name, tmp_path):
    """The state is of the second epoch, where misses take the slots of hits. A loader of the same cache goes on, one of
    a new cache, and the same loader again."""
    given = {"shuffle": True, "seed": 1, "size": CONTROL + 40 * 4000, "policy": policy, "fingerprint": "f", **settings}
    plain = Loader(Numbers(N), 32, shuffle=True, seed=1)
    plain.set_epoch(1)
    want = [check(batch) for batch in plain]
    before = Loader(Unequal(N, tmp_path / "loads"), 32, name=cache_name, **given)
    before.set_epoch(0)
    read(before)
    batches = iter(before)
    got = [check(next(batches)) for _ in range(len(want) // 2)]
    state = json.loads(json.dumps(before.state_dict()))
    batches.close()
    for after in (Loader(Numbers(N), 32, name=cache_name, **given), Loader(Numbers(N), 32, **given), before):
        after.load_state_dict(state)
        assert got + [check(batch) for batch in after] == want
        if after is not before:
            after.close()
    assert before.cache.stats().evicted > 0
    assert before.cache.verify() == []
    before.close()


class Ragged(Numbers):
    """Samples of different lengths."""

    def __getitem__(self, index: int) -> Any:
        return sample(index)[: 20 + index * 7 % 470]


@pytest.mark.parametrize(("policy", "workers"), [*((policy, 0) for policy in EVICT), ("clock", 2)])
def test_samples_of_any_size(policy, workers):
    loader = Loader(
        Ragged(N),
        None,
        shuffle=True,
        seed=1,
        variable=True,
        size=CONTROL + 40 * 2200,
        policy=policy,
        num_workers=workers,
    )
    for _ in range(2):
        found = [int(value[0]) for value in loader if np.array_equal(value, Ragged(N)[int(value[0])])]
        assert sorted(found) == list(range(N))
    stats = loader.stats()
    assert stats.samples == 2 * N
    assert stats.hits > 0
    assert loader.cache.stats().evicted > 0 or policy == "cost"
    assert loader.cache.verify() == []
    loader.close()


@pytest.mark.parametrize(("policy", "want"), [("cost", 1024), ("lru", 1024), (None, 64), ("first-come", 64)])
def test_slots_suit_a_typical_sample(policy, want):
    """The cache has room for few samples. Their median is 17,440 bytes, one is much larger."""

    class Long(Ragged):
        def __getitem__(self, index: int) -> Any:
            return np.full(20_000 * 60 if index == 0 else 17_000 + index, index & 255, np.uint8)

    loader = Loader(Long(N), None, variable=True, size=CONTROL + 20 * 18_000, policy=policy)
    assert loader.cache.policy == (policy or "first-come")
    assert loader.cache._slot_stride == want
    loader.close()


class Elsewhere(Numbers):
    """Notes the processes that load its samples."""

    def __init__(self, n: int, file: Path) -> None:
        super().__init__(n)
        self.file = file

    def __getitem__(self, index: int) -> Any:
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return sample(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_hits_that_go_after_the_probe(workers, tmp_path):
    """Another client evicts all the time. Rows that are lost between probe and gather are loaded
    as misses: by the workers, if there are some."""
    file = tmp_path / "pids"
    loader = Loader(
        Elsewhere(N, file),
        32,
        shuffle=True,
        seed=1,
        num_workers=workers,
        size=CONTROL + 40 * 4000,
        policy="random",
        allow_random=True,
    )
    rng = np.random.default_rng(1)

    def evict() -> None:
        i = int(rng.integers(N))
        loader.cache.put(i, sample(i))

    file.write_text("")  # the constructor has loaded some samples
    with contextlib.closing(loader), meanwhile(evict):
        for _ in range(5):
            assert sorted(read(loader)) == list(range(N))
    here = str(os.getpid())
    assert all((pid == here) == (workers == 0) for pid in file.read_text().split())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_costliest_samples_stay(workers, tmp_path):
    dataset = Unequal(N, tmp_path / "loads")
    loader = Loader(dataset, 16, shuffle=True, seed=1, num_workers=workers, size=CONTROL + 75 * 4000, policy="cost")
    slots, dear = loader.cache.slots, N // 8
    assert dear < slots < 2 * dear
    for _ in range(2):
        assert sorted(read(loader)) == list(range(N))
    dataset.loads()
    assert sorted(read(loader)) == list(range(N))
    loads = dataset.loads()
    assert len(loads) >= N - slots
    assert sum(index % 8 == 0 for index in loads) <= dear // 10
    loader.close()


class Computing(Numbers):
    """Samples whose loads use a processor, all for the same time."""

    def __getitem__(self, index: int) -> Any:
        compute(self.seconds)
        return sample(index)


def test_equal_costs_move_nothing_on_a_busy_machine():
    """From the third epoch on, fewer than 1 % of the slots get another sample in an epoch. Two processes
    spin on the only processor, so most measurements include waits for it, which do not count. What is left is noise, and
    the policy learns how far two measurements of one sample lie apart. Neither depends on how busy the machine is."""
    with busy_machine(2):
        loader = Loader(
            Computing(2000, 0.0002), 64, shuffle=True, seed=1, size=CONTROL + 1000 * 4000, policy="cost", num_workers=2
        )
        for _ in range(2):
            read(loader)
        before = loader.cache.stats().evicted
        for _ in range(2):
            read(loader)
        moved = loader.cache.stats().evicted - before
        assert moved < 0.01 * 2 * loader.cache.slots, (before, moved)
        loader.close()


def test_weights_make_the_default_keep_what_is_read_most():
    """With weights, the costliest samples may be those that are hardly read. So loaders keep those that are read most."""
    slots, draws = 100, 1000
    order = WeightedOrder(samples=1000, weights=[1 / (k + 1) for k in range(1000)], seed=1, draws=draws)
    loader = Loader(Numbers(1000), 50, order=order, size=CONTROL + slots * 4000)
    assert loader.cache.policy == "lfu"
    for _ in range(6):
        before = loader.stats().hits
        read(loader)
    assert loader.stats().hits - before > 0.55 * draws
    loader.close()


def test_named_caches_keep_their_policy(cache_name):
    options = {"size": CONTROL + 40 * 4000, "name": cache_name, "fingerprint": "f"}
    loader = Loader(Numbers(N), 32, policy="lru", **options)
    assert loader.cache.policy == "lru"
    assert Loader(Numbers(N), 32, **options).cache.policy == "lru"
    with pytest.raises(
        InvalidError, match=f"cache '{cache_name}' exists with policy='lru', and policy='cost' was asked"
    ):
        Loader(Numbers(N), 32, policy="cost", **options)
    assert Cache.attach(cache_name, fingerprint="f").policy == "lru"


def test_bad_policies():
    with pytest.raises(InvalidError, match='policy: "dearest" is not one of first-come, .*cost'):
        Loader(Numbers(N), 32, size="1MiB", policy="dearest")
    with pytest.raises(InvalidError, match="policy= is for a cache that is made here; give size="):
        Loader(Numbers(N), 32, policy="cost")
    with (
        Cache.create(samples=N, shape=500, dtype="int64") as cache,
        pytest.raises(InvalidError, match="leave them out"),
    ):
        Loader(Numbers(N), 32, cache=cache, policy="cost")


def test_one_batch_larger_than_the_cache():
    loader = Loader(Numbers(N), N, size=CONTROL + 25 * 4000, policy="lru", num_workers=2)
    for _ in range(3):
        (batch,) = list(loader)
        assert check(batch) == list(range(N))
    loader.close()


@pytest.mark.parametrize(
    ("policy", "epochs", "said", "known"),
    [
        ("cost", 2, "ENOUGH", 0.9 * N),
        ("first-come", 1, "no sample was loaded twice", 30),
        ("lru", 1, "no sample was loaded twice", 0.9 * N),
    ],
)
def test_advice(tmp_path, policy, epochs, said, known):
    """An eighth of the samples has most of the cost: the rest of the memory buys little. A cache that does not evict knows the
    costs of the samples that it has, which are any of them."""
    given = {} if policy == "cost" else {"policy": policy}
    loader = Loader(Unequal(N, tmp_path / "loads"), 16, shuffle=True, seed=1, size=CONTROL + 50 * 4000, **given)
    for _ in range(epochs):
        list(loader)
    advice = advise(loader, 0.1)
    assert said in str(advice)  # with what the command writes to its standard error
    numbers = advice.numbers
    assert (numbers["samples"], numbers["policy"]) == (N, policy)
    assert known <= numbers["known_costs"] <= N  # one load that took far longer than others says nothing
    points = {round(point["cached_fraction"], 2): point for point in numbers["points"]}
    assert points[0.2]["cost_seconds"] < 0.7 * points[0.0]["cost_seconds"]
    assert points[0.5]["first_come_seconds"] == pytest.approx(points[0.0]["first_come_seconds"] / 2, rel=0.25)
    loader.close()


@pytest.mark.parametrize("named", [False, True])
def test_planned_needs_a_server(named, caplog):
    """A loader refuses to make such a cache. On one that is there it says why it announces nothing."""
    name = f"planned-{os.getpid()}" if named else None
    options = {"shuffle": True, "seed": 1, "size": CONTROL + 50 * 4000, "name": name, "policy": "planned"}
    with pytest.raises(InvalidError, match='policy="planned" needs a server, which knows what jobs read: write'):
        list(Loader(Numbers(N), 16, **options))
    fields = {"data": ((500,), np.int64)}
    with Cache.create(name, samples=N, fields=fields, slots=50, policy="planned") as cache:
        own: dict[str, Any] = {"name": name, "policy": "planned"} if named else {"cache": cache}
        loader = Loader(Numbers(N), 16, shuffle=True, seed=1, **own)
        for _ in range(2):
            assert sum(len(batch) for batch in loader) == N
        loader.close()
        if named:
            cache.unlink()
        (told,) = [text for text in caplog.messages if "does not tell its server" in text]
        assert "it loads the samples itself" in told
