"""Files of formats at addresses: in a bucket of versitygw through the server that the package starts, on a web server, and by
fsspec."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import socket
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buckets import Bucket, Web, servers
from helpers import python, without
from made import CASES, Made, plain, written
from processes import pause, until

import stocached
from stocached import FingerprintError, InvalidError, Loader, source
from stocached._cache import on_demand
from stocached._cache.on_demand import OnDemand
from stocached._formats import kept_index, remote_files

fsspec = pytest.importorskip("fsspec", reason="fsspec is missing")
pytestmark = pytest.mark.usefixtures("run")
KINDS = ["jsonl", "csv", "text", "zip deflated", "parquet", "arrow", "arrow, lz4", "zip, decoded"]
KINDS += ["tfrecord", "npz", "npz, compressed", "safetensors", "hdf5", "mds", "mds, gz"]


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, bucket: Bucket) -> Made:
    folder = bucket.folder / re.sub(r"\W+", "-", request.param)
    folder.mkdir(exist_ok=True)
    return CASES[request.param](folder)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The parts that were asked for: place and bytes."""
    came, now = list[tuple[int, int]](), remote_files.RemoteFile.now

    def noted(self: Any, at: int, size: int, more: int = 0) -> bytes:
        data = now(self, at, size, more)
        came.append((at, len(data)))
        return data

    monkeypatch.setattr(remote_files.RemoteFile, "now", noted)
    return came


def address(path: str | Path, bucket: Bucket, scheme: str = "s3") -> str:
    inner = str(path).removeprefix(str(bucket.folder))
    return f"s3://data{inner}" if scheme == "s3" else f"file://{path}"


@pytest.mark.parametrize("scheme", ["s3", "file"])
def test_items_are_those_of_files_of_this_machine(case: Made, bucket: Bucket, scheme: str):
    pipe = source(address(case.text, bucket, scheme), **case.options)
    wanted = [*map(plain, case.items)]
    assert [*map(plain, pipe)] == wanted
    if "decode" not in case.options:
        folder = case.text if Path(case.text).is_dir() else f"{Path(case.text).parent}/"
        assert [*map(plain, source(address(folder, bucket, scheme), **case.options))] == wanted
    for number in random.Random(1).choices(range(len(wanted)), k=20):
        assert plain(pipe[number]) == wanted[number]
    if case.counts is not None:
        assert pipe._stage.lengths().tolist() == case.counts
    again = pickle.loads(pickle.dumps(pipe))
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda k: plain(again[k]), range(len(wanted)))] == wanted


FOLDERS: list[tuple[str, dict[str, bytes], dict[str, Any], Any]] = [
    ("lines", {"a.jsonl": b"1\n2\n", "deep/b.ndjson.JSONL": b"3\n", ".c.csv": b"", "a.jsonl.stocached-index": b"x"}, {}, [1, 2, 3]),
    ("shards", {"a.tfrecord-00000-of-00001": b""}, {}, "there are no elements in .*a.tfrecord-00000-of-00001"),
    ("chosen", {"a.csv": b"x,y\n1,2\n"}, {"columns": ["y"]}, [{"y": "2"}]),
    ("pictures", {"b/2.jpg": b"b", "a/1.jpg": b"a", "index.json": b"[]"}, {}, [b"a", b"b", b"[]"]),
    ("options", {"1.jpg": b"a"}, {"columns": ["y"]}, "columns are for files of a format, and these are bytes alone"),
    ("mixed", {"1.jpg": b"a", "2.JPG": b"", "b/x.jsonl": b""}, {}, r"several formats: 2 \.jpg, 1 \.jsonl.*mixed/\*\*/\*\.jsonl"),
    ("packed", {"x.jsonl.gz": b""}, {}, r"packed/x\.jsonl\.gz is compressed.*; unpack it: gunzip -k x\.jsonl\.gz; or write"),
    ("packed tar", {"x.tgz": b""}, {}, r"packed tar/x\.tgz is compressed.*; unpack it: gunzip -k x\.tgz; or write"),
    ("bad", {"shard.00000.mds": b"", "index.json": b'{"version": 2, "shards": [{"format": "xsv"}]}'}, {}, "of 'xsv'; version 2"),
    ("cut", {"shard.00000.mds": b"", "index.json": b"{"}, {}, r"several formats: 1 \.json, 1 \.mds"),
]  # fmt: skip


