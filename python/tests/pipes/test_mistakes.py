"""Mistakes that users make with pipes, and what the errors say: the stage, its line, the element and the next step."""

from __future__ import annotations

import csv
import functools
import os
import pickle
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stocached
from stocached import InvalidError, Loader, source
from stocached._datasets.cached_samples import CachedSamples

NUMBERS = source(list(range(10)))
LISTS = NUMBERS.flat_map(lambda x: [x])
LINE = r" in test_mistakes.py, line \d+"


def named(x: Any, *, strength: float) -> Any:
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda image, label: image, r"takes 2 arguments, and gets one: .* The second one here is 'label'"),
        (lambda x, rng: x, "must be named generator.* is 'rng'"),
        (lambda x, generator, more: x, "takes 3 arguments.* There is no third one"),
        (lambda: None, "takes no argument by position"),
        (named, r"needs strength, .*partial\(function, strength=...\)"),
        (3, "takes a function"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_in_its_line(function: Any, words: str):
    for make in (NUMBERS.map, LISTS.filter, LISTS.flat_map, functools.partial(NUMBERS.flat_map, count=2)):
        with pytest.raises(InvalidError, match=rf"^\.\w+\(.*{LINE}: it .*{words}"):
            make(function)
    NUMBERS.map(functools.partial(named, strength=2))


def test_words_of_other_libraries_name_what_takes_their_place():
    for name, words in {
        "take": r"source\(data\[:100\]\)",
        "repeat": "each loop",
        "concatenate": r"write a \+ b",
        "decode": "decode=True",
        "to_tuple": r"write \.map",
        "rename": r"write \.map",
    }.items():
        with pytest.raises(AttributeError, match=f"^a pipe has no {name}: .*{words}"):
            getattr(NUMBERS, name)
    with pytest.raises(AttributeError, match="^a pipe has no unknown$"):
        _ = NUMBERS.unknown
    with pytest.raises(AttributeError, match="'list' object has no attribute 'classes'"):
        _ = NUMBERS.classes
    assert list(pickle.loads(pickle.dumps(NUMBERS))) == list(NUMBERS)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((x for x in "ab"), r"source\(f, parts=1\)"),
        ({"a": [1, 2]}, r"source\(range\(n\)\)\.map\(lambda row"),
        ([NUMBERS, LISTS], r"join them with a \+ b, or mix"),
        ("", r"source\(''\): an empty text is no file"),
    ],
)
def test_data_without_an_index_is_refused_with_what_takes_its_place(data: Any, words: str):
    with pytest.raises(InvalidError, match=words):
        source(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda batches: batches.filter(bool),
        lambda batches: batches.flat_map(list),
        lambda batches: batches.map(abs).filter(bool),
    ],
)
@pytest.mark.parametrize("pipe", [NUMBERS, LISTS])
def test_a_function_of_items_below_batch_is_refused(pipe: Any, make: Callable[[Any], Any]):
    with pytest.raises(InvalidError, match=rf"below \.batch\(2\){LINE}, and takes items; write it above"):
        make(pipe.batch(2))


def generates(x: Any) -> Any:
    yield x


async def awaits(x: Any) -> Any:
    return x


def test_generators_and_async_functions_are_refused_where_they_make_no_items():
    for function in (generates, functools.partial(generates)):
        for make in (NUMBERS.map, LISTS.map, NUMBERS.filter):
            with pytest.raises(InvalidError, match=rf"{LINE}: this function is a generator; write .flat_map"):
                make(function)
    for make in (NUMBERS.map, NUMBERS.filter, NUMBERS.flat_map):
        with pytest.raises(InvalidError, match=rf"{LINE}: .* is async"):
            make(awaits)


@pytest.mark.parametrize("made", ["text", b"text", {"key": 1}])
def test_what_gives_no_items_is_no_list(made: Any):
    one = source([made])
    for pipe in (one.flat_map(lambda x: x), one.flat_map(lambda x: x, count=4)):
        with pytest.raises(InvalidError, match=rf"{LINE}: it has made .*, with element 0 of source.*write \[...\]"):
            list(pipe)
    assert list(one.flat_map(lambda x: [x])) == [made]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_filter_without_a_truth_names_its_stage(workers: int):
    said = message(NUMBERS.filter(lambda x: np.zeros(3)).batch(2), ValueError, num_workers=workers)
    assert re.search(rf"in \.filter\(<lambda>\){LINE}, with element 0 of source", said)


