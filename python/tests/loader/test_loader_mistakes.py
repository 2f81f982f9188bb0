"""Errors of a loader for invalid settings: the name of the argument, the numbers, and the next
step."""

from __future__ import annotations

import contextlib
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
from helpers import Of
from processes import in_threads

from stocached import InvalidError, Loader, NondeterministicDatasetError, Order, StateError
from stocached.prepare import BlockStorage


class Numbers:
    def __init__(self, n=40):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return np.full((3, 8, 8), index, np.float32), index


class Unsized:
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "blcok"}, "order='blcok' is none of sequential, shuffled, windows, blocks"),
        ({"cache": "faces"}, "cache='faces' is no Cache; give name="),
        ({"size": "8MiB", "variable": "yes"}, "variable='yes'; it must be True, False or None"),
        ({"pool_bytes": "much"}, "pool_bytes='much' is not a size"),
        ({"pool_bytes": 1.5}, "pool_bytes=1.5; it must be whole bytes"),
        ({"prefetch_bytes": -1}, "prefetch_bytes=-1 bytes; it must be between 0"),
        ({"size": "32 GBytes"}, "size='32 GBytes' is not a size; write bytes, or a number and a unit"),
        ({"num_workers": 2.0}, "num_workers=2.0 is not a whole number"),
        ({"num_workers": "2"}, "num_workers='2' is not a whole number"),
        ({"num_workers": -1}, "num_workers=-1 is not a whole number of 0 or more"),
        ({"prefetch_factor": "2", "num_workers": 1}, "prefetch_factor='2' is not a whole number"),
        ({"generator": 3, "shuffle": True}, "generator=3 is no generator of NumPy; give np.random.default_rng"),
        ({"timeout": "1"}, "timeout='1'; it must be seconds"),
        ({"timeout": float("nan")}, "timeout=nan; it must be seconds"),
        ({"gather_threads": "a"}, "gather_threads='a' is not a whole number"),
        ({"gather_threads": 0}, "gather_threads=0 is not a whole number of 1 to 1024"),
        ({"trace": True}, "trace=True; it must be the path of the file to write"),
        ({"trace": 5}, "trace=5; it must be the path"),
        ({"size": 0}, "size=0 holds no sample; leave out size="),
        ({"size": "0GiB"}, "size='0GiB' holds no sample"),
        ({"persistent_workers": True}, "num_workers"),
        ({"worker": "fibre"}, "worker='fibre'"),
        ({"ends": "round", "seed": 1}, "ends='round'"),
        ({"ends": "pad", "sampler": [1]}, "seed= or order="),
        ({"seed": 1, "sampler": [1]}, "sampler="),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1, "rank": 0}, "world_size=None"),
        ({"seed": 1, "rank": 2, "world_size": 2}, "rank=2"),
        ({"order": Order(5)}, "5 samples"),
        ({"order": Order(40), "seed": 2}, "seed=2"),
        ({"order": "shuffled", "shuffle": True}, "shuffle="),
        ({"shuffle": True, "sampler": [1]}, "sampler="),
        ({"batch_sampler": [[1]]}, "batch_sampler="),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": None, "drop_last": True}, "batch_size=None"),
        ({"augment": 3}, "augment=3"),
        ({"fingerprint": "v1"}, "fingerprint="),
    ],
)
def test_a_wrong_setting_is_named_when_the_loader_is_made(settings, message):
    with pytest.raises(InvalidError, match=message):
        Loader(Numbers(), **{"batch_size": 8, **settings})


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"size": "16MiB"}, {"size": "16MiB", "num_workers": 2}])
def test_samples_of_different_shapes_are_said_with_what_to_do(settings):
    growing = Of(lambda index: (np.zeros((3, 1 + index)), index), 40)
    with pytest.raises(
        ValueError, match=r"have the shapes \(3, 1\) and \(3, 2\); give samples of one shape.*collate_fn="
    ):
        next(iter(Loader(growing, 4, **settings)))


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.uint8])
def test_a_seed_of_numpy_is_a_seed(kind):
    def draw(sample, generator):
        return sample[1], int(generator.integers(10**9)), random.random()

    def read(seed, workers):
        loader = Loader(
            Numbers(), 10, shuffle=True, seed=seed, num_workers=workers, prefetch_factor=workers, augment=draw
        )
        return [[column.tolist() for column in batch] for batch in loader], loader.state_dict()

    assert read(kind(3), kind(2)) == read(3, 2)