@pytest.mark.parametrize("scheme", ["s3", "file"])
@pytest.mark.parametrize(("name", "files", "options", "wanted"), FOLDERS, ids=[row[0] for row in FOLDERS])
def test_a_folder_is_what_it_is_on_this_machine(
    name: str, files: dict[str, bytes], options: dict[str, Any], wanted: Any, bucket: Bucket, scheme: str
):
    for file, data in files.items():
        bucket.put(f"{name}/{file}", data)
    for end in ("", "/", "/**")[: 2 if "index.json" in files else 3]:
        text = address(bucket.folder / name, bucket, scheme) + end
        if isinstance(wanted, list):
            assert [*source(text, **options)] == wanted
            continue
        with pytest.raises(InvalidError, match=wanted):
            source(text, **options)


def test_folders_of_pictures_are_listed_once(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    asked, ask = list[str](), OnDemand.ask

    def noted(self: Any, path: str, *args: Any, **given: Any) -> Any:
        asked.append(path)
        return ask(self, path, *args, **given)

    monkeypatch.setattr(OnDemand, "ask", noted)
    for k in range(3):
        bucket.put(f"classes/{k}/{k}.jpg", b"%d" % k)
    bucket.put("classes/a.csv", b"x\n1\n")
    with pytest.warns(UserWarning, match="s3://data/classes/: 1 files outside folders were left out"):
        assert [item["label"] for item in source("s3://data/classes/", labels="folders")] == [0, 1, 2]
    assert len(source("s3://data/classes/", kind="dir")) == 4
    (bucket.folder / "classes/a.csv").unlink()
    assert [*source("s3://data/classes/")] == [b"0", b"1", b"2"]
    assert asked == ["/v1/open"] * 3
    for where in (str(bucket.folder), "s3://data"):
        with pytest.raises(InvalidError, match="name several: .*/classes/1/?, .*/classes/2/?; join their pipes"):
            source(f"{where}/classes/{{1,2}}/*.jpg", labels="folders")
    with pytest.raises(InvalidError, match='unknown key "lables"'):
        source("s3://data/classes/", lables="folders")


def test_classes_and_advice_are_those_of_this_machine(bucket: Bucket):
    for name in ("dog/1.jpg", "cat/2.jpg", ".ipynb_checkpoints/3.jpg", "beside.jpg"):
        bucket.put(f"o[d]d/{name}", name.encode())
    seen = []
    for where in (str(bucket.folder / "o[d]d"), "s3://data/o[d]d/"):
        with pytest.warns(
            UserWarning, match="each folder counts as a class|1 files outside folders were left out"
        ) as warned:
            pipe = source(where, labels="folders")
        assert {one.filename for one in warned} == {__file__}
        copy = pickle.loads(pickle.dumps(pipe))
        assert (copy.classes, copy.class_to_idx) == (pipe.classes, pipe.class_to_idx)
        seen.append((pipe.classes, pipe.class_to_idx, [*pipe], [str(one.message).replace(where, "") for one in warned]))
    assert seen[0] == seen[1]
    assert seen[0][0] == [".ipynb_checkpoints", "cat", "dog"]
    with pytest.raises(AttributeError, match="classes"):
        _ = source("s3://data/o[d]d/").classes


def key(item: Any) -> Any:
    return item["k"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_loader_shuffles_caches_and_resumes(kind: str, workers: int, bucket: Bucket):
    (bucket.folder / "loaded").mkdir(exist_ok=True)
    case = CASES[kind](bucket.folder / "loaded")
    pipe = source(address(case.text, bucket)).map(key).cache("8MiB", variable=None).shuffle(seed=2).batch(7)
    loader, model = Loader(pipe, num_workers=workers), Loader(source(case.text).map(key).shuffle(seed=2).batch(7))
    epochs = [[*map(plain, loader)] for _ in range(2)]
    assert epochs == [[*map(plain, model)] for _ in range(2)]
    assert loader.stats().misses == (60 if case.counts is None else 12)
    iteration = iter(loader)
    next(iteration)
    state = loader.state_dict()
    again = Loader(pipe, num_workers=2 - workers)
    again.load_state_dict(state)
    assert [*map(plain, again)] == [*map(plain, model)][1:]
    loader.close()
    again.close()


def read(pipe: Any) -> list[Any]:
    return [*pipe]


def test_processes_and_kills_of_the_server(bucket: Bucket, run: Path):
    bucket.put("killed.jsonl", b"".join(b"%d\n" % k for k in range(200)))
    pipe = source("s3://data/killed.jsonl")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(read, (pipe,)) == [*range(200)]
    loader = Loader(pipe.shuffle(seed=1).batch(10), num_workers=2)
    numbers = list[int]()
    for number, batch in enumerate(loader):
        numbers += batch.tolist()
        for pid in servers(run) if number % 7 == 0 else ():
            os.kill(pid, signal.SIGKILL)
    assert sorted(numbers) == [*range(200)]
    assert len(servers(run)) <= 1


ASKS: dict[str, Callable[[remote_files.RemoteFiles], Any]] = {
    "open": lambda _: source("s3://data/stall/", kind="dir"),
    "objects": lambda _: source("s3://data/stall/*.jsonl"),
    "part": lambda files: files[0].now(0, 1),
    "ahead": lambda files: files.tell([files.whole(0)]),
    "a request that does not fit": lambda _: source(f"s3://data/{'x' * 2_000_000}.csv"),
}


@pytest.fixture
def stall(bucket: Bucket, run: Path, monkeypatch: pytest.MonkeyPatch) -> remote_files.RemoteFiles:
    bucket.put("stall/a.jsonl", b"1\n")
    monkeypatch.setattr(on_demand, "_TURN", 50)
    monkeypatch.setattr(on_demand, "_QUIET", 1)
    return remote_files.files_of("s3://data/stall/a.jsonl", None)


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_server_that_is_stopped_is_an_error(
    ask: Callable[[Any], Any], stall: remote_files.RemoteFiles, run: Path, monkeypatch: pytest.MonkeyPatch
):
    (pid,) = servers(run)
    pause(pid)
    monkeypatch.setattr(on_demand, "_SILENT", 3)
    try:
        with pytest.raises(
            stocached.CacheTimeoutError, match=rf"pid {pid}\).* nothing for 0\.15 s.*SIGCONT.*server\.log"
        ):
            ask(stall)
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.usefixtures("stall")
def test_a_server_on_which_too_many_wait_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOCACHED_IDLE", "3s")
    monkeypatch.setattr(on_demand, "_SILENT", 3)
    server = OnDemand()
    with contextlib.ExitStack() as sockets:
        listener, *others = (sockets.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(10))
        listener.bind(f"{server.folder}/admin.sock")
        listener.listen(1)
        for other in others:
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        with pytest.raises(stocached.CacheTimeoutError, match=r"admin\.sock\) has answered nothing"):
            server.ask("/v1/objects", {"source": {}})
        server.check()  # there is one


@pytest.mark.parametrize("late", ["server", "storage"])
@pytest.mark.usefixtures("stall")
def test_an_answer_that_comes_late_is_waited_for(late: str, bucket: Bucket, run: Path, monkeypatch: pytest.MonkeyPatch):
    looks, asked = on_demand._looks, threading.Semaphore(0)

    def noted(waited: list[Any], most: int) -> bool:
        if len(waited) > 1:
            asked.release()
        return looks(waited, most)

    monkeypatch.setattr(on_demand, "_looks", noted)
    monkeypatch.setattr(on_demand, "_SILENT", 10_000)
    assert bucket._process is not None
    pid = servers(run)[0] if late == "server" else bucket._process.pid
    with ThreadPoolExecutor(1) as pool:
        pause(pid)
        try:
            made = pool.submit(source, "s3://data/stall/a.jsonl")
            for _ in range(1 if late == "server" else 3):
                assert asked.acquire(timeout=60)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [*made.result(60)] == [1]


def test_lines_in_order_take_few_requests_and_others_take_their_bytes(bucket: Bucket, asked: list[tuple[int, int]]):
    lines = [b"%06d %s\n" % (k, b"x" * (k % 400)) for k in range(5000)]
    bucket.put("long.log", b"".join(lines))
    pipe = source("s3://data/long.log", format="text")
    del asked[:]
    assert [len(line) + 1 for line in pipe] == [*map(len, lines)]
    assert len(asked) < 25
    assert sum(size for _, size in asked) <= 1.05 * sum(map(len, lines))
    del asked[:]
    some = random.Random(1).sample(range(5000), 200)
    assert [pipe[k].encode() + b"\n" for k in some] == [lines[k] for k in some]
    assert sum(size for _, size in asked) <= 1.05 * sum(len(lines[k]) for k in some)


def test_members_in_order_take_few_requests(bucket: Bucket, asked: list[tuple[int, int]]):
    with zipfile.ZipFile(bucket.folder / "order.zip", "w") as archive:
        for k in range(300):
            archive.writestr(f"{k}.bin", bytes(3000))
    pipe = source("s3://data/order.zip")
    del asked[:]
    assert [item["__key__"] for item in pipe] == [*map(str, range(300))]
    assert len(asked) < 15
    assert sum(size for _, size in asked) <= 1.02 * (bucket.folder / "order.zip").stat().st_size


def test_a_worker_that_reads_each_second_batch_takes_its_bytes(bucket: Bucket, asked: list[tuple[int, int]]):
    lines = [b"%06d %s\n" % (k, b"x" * (k * 7919 % 400)) for k in range(20_000)]
    bucket.put("batches.log", b"".join(lines))
    pipe = source("s3://data/batches.log", format="text")
    del asked[:]
    mine = [number for k in range(0, 20_000, 256) for number in range(k, min(k + 128, 20_000))]
    assert [pipe[k].encode() + b"\n" for k in mine] == [lines[k] for k in mine]
    assert sum(size for _, size in asked) <= 1.15 * sum(len(lines[k]) for k in mine)
    assert len(asked) < len(mine) / 20


def test_the_index_of_lines_is_kept(bucket: Bucket, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_index, "_KEPT", 1 << 20)
    bucket.put("kept.jsonl", b'{"a": "some text"}\n' * 100_000)
    assert len(source("s3://data/kept.jsonl")) == 100_000
    read, asked[:] = sum(size for _, size in asked), []
    assert 1_900_000 <= read <= 2_000_000
    assert source("s3://data/kept.jsonl")[99_999] == {"a": "some text"}
    assert sum(size for _, size in asked) <= 66_000
    bucket.put("kept.jsonl", b'{"a": "same size"}\n' * 100_000)
    assert source("s3://data/kept.jsonl")[99_999] == {"a": "same size"}


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_chosen_columns_alone_are_read(bucket: Bucket, asked: list[tuple[int, int]], ending: str):
    import pyarrow as pa

    wide = {f"c{k}": np.random.default_rng(k).integers(0, 1 << 60, 20_000) for k in range(10)}
    path = written(bucket.folder / f"wide.{ending}", pa.table({"k": range(20_000), **wide}), 5000)
    pipe = source(f"s3://data/wide.{ending}", columns=["c7"])
    assert [row["c7"] for row in pipe] == wide["c7"].tolist()
    assert sum(size for _, size in asked) < path.stat().st_size / 3


@pytest.fixture
def hdf5(bucket: Bucket) -> tuple[Made, Any]:
    """It, and the same at its address."""
    (bucket.folder / "hdf5 alone").mkdir(exist_ok=True)
    case = CASES["hdf5"](bucket.folder / "hdf5 alone")
    return case, address(case.text, bucket)


def test_hdf5_tells_the_error_of_any_request(hdf5: tuple[Made, Any], monkeypatch: pytest.MonkeyPatch):
    """The error comes through h5py. What was read before is read again then, and nothing else is given."""
    case, text = hdf5
    wanted, now, left = [*map(plain, case.items)], remote_files.RemoteFile.now, iter([1])

    def failing(self: Any, *args: Any) -> bytes:
        if next(left, 1) == 0:
            raise stocached.FetchError(f"{self.path}: no lock, no answer")
        return now(self, *args)

    monkeypatch.setattr(remote_files.RemoteFile, "now", failing)
    for number in range(200):
        left, pipe = iter([*[1] * number, 0]), None
        try:
            pipe = source(text, **case.options)
            assert [*map(plain, pipe)] == wanted
            break
        except stocached.FetchError:
            if pipe is not None:
                assert [*map(plain, pipe)] == wanted
    assert 10 < number < 60


def ended_well(child: int) -> bool:
    pid, status = os.waitpid(child, os.WNOHANG)
    assert not status
    return pid == child


def test_hdf5_of_threads_and_children(hdf5: tuple[Made, Any]):
    case, text = hdf5
    wanted, pipe = [*map(plain, case.items)], source(text, **case.options)
    ended = threading.Event()

    def reads(seed: int) -> int:
        draw, count = random.Random(seed), 0
        while not ended.is_set() or not count:
            number, count = draw.randrange(60), count + 1
            assert plain(pipe[number]) == wanted[number]
        return count

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(reads, seed) for seed in range(3)]
        try:
            for _ in range(5):
                child = os.fork()
                if not child:
                    os._exit([plain(pipe[number]) for number in (0, 30, 59)] != [wanted[0], wanted[30], wanted[59]])
                until(partial(ended_well, child))
        finally:
            ended.set()
        assert all(other.result() for other in others)


def test_hdf5_in_order_takes_its_bytes_and_ends_with_the_program(bucket: Bucket, asked: list[tuple[int, int]]):
    import h5py

    rows = np.random.default_rng(1).integers(0, 64, (2000, 32, 32)).astype("u1")
    with h5py.File(bucket.folder / "chunks.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(20, 32, 32), compression="gzip")
        file["y"] = range(2000)
    size = (bucket.folder / "chunks.h5").stat().st_size
    pipe = source("s3://data/chunks.h5")
    opened, asked[:] = sum(each for _, each in asked), []
    assert all((row["x"] == rows[row["y"]]).all() for row in pipe)
    assert sum(each for _, each in asked) <= 1.01 * size
    assert opened <= 400_000
    del asked[:]
    shuffled = [number for batch in Loader(pipe.shuffle(seed=1).batch(50)) for number in batch["y"].tolist()]
    assert sorted(shuffled) == [*range(2000)] != shuffled
    assert sum(each for _, each in asked) <= 1.05 * size
    python("from stocached import source\npipe = source('s3://data/chunks.h5')\nassert pipe[7]['y'] == 7\n")


@pytest.mark.parametrize("scheme", ["s3", "file"])
def test_mixed_files_are_decoded(bucket: Bucket, scheme: str):
    for k in range(5):
        bucket.put(f"mixed/a/{k}.txt", b"text %d" % k)
        bucket.put(f"mixed/a/{k}.cls", b"%d" % k)
        bucket.put(f"mixed/a/.{k}.jpg", b"")
    bucket.put("mixed/b/9.json", b"{")
    pipe = source(address(bucket.folder / "mixed" / "{a,b}", bucket, scheme) + "/**/*.*", decode=True)
    for batch in Loader(source(address(bucket.folder / "mixed" / "a", bucket, scheme) + "/", decode=True).batch(5)):
        assert batch["__key__"] == [*"01234"]
        assert batch["cls"].tolist() == [*range(5)]
    assert [item["txt"] for item in (pipe[k] for k in range(5))] == [f"text {k}" for k in range(5)]
    with pytest.raises(stocached.BadSampleError, match=r"/mixed/b/9\.json: no json"):
        pipe[5]


def test_tar_shards_of_a_text_are_those_of_this_machine(bucket: Bucket):
    for name in ("a1.tar", "B.TAR", "in/c.tar", "in/{d},[e].tar", ".f.tar", "in/of/g.tar"):
        bucket.put_tar(f"many tars/{name}", {f"{k}.txt": name.encode() for k in range(2)})
    root = f"{bucket.folder}/many tars"
    for end in ("", "/**", "/a*", "/[!b]*", "/**/*.tar", "/in/of", "/{in/of/,a1.tar}", "/{b,a}*", "/{a,[ab]}*.tar"):
        text = root + end
        assert len(source(text)) in {2, 4, 8, 10}
        for options in ({}, {"format": "tar"}, {"fields": ["txt"]}, {"decode": True}):
            assert [*source(address(text, bucket), **options)] == [*source(text, **options)]
    assert [*source("s3://data/many tars/*.tar", kind="dir")] == [Path(f"{root}/a1.tar").read_bytes()]


def test_no_member_of_a_shard_is_lost(bucket: Bucket):
    bucket.put_tar("more.tar", {"1.txt": b"1", "2.txt": b"2", "2.cls": b"3"})
    assert source(bucket.folder / "more.tar")[1] == {"__key__": "2", "txt": b"2", "cls": b"3"}
    with pytest.raises(
        stocached.InvalidError, match=r'more\.tar: sample "2" has txt, cls, and the first sample has txt'
    ):
        source("s3://data/more.tar")
    bucket.put_tar("own-key.tar", {"1.__key__": b"own", "1.CLS": b"7"})
    for where in (bucket.folder / "own-key.tar", "s3://data/own-key.tar"):
        for decode in (False, True):
            with pytest.raises(stocached.InvalidError, match="__key__.*name the (members|fields) to read in fields"):
                source(where, decode=decode)
        assert source(where, fields=["__key__", "cls"], int64=[".CLS"])[0] == {"__key__": b"own", "cls": 7}


def test_braces_name_the_objects_that_they_name_on_this_machine(bucket: Bucket):
    for name in ("a/1.txt", "a/2.txt", "c/1.txt", "d/e/1.txt", "9.txt", "10.txt", "{y}.txt", "a,b.txt", "q.bin"):
        bucket.put(f"braces/{name}", name.encode())
    root, several = f"{bucket.folder}/braces", r"{\{y\},a\,b}.txt"
    for end in (
        "{c,a}/*.txt",
        "{a/1,c/1}.txt",
        "{9..10}.txt",
        "{a,d}",
        "{a,zz}/*",
        "*.{txt,bin}",
        "*{9..10}*",
        several,
    ):
        here = [Path(path).read_bytes() for path in source(f"{root}/{end}")]
        assert [*source(f"s3://data/braces/{end}")] == here, end
    with pytest.raises(stocached.CacheNotFoundError, match=r"s3://data/braces/zz\.txt"):
        source("s3://data/braces/{9,zz}.txt")


_ODD = ["[x]", "b[", "{1,2}", "c{", "st*r", "q?u", "b\\\\s", "e\\\\", "a\nb", "-d", "..a", "100% a#b+é \U0001f600"]


@pytest.mark.parametrize("ending", ["txt", "jsonl", "tar"])
def test_odd_names_are_those_of_this_machine(bucket: Bucket, ending: str):
    def value(item: Any) -> str:
        item = item["k"] if ending == "tar" else Path(item).read_bytes() if item[0] == "/" else item
        return item.decode() if isinstance(item, bytes) else item

    for name in ("plain", "x", "qqu", "stir", *_ODD):  # some that patterns match, too
        for path in (f"odd/{name}.{ending}", f"{ending}/{name}/in.{ending}"):
            if ending == "tar":
                bucket.put_tar(path, {"1.k": name.encode()})
            else:
                bucket.put(path, name.encode() if ending == "txt" else json.dumps(name).encode())
    for name in _ODD:
        escaped = re.sub(r"[\\*?\[\]{},]", r"\\\g<0>", name)
        for text, found in (
            (f"odd/{name}.{ending}", [name]),
            (f"odd/{escaped}.{ending}", [name]),
            (f"odd/{{plain,{escaped}}}.{ending}", sorted(["plain", name], key=str.encode)),
            (f"{ending}/{name}/", [name]),
            (f"{ending}/{name}", [name]),
        ):
            if "." not in name or not text.endswith(name):
                others = [f"file://{bucket.folder}"] if ending == "jsonl" else []
                for root in (str(bucket.folder), "s3://data", *others):
                    assert [*map(value, source(f"{root}/{text}"))] == found, (root, text)


def test_tar_shards_are_decoded(bucket: Bucket):
    for shard in range(2):
        bucket.put_tar(f"t-{shard}.tar", {"1.json": b"[1]", "1.cls": b"%d" % shard, "2.json": b"[", "2.cls": b"9"})
    pipe = source("s3://data/t-{0..1}.tar", decode=True)
    assert (len(pipe), pipe[2]) == (4, {"__key__": "1", "cls": 1, "json": [1]})
    for root in (str(bucket.folder), "s3://data"):
        for where in ("t-0.tar", "t-*.tar"):
            assert source(f"{root}/{where}", decode=True, fields=["cls"])[1] == {"cls": 9}
    with pytest.raises(stocached.BadSampleError, match=r"t-\{0\.\.1\}\.tar, sample 3: json: no json"):
        pipe[3]


def test_files_that_change(bucket: Bucket, cache_name: str):
    bucket.put("changes.jsonl", b"1\n2\n")

    def numbers() -> list[int]:
        pipe = source("s3://data/changes.jsonl").cache("8MiB", name=cache_name)
        return [number for batch in Loader(pipe.batch(2)) for number in batch.tolist()]

    assert numbers() == numbers() == [1, 2]
    bucket.put("others.jsonl", b"1\n")
    pipe = source("s3://data/others.jsonl")
    for name in ("changes", "others"):
        bucket.put(f"{name}.jsonl", b"3\n4\n")
        os.utime(bucket.folder / f"{name}.jsonl", (1e9, 1e9))  # this gateway tells changes by whole seconds
    with pytest.raises(
        stocached.ReplacedError, match=r"^s3://data/others\.jsonl has changed since it was opened; make the"
    ):
        pipe[0]
    with pytest.raises(FingerprintError):
        numbers()
    assert [*source("s3://data/changes.jsonl")] == [3, 4]
    os.link(bucket.folder / "changes.jsonl", bucket.folder / "backup.jsonl")  # which changes no byte
    for of, now in ("changes", b"3\n"), ("backup", b"5\n6\n"):
        locals_ = [source(f"file://{bucket.folder}/{name}.jsonl") for name in (of, f"{of[:-1]}*")]
        assert [pipe[1] for pipe in locals_] == [4, 4]
        (bucket.folder / f"{of}.jsonl").unlink()
        bucket.put(f"{of}.jsonl", now)
        for pipe in locals_:
            with pytest.raises(stocached.ReplacedError, match=rf"{of}\.jsonl has changed"):
                pipe[1]


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: source("s3://data/none.jsonl"), stocached.CacheNotFoundError, r"s3://data/none\.jsonl.*NoSuchKey"),
        (lambda: source("s3://data/none-*.zip"), InvalidError, "there is no file of this name"),
        (lambda: source("s3://nowhere/a.csv"), stocached.CacheNotFoundError, "NoSuchBucket"),
        (
            lambda: source("s3://data/bad.zip"),
            InvalidError,
            r"s3://data/bad\.zip is no zip file: it begins with b'PAR1",
        ),
        (lambda: source("s3://data/bad.parquet"), InvalidError, r"s3://data/bad\.parquet is no Parquet file"),
        (lambda: source("s3://data/bad.csv", columns=["x"]), InvalidError, r"s3://data/bad\.csv has no column 'x'"),
        (lambda: source("s3://data/bad.{csv,zip}"), InvalidError, "several formats"),
        (lambda: source("s3://data/uneven.npz"), InvalidError, 'a has 1, b has 2.*kind="dir" gives the bytes'),
        (lambda: source("s3://data/bad.csv", format="csw"), InvalidError, "there are jsonl, csv"),
        (lambda: source("s3://data/bad.csv", format="csv", kind="dir"), InvalidError, "do not go together"),
        *(
            (partial(source, f"s3://data/{name}", remote=3), InvalidError, "remote=3: give a dict")
            for name in ("bad.csv", "bad.tar", "bad-*.tar", "")
        ),
        (lambda: source("s3://data/bad.csv", remote={"x": 1}), InvalidError, "unknown key"),
        (lambda: source("s3://data/bad.points"), InvalidError, "files of points are read on this machine"),
        (lambda: source("https://host/*.csv"), InvalidError, "a web server lists nothing"),
        (lambda: source("file:///nowhere/a.csv"), stocached.CacheNotFoundError, "file:///nowhere/a.csv: there is no"),
        (lambda: source("nothing://a/b.csv"), stocached.UnsupportedError, "does not read nothing:// addresses"),
        (lambda: source("dir://a::file:///b.csv"), stocached.UnsupportedError, "does not read dir:// addresses"),
        (lambda: source("reference://a/b.csv"), stocached.UnsupportedError, "does not read reference:// addresses"),
        (lambda: source("memory://a/*.csv"), InvalidError, "there is no file of this name"),
    ],
)
def test_mistakes(make: Callable[[], Any], kind: type[Exception], words: str, bucket: Bucket):
    np.savez(bucket.folder / "uneven.npz", a=[1], b=[1, 2])
    for ending in ("zip", "parquet", "csv", "points"):
        bucket.put(f"bad.{ending}", b"PTS1" if ending == "points" else b"PAR1\n")
    with pytest.raises(kind, match=words):
        make()


