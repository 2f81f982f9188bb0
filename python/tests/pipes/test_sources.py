"""What `source` takes: patterns, folders, long lists, datasets of other libraries, served caches."""

from __future__ import annotations

import glob
import multiprocessing
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stocached
from stocached import InvalidError, Loader, Pipe, source
from stocached._memory.texts import Texts
from stocached._shards.braces import expanded


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files at random places, in the working folder."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)
    for _ in range(200):
        folder = Path(*draw.choices(["a", "b", "a-b", "a.b", ".h", "é"], k=draw.randint(0, 3)))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / draw.choice(["f1.bin", "f2.jpg", ".f.bin", "é.bin", "a!.jpg", os.fsdecode(b"\xff.bin")])).touch()
    (tmp_path / "a" / "broken.bin").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("b")
    return tmp_path


def globbed(text: str) -> list[str]:
    """What glob finds for the patterns that a text stands for."""
    found = {path for one in expanded(text) for path in glob.glob(one, recursive=True) if not os.path.isdir(path)}
    return sorted(found, key=os.fsencode)


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "a*/*/f?.bin",
        "[!a]/*",
        "?/*.bin",
        "a/*.bin",
        ".h/*",
        ".h/.*",
        "link/*",
        "**/*",
        "**/*.bin",
        "a/**/*.bin",
        "**/a/**/*.bin",
        "{a,b}/**/*.bin",
        "{b,*,a}/*.bin",
        "{a,a-b,a}/*",
        "{a/**,**}/*.jpg",
    ],
)
def test_a_pattern_is_its_files_in_byte_order(tree: Path, text: str):
    wanted = globbed(text)
    assert wanted
    pipe = source(text)
    assert list(pipe) == wanted
    assert (pipe[-1], len(pipe)) == (wanted[-1], len(wanted))
    assert list(source(os.path.join(tree, text))) == [os.path.join(tree, path) for path in wanted]


def test_a_folder_is_all_its_files(tree: Path):
    assert list(source("a/")) == list(source("a")) == list(source(Path("a"))) == globbed("a/**/*")
    assert list(source("{b,a}/")) == globbed("{a,b}/**/*")


def test_names_with_wildcards_are_taken_as_they_are(tmp_path: Path):
    folder = tmp_path / "[1]"
    folder.mkdir()
    (folder / "a*.txt").touch()
    (folder / "ab.txt").touch()
    assert list(source(folder / "a*.txt")) == [str(folder / "a*.txt")]
    assert list(source(folder)) == [str(folder / "a*.txt"), str(folder / "ab.txt")]


