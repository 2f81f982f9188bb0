"""A value of a dataset changes, and the program makes another loader of it: the loader gives the samples as they are now."""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import functools
import os

import numpy as np
import pytest
from test_loader_again import BOTH, again

from stocached import FingerprintError, Loader, SchemaError, mix, source

N, AT = 300, 7  # AT is none of the samples that are compared
SETTINGS = {"opened": iter(()), "table": {"scale": 1}}
UNKNOWN = iter(())  # as an open file, it has no digest


@dataclasses.dataclass
class Card:
    values: list[float]


class Slotted:
    __slots__ = ("values",)

    def __init__(self, values):
        self.values = values


def numbers():
    return [float(k) for k in range(N)]


def rows():
    return [[k, [float(k)]] for k in range(N)]


def texts(n):
    return [f"{k:09}" for k in range(n)]


def objects():
    return np.array([str(k) for k in range(N)], object)


def put(values, key, value):
    values[key] = value


# By name: what the dataset holds, how a sample is read from it, and how one value changes.
KINDS = {
    "list": (numbers, lambda held, k: held[k], lambda held: put(held, AT, 77.0)),
    "short list in a dict": (
        lambda: {"a": [1, 2], "b": {"c": [0] * 20}},
        lambda held, k: held["b"]["c"][k % 20] + k,
        lambda held: put(held["b"]["c"], AT, 77),
    ),
    "nested lists": (rows, lambda held, k: held[k][1][0], lambda held: put(held[AT][1], 0, 77.0)),
    "dict": (lambda: dict(enumerate(numbers())), lambda held, k: held[k], lambda held: put(held, AT, 77.0)),
    "order of a dict": (
        lambda: {str(k): float(k) for k in range(20)},
        lambda held, k: list(held.values())[k % 20] + k,
        lambda held: held.update({str(AT): held.pop(str(AT))}),
    ),
    "array": (lambda: np.arange(float(N)), lambda held, k: held[k], lambda held: put(held, AT, 77.0)),
    "set": (lambda: set(range(N)), lambda held, k: k in held, lambda held: held.remove(AT)),
    "set of texts": (lambda: set(texts(N)), lambda held, k: f"{k:09}" in held, lambda held: held.remove(f"{AT:09}")),
    "set of several types": (lambda: {None, *range(N)}, lambda held, k: k in held, lambda held: held.remove(AT)),
    "dataclass": (lambda: Card(numbers()), lambda held, k: held.values[k], lambda held: put(held.values, AT, 77.0)),
    "slots": (lambda: Slotted(numbers()), lambda held, k: held.values[k], lambda held: put(held.values, AT, 77.0)),
    "deque": (lambda: collections.deque(numbers()), lambda held, k: held[k], lambda held: put(held, AT, 77.0)),
    "array of the standard library": (
        lambda: array.array("d", numbers()),
        lambda held, k: held[k],
        lambda held: put(held, AT, 77.0),
    ),
    "bytearray": (lambda: bytearray(N), lambda held, k: held[k], lambda held: put(held, AT, 7)),
    "objects in an array": (objects, lambda held, k: int(held[k]), lambda held: put(held, AT, "77")),
    "beside a value without a digest": (
        lambda: {"opened": UNKNOWN, "values": numbers()},
        lambda held, k: held["values"][k],
        lambda held: put(held["values"], AT, 77.0),
    ),
    "below one in a list": (
        lambda: [[UNKNOWN, Slotted([UNKNOWN, *numbers()])]],
        lambda held, k: held[0][1].values[k + 1],
        lambda held: put(held[0][1].values, AT + 1, 77.0),
    ),
    "100,000 texts": (lambda: texts(100_000), lambda held, k: int(held[k]), lambda held: put(held, AT, "000000077")),
    "100,000 rows": (
        lambda: [(text, 1) for text in texts(100_000)],
        lambda held, k: int(held[k][0]) + held[k][1],
        lambda held: put(held, AT, ("000000007", 2)),
    ),
    "30,000 arrays": (
        lambda: [np.full(8, k) for k in range(30_000)],
        lambda held, k: held[k][0],
        lambda held: put(held, AT, np.full(8, 77)),
    ),
}  # fmt: skip


class Held:
    def __init__(self, held, read):
        self.held, self.read = held, read

    def __len__(self):
        return N

    def __getitem__(self, index):
        return np.float64(self.read(self.held, index))


class InSlots:
    __slots__ = ("__weakref__", "held")

    def __init__(self, held):
        self.held = held

    def __len__(self):
        return N

    def __getitem__(self, index):
        return np.float64(self.held[index])


class Listed(list):
    """Holds its samples itself, and an attribute."""

    lift = 0

    def __getitem__(self, index):
        return np.float64(super().__getitem__(index) + self.lift)


def read(loader):
    return [float(sample) for batch in loader for sample in batch]