def test_other_schemes_are_read_by_fsspec():
    system = fsspec.filesystem("memory")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.txt", "text")
    for name, data in (("a.zip", made.getvalue()), ("deep/b.csv", b"x\n1\n"), (".c.csv", b"x\n2\n"), ("d.bin", b"abc")):
        system.pipe(f"/folder/{name}", data)
    assert [*source("memory://folder/a.zip")] == [{"__key__": "a", "txt": b"text"}]
    assert [*source("memory://folder/**/*.csv")] == [{"x": "1"}]
    assert [*source("memory://folder/*.bin")] == [b"abc"]
    assert [*source("memory://folder/*.{bin,csv}", decode=True)] == [{"__key__": "d", "bin": b"abc"}]
    system.pipe({"/mixed/a.txt": b"1", "/mixed/deep/b.txt": b"2"})
    assert [item["__key__"] for item in source("memory://mixed", decode=True, remote={})] == ["a", "deep/b"]
    assert "run: pip install stocached[fsspec]" in without("fsspec", "stocached.source('gcs://a/b.csv')")


def test_the_host_of_an_address_is_an_option_of_its_file_system():
    class Hosts(fsspec.AbstractFileSystem):
        protocol = "hosts"

        def __init__(self, host: str, port: int = 1, **options: Any) -> None:
            super().__init__(**options)
            self.data, self.time = f"host,port\n{host},{port}\n".encode(), "1"

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            return {"name": path, "size": len(self.data), "modify": self.time}  # as of ftp

        def ls(self, path: str, **_: Any) -> list[dict[str, Any]]:
            return [self.info("/a.csv")]

        def cat_file(self, path: str, start: int, end: int) -> bytes:
            return self.data[start:end]

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return "/" + path.removeprefix("hosts://").partition("/")[2]

        @staticmethod
        def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
            return {"host": path.removeprefix("hosts://").partition("/")[0].rpartition("@")[2]}

    fsspec.register_implementation("hosts", Hosts, clobber=True)
    assert [source(f"hosts://{host}/a.csv")[0]["host"] for host in ("one", "two")] == ["one", "two"]
    assert source("hosts://one/a.csv", remote={"port": 2})[0] == {"host": "one", "port": "2"}
    pipe = source("hosts://user:hunter2@one/a.csv")
    assert "hunter2" not in f"{pipe} {pipe._stage.where(0)}"
    fsspec.filesystem("hosts", host="one").time = "2"
    with pytest.raises(stocached.ReplacedError, match="hosts://one/a.csv has changed"):
        pipe[0]


