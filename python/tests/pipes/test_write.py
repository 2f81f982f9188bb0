"""A pipe is written into files and read from them. The items are the same for any number of workers and kills."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import mmap
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chains import CHAINS
from prepared import stocached, tree
from processes import forked, held, step_kills
from test_pipes import plain

from stocached import (
    CorruptError,
    InvalidError,
    Loader,
    NondeterministicDatasetError,
    Pipe,
    SchemaError,
    VersionError,
    source,
)
from stocached._pipes.stage import every
from stocached._prepared.tar_writer import TarDocument, TarWriter
from stocached._shards.tar_index import SUFFIX
from stocached.prepare import BlockStorage, IndexSet, InTheWayError, NotPreparedError, PreparedDataset

KILLS = int(os.environ.get("STOCACHED_TEST_KILLS", "15"))
FORMATS: Any = ("block", "tar")
N = 60
SMALL = {"file_bytes": 20_000}


def member(x: int) -> dict[str, Any]:
    """An item for both formats, of 0 to 4,000 bytes."""
    return {"jpg": bytes([x % 251]) * (x * 97 % 4000), "cls": x, "txt": "ä" * (x % 7)}


def members(x: int) -> Iterator[dict[str, Any]]:
    return (member(10 * x + k) for k in range(x % 4))


def indexed() -> Pipe:
    return source(list(range(N))).map(member)


def lists() -> Pipe:
    return source(list(range(N // 2))).flat_map(members).shuffle(seed=3, window=8)


PIPES: Any = {"indexed": indexed, "lists": lists}
ALL = pytest.mark.parametrize("kind", FORMATS)
BOTH = pytest.mark.parametrize("name", PIPES)


@pytest.mark.parametrize("name", CHAINS)
def test_each_chain_reads_back_as_it_was_written(name: str, tmp_path: Path):
    pipe, folder = CHAINS[name]().pipe, tmp_path / "d"
    if any(getattr(stage, "draws", False) for stage in every(pipe._stage)):
        with pytest.raises(NondeterministicDatasetError, match=r"\.write\(\): .* draws random numbers"):
            pipe.write(folder)
    elif not (items := plain(list(pipe))):
        with pytest.raises(InvalidError, match="has no items"):
            pipe.write(folder)
    else:
        assert plain(list(pipe.write(folder))) == items
        assert plain(list(source(os.fspath(folder)))) == items
        assert [items_of_one(batch) for batch in Loader(source(folder), 1)] == items


def items_of_one(batch: Any) -> Any:
    return [items_of_one(value) for value in batch] if isinstance(batch, (tuple, list)) else plain(batch)[0]


@ALL
@BOTH
def test_any_number_of_workers_writes_the_same_files(name: str, kind: Any, tmp_path: Path):
    gc.collect()
    pipe, before = PIPES[name](), held()
    items = list(pipe)
    for workers in (0, 2, 3):
        seen: list[Any] = []
        folder = tmp_path / str(workers)
        made = pipe.write(folder, format=kind, num_workers=workers, progress=lambda *at: seen.append(at), **SMALL)
        assert list(made) == items == list(pickle.loads(pickle.dumps(made)))
        assert seen == [(k, N if name == "indexed" else None) for k in range(len(items) + 1)]
        assert list(pipe.write(folder, format=kind, num_workers=2, **SMALL)) == items
        assert len(seen) == len(items) + 1
    files = data_of(tmp_path / "0")
    assert len(files) > 3
    assert files == data_of(tmp_path / "2") == data_of(tmp_path / "3")
    assert sorted(
        item["cls"] for batch in Loader(made.shuffle(seed=1), 8, collate_fn=list, num_workers=2) for item in batch
    ) == (sorted(item["cls"] for item in items))
    del made
    gc.collect()  # which closes the files
    assert not held() - before


def data_of(folder: Path) -> dict[str, bytes]:
    """The files, without indexes of tar shards, which say when the shards were made."""
    return {name: data for name, data in tree(folder).items() if not name.endswith(SUFFIX)}


def test_items_of_many_forms(tmp_path: Path):
    forms = {
        "array": lambda x: np.full((2, x % 3 + 1), x, np.float32),
        "nothing": lambda x: np.zeros((0, 2), np.uint8),
        "number": lambda x: x,
        "float": lambda x: x / 2,
        "complex": lambda x: complex(x, 1),
        "truth": lambda x: x % 2 == 0,
        "scalar": lambda x: np.int16(x),
        "text": lambda x: "ä\udc80" * x,
        "bytes": lambda x: b"\0" * x,
        "tuple": lambda x: (x, (str(x), [np.arange(3), {"a": x}])),
        "dict": lambda x: {"a": x, "b": {"c": (x,)}},
    }
    for name, form in forms.items():
        pipe = source(list(range(40))).map(form)
        assert same_items(pipe.write(tmp_path / name, compression="zstd"), pipe), name


def same_items(a: Any, b: Any) -> bool:
    return repr(list(a)) == repr(list(b))


def test_arrays_that_differ_in_shape(tmp_path: Path):
    def late(x: int) -> Any:
        return np.zeros(4 if 10 < x < 19 else 3)

    pipe = source(list(range(40))).map(late)
    for workers in (0, 2):
        with pytest.raises(SchemaError, match=r"shape") as caught:
            pipe.write(tmp_path / "d", num_workers=workers)
        assert re.search(r"(it is|it prepared) sample 11\n[^\n]*has read 3 items first", notes_of(caught.value))
        assert "cache" not in str(caught.value)
        assert "variable=True" in notes_of(caught.value)
    assert same_items(pipe.write(tmp_path / "e", variable=True), pipe)


def notes_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])  # Python 3.10 puts them into the text


class Draws:
    def __init__(self, own: bool) -> None:
        self.generator = np.random.default_rng() if own else None

    def __call__(self, x: int) -> Any:
        return np.random.rand(2) if self.generator is None else self.generator.random(2)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("make", [lambda draw: source(list(range(50))).map(draw), lambda draw: source(list(range(50))).filter(bool).map(draw)])  # fmt: skip
def test_random_items_are_refused(make: Callable[[Any], Pipe], own: bool, tmp_path: Path):
    with pytest.raises(
        NondeterministicDatasetError, match=r"pipe above \.write\(\).*: the files would keep.*random part below"
    ):
        make(Draws(own)).write(tmp_path / "d")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"samples": 5}, "says 5 samples, and its shards have 9"),
        ({"samples": "9"}, "samples is '9'; want a whole number"),
        ({"samples": True}, "samples is True"),
        ({"shards": None}, "shards is None; want a list"),
        ({"shards": []}, "says 9 samples, and its shards have 0"),
        ({"shards": ["../a.tar"]}, r"shards are \['../a.tar'\]; want 00000.tar"),
        ({"file_bytes": 1.5}, "file_bytes is 1.5"),
        ({"kind": None}, "kind is None; want a str"),
        ({"more": 1}, "want an object with"),
    ],
)
def test_a_changed_document_of_tars(tmp_path, change, text):
    where = tmp_path / "d"
    source([{"txt": "a"}] * 9).write(where, format="tar")
    document = where / "dataset.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), **change}))
    with pytest.raises(CorruptError, match=text) as refused:
        source([{"txt": "a"}] * 9).write(where, format="tar")
    assert str(document) in str(refused.value)


def stale(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("write", "kind", "text"),
    [
        (lambda d: indexed().batch(4).write(d), InvalidError, r"\.batch\(4\).*write it below"),
        (lambda d: indexed().write(d, format="zip"), InvalidError, "format='zip'.*'block' or 'tar'"),
        (lambda d: indexed().write(d, format="tar", compression="zstd"), InvalidError, "leave them out"),
        (lambda d: indexed().write(d, compression="gzip"), InvalidError, "gzip"),
        (lambda d: indexed().write(d, num_workers=-1), InvalidError, "num_workers"),
        (lambda d: source([1]).write(d / "below"), FileNotFoundError, r"make this folder first.*/d'$"),
        (lambda d: source([{1: 2}] * 9).write(d), InvalidError, "keys are texts"),
        (lambda d: source([object()] * 9).write(d), InvalidError, r"the item is .*object.*make such with \.map"),
        (lambda d: source([(1, {"a": None})] * 9).write(d), InvalidError, r"1\.a is None"),
        (lambda d: source([[0] * k for k in range(9)]).write(d), SchemaError, "list of . values"),
        (lambda d: source([{f"f{k}": k for k in range(30)}] * 9).write(d), InvalidError, "has 30 values.*1 to 24"),
        (lambda d: source([1, "a", 2]).write(d), SchemaError, "is str, not int.*item 1 of the pipe is not like item 0"),
        (lambda d: source([{"x": 1}] * 8 + [{"y": 1}]).write(d), SchemaError, "a dict with 'y'.*item 8 of the pipe is not"),
        (lambda d: source([3] * 9).write(d, format="tar"), SchemaError, 'an item is 3.*takes dicts'),
        (lambda d: source([{"jpg": 3}] * 9).write(d, format="tar"), SchemaError, "'jpg' of an item is 3.*cls"),
        (lambda d: source([{"cls": "a"}] * 9).write(d, format="tar"), SchemaError, "'cls' of an item is 'a'"),
        (lambda d: source([{"txt": b"\xff"}] * 9).write(d, format="tar"), SchemaError, "'txt' of an item is no txt.*utf-8"),
        (lambda d: source([{"cls": b"cat"}] * 9).write(d, format="tar"), SchemaError, "'cls' of an item is no cls.*cat"),
        (lambda d: source([np.arange(3).astype(">i4")] * 9).write(d), InvalidError, r"ndarray of >i4.*byte order"),
        (lambda d: source([{"JPG": b""}] * 9).write(d, format="tar"), SchemaError, "JPG.*lower case"),
        (lambda d: source([{"__key__": "a.b", "jpg": b""}] * 9).write(d, format="tar"), SchemaError, "key without dots"),
        (lambda d: source([{"__key__": "a", "jpg": b""}] * 9).write(d, format="tar"), SchemaError, "0 and 1 have the key 'a'"),
        (lambda d: source([{"__key__": "a"}] * 9).write(d, format="tar"), SchemaError, "one member at least"),
        (lambda d: source([{"__key__": "a\0b", "jpg": b""}] * 9).write(d, format="tar"), SchemaError, "or has a NUL"),
        (lambda d: source([{"__key__": "a\udc80", "jpg": b""}] * 9).write(d, format="tar"), SchemaError, "key without dots"),
        (lambda d: source([{"__url__": b"", "jpg": b""}] * 9).write(d, format="tar"), SchemaError, "begin with __"),
        (lambda d: source([{"__key__": "a", "jpg": b""}] * 9).write(d, format="tar", file_bytes=1), SchemaError, "the key 'a'"),
    ],
)  # fmt: skip
def test_what_cannot_be_written(write: Callable[[Path], Any], kind: type[Exception], text: str, tmp_path: Path):
    with pytest.raises(kind) as caught:
        write(tmp_path / "d")
    assert re.search(text, notes_of(caught.value), re.DOTALL)
    assert not list(tmp_path.iterdir())


@ALL
def test_other_items_in_the_way(kind: Any, tmp_path: Path):
    folder = tmp_path / "d"
    indexed().write(folder, format=kind)
    for other in (
        source(list(range(N + 1))).map(member),
        source(list(range(N))).map(lambda x: {**member(x), "cls": -x}),
        indexed().shuffle(seed=1),
    ):
        with pytest.raises(InTheWayError, match=f"{kind} files made from other data"):
            other.write(folder, format=kind)
    with pytest.raises(InTheWayError):
        indexed().write(folder, format=kind, file_bytes="1MiB")
    with pytest.raises((InTheWayError, VersionError), match="something in it|its format is"):
        indexed().write(folder, format="tar" if kind == "block" else "block")
    with pytest.raises(InTheWayError, match=r"want '2026\.2'"):
        indexed().write(folder, format=kind, fingerprint="2026.2")
    changed = source(list(range(N))).map(lambda x: member(x + 1))
    named = indexed().write(tmp_path / "e", format=kind, fingerprint="2026.2")
    assert list(changed.write(tmp_path / "e", format=kind, fingerprint="2026.2")) == list(named) == list(indexed())


@ALL
def test_what_an_interrupted_call_left_of_other_items(kind: Any, tmp_path: Path):
    def breaks(x: int) -> Any:
        if x == N - 2:
            raise KeyError(x)
        return member(x)

    folder = tmp_path / "d"
    with pytest.raises(KeyError):
        source(list(range(N))).map(breaks).write(folder, format=kind, **SMALL)
    assert not folder.exists()
    assert (tmp_path / "d.part").is_dir()
    with pytest.raises(InTheWayError, match="interrupted writer of other data"):
        indexed().write(folder, format=kind, **SMALL)
    assert list(indexed().write(folder, format=kind, restart=True, **SMALL)) == list(indexed())


@ALL
def test_workers_continue_where_a_call_was_interrupted(kind: Any, tmp_path: Path):
    stops, folder, seen = tmp_path / "stops", tmp_path / "d", list[int]()

    def some(x: int) -> dict[str, Any]:
        if x == N - 2 and stops.exists():
            raise KeyError(x)
        return member(x)

    stops.touch()
    pipe = source(list(range(N))).map(some)
    with pytest.raises(KeyError):
        pipe.write(folder, format=kind, **SMALL)
    stops.unlink()
    made = pipe.write(folder, format=kind, num_workers=2, progress=lambda done, _: seen.append(done), **SMALL)
    assert 0 < seen[0] < N - 2
    assert list(made) == list(indexed())


def slow(x: int) -> dict[str, Any]:
    time.sleep(0.001)
    return member(x)


def slow_members(x: int) -> Iterator[dict[str, Any]]:
    return (slow(10 * x + k) for k in range(x % 4))


SLOW: Any = {
    "indexed": lambda: source(list(range(N))).map(slow),
    "lists": lambda: source(list(range(N // 2))).flat_map(slow_members),
}


@ALL
@BOTH
def test_killed_at_random_until_it_is_whole(name: str, kind: Any, tmp_path: Path):
    chance, pipe = random.Random(3), SLOW[name]()
    items = list(pipe)
    pipe.write(tmp_path / "whole", format=kind, **SMALL)
    for k in range(max(1, KILLS // 8)):
        folder, runs = tmp_path / str(k), 0
        while not folder.exists():
            runs += 1
            child = forked(lambda folder=folder: pipe.write(folder, format=kind, num_workers=2, **SMALL))
            time.sleep(chance.uniform(0, 0.05 * (1 + runs)))  # the longer it takes, the more time it gets
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert not (tmp_path / f"{k}.part").exists()
        assert data_of(folder) == data_of(tmp_path / "whole")
        assert list(pipe.write(folder, format=kind, **SMALL)) == items


@ALL
def test_killed_at_each_step(kind: Any, tmp_path: Path):
    """Before each call that changes a file, and after the last one. The next call continues what the killed one left."""
    pipe, few = source(list(range(12))).map(member), {"file_bytes": 4096}
    pipe.write(tmp_path / "whole", format=kind, **few)
    at, ended = 0, True
    while ended:
        at += 1
        folder = tmp_path / str(at)

        def work(at: int = at, folder: Path = folder) -> None:
            step_kills(("mkdir", "write", "fsync", "rename", "unlink"), at)
            pipe.write(folder, format=kind, **few)

        _, status = os.waitpid(forked(work), 0)
        ended = os.WIFSIGNALED(status)
        assert ended or os.WEXITSTATUS(status) == 0
        assert list(pipe.write(folder, format=kind, **few)) == list(pipe)
        assert data_of(folder) == data_of(tmp_path / "whole")
    assert at > 20  # there are that many steps


@ALL
def test_several_processes_write_once(kind: Any, tmp_path: Path):
    log = tmp_path / "log"

    def noted(x: int) -> dict[str, Any]:
        with open(log, "a") as file:
            print(x, file=file)
        return slow(x)

    pipe = source(list(range(N))).map(noted)
    children = [forked(lambda: pipe.write(tmp_path / "d", format=kind)) for _ in range(3)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    read = [int(line) for line in log.read_text().split()]
    assert len(read) < 2 * N
    assert list(source(tmp_path / "d")) == list(indexed())


def test_a_part_of_the_items(tmp_path: Path):
    """One class reads what pipes and preparers have made."""
    indexed().write(tmp_path / "d")
    storage, part = BlockStorage(tmp_path / "d"), IndexSet([7, 3], N)
    assert list(PreparedDataset(storage, part)) == [member(7), member(3)]
    assert PreparedDataset(storage, part, lambda item: item["cls"]).__getitems__([1, 0]) == [3, 7]


def test_tools_read_block_files(tmp_path: Path):
    source([b"cold", b"warm"] * 20).write(tmp_path / "d")
    assert stocached("source", "cat", tmp_path / "d", 3).stdout == b"warm"
    assert b"read     40" in stocached("source", "verify", tmp_path / "d").stdout
    assert bytes(BlockStorage(tmp_path / "d").load_sample(3)) == b"warm"


def test_tar_and_the_server_read_shards(tmp_path: Path):
    """The index is that of the server, to the byte."""
    long = {"__key__": "folder/" + "n" * 130}

    def named(x: int) -> dict[str, Any]:
        return {**member(x), "__key__": f"{x // 7}/{x}"} if x != 5 else {**member(x), **long, "json": [x, "ä"]}

    pipe = source(list(range(N))).map(named)
    made = pipe.write(tmp_path / "d", format="tar", **SMALL)
    shards = sorted((tmp_path / "d").glob("*.tar"))
    assert len(shards) > 3
    found: list[tuple[str, bytes]] = []
    for shard in shards:
        with tarfile.open(shard) as archive:
            found += [(one.name, archive.extractfile(one).read()) for one in archive]  # type: ignore[union-attr]
        ours = Path(f"{shard}{SUFFIX}")
        theirs = tmp_path / f"{shard.name}{SUFFIX}"
        said = stocached("source", "info", shard, "--source", f"index={theirs}")
        assert said.returncode == 0
        assert theirs.read_bytes() == ours.read_bytes()
    want = [(f"{key}.{name}", data) for item in pipe for key, name, data in bytes_of(item)]
    assert found == want
    assert made[5]["json"] == [5, "ä"]
    assert [item["cls"] for item in made] == list(range(N))


def bytes_of(item: dict[str, Any]) -> Iterator[tuple[str, str, bytes]]:
    for name, value in item.items():
        if name != "__key__":
            data = value if name == "jpg" else value.encode() if name == "txt" else json.dumps(value).encode()
            yield item["__key__"], name, data


def test_a_shard_that_has_changed(tmp_path: Path):
    made = indexed().write(tmp_path / "d", format="tar")
    shard = tmp_path / "d" / "00000.tar"
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", tmp_path / "d", copy], check=True)  # other times: the headers are read
    assert list(source(copy)) == list(made)
    shard.write_bytes(shard.read_bytes()[:3000])
    with pytest.raises(InvalidError, match=r"00000\.tar"):
        list(source(tmp_path / "d"))


def test_members_of_4_gib_are_refused(tmp_path: Path):
    with mmap.mmap(-1, 2**32) as none, pytest.raises(SchemaError, match="4,294,967,296 bytes; none has more"):
        TarWriter(os.fspath(tmp_path / "d"), TarDocument("pipe", "f", 1000)).append("0", {"bin": none})  # type: ignore[dict-item]


@ALL
@pytest.mark.parametrize("name", ["write", "fsync", "open", "rename"])
def test_a_full_disk(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The process that failed can write again, from each step on."""
    pipe, real, few = source([41, 78, 110]).map(member), getattr(os, name), {"file_bytes": 4096}
    pipe.write(tmp_path / "whole", format=kind, **few)
    assert len(data_of(tmp_path / "whole")) > 3
    for step in range(1, 100):
        left = [step]

        def full(*arguments: Any, left: list[int] = left, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **named)

        before = held()
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            if name == "write" and step < 4:
                with pytest.raises(OSError, match=r"No space left on device: .*\.part'") as caught:
                    pipe.write(tmp_path / str(step), format=kind, **few)
                assert "Make room. Files that are whole stay: run it again" in notes_of(caught.value)
                del caught  # its frames have open files
            with contextlib.suppress(OSError):
                pipe.write(tmp_path / str(step), format=kind, **few)
        gc.collect()
        assert not held() - before
        pipe.write(tmp_path / str(step), format=kind, **few)
        assert data_of(tmp_path / str(step)) == data_of(tmp_path / "whole")
        if left[0] > 0:
            return
    raise AssertionError("it takes fewer steps")