@pytest.mark.parametrize("name", KINDS)
def test_one_value(name):
    hold, sample, change = KINDS[name]
    dataset = Held(hold(), sample)
    loader = Loader(dataset, 10, size="16MiB")
    before = read(loader)
    change(dataset.held)
    loader = again(loader)
    now = read(loader)
    assert now == [sample(dataset.held, k) for k in range(N)] != before
    same = Loader(dataset, 10, size="16MiB")
    assert same.cache is loader.cache
    assert read(same) == now


@pytest.mark.filterwarnings("ignore:.*samples are compared in the background")
@pytest.mark.parametrize(
    "name", ["list", "dict", "set", "objects in an array", "beside a value without a digest", "100,000 texts"]
)
def test_one_value_and_a_cache_with_a_name(name, cache_name):
    hold, sample, change = KINDS[name]
    loader = Loader(Held(hold(), sample), 10, name=cache_name, size="16MiB")
    read(loader)
    Loader(Held(hold(), sample), 10, name=cache_name)
    dataset = Held(hold(), sample)
    change(dataset.held)
    with pytest.raises(FingerprintError, match="the data of the dataset changed"):
        Loader(dataset, 10, name=cache_name)
    change(loader.dataset.held)
    with pytest.raises(FingerprintError, match="the data of the dataset changed"):
        again(loader)


@BOTH
def test_a_dataset_with_slots(kind):
    dataset = InSlots(numbers())
    read(kind()(dataset, 10, size="16MiB"))
    loader = kind()(dataset, 10, size="16MiB")
    dataset.held[AT] = 77.0
    assert read(kind()(dataset, 10, size="16MiB"))[AT] == 77.0
    assert loader.dataset is dataset


def test_a_dataset_that_is_a_list():
    dataset = Listed(numbers())
    loader = Loader(dataset, 10, size="16MiB")
    read(loader)
    list.__setitem__(dataset, AT, 77.0)
    loader = again(loader)
    assert read(loader)[AT] == 77.0
    dataset.lift = 1
    assert read(again(loader))[AT] == 78.0


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("name", ["pandas", "pyarrow"])
def test_a_table(name, column):
    library, held = pytest.importorskip(name), {"x": numbers(), "text": [str(k) for k in range(N)]}
    if name == "pandas":
        dataset = Held(library.DataFrame(held), lambda held, k: float(held.iat[k, column]))
    else:
        dataset = Held(library.table(held), lambda held, k: float(held.column(column)[k].as_py()))
    loader = Loader(dataset, 10, size="16MiB")
    assert read(loader)[AT] == AT
    assert again(loader).cache is loader.cache
    value, table = [77.0, "77"][column], dataset.held
    if name == "pandas":
        table.iat[AT, column] = value
    else:
        values = table.column(column).to_pylist()
        dataset.held = table.set_column(column, table.column_names[column], [[*values[:AT], value, *values[AT + 1 :]]])
    assert read(again(loader))[AT] == 77.0


def scaled(held, index):
    return held[index] * SETTINGS["table"]["scale"] * (index == AT) + held[index]


def test_a_global_value_that_functions_read(monkeypatch):
    dataset = Held(numbers(), scaled)
    loader = Loader(dataset, 10, size="16MiB")
    read(loader)
    monkeypatch.setitem(SETTINGS["table"], "scale", 2)
    assert read(again(loader))[AT] == 3 * AT


def test_closures_and_partials():
    held = {AT: 0, "opened": UNKNOWN}
    for function in (
        lambda values, k: values[k] + held.get(k, 0),
        functools.partial(lambda more, values, k: values[k] + more.get(k, 0), held),
    ):
        held[AT] = 0
        dataset = Held(numbers(), function)
        loader = Loader(dataset, 10, size="16MiB")
        read(loader)
        held[AT] = 70
        assert read(again(loader))[AT] == 77.0


def test_what_has_no_digest_now_is_no_change():
    dataset = Held({"opened": None, "values": numbers()}, lambda held, k: held["values"][k])
    loader = Loader(dataset, 10, size="16MiB")
    read(loader)
    dataset.held["opened"] = UNKNOWN
    assert again(loader).cache is loader.cache


def alone(item):
    return [item]


PIPES = {
    "lists": lambda pipe: pipe.flat_map(alone).cache("8MiB"),
    "below lists": lambda pipe: pipe.cache("8MiB").filter(np.isfinite),
    "two caches": lambda pipe: pipe.cache("8MiB").map(np.float64).cache("8MiB"),
    "two caches of lists": lambda pipe: pipe.cache("8MiB").filter(np.isfinite).cache("8MiB"),
    "mix": lambda pipe: mix([pipe.cache("8MiB"), pipe.cache("8MiB")]),
    "join": lambda pipe: pipe.cache("8MiB") + pipe.cache("8MiB"),
}