def test_files_of_a_web_server_without_a_format_are_bytes():
    with Web({"/a.jpg": b"1", "/b.jpg": b"2", "/c.bin": b"3"}) as web:
        at = f"http://127.0.0.1:{web.server_port}"
        assert [*source(f"{at}/b.jpg")] == [b"2"]
        assert [*source(f"{at}/{{a,b}}.jpg")] == [*source(f"{at}/{{a..b}}.jpg")] == [b"1", b"2"]
        assert sorted(Loader(source(f"{at}/{{a.jpg,c.bin}}").shuffle(seed=1).batch(1), num_workers=2)) == [
            [b"1"],
            [b"3"],
        ]
        for folder in ("", "*.jpg"):
            with pytest.raises(InvalidError, match="a web server lists nothing; name its files by braces"):
                source(f"{at}/{folder}")


def test_web_servers_and_their_secrets():
    """The server asks for a password and a token."""
    refused = 0

    def refuses(request: Any) -> int:
        known = "Authorization" in request.headers and request.path.endswith("?token=hunter2")
        return refused if known else 403

    lines = b"".join(json.dumps({"k": k}).encode() + b"\n" for k in range(50))
    with Web(dict.fromkeys(["/rows.jsonl", "/r.txt", "/s.txt", "/other.jsonl"], lines), refuses) as web:
        at = f"http://user:hunter3@127.0.0.1:{web.server_port}"
        pipe = source(f"{at}/rows.jsonl?token=hunter2")
        assert [*pipe] == [{"k": k} for k in range(50)]
        mixed = source(f"{at}/{{r,s}}.txt?token=hunter2", decode=True)
        assert [item["__key__"] for item in mixed] == ["r", "s"]
        assert "hunter" not in f"{pipe} {pipe._stage.where(3)}"
        with pytest.raises(stocached.CachePermissionError) as error:
            source(f"{at}/rows.jsonl?token=hunter4")
        assert "hunter" not in str(error.value)
        other = source(f"{at}/other.jsonl?token=hunter2")
        refused = 400
        with pytest.raises(InvalidError, match="the server answered 400"):  # no bad sample, which loaders may leave out
            other[49]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_tells_what_it_reads_soon(bucket: Bucket, workers: int, monkeypatch: pytest.MonkeyPatch):
    told, ahead = list[tuple[str, int]](), remote_files.ByServer.ahead

    def noted(self: Any, spans: list[Any]) -> None:
        told.extend((file.path, size) for file, _, size in spans)
        ahead(self, spans)

    monkeypatch.setattr(remote_files.ByServer, "ahead", noted)
    bucket.put("soon.csv", b"k,text\n" + b"".join(b"%d,%s\n" % (k, b"x" * 20_000) for k in range(60)))
    pipe = source("s3://data/soon.csv", columns=["k"])
    numbers = [int(k) for batch in Loader(pipe.shuffle(seed=1).batch(6), num_workers=workers) for k in batch["k"]]
    assert sorted(numbers) == [*range(60)] != numbers
    size = sum(20_002 + len(str(k)) for k in range(60))
    assert sum(size for _, size in told) == size
    del told[:]
    assert len([*Loader(pipe.batch(6), num_workers=workers)]) == 10
    assert sum(size for _, size in told) == size
    assert len(told) == 1  # one part of 4 MiB at least
    del told[:]
    for k in range(4):
        bucket.put(f"soon/{k}.cls", b"%d" % k)
        bucket.put(f"soon/{k}.txt", b"text")
    assert len([*Loader(source("s3://data/soon/", decode=True).batch(2), num_workers=workers)]) == 2
    assert sorted(told) == sorted(
        (f"s3://data/soon/{k}.{end}", size) for k in range(4) for end, size in (("cls", 1), ("txt", 4))
    )
    if workers == 0:
        del told[:]
        put = {f"{k}.txt": b"%d" % k * 100 for k in range(10)}
        with zipfile.ZipFile(bucket.folder / "soon.zip", "w") as archive:
            for name, data in put.items():
                archive.writestr(name, data)
        assert sorted(item["txt"][0] for item in Loader(source("s3://data/soon.zip").shuffle(seed=1))) == [
            *put.values()
        ]
        assert sum(size for _, size in told) >= 1000