def test_what_has_no_row_at_an_index_is_refused(tmp_path):
    pandas, pyarrow, h5py = map(pytest.importorskip, ("pandas", "pyarrow", "h5py"))
    rows = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    frame, table = pandas.DataFrame(rows), pyarrow.Table.from_pylist(rows)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = [1, 2]
        np.savez(tmp_path / "a.npz", x=[1, 2])
        for data, said in (
            (frame, r'takes names, not positions; give \.to_dict\("records"\)'),
            (frame["a"], r"takes names, not positions; give \.to_list\(\)"),
            (table, r"gives columns, not rows; give \.to_pylist\(\)"),
            (table.to_batches()[0], r"gives columns, not rows; give \.to_pylist\(\)"),
            (file, r"takes names, not positions; give one of its datasets, or source\(\) the name of the file"),
            (np.load(tmp_path / "a.npz"), r"takes names.*; give one of its arrays, or source\(\) the name of the file"),
            ({"a": np.ones(3)}, r"takes names, not positions; of a dict of columns, give source\(range\(n\)\)\.map"),
            (
                {"train": types.SimpleNamespace(features=1)},
                r"takes names.*; give one of its datasets, such as d\['train'\]",
            ),
            (np.array(5), "has no dimension, so there are no samples in it; give a list"),
            (iter, r"this is a function; give what it returns, or source\(f, parts=n\)"),
            (None, r"neither len\(\) and \[index\] nor an iterator; give a list"),
        ):
            for take in (source, Loader, CachedSamples):
                with pytest.raises(InvalidError, match=said):
                    take(data)
        assert [int(x) for x in source(file["x"])] == [1, 2]
    for data in (iter(rows), map(len, rows), (row for row in rows), csv.reader([])):
        with pytest.raises(InvalidError, match=r"this is an iterator, which has nothing left.*source\(f, parts=1\)"):
            Loader(data)
    assert list(source(frame.to_dict("records"))) == list(source(table.to_pylist())) == rows


class Zarr:
    """As an array of Zarr 3, which has no len()."""

    shape = (4, 3)

    def __getitem__(self, k: int) -> Any:
        return np.zeros(3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (list, r"source\(list\): this is a class; give an object, list\(\.\.\.\)"),
        (b"train", r"write source\('train'\)"),
        (Zarr(), r"give source\(range\(4\)\)\.map\(lambda k: data\[k\]\)"),
    ],
)
def test_what_is_no_source_says_what_to_give(data, said):
    with pytest.raises(InvalidError, match=said):
        source(data)


# ------------------------------------------------------------ batches


def message(pipe: Any, kind: type[BaseException], **arguments: Any) -> str:
    with pytest.raises(kind) as raised:
        list(Loader(pipe, **arguments))
    return "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])


ALIKE = r"\.batch\(2\) in test_mistakes.py, line \d+, of 2 items, which must be alike; pad= "


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("below", [NUMBERS, LISTS], ids=["index", "lists"])
def test_items_that_make_no_batch_are_an_error_that_names_the_stage(below: Any, workers: int):
    match = re.search
    unlike = below.map(lambda x: np.zeros(x)).batch(2)
    assert match(ALIKE, message(unlike, ValueError, num_workers=workers))
    keys = below.map(lambda x: {str(x): x}).batch(2)
    assert match(f"(?s)has no .0.*{ALIKE}", message(keys, ValueError, num_workers=workers))
    pads = below.map(lambda x: {"a": np.zeros(x)}).batch(2, pad={"b": 0})
    said = message(pads, InvalidError, num_workers=workers)
    assert match(r"'b', and items have 'a'\n.*\.batch\(2\) in test_mistakes.py, line \d+$", said)
    own = below.batch(2, collate=lambda items: items[5])
    assert match(r"\.batch\(2\) in test_mistakes.py, line \d+$", message(own, IndexError, num_workers=workers))
    assert match("batches of batch_size=2, of 2 items", message(unlike_of(below), ValueError, batch_size=2))


def unlike_of(below: Any) -> Any:
    return below.map(lambda x: np.zeros(x))


@pytest.mark.parametrize("workers", [0, 2])
def test_none_as_an_item_asks_for_the_return(workers: int):
    for function in (lambda x: None if x == 3 else np.zeros(2), lambda x: None if x % 2 else x):
        said = message(LISTS.map(function).batch(2), Exception, num_workers=workers)
        assert ": item 1 of these 2 is None. Is a return missing" in said
    with pytest.raises(InvalidError, match=r"^\.map\(<lambda>\) returned None: .* Is a return missing\?"):
        list(Loader(LISTS.batch(2).map(lambda batch: None), num_workers=workers))
    said = message(NUMBERS.flat_map(lambda x: None).batch(2), InvalidError, num_workers=workers)
    assert re.search(r"^\.flat_map\(<lambda>\).*made None, with element 0 .*; is a return missing\?", said)
    said = message(NUMBERS.map(lambda x: None).cache("8MiB").batch(2), stocached.SchemaError, num_workers=workers)
    assert re.search(r"(?s)^sample \d of the dataset is None: .*Is a return missing .*in \.cache\(", said)


def opened(x: int) -> Any:
    yield open(os.devnull)  # noqa: SIM115


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_item_that_cannot_be_sent_names_its_element(method: str):
    pipe = NUMBERS.flat_map(opened).batch(2, collate=list)
    said = message(pipe, TypeError, num_workers=2, multiprocessing_context=method)
    assert "cannot send the items from element 0 of source(list, 10 elements) on; write .map" in said


# ------------------------------------------------------------ workers


