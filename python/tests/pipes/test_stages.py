"""What stages do with wrong arguments, errors of functions, caches and pictures."""

from __future__ import annotations

import collections
import gc
import multiprocessing
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chains import double, noisy
from pictures import folder_of
from processes import mappings, until

import stocached
from stocached import InvalidError, Loader, NondeterministicDatasetError, Pipe, image, mix, source
from stocached._loader import worker_choice

TEN = source(list(range(10)))


def rows(n: int = 10) -> Pipe:
    return source([np.full(3, k, np.int64) for k in range(n)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: source("nowhere/*.jpg"), "does not exist"),
        (lambda: source(iter([1, 2])), r"source\(f, parts=1\)"),
        (lambda: source([]), "no elements"),
        (lambda: TEN.map(3), "function of an item"),
        (lambda: TEN.map(lambda a, b: a), "must be named generator"),
        (lambda: TEN.shuffle(seed=-1), "seed=-1"),
        (lambda: TEN.shuffle(1000), r"is it a seed or a buffer\? Write .shuffle\(seed=1000\)"),
        (lambda: TEN.shuffle(seed=1).map(double).shuffle(seed=2), "below .shuffle"),
        (lambda: mix([TEN, TEN]).shuffle(), "shuffle the pipes that are mixed"),
        (lambda: TEN.batch(2).shuffle(), r"one item of several; write it above"),
        (lambda: TEN.shuffle(weights=[1.0] * 9), "of 10 samples"),
        (lambda: TEN.shuffle(draws=3), "weights="),
        (lambda: TEN.shuffle(seed=1).zip(TEN.shuffle(seed=2)).cache(), "different orders"),
        (lambda: TEN.batch(2).cache(), "above .batch"),
        (lambda: TEN.zip(source([1, 2])), "10, 2 items"),
        (lambda: TEN.zip([1, 2]), "write source"),
        (lambda: TEN.batch(2).zip(TEN), "above .batch"),
        (lambda: TEN.batch(2) + TEN, "above .batch"),
        (lambda: TEN.batch(2).batch(2), "above .batch"),
        (lambda: TEN.batch(0), "n=0"),
        (lambda: TEN.batch(2, pad=0, collate=list), "leave one of them out"),
        (lambda: mix([]), "one pipe at least"),
        (lambda: mix([TEN], weights=[1, 2]), "2 weights"),
        (lambda: mix([TEN], weights=[0]), "above 0"),
        (lambda: mix([TEN], weights=[1], temperature=2.0), "not both"),
        (lambda: mix([TEN], temperature=0), "above 0"),
        (lambda: mix([TEN], stop=0), "stop=0"),
    ],
)
def test_wrong_chains_are_refused_when_they_are_made(make: Any, words: str):
    with pytest.raises(InvalidError, match=words):
        make()


def test_a_random_stage_above_a_cache_is_refused_with_both_lines():
    with pytest.raises(
        NondeterministicDatasetError, match=r"test_stages.py, line \d+: .map\(noisy\) in test_stages.py"
    ):
        TEN.map(noisy).map(double).cache("8MiB")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shuffle": True}, r"write .shuffle\(\)"),
        ({"order": "sequential"}, r"write .shuffle\(\) or mix\(\)"),
        ({"augment": double}, r"write .map\(\)"),
        ({"size": "8MiB"}, r"write .cache\(size="),
        ({"batch_size": 3}, r"has .batch\(2\)"),
        ({"collate_fn": list}, r"has .batch\(2\)"),
        ({"drop_last": True}, r"has .batch\(2\)"),
        ({"batch_sampler": [[1]]}, r"write .batch\(\)"),
    ],
)
def test_arguments_of_a_loader_that_the_chain_says_are_refused(arguments: Any, words: str):
    with pytest.raises(InvalidError, match=words):
        Loader(TEN.batch(2), **arguments)


def test_a_batch_draws_no_random_numbers():
    with pytest.raises(InvalidError, match="draw above .batch"):
        Loader(TEN.batch(2).map(noisy))


def fail(x: int) -> int:
    if x == 6:
        raise KeyError("six")
    return x


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "pipe", [TEN.map(fail), TEN.shuffle(seed=1).map(fail), TEN.shuffle(seed=1).zip(TEN.shuffle(seed=2).map(fail))]
)
def test_errors_name_the_stage_its_line_and_the_element(pipe: Pipe, workers: int):
    with pytest.raises(KeyError) as raised:
        list(Loader(pipe.batch(2), num_workers=workers))
    notes = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert "in .map(fail) in test_stages.py, line" in notes
    assert "sample 6" in notes or "element 6" in notes
    assert "augment=" not in notes