def test_workers_that_die_are_replaced(tmp_path: Path):
    dies = tmp_path / "dies"

    def some(x: int) -> list[int]:
        if x == 20 and dies.exists():
            dies.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return [x] * (x % 3)

    def begins(done: int, _: Any) -> None:
        if not done:
            dies.touch()

    pipe = source(list(range(30))).flat_map(some)
    assert list(pipe.write(tmp_path / "d", num_workers=2, progress=begins)) == list(pipe)
    assert not dies.exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_items_that_the_next_one_changes_are_refused(workers: int, tmp_path: Path):
    """Workers would write the last one several times."""

    def one_array(x: int) -> Iterator[Any]:
        array = np.zeros(3)
        for k in range(4):
            array[:] = 4 * x + k
            yield {"a": array}

    with pytest.raises(InvalidError, match="make a new array"):
        source(list(range(9))).flat_map(one_array).write(tmp_path / "d", num_workers=workers)


@pytest.mark.parametrize("kind", ["block", "tar"])
def test_a_damaged_dataset_is_no_folder_of_files(kind: Any, tmp_path: Path):
    source(list(range(9))).map(lambda k: {"a.cls" if kind == "tar" else "a": k}).write(tmp_path / "d", format=kind)
    described = tmp_path / "d" / "dataset.json"
    whole = described.read_bytes()
    for damaged in (b"", whole[:9], bytes(9) + whole[9:], None) if kind == "block" else (b"", whole[:99]):
        described.unlink(missing_ok=True) if damaged is None else described.write_bytes(damaged)
        with pytest.raises((CorruptError, NotPreparedError), match="dataset"):
            source(tmp_path / "d")


