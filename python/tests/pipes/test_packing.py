"""Batches by size, and rows of tokens: those of docs/spec/pipes.md for each kind of worker, rank and position, their
padding, and errors."""

from __future__ import annotations

import functools
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model
import numpy as np
import pytest
from chains import Both, numbers
from test_pipes import SEED, plain

import stocached
from stocached import InvalidError, Loader, Pipe, mix, source
from stocached._pipes import packing


def tokens(x: Any) -> Any:
    return np.arange(x, x + x * 7 % 12, dtype=np.int32)


def several(x: int) -> Any:
    for k in range(x % 4):
        yield tokens(x + 5 * k)


def noisy(item: Any, generator: np.random.Generator) -> Any:
    return item + generator.integers(1000, dtype=np.int32)


def tuple_of(row: Any) -> Any:
    return tuple(row.values())


def shifted(row: Any, generator: np.random.Generator) -> Any:
    """Of a row as a tuple."""
    shift = int(generator.integers(1000))
    return tuple(np.array(column) + shift for column in row)


def long(item: Any) -> bool:
    return len(item) > 3


def pack(chain: Both, length: int = 16) -> Both:
    return Both(chain.pipe.pack(length).map(tuple_of), model.Packed(chain.plain, length))


def lists(n: int, first: int = 0) -> Both:
    return numbers(n, first).flat_map(several)


ROWS: dict[str, Callable[[], Both]] = {
    "index": lambda: pack(numbers(50).map(tokens)),
    "index, shuffled": lambda: pack(numbers(50).shuffle().map(tokens).noise(noisy)).noise(shifted),
    "weights": lambda: pack(numbers(30).weigh([float(k % 3) for k in range(30)], 4).map(tokens)).noise(shifted),
    "lists": lambda: pack(lists(40)),
    "windows": lambda: pack(lists(40).shuffle(seed=1, window=7), 13).noise(shifted),
    "windows, random": lambda: pack(lists(40).noise(noisy).filter(long).shuffle(window=9), 20),
    "cache": lambda: pack(lists(40).cache().shuffle(seed=1, window=11).noise(noisy)),
    "join": lambda: pack(lists(20)) + pack(lists(20, 100).shuffle(seed=3, window=5)),
    "nothing": lambda: pack(numbers(20).map(tokens).filter(lambda item: False)),
}


def sized(chain: Both, n: int = 40) -> Both:
    """A batch as the list of its items."""
    return Both(chain.pipe.batch(n, size=len, collate=list), model.Sized(chain.plain, n))


SIZED: dict[str, Callable[[], Both]] = {
    "index": lambda: sized(numbers(50).map(tokens)),
    "index, shuffled": lambda: sized(numbers(50).shuffle().map(tokens).noise(noisy)),
    "lists": lambda: sized(lists(40)),
    "windows": lambda: sized(lists(60).shuffle(seed=1, window=7), 11),
    "windows, little room": lambda: sized(lists(90).shuffle(seed=1, window=45), 12),
    "mix": lambda: sized(
        Both(
            mix([lists(30).pipe.shuffle(window=8), lists(20, 100).pipe], weights=[2, 1]),
            model.Mixed(model.Shuffle(lists(30).plain, window=8), lists(20, 100).plain, weights=[2, 1]),
        )
    ),
    "nothing": lambda: sized(numbers(20).map(tokens).filter(lambda item: False)),
}


def wanted(chain: Both, epoch: int, rank: int = 0, ranks: int = 1) -> list[Any]:
    return [plain(item) for item in chain.plain.epoch(epoch, SEED, rank, ranks)]


def made(loader: Loader) -> list[Any]:
    """Rows, or batches by size."""
    return [plain(item) for item in loader]


def loader_of(chain: Both, **options: Any) -> Loader:
    """Of rows one by one, or of batches by size."""
    by_size = isinstance(chain.plain, model.Sized)
    return Loader(chain.pipe, seed=SEED, **({} if by_size else {"batch_size": None}), **options)


@pytest.fixture(params=[(kind, name) for kind in ("rows", "sized") for name in (ROWS if kind == "rows" else SIZED)])
def chain(request: pytest.FixtureRequest) -> Both:
    kind, name = request.param
    return (ROWS if kind == "rows" else SIZED)[name]()


def test_they_are_those_of_the_document(chain: Both):
    for workers in (0, 5 if isinstance(chain.plain, model.Sized) else 2):
        loader = loader_of(chain, num_workers=workers, persistent_workers=workers == 2)
        for epoch in range(2):
            assert made(loader) == wanted(chain, epoch)
        loader.close()