def test_functions_below_a_batch_get_the_batch():
    loader = Loader(TEN.batch(4).map(lambda batch: batch + 0.5).map(double))
    assert next(batch.tolist() for batch in loader) == [1.0, 3.0, 5.0, 7.0]


def test_without_a_batch_stage_the_loader_says_the_size():
    assert [batch.tolist() for batch in Loader(TEN.map(double), batch_size=4)][-1] == [16, 18]
    assert len(Loader(TEN, batch_size=4, drop_last=True)) == 2


def test_batches_are_padded():
    items = source([{"tokens": np.arange(k + 1), "label": k} for k in range(3)])
    (batch,) = Loader(items.batch(3, pad=-1))
    assert batch["tokens"].tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
    assert batch["label"].tolist() == [0, 1, 2]
    boxes = source([(np.ones((k, 4)), np.full((2, k), 7)) for k in (1, 3)])
    (both,) = Loader(boxes.batch(2, pad=0))
    assert both[0].shape == (2, 3, 4)
    assert both[1].shape == (2, 2, 3)
    with pytest.raises(InvalidError, match="no dicts"):
        list(Loader(boxes.batch(2, pad={"boxes": 0})))


def test_a_length_without_drop_last_counts_the_short_batch():
    assert (len(TEN.batch(4)), len(TEN.batch(4, drop_last=True))) == (3, 2)
    with pytest.raises(InvalidError, match="for batch in Loader"):
        TEN.batch(4)[0]


def test_a_pipe_is_drawn_a_line_a_stage():
    pipe = source([1]).map(double).flat_map(list, count=2).zip(source([3, 4]).shuffle(seed=5)).batch(2)
    assert repr(pipe).split("\n") == [
        "    source(list, 1 elements)",
        "    .map(double)",
        "    .flat_map(list, count=2)",
        "    source(list, 2 elements)",
        "    .shuffle(seed=5)",
        ".zip(2 pipes, side by side)",
        ".batch(2)",
    ]


def test_temperature_flattens_ratios():
    sides = [source([k] * n) for k, n in enumerate((900, 90, 10))]
    items = list(mix(sides, temperature=3.0, stop=1000))
    shares = np.bincount(items) / 1000
    wanted = np.array([900, 90, 10]) ** (1 / 3)
    assert np.abs(shares - wanted / wanted.sum()).max() < 0.005
    assert np.bincount(list(mix(sides, stop="all"))).tolist() == [900, 90, 10]
    for lengths in ((900, 90, 10), (1, 5, 1), (7, 4, 3, 13)):  # by length, no pipe ends before the others
        sides = [source([k] * n) for k, n in enumerate(lengths)]
        assert np.bincount(list(mix(sides))).tolist() == [*lengths]


# ------------------------------------------------------------ caches


class Counted:
    """A dataset that counts its reads, in all processes."""

    def __init__(self, n: int) -> None:
        self.n, self.reads = n, multiprocessing.Value("i", 0)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        with self.reads.get_lock():
            self.reads.value += 1
        return np.full(1000, index, np.float32)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_stands_above_a_cache_is_done_once(workers: int):
    data = Counted(40)
    pipe = source(data).cache("8MiB", allow_random=True).shuffle(seed=1).map(noisy_rows)
    loader = Loader(pipe.batch(8), num_workers=workers)
    list(loader)
    before = data.reads.value
    for _ in range(3):
        list(loader)
    assert data.reads.value == before <= 40 + 3
    assert loader.stats().hits >= 3 * 40


def noisy_rows(x: Any, generator: Any) -> Any:
    return x + generator.random()


def grown(x: Any) -> Any:
    """Changes what it gets."""
    if isinstance(x, dict):
        x["seen"].append(1)
        x["a"] += 1
    else:
        x += 1
    return x


def pair_of(x: Any) -> Any:
    return [grown(x), {"a": -x["a"], "seen": [5]}] if isinstance(x, dict) else x.reshape(2, 2)