@pytest.mark.parametrize("text", ['{"format": "stocached-other"}', '{"made by": "others"}\n{"lines": 2}'])
def test_a_folder_of_others_is_a_folder_of_files(text: str, tmp_path: Path):
    for name in ("00000.tar", "00000.stocblk"):
        folder = tmp_path / name[6:]
        folder.mkdir()
        (folder / name).write_bytes(b"")
        (folder / "dataset.json").write_text(text)
        paths = source(folder, format="paths") if name.endswith(".tar") else source(folder)
        assert list(paths) == [os.fspath(folder / name), os.fspath(folder / "dataset.json")]
        if name.endswith(".tar"):
            with pytest.raises(InvalidError, match=r"several formats: 1 \.tar, 1 \.json"):
                source(folder)


@pytest.mark.parametrize("pipe", [source(range(9)).map(lambda x: x), source(range(9)).flat_map(lambda x: [x])])
def test_lambdas_under_spawn_get_advice_that_a_program_can_follow(pipe: Pipe, tmp_path: Path):
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with pytest.raises(InvalidError, match=r"map\(<lambda>\) in test_write.py, line .*leave num_workers= out"):
            pipe.write(tmp_path / "d", num_workers=2)
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert len(pipe.write(tmp_path / "d")) == 9


def test_many_shards_are_not_all_open(tmp_path: Path):
    pipe = source(range(300)).map(member)
    made = pipe.write(tmp_path / "d", format="tar", file_bytes=1)
    before = held()
    assert list(made) == list(pipe)
    assert len(list(tmp_path.glob("d/*.tar"))) == 300
    assert len(held() - before) <= 256