@pytest.mark.parametrize("variable", [False, True])
def test_a_named_cache_that_is_smaller_than_asked_for_is_said(variable, cache_name):
    def made(size):
        return Loader(Numbers(9_000), 500, name=cache_name, size=size, variable=variable, fingerprint="numbers")

    first = made("8MiB")
    assert sum(len(labels) for _, labels in first) == 9_000
    assert first.cache.stats().cached_fraction < 1
    for size in ("6MiB", None):  # what is there is enough
        made(size).close()
    with pytest.warns(
        UserWarning, match=rf"{cache_name}' exists with a size of 8\.00 MiB, .*'64MiB'.*\(stocached rm {cache_name}\)"
    ):
        made("64MiB").close()
    first.close()


def test_a_named_cache_that_holds_all_samples_may_be_asked_for_larger(cache_name):
    for size in ("8MiB", "64MiB"):
        Loader(Numbers(), 10, name=cache_name, size=size, fingerprint="numbers").close()


@pytest.mark.parametrize("index", [40, -41, 2**63, -(2**70)])
def test_a_number_of_a_sampler_that_is_out_of_range(index):
    with pytest.raises(IndexError, match=f"^index {index} is out of range; the dataset has 40 samples$"):
        list(Loader(Numbers(), 1, sampler=[0, index], size="16MiB"))


@pytest.mark.parametrize("index", [3, -37, np.uint8(3), np.array(3)])
def test_whole_numbers_of_any_type(index):
    assert [labels.tolist() for _, labels in Loader(Numbers(), 1, sampler=[index], size="16MiB")] == [[3]]


def test_randomness_is_told_with_what_can_be_done():
    says = r"its item 0 \(\w+ of float\d+\) differs.*augment=.*Loader\(dataset, \.\.\., allow_random=True\)"
    with pytest.raises(NondeterministicDatasetError, match=says):
        Loader(Of(lambda index: (np.full(3, random.random()), index), 40), 8, size="8MiB")


def test_the_state_of_a_sampler_is_of_as_many_samples():
    first = Loader(Numbers(40), 8, sampler=range(40))
    next(iter(first))
    state = first.state_dict()
    with pytest.raises(StateError, match="of a dataset of 40 samples, this loader's has 48"):
        Loader(Numbers(48), 8, sampler=range(48)).load_state_dict(state)
    second = Loader(Numbers(40), 8, sampler=range(40))
    second.load_state_dict(state)
    assert sum(len(labels) for _, labels in second) == 32


def test_the_state_of_a_dataset_without_a_length():
    first = Loader(Unsized(), 2, sampler=[1, 2, 3, 4])
    next(iter(first))
    second = Loader(Unsized(), 2, sampler=[1, 2, 3, 4])
    second.load_state_dict(first.state_dict())
    assert [batch.tolist() for batch in second] == [[3, 4]]


def test_a_state_of_another_order():
    with_order, without = Loader(Numbers(), 8, shuffle=True, seed=1), Loader(Numbers(), 8, sampler=range(40))
    with pytest.raises(StateError, match="this loader has a sampler, without seed= or order=; make it with"):
        without.load_state_dict(with_order.state_dict())
    with pytest.raises(StateError, match="the state is of a sampler, without seed= or order=, this loader has Order"):
        with_order.load_state_dict(without.state_dict())
    for state in ({"version": 99}, Loader(Numbers(), 8, shuffle=True, seed=2).state_dict()):
        with pytest.raises(StateError):
            with_order.load_state_dict(state)