CHANGED: dict[str, Any] = {
    "map": lambda pipe: pipe.map(grown),
    "above a cache": lambda pipe: pipe.map(grown).cache("8MiB"),
    "weights": lambda pipe: pipe.shuffle(seed=1, weights=[1.0] * 6, draws=24).map(grown),
    "zip": lambda pipe: pipe.zip(pipe).map(lambda pair: grown(pair[0])),
    "mix": lambda pipe: mix([pipe, pipe.map(grown)], weights=[1, 1]).map(grown),
    "filter": lambda pipe: pipe.filter(lambda x: grown(x) is not None).map(grown),
    "lists": lambda pipe: pipe.flat_map(pair_of).map(grown),
    "counted": lambda pipe: pipe.flat_map(pair_of, count=2).map(grown),
    "lists of a cache": lambda pipe: pipe.cache("8MiB").flat_map(pair_of).map(grown),
}


@pytest.mark.parametrize("kind", ["arrays", "dicts"])
@pytest.mark.parametrize("name", CHANGED)
def test_a_function_that_changes_its_item_changes_no_data(name: str, kind: str):
    """An item of a list is the program's own object; a hit is a copy. Functions get copies of both, so epochs are alike."""
    arrays = [np.full(4, k, np.int64) for k in range(6)]
    data: list[Any] = arrays if kind == "arrays" else [{"a": array, "seen": [0]} for array in arrays]
    pipe = CHANGED[name](source(data))
    want = [repr(item) for item in pipe]
    for loader in (
        Loader(pipe, batch_size=None),
        Loader(pipe, batch_size=None, num_workers=1, persistent_workers=True),
    ):
        for _ in range(2):
            assert sorted(repr(item) for item in loader) == sorted(want) or name == "weights"
        loader.close()
    assert [repr(item) for item in pipe] == want
    assert repr(arrays) == repr([np.full(4, k, np.int64) for k in range(6)])
    assert kind == "arrays" or repr([item["seen"] for item in data]) == repr([[0]] * 6)


class Half(collections.namedtuple("Half", "value twice")):
    """A class that is made of other arguments than its values."""

    def __new__(cls, value: Any) -> Any:
        return super().__new__(cls, value, [2 * value])


def test_an_item_that_contains_itself_is_copied_too():
    tree: dict[str, Any] = {"a": 0, "seen": []}
    tree["leaf"] = {"parent": tree}
    half = Half(3)
    made, other = source([tree, half]).filter(lambda x: True)
    assert made is not tree
    assert made["leaf"]["parent"] is made
    assert made["seen"] is not tree["seen"]
    assert repr(other) == repr(half)


@pytest.mark.parametrize("item", [Path("a.txt"), np.int64(3), np.float32(1), np.str_("a")], ids=repr)
def test_what_is_made_of_an_item_that_cannot_change_is_not_copied(item: Any):
    made = {"a": 1}
    assert next(iter(source([item]).flat_map(lambda x: [made]))) is made


def test_caches_of_sides_are_read_by_workers():
    left, right = Counted(30), Counted(30)
    pipe = (
        source(left)
        .cache("8MiB", allow_random=True)
        .shuffle(seed=1)
        .zip(source(right).cache("8MiB", allow_random=True).shuffle(seed=2))
    )
    loader = Loader(pipe.batch(5), num_workers=2)
    for _ in range(3):
        assert sorted(int(x) for batch in loader for x in batch[0][:, 0]) == list(range(30))
    assert left.reads.value <= 33
    assert right.reads.value <= 33


def test_a_named_cache_of_another_chain_is_refused():
    name = f"pipes-{stocached.__name__}-{np.random.default_rng().integers(2**60)}"
    one = Loader(rows().map(double).cache("8MiB", name=name).batch(2))
    try:
        list(one)
        list(Loader(rows().shuffle(seed=1).map(double).cache("8MiB", name=name).map(fail_never).batch(5)))
        with pytest.raises(stocached.FingerprintError):
            Loader(rows().map(negated).cache("8MiB", name=name).batch(2))
    finally:
        one.cache.unlink()


def fail_never(x: Any) -> Any:
    return x


def negated(x: Any) -> Any:
    return -x