def test_threads_make_the_same(chain: Both):
    assert made(loader_of(chain, num_workers=2, worker="thread")) == wanted(chain, 0)


def test_ranks_have_windows_of_their_own(chain: Both):
    for ranks in (2, 3):
        for rank in range(ranks):
            assert made(loader_of(chain, rank=rank, world_size=ranks)) == wanted(chain, 0, rank, ranks)


def test_a_loader_continues_within_a_window(chain: Both):
    whole, states = wanted(chain, 0), []
    loader = loader_of(chain)
    for _ in loader:
        states.append(loader.state_dict())
    for k in {0, len(states) // 2, len(states) - 1} if states else ():
        assert len(json.dumps(states[k])) <= 200
        again = loader_of(chain, num_workers=(2, 0, 1)[k % 3])
        again.load_state_dict(json.loads(json.dumps(states[k])))
        assert made(again) == whole[k + 1 :]
        assert made(again) == wanted(chain, 1)


def test_a_row_has_each_item_once_and_whole():
    data = [np.arange(k, k + k % 9, dtype=np.int16) for k in range(300)]
    found = []
    for batch in Loader(source(data).shuffle(seed=2).pack(10).batch(7), num_workers=2):
        for row, segments, positions in zip(batch["tokens"], batch["segments"], batch["positions"]):
            assert segments.dtype == positions.dtype == np.int32
            for number in range(1, segments.max() + 1):
                item = row[segments == number]
                assert positions[segments == number].tolist() == list(range(len(item)))
                found.append(item.tolist())
            assert not row[segments == 0].any()
    assert sorted(found) == sorted(item.tolist() for item in data if len(item))


def test_each_key_of_dicts_is_packed():
    items = [{"ids": np.arange(k), "weights": np.full(k, k / 8)} for k in (3, 5, 4)]
    rows = list(source(items).pack(8))
    assert [row["ids"].tolist() for row in rows] == [[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 0, 0, 0, 0]]
    assert rows[0]["weights"].tolist() == [3 / 8] * 3 + [5 / 8] * 5
    assert rows[1]["segments"].tolist() == [1] * 4 + [0] * 4
    assert list(rows[0]) == ["ids", "weights", "segments", "positions"]


def test_a_row_is_no_memory_of_an_item():
    item = np.ones(4, np.int32)
    (row,) = source([item]).pack(4)
    row["tokens"][:] = 9
    assert item.tolist() == [1] * 4


def test_functions_below_get_whole_batches():
    batches = Loader(source([np.ones(k) for k in (2, 3, 2, 3, 2)]).batch(6, size=len, pad=0).map(np.sum), num_workers=2)
    assert sorted(float(batch) for batch in batches) == [6.0, 6.0]


# ------------------------------------------------------------ padding


@functools.cache
def texts() -> list[int]:
    """The lengths of the lines of this package."""
    files = sorted(Path(stocached.__file__).parent.rglob("*.py"))
    return [len(line) for file in files for line in file.read_bytes().splitlines() if line]


def drawn(kind: str, count: int) -> Any:
    generator = np.random.default_rng(zlib.crc32(kind.encode()))
    if kind == "text":
        return generator.choice(texts(), count)
    if kind == "uniform":
        return generator.integers(1, 1001, count)
    if kind == "exponential":
        return np.ceil(generator.exponential(200, count)).astype(int)
    sizes = np.ceil(np.exp(generator.normal(5, 1.5, count))).astype(int)
    return np.minimum(sizes, sizes.sum() // 200)


@pytest.mark.parametrize("kind", ["text", "uniform", "exponential", "heavy tail"])
@pytest.mark.parametrize("count", [1024, 10_000])
def test_token_batches_have_little_padding(kind: str, count: int):
    """They have at most 2.5 % of it, and not many more batches than would hold the tokens."""
    sizes = np.sort(drawn(kind, count))[::-1].astype(np.int64)
    n = int(sizes.sum()) // 75
    assert sizes[0] <= n
    ends = np.array(packing._ends(sizes, n))
    firsts = np.array([0, *ends[:-1]])
    spaces = sizes[firsts] * (ends - firsts)
    assert spaces.max() <= n
    assert 1 - sizes.sum() / spaces.sum() <= 0.025
    assert len(ends) <= 100


@pytest.mark.parametrize("kind", ["text", "uniform", "exponential", "heavy tail"])
def test_rows_of_a_window_are_nearly_full(kind: str):
    sizes = np.minimum(drawn(kind, 3000), 1000)
    rows = packing._fitted(sizes.tolist(), 1000)
    assert sorted(k for row in rows for k in row) == list(range(3000))
    assert max(sizes[row].sum() for row in rows) <= 1000
    assert len(rows) <= 1.01 * sizes.sum() / 1000 + 1


# ------------------------------------------------------------ errors


def unreadable(item: Any) -> int:
    if len(item) == 2:
        raise stocached.BadSampleError("it has no length")
    return len(item)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_item_whose_length_is_unknown_is_left_out(workers: int):
    pipe = source([np.ones(k % 5 + 1) for k in range(50)]).batch(10, size=unreadable, pad=0)
    loader = Loader(pipe, num_workers=workers, bad_samples="skip")
    with pytest.warns(UserWarning, match="no length"):
        assert sum(len(batch) for batch in loader) == 40
    assert loader.stats().bad_samples == 10
    with pytest.raises(stocached.BadSampleError) as raised:
        list(Loader(pipe, num_workers=workers))
    notes = "\n".join([*getattr(raised.value, "__notes__", []), str(raised.value.__cause__)])
    assert ".batch(10, size=unreadable) in test_packing.py, line" in notes
    assert "element 1 of source(list, 50 elements)" in notes


ONES = source([np.ones(k) for k in range(9)])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("pipe", "words"),
    [
        (
            ONES.batch(7, size=len, pad=0),
            r".batch\(7, size=len\) in test_packing.py, line \d+: element 8 of .* has the length 8, and n is 7",
        ),
        (ONES.batch(7, size=np.sum), r"the length=.*0.0.* is not a whole number"),
        (
            ONES.pack(7).batch(2),
            r".pack\(7\) in test_packing.py, line \d+: element 8 of .* has 8 tokens, and a row has 7",
        ),
        (source([[1, 2]]).pack(7).batch(2), "element 0 .* 'tokens' is of the type list.*write .map above"),
        (source([np.ones((2, 2))]).pack(7).batch(2), r"has the shape \(2, 2\)"),
        (source([np.array(["a"])]).pack(7).batch(2), "the type <U1"),
        (source([{"ids": np.ones(2), "name": "a"}]).pack(7).batch(2), "'name' is of the type str"),
        (source([{"ids": np.ones(2), "labels": np.ones(3)}]).pack(7).batch(2), "'ids': 2, 'labels': 3"),
        (source([{"segments": np.ones(2)}]).pack(7).batch(2), "makes 'segments' itself"),
        (source([{}]).pack(7).batch(2), "empty dict"),
        (source([np.ones(2), np.ones(2, np.int8)]).pack(7).batch(2), "element 1 .* int8.*make all items alike"),
        (source([np.ones(2), {"ids": np.ones(2)}]).pack(7).batch(2), "make all items alike"),
    ],
)
def test_items_that_cannot_be_joined_are_errors_that_name_them(pipe: Pipe, words: str, workers: int):
    with pytest.raises(InvalidError) as raised:
        list(Loader(pipe, num_workers=workers))
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert re.search(words, text), text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ONES.pack(0), "length=0"),
        (lambda: ONES.pack(4).pack(4), r"below .pack"),
        (lambda: ONES.pack(4).shuffle(), r"below .pack\(4\)"),
        (lambda: ONES.pack(4).cache("8MiB"), r"below .pack\(4\)"),
        (lambda: ONES.batch(4).pack(4), r"below .batch"),
        (lambda: ONES.batch(4, size=len).pack(4), r"below .batch"),
        (lambda: ONES.batch(4, size=len).cache("8MiB"), r"below .batch"),
        (lambda: ONES.batch(4, size=len).shuffle(), r"below .batch"),
        (lambda: ONES.batch(4, size=3), "function of an item"),
        (lambda: ONES.batch(4, size=len, drop_last=True), "end with their windows"),
        (lambda: Loader(ONES.batch(4, size=len), batch_size=3), r"has .batch\(4, size=len\)"),
    ],
)
def test_wrong_chains_are_refused_when_they_are_made(make: Any, words: str):
    with pytest.raises(InvalidError, match=words):
        make()


def test_they_have_no_length_but_that_of_an_epoch():
    for pipe in (ONES.pack(9), ONES.batch(9, size=len)):
        with pytest.raises(TypeError, match=r"\.pack or batches by size="):
            len(pipe)