# The looks are those of this process, with workers or without.
@pytest.mark.parametrize(("name", "workers"), [(name, k % 2 * 2) for k, name in enumerate(PIPES)])
def test_what_a_function_of_a_pipe_reads(name, workers):
    held = {AT: 0}
    pipe = PIPES[name](source(numbers()).map(lambda value: np.float64(value + held.get(int(value), 0)))).batch(10)
    before = Loader(pipe, num_workers=workers)
    assert set(read(before)) == set(numbers())
    held[AT] = 77 - AT
    wanted = {*numbers(), 77.0} - {float(AT)}
    for _ in range(2):
        assert set(read(Loader(pipe, num_workers=workers))) == wanted


def test_one_child_looks_at_all_caches_of_a_pipe(tmp_path):
    def load(item):
        (tmp_path / f"{os.getpid()}").touch()
        return np.full(4, item)

    one, two = (source(range(4)).map(load).cache("16MiB").map(abs).cache("16MiB") for _ in range(2))
    pipe = (one + two + source(range(4)).map(load).cache("16MiB")).batch(12)
    first = Loader(pipe)
    assert sum(int(batch[:, 0].sum()) for batch in first) == 18
    for path in tmp_path.iterdir():
        path.unlink()
    again = Loader(pipe)
    assert [cache.uuid for cache in again._caches()] == [cache.uuid for cache in first._caches()]
    assert len(list(tmp_path.iterdir())) == 1
    assert not (tmp_path / f"{os.getpid()}").exists()


class Counting(Held):
    """Counts its loads, and opens a file for its first sample."""

    def __init__(self):
        super().__init__(numbers(), None)
        self.loads, self.file = 0, None

    def __getitem__(self, index):
        self.file = self.file or open(__file__)  # noqa: SIM115
        self.loads += 1
        return np.float64(self.held[index])

    def close(self):
        if self.file is not None:
            self.file.close()


@pytest.fixture
def counting():
    with contextlib.closing(Counting()) as dataset:
        yield dataset


def test_what_loads_change_is_no_change_of_the_dataset(counting):
    dataset = counting
    loader = Loader(dataset, 10, size="16MiB")
    read(loader)
    same = again(loader)
    assert same.cache is Loader(dataset, 10, size="16MiB").cache is loader.cache
    dataset.held[AT] = 77.0
    assert read(again(loader))[AT] == 77.0


@pytest.mark.filterwarnings("ignore:.*was filled before")  # once a program
@pytest.mark.parametrize("named", [False, True])
def test_reads_of_a_cache_are_no_change_of_the_cache_below(named, cache_name):
    above = source(numbers()).map(np.float64).cache("8MiB")
    pipe = above.map(np.float64).cache("8MiB", name=cache_name if named else None).batch(10)
    before = Loader(pipe)
    read(before)
    after = Loader(pipe)
    assert read(after) == numbers()
    assert after.stats().misses == 0


_seen, _scale = 0, 2


def _below(number):
    global _seen
    _seen += 1  # a state of the function, and no setting
    return np.full(4, number)


def _scaled(array):
    return array * _scale


@pytest.mark.parametrize("lists", [False, True])
def test_a_function_that_changes_its_globals_above_two_caches(lists, monkeypatch):
    pipe = source(list(range(40)))
    pipe = pipe.flat_map(lambda number: [_below(number)]) if lists else pipe.map(_below)
    pipe = pipe.cache("8MiB").map(_scaled).cache("8MiB").batch(4)

    def read():
        loader = Loader(pipe)
        return np.concatenate(list(loader)), loader.stats().misses

    (first, misses), *more = (read() for _ in range(3))
    assert misses
    assert [np.array_equal(first, other) and not misses for other, misses in more] == [True] * 2
    monkeypatch.setitem(globals(), "_scale", 3)
    other, misses = read()
    assert np.array_equal(first * 3, other * 2)
    assert misses


@pytest.mark.parametrize("format", ["csv", "npz", "parquet"])
def test_other_columns_of_a_table_and_a_cache_with_a_name(format, cache_name, tmp_path):
    """Their values are alike in all samples that are compared."""
    path, columns = tmp_path / f"t.{format}", {name: np.zeros(640, np.int64) for name in "abc"}
    columns["c"][5] = 1
    if format == "csv":
        path.write_text("a,b,c\n" + "".join(f"{a},{b},{c}\n" for a, b, c in zip(*columns.values())))
    elif format == "npz":
        np.savez(path, **columns)
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").table(columns), path, row_group_size=10)

    def rows(names):
        loader = Loader(source(path, columns=names).cache(size="16MiB", name=cache_name).batch(64))
        return [int(value) for batch in loader for value in batch[names[1]]]

    assert rows(["a", "b"]) == rows(["a", "b"]) == [0] * 640
    with pytest.raises((SchemaError, FingerprintError), match="a.*, c.*a.*, b|with a, b, is .* with a, c now"):
        rows(["a", "c"])