def test_two_loaders_of_one_pipe_share_its_cache():
    data = Counted(20)
    pipe = source(data).cache("8MiB", allow_random=True)
    first, second = Loader(pipe.batch(4)), Loader(pipe.shuffle(seed=1).batch(5))
    for _ in first:
        pass
    before = data.reads.value
    for _ in second:  # batches that are kept would take all memory of the pool
        pass
    assert data.reads.value - before <= 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cached_pipe_that_is_gone_holds_no_memory(workers: int):
    """Not even until the garbage collector runs."""
    gc.collect()
    gc.disable()
    try:
        before = mappings()
        loader = Loader(source(list(range(20))).cache("8MiB").shuffle(seed=1).map(double).batch(4), num_workers=workers)
        assert len(list(loader)) == 5
        assert mappings() != before
        del loader
        until(lambda: mappings() == before)
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_pipes_go_to_workers_that_are_not_forked(method: str):
    pipe = rows().cache("8MiB").shuffle(seed=1).zip(rows().shuffle(seed=2)).batch(5)
    forked, other = (
        [batch[0].tolist() for batch in Loader(pipe, num_workers=2, multiprocessing_context=context)]
        for context in (None, method)
    )
    assert forked == other
    assert list(map(str, pickle.loads(pickle.dumps(TEN.shuffle(seed=3))))) == list(map(str, TEN.shuffle(seed=3)))


# ------------------------------------------------------------ pictures


def test_steps_of_pictures_run_in_native_workers(tmp_path: Path):
    folder_of(tmp_path, {"a": 4, "b": 4}, (50, 40))
    pipe = (
        source(image.Folder(tmp_path))
        .map(image.Resize((24, 24)))
        .map(image.CenterCrop(20))
        .cache("8MiB")
        .shuffle(seed=1)
        .map(image.RandomCrop(16))
        .batch(3)
    )
    assert (pipe.classes, pipe.class_to_idx, pipe.targets) == (["a", "b"], {"a": 0, "b": 1}, [0] * 4 + [1] * 4)
    pictures = source(image.Folder(tmp_path))
    assert not hasattr(pictures + pictures, "classes")
    assert not hasattr(TEN, "classes")
    loader = Loader(pipe, num_workers=2, seed=5)
    assert loader.worker == "native"
    native = [(pictures.tolist(), labels.tolist()) for pictures, labels in loader]
    python = Loader(pipe, num_workers=2, seed=5, worker="process")
    assert native == [(pictures.tolist(), labels.tolist()) for pictures, labels in python]


@pytest.mark.parametrize("size", [None, "8MiB"])
def test_native_workers_draw_the_numbers_of_each_stage(tmp_path: Path, size: str | None):
    folder_of(tmp_path, {"a": 12, "b": 12}, (50, 40))
    pipe = source(image.Folder(tmp_path)) if size is None else source(image.Folder(tmp_path)).cache(size)
    pipe = pipe.shuffle(seed=1)
    for step in (
        image.RandomResizedCrop(24), image.RandomHorizontalFlip(), image.ColorJitter(0.4, hue=0.2), image.Resize(20),
        image.RandomCrop(16, padding=2), image.ToDtype("float32", scale=True), image.Normalize(0.5, 0.2),
        image.RandomErasing(value="random"),
    ):  # fmt: skip
        pipe = pipe.map(step)
    loader = Loader(pipe.batch(5), num_workers=2, seed=5)
    assert loader.worker == "native"
    native = [pictures.copy() for _ in range(2) for pictures, _ in loader]
    python = Loader(pipe.batch(5), seed=5)
    assert all(map(np.array_equal, native, [pictures for _ in range(2) for pictures, _ in python]))
    loader.close()
    python.close()


def test_a_stage_that_c_cannot_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(worker_choice, "_said", set())
    folder_of(tmp_path, {"a": 4}, (50, 40))
    pictures, crop, line = source(image.Folder(tmp_path)), image.RandomCrop(16), r" in test_stages.py, line \d+"
    for pipe, why in (
        (pictures.map(crop).map(list), rf"\.map\(list\){line} is no step of stocached.image"),
        (
            pictures.map(list).cache("8MiB").map(crop),
            rf"the dataset is made by \.map\(list\){line}, not a Folder",
        ),
        (mix([pictures, pictures]).map(crop), "the dataset is a pipe with mix, zip or weights, not a Folder"),
    ):
        with pytest.raises(InvalidError, match=why):
            Loader(pipe.batch(4), num_workers=2, worker="native")
        caplog.clear()
        assert Loader(pipe.batch(4), num_workers=2).worker == "process"
        assert re.search(why, caplog.text)