def test_links_back_to_a_folder_above_end(tmp_path: Path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "b").symlink_to("../b")
    (tmp_path / "b" / "a").symlink_to("../a")
    names = [os.path.relpath(path, tmp_path) for path in source(tmp_path)]
    assert names == ["a/b/file", "a/file", "b/a/file", "b/file"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zz/*.jpg", "the folder zz/ does not exist in /.*Correct"),
        ("a/*.nope", r"no file in a/ matches \*\.nope; the folder has .* such as .*\*\* for any folders"),
        ("nope.txt", "nope.txt is no file and no folder in /"),
        ("f1-{0..2}.bin", "f1-0.bin is no file"),
        ("{a,", "without its }"),
        ("a/[a", r"needs a \]"),
        ("a/x**", "a whole part"),
    ],
)
def test_errors_name_the_text_and_what_was_searched(tree: Path, text: str, words: str):
    with pytest.raises(InvalidError, match=words) as raised:
        source(text)
    assert text in str(raised.value)


# ------------------------------------------------------------ one buffer

MANY = 150_000


def names() -> list[str]:
    """Made by each test: what a module keeps, each fork of each process that runs tests copies."""
    return [f"/data/train/{k}-é.jpg" for k in range(MANY)]


@pytest.mark.parametrize("make", [lambda: names()[:120_000], lambda: ["\udcff", "", "\0", "a" * 500] * 30_000])
def test_a_long_list_of_texts_stays_what_it_is(make: Any):
    texts = make()
    pipe = source(texts)
    assert isinstance(pipe._stage.data, Texts)
    assert list(pipe) == texts
    assert pipe[-1] == texts[-1]
    with pytest.raises(IndexError, match="out of range"):
        pipe[len(texts)]
    assert repr(pipe) == f"source(list, {len(texts):,} elements)"
    assert list(pickle.loads(pickle.dumps(pipe)))[-3:] == texts[-3:]


@pytest.mark.parametrize("others", [[3], [b"x"], [None, "/x"], range(MANY)])
def test_a_long_list_of_other_values_stays_a_list(others: Any):
    items = [*others] if isinstance(others, range) else [*names(), *others]
    assert source(items)._stage.data is items


def test_an_array_stays_an_array():
    array = np.arange(MANY)
    assert source(array)._stage.data is array


def seen(pipe: Pipe, answer: Any) -> None:
    with open("/proc/self/smaps") as file:
        maps = file.read().split("VmFlags")
    shared = [each for each in maps if "/memfd:stocached-texts" in each]
    values = list(pipe)
    copied = sum(int(line.split()[1]) for each in shared for line in each.splitlines() if "Anonymous:" in line)
    answer.put((len(shared), copied, values[0], values[-1], hash(tuple(map(len, values)))))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_share_the_buffer(method: str):
    texts = names()
    pipe = source(texts)
    assert len(pickle.dumps(pipe)) < 2000
    context = multiprocessing.get_context(method)
    answer = context.Queue()
    process = context.Process(target=seen, args=(pipe, answer))
    process.start()
    assert answer.get(timeout=120) == (2, 0, texts[0], texts[-1], hash(tuple(map(len, texts))))
    process.join(120)


def test_a_small_buffer_outlives_its_process(tree: Path):
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        data = pool.apply(pickled, ("a/",))
    assert list(pickle.loads(data)) == globbed("a/**/*")


def pickled(text: str) -> bytes:
    return pickle.dumps(source(text))


def test_the_memory_goes_with_the_pipe():
    def files() -> int:
        return sum("stocached-texts" in os.readlink(f"/proc/self/fd/{fd}") for fd in held())

    def held() -> list[str]:
        return [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]

    before = files()
    pipe = source(names()).shuffle(seed=1)
    assert files() == before + 2
    del pipe
    assert files() == before


def length(path: str) -> int:
    return len(path.encode())


@pytest.mark.parametrize("worker", ["fork", "forkserver"])
def test_a_loader_reads_a_buffer(worker: str):
    texts = names()
    pipe = source(texts).map(length).shuffle(seed=1).batch(500)
    loader = Loader(pipe, num_workers=2, multiprocessing_context=worker)
    order = stocached.Order(MANY, "shuffled", seed=1).epoch(0)
    for k, batch in zip(range(3), loader):
        assert batch.tolist() == [length(texts[order.at(p)]) for p in range(500 * k, 500 * k + 500)]
    loader.close()


# ------------------------------------------------------------ caches


def numbers(path: str) -> Any:
    yield np.array([int(part) for part in Path(path).read_text().split()])


def number(path: str) -> int:
    return int(Path(path).read_text())


@pytest.mark.parametrize("make", [lambda pipe: pipe.map(number), lambda pipe: pipe.flat_map(numbers)])
def test_a_named_cache_knows_the_files(tmp_path: Path, cache_name: str, make: Any):
    for k in range(5):
        (tmp_path / f"{k}.txt").write_text(f"{k}")
        os.utime(tmp_path / f"{k}.txt", ns=(1, 10**18))

    def read(*texts: str) -> int:
        loader = Loader(make(source(*texts)).cache("16MiB", name=cache_name).batch(2))
        return sum(len(batch) for batch in loader)

    assert read(f"{tmp_path}/*.txt") == read(f"{tmp_path}/") == read(f"{tmp_path}/[0-4].txt") == 5
    os.utime(tmp_path / "3.txt", ns=(1, 10**18 + 1))
    with pytest.raises(stocached.FingerprintError, match="changed"):
        read(f"{tmp_path}/*.txt")
    os.utime(tmp_path / "3.txt", ns=(1, 10**18))
    assert read(f"{tmp_path}/*.txt") == 5
    (tmp_path / "3.txt").rename(tmp_path / "5.txt")
    with pytest.raises(stocached.FingerprintError, match="changed"):
        read(f"{tmp_path}/*.txt")