def plain(x: int) -> int:
    return x


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("stage", "pipe"),
    [
        (".map", NUMBERS.map(lambda x: x).batch(2)),
        (".map", NUMBERS.map(functools.partial(lambda x, y: x, y=1)).batch(2)),
        (".filter", NUMBERS.filter(lambda x: True).map(plain).cache("8MiB").batch(2)),
        (".flat_map", NUMBERS.flat_map(plain, count=lambda x: 1).batch(2)),
        (".batch", NUMBERS.batch(2, collate=lambda items: items)),
        ("source", source(lambda x: [x], parts=2).batch(2)),
    ],
)
def test_a_function_that_spawned_workers_cannot_get_is_refused_with_its_stage(stage: str, pipe: Any, method: str):
    with pytest.raises(
        InvalidError, match=rf"^{re.escape(stage)}.*{LINE}: .* started by {method} .*define it in a module"
    ):
        Loader(pipe, num_workers=2, multiprocessing_context=method)
    for arguments in ({"multiprocessing_context": "fork", "num_workers": 2}, {"num_workers": 0}):
        Loader(pipe, **arguments).close()


def test_a_function_of_batches_need_not_be_sent_to_workers():
    pipe = NUMBERS.batch(2).map(lambda batch: batch + 1)
    assert len(list(Loader(pipe, num_workers=2, multiprocessing_context="forkserver"))) == 5


def damaged(path: str) -> int:
    if Path(path).read_text() == "3":
        raise ValueError("damaged")
    return 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["pattern", "list", "paths"])
def test_errors_name_the_file(tmp_path: Path, kind: str, workers: int):
    paths = [tmp_path / f"{k}.txt" for k in range(5)]
    for k, path in enumerate(paths):
        path.write_text(str(k))
    base = source({"pattern": f"{tmp_path}/*.txt", "list": [*map(str, paths)], "paths": paths}[kind])
    for pipe in (base.map(damaged), base.map(damaged).cache("16MiB"), base.filter(damaged)):
        assert f"5 elements), {paths[3]}" in message(pipe.batch(2), ValueError, num_workers=workers)


def test_long_texts_are_not_in_errors():
    texts = source(["a long text " * 99, "one\ntwo"]).map(int)
    said = message(texts.batch(1), ValueError).split("stocached: ", 1)[1]
    assert "element 0 of source(list, 2 elements)" in said
    assert "long text" not in said


def test_random_samples_above_a_cache_get_the_advice_for_pipes():
    with pytest.raises(stocached.NondeterministicDatasetError, match=r"below \.cache\(\), as a \.map\(\)"):
        list(Loader(NUMBERS.map(lambda x: np.random.rand(3)).cache("8MiB").batch(2)))


def test_what_a_pipe_cannot_do_says_what_can():
    with pytest.raises(TypeError, match="DataLoader read it as it is"):
        len(LISTS)
    with pytest.raises(InvalidError, match="no slices"):
        NUMBERS[2:5]


@pytest.mark.parametrize("pipe", [NUMBERS.map({}.__getitem__), NUMBERS.flat_map({}.__getitem__)])
def test_a_key_that_is_missing_above_a_cache_gets_no_advice_on_samplers(pipe: Any):
    told = message(pipe.cache("8MiB").batch(2), KeyError)
    assert re.search(r"(?s)stocached: in \.(flat_)?map\(__getitem__\)" + LINE + r".*sample 0 was loaded on trial", told)
    assert "sampler" not in told


@pytest.mark.parametrize("pipe", [NUMBERS.map(float), LISTS, NUMBERS.cache("8MiB").map(float).zip(NUMBERS)])
def test_a_cache_that_cannot_be_made_names_its_line(pipe: Any):
    told = message(pipe.cache(2_400_000).batch(2), stocached.CacheMemoryError)
    assert re.search(r"stocached: in \.cache\(size=2400000\)" + LINE, told)
    for options, words in (
        ({"disk": "a folder"}, "'a folder' is not a size.*folder is disk_dir="),
        ({"size": "much"}, "'much'"),
        ({"policy": "some"}, '"some" is not one of'),
        ({"variable": "no"}, "variable='no'"),
        ({"store": "raw"}, "store='raw'"),
    ):
        with pytest.raises(InvalidError, match=r"^\.cache\(.*\)" + LINE + ".*" + words):
            pipe.cache(**options)


def test_print_shows_all_arguments_of_batch_and_states_do_not():
    pipe, other = LISTS.batch(7, size=int, pad={"boxes": -1}), LISTS.batch(7, size=int)
    assert repr(pipe).endswith(".batch(7, size=int, pad={'boxes': -1})")
    assert repr(NUMBERS.batch(7, collate=list, drop_last=True)).endswith(".batch(7, collate=list, drop_last=True)")
    assert Loader(pipe).state_dict() == Loader(other).state_dict()


def test_the_class_of_a_step_is_refused():
    from stocached import image

    for step in (image.Decode, image.CenterCrop, image.RandomResizedCrop):
        name = step.__name__
        with pytest.raises(InvalidError, match=rf"^\.map\({name}\){LINE}: it takes a step, .* write {name}\("):
            NUMBERS.map(step)