@pytest.mark.parametrize(
    "settings",
    [{"num_workers": 2}, {"num_workers": 2, "size": "8MiB"}, {"size": "8MiB"}, {"num_workers": 2, "collate_fn": list}],
)
def test_threads_that_share_an_iteration_get_each_sample_once(settings):
    with contextlib.closing(Loader(Numbers(400), 4, **settings)) as loader:
        batches, seen = iter(loader), []

        def take(_):
            for batch in batches:
                seen.append([label for _, label in batch] if "collate_fn" in settings else batch[1].tolist())

        in_threads(3, take)
        assert sorted(label for labels in seen for label in labels) == list(range(400))


def test_sizes_of_prepared_datasets_are_named_too(tmp_path):
    with pytest.raises(InvalidError, match="file_bytes=-1 bytes; it must be between 0"):
        BlockStorage(tmp_path / "prepared", file_bytes=-1)


class Scaled(Loader):
    """Has another constructor than Loader, and sets attributes before and after calling it."""

    def __init__(self, numbers, scale):
        self.scale = scale
        super().__init__(numbers, 8, shuffle=True, seed=3)
        self.name = f"scaled by {scale}"


def test_a_subclass_with_a_constructor_of_its_own_can_be_pickled():
    loader = Scaled(Numbers(), 7)
    next(iter(loader))
    loader.set_epoch(0)
    copy = pickle.loads(pickle.dumps(loader))
    assert (type(copy), copy.scale, copy.name) == (Scaled, 7, "scaled by 7")
    assert [labels.tolist() for _, labels in copy] == [labels.tolist() for _, labels in loader]
    again = pickle.loads(pickle.dumps(copy))
    assert (again.scale, again.batch_size) == (7, 8)


def test_what_cannot_be_sent_to_spawned_workers_is_said_with_what_to_do():
    loader = Loader(Numbers(), 8, num_workers=1, multiprocessing_context="spawn", augment=lambda sample: sample)
    with pytest.raises(
        (AttributeError, pickle.PicklingError),
        match=r"lambda.*started by spawn are sent the dataset.*define them in a module",
    ):
        iter(loader)


SLOW_START = """
import multiprocessing
import numpy as np
from stocached import Loader
from stocached._workers import processes

if __name__ == "__main__":
    processes._SLOW_START = 0.5
    multiprocessing.set_forkserver_preload(["slow"])
    print(len(list(Loader(np.arange(40), 8, num_workers=1, multiprocessing_context="forkserver"))), "batches")
"""


def test_a_fork_server_that_imports_for_long_is_told(tmp_path):
    """The fork server of Python 3.14 imports the program itself, which may wait there for ever."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(2)\n")
    (tmp_path / "program.py").write_text(SLOW_START)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "5 batches\n"), done.stderr
    assert (
        "worker 0 has not started after 0.5 s, as its fork server still imports modules; workers that are started by "
        "forkserver import the program again" in done.stderr
    )
    assert done.stderr.count("has not started") == 1


UNGUARDED = """
from stocached import Loader
from stocached.streams import Streams

class Numbers:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index

def read(file):
    yield from range(file)

if {streams}:
    batches = Streams([3, 4], 2, read, num_workers=2, multiprocessing_context={method!r})
else:
    batches = Loader(Numbers(), 8, num_workers=2, multiprocessing_context={method!r})
print(len(list(batches)), "batches")
"""


@pytest.mark.parametrize(
    ("kind", "method", "streams"),
    [
        ("script", "spawn", False),
        ("script", "forkserver", True),
        ("notebook", "spawn", False),
    ],
)
def test_programs_that_workers_cannot_import_again_are_told_so(kind, method, streams, tmp_path):
    """A script without a guard starts workers in each worker. Workers cannot import the classes of
    a notebook or of python -c."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(method=method, streams=streams))
    command = [sys.executable, script] if kind == "script" else [sys.executable, "-c", script.read_text()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (1, "")
    said = [line for line in done.stderr.splitlines() if f"started by {method} import the program again" in line]
    assert len(said) == 1, done.stderr  # workers have written there too
    # The fork server of Python 3.14 imports the program itself, and starts no worker then.
    not_started = "worker 0 was not started (" in said[0]
    assert not_started or "exited with status 1 before its first task" in said[0]
    assert "restart_workers" not in said[0]
    assert "__main__" in said[0]
    assert 'multiprocessing_context="fork"' in said[0]
