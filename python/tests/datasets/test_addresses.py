"""source("s3://..."): buckets through the server that the package starts. The bucket is versitygw's."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buckets import KEYS, Bucket, Web, environment, servers
from processes import until
from programs import Program

import stocached
from stocached import Loader, source
from stocached._cache import on_demand
from stocached._checks.derived_fingerprint import derive
from stocached._common.program import program
from stocached._datasets.address_dataset import AddressDataset, source_of

OBJECTS = 40
SHARDS, SAMPLES, LARGE = 3, 10, 200_000
KILLS = int(os.environ.get("STOCACHED_TEST_KILLS", "10"))
TARS = "s3://data/shards/train-{0..2}.tar"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    made = Bucket()
    for k in range(OBJECTS):
        made.put(f"files/{'ab'[k % 2]}/{k:03}.txt", f"object {k}".encode())
    for shard in range(SHARDS):
        members = {}
        for k in range(SAMPLES):
            name = f"{shard}{k}"
            members |= {
                f"{name}.bin": bytes(LARGE),
                f"{name}.cls": b"%d" % (k % 4),
                f"{name}.txt": f"sample {shard}-{k}".encode(),
            }
        made.put_tar(f"shards/train-{shard}.tar", members)
    made.put("packed/a.jsonl.gz", b"lines")
    rows = np.arange(60, dtype=np.int32).reshape(20, 3)
    np.save(made.folder / "rows.npy", rows)
    yield made
    made.close()


@pytest.fixture
def run(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the servers of one test. All have ended after it."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir="/tmp"))
    for name, value in environment(bucket, folder).items():
        monkeypatch.setenv(name, value)
    yield folder
    for pid in servers(folder):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


def texts(batches: Any) -> list[str]:
    return [item["txt"].decode() for batch in batches for item in batch]


def tars(fields: list[str] | None = None) -> Any:
    return source(TARS, int64=["cls"], fields=fields or ["cls", "txt"])


ALL = [f"sample {shard}-{k}" for shard in range(SHARDS) for k in range(SAMPLES)]


# ------------------------------------------------------------ elements


@pytest.mark.usefixtures("run")
def test_elements_are_objects_samples_and_rows():
    files = source("s3://data/files/")
    names = sorted(f"{'ab'[k % 2]}/{k:03}" for k in range(OBJECTS))
    assert [files[i] for i in range(len(files))] == [f"object {int(name[2:])}".encode() for name in names]
    labelled = source("s3://data/files/", labels="folders")
    assert labelled[0] == {"data": b"object 0", "label": 0}
    assert labelled[39] == {"data": b"object 39", "label": 1}
    assert len(source("s3://data/files/**/*1.txt")) == 4
    samples = tars()
    assert (len(samples), samples[13]) == (30, {"cls": 3, "txt": b"sample 1-3"})
    assert list(source(TARS, fields=["txt"]))[29] == b"sample 2-9"
    rows = source("s3://data/rows.npy")
    assert np.array_equal([rows[i] for i in range(20)], np.arange(60).reshape(20, 3))
    assert str(samples) == f"source({TARS!r}, 30 elements)"


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("files/", {"labels": "folders"}),
        ("files/*/00*.txt", {"labels": "folders"}),
        ("shards/train-*.tar", {"fields": ["cls", "png;txt"], "int64": ["cls"]}),
        ("shards/train-{1..2}.tar", {"fields": ["txt"]}),
        ("shards/", {"fields": ["txt", "cls"]}),
        ("shards", {"int64": ["cls"]}),
        ("shards", {"decode": True}),
        ("shards/train-0.tar", {"int64": ["cls"]}),
        ("lacks/", {"fields": ["cls", "png;txt"], "int64": ["cls"], "missing": "skip"}),
    ],
)
def test_files_of_this_machine_have_the_same_elements(bucket: Bucket, what: str, options: dict[str, Any]):
    bucket.put_tar(
        "lacks/0.tar", {"1.cls": b"1", "2.cls": b"2", "2.txt": b"b", "3.txt": b"c", "4.cls": b"4", "4.png": b"d"}
    )
    here = [*source(bucket.folder / what, **options)]
    there = [*source(f"s3://data/{what}", **options)]
    if isinstance(here[0], dict):
        here, there = ([sorted(item.items()) for item in items] for items in (here, there))
    assert list(map(repr, here)) == list(map(repr, there))  # the types too


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_them_shuffled_cached_and_resumed(workers: int):
    large = tars(["bin", "cls", "txt"]).map(_with_length)
    pipe = large.cache(4 * 2**20 + SHARDS * SAMPLES // 2 * LARGE, variable=True).shuffle(seed=5).batch(4, collate=list)
    with_list = source([{"txt": text.encode()} for text in ALL]).shuffle(seed=5).batch(4, collate=list)
    loader, model = Loader(pipe, num_workers=workers), Loader(with_list)
    for _ in range(3):
        assert texts(loader) == texts(model)
    assert 20 <= loader.stats().hits <= 40  # it is half cached
    iteration = iter(loader)
    first = texts([next(iteration), next(iteration)])
    state = loader.state_dict()
    again = Loader(pipe, num_workers=2 - workers)
    again.load_state_dict(state)
    assert first + texts(again) == texts(model)
    loader.close()
    again.close()


def _with_length(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"length": len(sample["txt"])}


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipe_without_an_index_reads_ahead(workers: int, bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    told: list[int] = []
    ahead = AddressDataset.ahead
    monkeypatch.setattr(AddressDataset, "ahead", lambda self, indices: (told.extend(indices), ahead(self, indices)))
    pipe = source("s3://data/files/").flat_map(_letters).batch(16)
    loader = Loader(pipe, num_workers=workers)
    letters = "".join(letter for batch in loader for letter in batch)
    assert sorted(letters) == sorted("".join(f"object {k}" for k in range(OBJECTS)))
    if workers == 0:
        assert sorted(told) == list(range(OBJECTS))


def _letters(data: bytes) -> Iterator[str]:
    yield from data.decode()


@pytest.mark.usefixtures("run")
def test_a_loader_tells_the_samples_of_batches_ahead(monkeypatch: pytest.MonkeyPatch):
    told: list[list[int]] = []
    monkeypatch.setattr(AddressDataset, "ahead", lambda self, indices: told.append(indices.tolist()))
    loader = Loader(tars().map(_with_length).cache("8MiB", variable=True).batch(10, collate=list))
    assert texts(loader) == texts(loader) == ALL
    first, rest = told[:3], told[3:]
    assert sum(map(len, first)) >= 24  # all but those that the constructor has read
    assert rest == [[], [], []]  # the cache has them


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.usefixtures("run")
def test_workers_that_are_started_anew_read_them(method: str, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as before:  # the fork server keeps this environment
        before.setenv("XDG_RUNTIME_DIR", "/tmp")
        before.setenv("AWS_SECRET_ACCESS_KEY", "of yesterday")
        assert len(list(Loader([1, 2], num_workers=1, multiprocessing_context=method))) == 2
    loader = Loader(tars().batch(7, collate=list), num_workers=2, multiprocessing_context=method)
    assert texts(loader) == ALL


# ------------------------------------------------------------ the server


def test_one_server_for_all_programs_and_none_after_them(run: Path):
    program = f"from stocached import source; p = source({TARS!r}); print(len(list(p)), flush=True); input()"
    programs = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for one in programs:
        assert one.stdout is not None
        assert one.stdout.readline() == "30\n"
    assert len(servers(run)) == 1
    (log,) = run.glob("stocached/on-demand-*/server.log")
    assert log.read_text().count("msg=serving cache=") == 1  # they share a cache
    for one in programs[:2]:
        one.kill()
    for one in programs:
        one.communicate("\n")
    until(lambda: not servers(run))
    assert not list(run.glob("**/*.sock"))


def test_folders_of_servers_that_ended_long_ago_go(run: Path, monkeypatch: pytest.MonkeyPatch):
    base, pipe = run / "stocached", tars()
    for name in ("old", "fresh", "starting"):
        (base / f"on-demand-{name}").mkdir()
        for file in ("server.log", "start.lock", "admin.sock"):
            (base / f"on-demand-{name}" / file).touch()
    for log in base.glob("*/server.log"):  # also that of a server that runs
        if "fresh" not in str(log):
            os.utime(log, (1, 1))
    with (base / "on-demand-starting" / "start.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        monkeypatch.setenv("AWS_PROFILE", "another")
        assert tars()[0] == pipe[0]
    left = {folder.name.removeprefix("on-demand-") for folder in base.iterdir()}
    assert (len(left), {"fresh", "starting"} < left) == (4, True)
    assert len(servers(run)) == 2


@contextlib.contextmanager
def sweeping(run: Path) -> Iterator[None]:
    """Inside, two processes remove the folders of all servers that have ended."""
    sweep = "import sys; from stocached._cache import on_demand as o; o._KEPT = -1.0\nwhile True: o._sweep(sys.argv[1])"
    sweepers = [Program(sweep, run / "stocached") for _ in range(2)]
    try:
        yield
    finally:
        for one in sweepers:
            one.kill()
            one.communicate()


def test_programs_that_start_a_server_beside_sweeps_get_one(run: Path):
    program = f"from stocached import source; from stocached._cache import on_demand as o; o._KEPT = -1.0; source({TARS!r})[0]"
    with sweeping(run):
        for turn in range(3):
            together = [Program(program, AWS_PROFILE=str(turn % 2)) for _ in range(3)]
            assert [one.communicate()[1] for one in together] == [""] * 3
            assert len(servers(run)) <= 2
            for pid in servers(run):
                os.kill(pid, signal.SIGKILL)


def test_a_sweep_removes_nothing_of_a_program_that_starts_a_server(run: Path):
    server = on_demand.OnDemand()
    with sweeping(run):
        for _ in range(400):
            begun(server)


def begun(server: on_demand.OnDemand) -> None:
    """A program starts a server, which takes a moment."""
    assert not server._answers()
    with server._alone(time.monotonic() + 60) as alone, open(server.log, "w") as log:
        time.sleep(1e-3)
        assert alone
        assert os.fstat(log.fileno()).st_nlink == 1
        with open(f"{server.folder}/{on_demand._LOCK}") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("step", ["before the lock is opened", "before it is taken"])
def test_a_folder_that_is_swept_while_a_program_starts_a_server(step: str, run: Path, monkeypatch: pytest.MonkeyPatch):
    server, swept = on_demand.OnDemand(), []
    owner, name = {"before the lock is opened": (os, "open"), "before it is taken": (fcntl, "flock")}[step]
    real = getattr(owner, name)

    def sweeps_first(*arguments: Any, **named: Any) -> Any:
        if not swept and (name == "flock" or str(arguments[0]).endswith(on_demand._LOCK)):
            swept.append(server.folder)
            shutil.rmtree(swept[0])
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, sweeps_first)
        begun(server)
    assert swept


def test_a_sweep_that_comes_too_late_leaves_the_new_folder(run: Path, monkeypatch: pytest.MonkeyPatch):
    server, real = on_demand.OnDemand(), fcntl.flock
    folder = server.folder
    begun(server)
    os.utime(server.log, (1, 1))

    def replaced_first(*arguments: Any) -> Any:  # another sweep, and another program that starts a server
        monkeypatch.setattr(fcntl, "flock", real)
        shutil.rmtree(folder)
        begun(server)
        os.utime(server.log, (1, 1))
        return real(*arguments)

    monkeypatch.setattr(fcntl, "flock", replaced_first)
    on_demand._sweep(server._base)
    assert os.path.getsize(os.path.join(folder, "server.log")) == 0


def test_a_program_that_is_attached_keeps_it(run: Path):
    pipe = tars()
    (before,) = servers(run)
    ended = Program(f"from stocached import source; source({TARS!r})[0]")
    assert ended.communicate()[1] == ""
    threading.Event().wait(2.5)  # more than STOCACHED_IDLE
    assert servers(run) == [before]
    assert pipe[0]["txt"] == b"sample 0-0"


def test_commands_say_who_started_it(run: Path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["-c"])  # python -c has no script to name
    pipe = tars()  # as long as it is there, the server stays
    assert pipe[0]["txt"] == b"sample 0-0"  # a kept list of members may need no request
    (pid,) = servers(run)

    def said(*command: str) -> str:
        done = subprocess.run([program("a test"), *command], capture_output=True, text=True, check=True)
        return done.stdout

    (name,) = [
        line.split()[0]
        for line in said("ls").splitlines()
        if f" {pid} stocached serve --on-demand, started by python, " in line
    ]
    shown = said("stats", name)
    assert f"{pid} stocached serve --on-demand, started by " in shown
    assert f", pid {os.getpid()}; in its log: data-shards-train--0--2--tar-" in shown
    assert "none answers" not in shown
    assert json.loads(said("stats", name, "--json"))["remote"]["requests"] > 0
    assert "on demand, by " in said("inspect", name)  # as top and web show it
    # A server that reads parts for formats has no cache.
    by = re.compile(rf"on demand: {pid} stocached serve --on-demand, started by .*pid {os.getpid()}; log {run}/.*log\n")
    for command in ("ls",), ("stats",), ("top", "--once", "--interval", "10ms"):
        done = subprocess.run(
            [program("a test"), *command], stdout=-1, stderr=-2, text=True, env=os.environ | {"COLUMNS": "400"}
        )
        assert by.search(done.stdout), done.stdout
    assert len(pipe) == SHARDS * SAMPLES


def test_commands_say_what_fails_at_a_server_that_reads_parts(run: Path):
    bucket = Bucket()
    bucket.put("a.jsonl", b'{"a": 1}\n' * 1000)
    lines = source("s3://data/a.jsonl", remote={"endpoint": bucket.endpoint})
    bucket.stop()
    reader = threading.Thread(target=lambda: lines[7])
    reader.start()

    def said(*command: str) -> str:
        done = subprocess.run([program("a test"), *command], stdout=-1, stderr=-2, text=True)
        return done.stdout

    until(lambda: "fails: files of programs: reads fail (unavailable)" in said("ls"))
    assert "reads that have failed and will be tried again: 1" in said("health")
    until(lambda: "kind=unavailable tried_again=true" in next(run.glob("*/*/server.log")).read_text())
    bucket.start(*KEYS)
    reader.join()
    bucket.close()


def test_kills_of_the_server_cost_no_sample(run: Path):
    loader = Loader(tars().shuffle(seed=0).batch(3, collate=list), num_workers=2, persistent_workers=True)
    kills = random.Random(3)
    killed, batches = 0, 0
    while killed < KILLS:
        epoch = []
        for batch in loader:
            epoch.append(batch)
            batches += 1
            if kills.random() < 0.15:
                for pid in servers(run):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        assert sorted(texts(epoch)) == ALL
    assert len(servers(run)) <= 1
    loader.close()
    del loader, batch, epoch
    until(lambda: not servers(run))


def test_what_a_kill_of_the_server_has_ended_keeps_no_memory(run: Path):
    """The garbage collector would need to run twice."""
    samples = AddressDataset(TARS, {"int64": ["cls"], "fields": ["cls", "txt"]})
    for index in range(2):
        assert samples[index]["cls"] == index
        for pid in servers(run):
            os.kill(pid, signal.SIGKILL)
    freed = weakref.ref(samples)
    gc.disable()
    try:
        del samples
        assert freed() is None
    finally:
        gc.enable()


def test_kills_of_programs_and_of_the_starter_leave_nothing(run: Path):
    program = f"import stocached\nfor _ in range(10**6): list(stocached.source({TARS!r}))"
    kills = random.Random(4)
    programs = [Program(program) for _ in range(3)]
    for _ in range(KILLS):
        until(lambda: len(servers(run)) == 1)
        threading.Event().wait(kills.random() / 2)
        victim = kills.randrange(4)
        if victim < 3:
            programs[victim].kill()
            assert programs[victim].communicate()[1] == ""
            programs[victim] = Program(program)
        else:
            for pid in servers(run):
                os.kill(pid, signal.SIGKILL)
    for one in programs:
        one.kill()
        assert one.communicate()[1] == ""
    until(lambda: not servers(run))


def test_the_server_holds_no_pipe_of_the_program(monkeypatch: pytest.MonkeyPatch, run: Path):
    monkeypatch.setenv("STOCACHED_IDLE", "300s")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    program = f"from stocached import source; print(source({TARS!r})[0]['txt'])"
    one = subprocess.Popen([sys.executable, "-c", program], stdout=write, stderr=write, close_fds=False)
    os.close(write)
    said = b""
    while part := os.read(read, 4096):  # ends when the last process has closed the pipe
        said += part
    os.close(read)
    assert one.wait() == 0
    assert said == b"b'sample 0-0'\n"
    (pid,) = servers(run)
    assert os.getsid(pid) not in (os.getsid(0), one.pid)
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_secrets_are_in_no_argument_environment_log_pickle_or_core(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "")
    pipe = tars()
    (pid,) = servers(run)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-text")
    with pytest.raises(stocached.CachePermissionError) as refused:
        source("s3://data/files/")
    logs = b"".join(path.read_bytes() for path in run.glob("stocached/on-demand-*/server.log"))
    places = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    for text in (*places, logs, pickle.dumps(pipe), repr(pipe).encode(), str(refused.value).encode()):
        for secret in (KEYS[1], "another-secret-text"):
            assert secret.encode() not in text
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max core file size        1                    1 " in limits


@pytest.fixture
def other() -> Iterator[Bucket]:
    made = Bucket()
    for k in range(3):
        made.put(f"{k}.txt", b"%d" % k)
    yield made
    made.close()


def test_keys_that_change_are_handed_over(run: Path, other: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", other.endpoint)
    pipe = source("s3://data/*.txt")
    assert pipe[0] == b"0"
    (pid,) = servers(run)
    other.stop()
    other.start("newer", "of-this-hour")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "newer")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-this-hour")
    assert [pipe[i] for i in range(3)] == [b"0", b"1", b"2"]
    assert servers(run) == [pid]


@pytest.mark.usefixtures("run")
def test_a_wrong_secret_of_another_program_costs_no_sample():
    pipe = source("s3://data/files/")
    refused = Program("from stocached import source; source('s3://data/files/')", AWS_SECRET_ACCESS_KEY="mistyped")
    assert "CachePermissionError" in refused.communicate()[1]
    assert [pipe[i] for i in range(OBJECTS)] == [source("s3://data/files/")[i] for i in range(OBJECTS)]


def test_a_server_that_starts_again_reads_where_the_first_one_did(
    run: Path, other: Bucket, monkeypatch: pytest.MonkeyPatch
):
    pipe = source("s3://data/files/a/")
    monkeypatch.setenv("AWS_ENDPOINT_URL", other.endpoint)
    there = source("s3://data/*.txt")
    for pid in servers(run):
        os.kill(pid, signal.SIGKILL)
    assert pipe[1] == b"object 2"
    assert there[1] == b"1"


def test_a_file_of_keys_may_have_a_relative_path(run: Path, monkeypatch: pytest.MonkeyPatch):
    (run / "keys").write_text(f"[default]\naws_access_key_id={KEYS[0]}\naws_secret_access_key={KEYS[1]}\n")
    monkeypatch.chdir(run)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "keys")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert source("s3://data/files/")[0] == b"object 0"


def test_each_identity_has_a_server_of_its_own(run: Path, monkeypatch: pytest.MonkeyPatch):
    pipe = tars()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    with pytest.raises(stocached.CachePermissionError, match="403"):
        tars()
    assert len(servers(run)) == 2
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS[0])
    assert pipe[0]["cls"] == 0


def test_data_that_change(run: Path, other: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", other.endpoint)
    pipe = source("s3://data/*.txt")
    pickled = pickle.dumps(pipe)
    assert pickle.loads(pickled)[1] == b"1"
    other.put("2.txt", b"something new")
    with pytest.raises(stocached.FetchError, match=r"CHANGED.*2\.txt"):
        pipe[2]
    other.put("3.txt", b"3")
    assert len(source("s3://data/*.txt")) == 4  # a new pipe lists anew
    for pid in servers(run):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(stocached.ReplacedError, match="have changed since this program listed them"):
        pipe[0]
    with pytest.raises(stocached.ReplacedError, match="make the pipe again"):
        pickle.loads(pickled)[0]


def test_a_named_cache_knows_the_data_by_themselves(run: Path, other: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", other.endpoint)
    before = derive(source("s3://data/*.txt").map(len)._stage.rows)
    monkeypatch.setenv("AWS_PROFILE", "another")  # another server, and the same data
    again = derive(source("s3://data/*.txt", retry={"tries": 3}).map(len)._stage.rows)
    hidden = derive(source("s3://data/*.txt", hidden=True).map(len)._stage.rows)
    other.put("1.txt", b"something new")
    changed = derive(source("s3://data/*.txt").map(len)._stage.rows)
    assert "?" not in str(before)
    assert str(again) == str(before)
    assert len({str(each) for each in (before, hidden, changed)}) == 3
    assert len(servers(run)) == 2


@pytest.mark.usefixtures("run")
def test_a_closed_cache_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch):
    data = tars()._stage.data
    monkeypatch.setattr(data, "_attach", lambda: pytest.fail("it attaches again"))
    data.cache.close()
    with pytest.raises(stocached.ClosedError):
        data[0]


def test_a_bucket_that_is_away(run: Path, other: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", other.endpoint)
    other.put("large.bin", bytes(5 * 2**20))  # the server keeps none of it
    pipe, large = (source(f"s3://data/{name}", retry={"tries": 1}) for name in ("*.txt", "large.bin"))
    loader = Loader(pipe.cache("8MiB", variable=True).batch(3, collate=list))
    assert list(loader) == [[b"0", b"1", b"2"]]
    other.stop()
    assert list(loader) == [[b"0", b"1", b"2"]]  # what is cached needs no bucket
    with pytest.raises(stocached.FetchError, match=r"s3://data/large\.bin"):
        large[0]
    with pytest.raises(stocached.FetchError, match="does not answer now"):
        source("s3://data/*.txt", retry={"tries": 1})


# ------------------------------------------------------------ mistakes


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: source("s3://nowhere/files/"), stocached.CacheNotFoundError, "NoSuchBucket"),
        (lambda: source("s3://data/nothing/*.jpg"), stocached.InvalidError, "no file"),
        (
            lambda: source("s3://data/shards/train-{0..9}.tar"),
            stocached.CacheNotFoundError,
            r"^file does not exist: .*train-[3-9]\.tar|^file does not exist",
        ),
        (lambda: source("s3://data/files/", colour="red"), stocached.InvalidError, "unknown key"),
        (lambda: source(TARS, fields=["png"]), stocached.InvalidError, "png"),
        (lambda: source("s3:///files"), stocached.InvalidError, "names no bucket"),
        (lambda: source("S3://data/files/"), stocached.InvalidError, "write s3:// and not S3://"),
        (lambda: source([1, 2], fields=["a"]), stocached.InvalidError, "fields= goes with a text"),
        (lambda: source(__file__, fields=["a"]), stocached.InvalidError, "fields are for files of a format"),
        (lambda: source("s3://data/rows.parquet"), stocached.CacheNotFoundError, "NoSuchKey"),
        (
            lambda: source("s3://data/packed/a.jsonl.gz"),
            stocached.InvalidError,
            r'gunzip -k a\.jsonl\.gz; or write kind="dir"',
        ),
        (
            lambda: source("s3://data/rows.jsonl", kind="dir", format="jsonl"),
            stocached.InvalidError,
            "do not go together",
        ),
        (lambda: source("none://name/folder"), stocached.UnsupportedError, "none:// addresses"),
    ],
)
def test_mistakes_have_errors_that_name_them(make: Callable[[], Any], kind: type[Exception], said: str):
    with pytest.raises(kind, match=said):
        make()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
@pytest.mark.parametrize("address", ["s3://data/files/", "s3://data/files/*", "s3://data/rows.parquet", TARS])
def test_half_of_the_keys_is_refused(address: str, missing: str, monkeypatch: pytest.MonkeyPatch):
    source("s3://data/files/")  # a server with this id runs
    monkeypatch.setenv(missing, "")
    for settings in ({}, {"remote": {"credentials": "environment"}}):
        with pytest.raises(stocached.InvalidError, match=f"is set in the environment, and {missing} is missing"):
            source(address, **settings)
    with pytest.raises(stocached.CachePermissionError):  # it is asked
        source(address, remote={"credentials": "none"})


def test_without_a_server(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOCACHED_START", "never")
    with pytest.raises(stocached.NoServerError, match=r"STOCACHED_START=never.*stocached serve --on-demand --sockets"):
        tars()
    monkeypatch.setenv("STOCACHED_START", "no")
    with pytest.raises(stocached.InvalidError, match=r"STOCACHED_START='no': give never"):
        tars()
    monkeypatch.delenv("STOCACHED_START")
    monkeypatch.setenv("PATH", str(run))
    monkeypatch.setattr(sys, "executable", str(run / "python"))
    with pytest.raises(stocached.UnsupportedError, match="needs the command stocached"):
        tars()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    program = run / "bin"
    program.mkdir()
    (program / "stocached").write_text("#!/bin/sh\necho 'it is broken' >&2\n")
    (program / "stocached").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program / "python"))
    with pytest.raises(stocached.NoServerError, match="it is broken"):
        tars()


@pytest.mark.parametrize("kills", [3, 9])
def test_a_server_that_is_killed_while_it_starts_is_started_again(
    kills: int, run: Path, monkeypatch: pytest.MonkeyPatch
):
    """Three are within the tries of one read, nine are not."""
    starts, command = run / "starts", run / "stocached"
    command.write_text(
        f'#!/bin/sh\necho >> {starts}\ntest $(wc -l < {starts}) -gt {kills} || kill -KILL $$\nexec {program("a test")} "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(run / "python"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run / "sockets"))
    (run / "sockets").mkdir(mode=0o700)
    if kills == 9:
        with pytest.raises(stocached.NoServerError, match="ends again and again"):
            tars()
    else:
        assert texts([list(tars())]) == ALL


def test_a_folder_that_others_may_write_to_is_refused(run: Path):
    (run / "stocached").mkdir(mode=0o700)
    (run / "stocached").chmod(0o777)
    with pytest.raises(stocached.CachePermissionError, match="no other user may write to"):
        tars()


def _from_tmp() -> list[Any]:
    """The samples by a server with another folder, which is gone afterwards."""
    samples = AddressDataset(TARS, {"int64": ["cls"], "fields": ["cls", "txt"]})
    read, folder = list(samples), Path(samples._server.folder)
    for pid in servers(folder):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)
    return read


def test_a_runtime_folder_with_a_long_path_is_not_used(run: Path, monkeypatch: pytest.MonkeyPatch):
    long = run / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert _from_tmp()[13]["cls"] == 3
    assert not list(long.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_runtime_folder_of_another_user_is_left_alone(run: Path):  # as with sudo -E
    os.chown(run, 65534, 65534)
    assert _from_tmp()[13]["cls"] == 3
    assert not list(run.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_each_user_has_a_server_of_its_own(run: Path):
    ours = tars()
    assert ours[13]["cls"] == 3
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.setgid(65534)
            os.setuid(65534)
            os.environ.pop("HOME", None)
            with pytest.raises(PermissionError):
                os.listdir(run)
            folder = AddressDataset(TARS, {"int64": ["cls"], "fields": ["cls", "txt"]})._server.folder
            assert (os.stat(folder).st_uid, os.stat(folder).st_mode & 0o777) == (65534, 0o700)
            assert _from_tmp()[13]["cls"] == 3
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert ours[14]["cls"] == 0
    assert len(servers(run)) == 1


def elsewhere(mount: str, program: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs a program where those mounts are."""
    command = ["unshare", "-m", *more, "sh", "-c", mount, "sh", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 9 or "unshare" in done.stderr:
        pytest.skip(done.stderr)
    return done


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_container_has_a_server_of_its_own(run: Path):
    """With another /tmp, and the same /dev/shm and network."""
    program = (
        f"import os; from stocached import source; pipe = source({TARS!r}, fields=['txt'])\n"
        f"print(os.getpid(), pipe[13], os.listdir('/tmp'), len(os.listdir('{run}/stocached')))"
    )
    mount = f'mount --make-rprivate / && mount -t tmpfs none /tmp && mkdir {run} || exit 9; exec "$@"'
    ours = tars()
    assert ours[13]["cls"] == 3
    one = elsewhere(mount, program, "-p", "-f", "--mount-proc")
    assert one.stdout == f"1 b'sample 1-3' ['{run.name}'] 1\n", one.stderr
    assert len(servers(run)) == 1  # which the container's did not replace; that ended with its first process
    assert ours[14]["cls"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_without_any_folder_the_error_says_what_to_set(run: Path):
    program = f"import os; del os.environ['XDG_RUNTIME_DIR']; from stocached import source; source({TARS!r})"
    mount = 'mount --make-rprivate / && mount -t tmpfs -o ro none /tmp || exit 9; exec "$@"'
    one = elsewhere(mount, program)
    assert "NoServerError: no folder for the server of addresses: [Errno 30]" in one.stderr
    assert "set XDG_RUNTIME_DIR" in one.stderr


@pytest.mark.parametrize(
    ("address", "kind", "path", "glob"),
    [
        ("s3://b/x/", "dir", "s3://b/x/", None),
        ("s3://b/x/**/*.{jpg,png}", "dir", "s3://b/x/", "**/*.{jpg,png}"),
        ("s3://b/*.txt", "dir", "s3://b/", "*.txt"),
        ("s3://b/x/one.jpg", "dir", "s3://b/x/", "one.jpg"),
        ("s3://name.with.dots", "dir", "s3://name.with.dots", None),
        ("gs://b/t-{00..99}.tar", "tar", "gs://b/t-{00..99}.tar", None),
        ("https://host/a.npy", "npy", "https://host/a.npy", None),
        ("https://host/a.tar?key=b/c.d", "tar", "https://host/a.tar?key=b/c.d", None),
    ],
)
def test_the_address_says_the_kind(address: str, kind: str, path: str, glob: str | None):
    made = source_of(address, {})
    assert (made["kind"], made["path"], made.get("glob")) == (kind, path, glob)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"manifest": "https://me:hunter2@host/list.txt"},
            "manifest='https://host/list.txt' is an address; copy the file",
        ),
        ({"index": "s3://b/index"}, "index='s3://b/index' is an address"),
        ({"remote": {"ca": "file:///ca.pem"}}, "remote.ca='file:///ca.pem' is an address"),
        ({"limits": {1: 1}}, "limits has the key 1; keys are texts"),
        ({"remote": {"a": {None: 1}}}, "remote.a has the key None; keys are texts"),
        ({"glob": object}, "glob=<class 'object'>; give a text, a number"),
    ],
)
def test_an_error_names_the_setting(settings: dict[str, Any], message: str):
    with pytest.raises(stocached.InvalidError, match=re.escape(message)) as refused:
        source("https://host/", **settings)
    assert "hunter2" not in str(refused.value)


def test_settings_have_numbers_and_paths_of_any_type():
    given = {"descriptors": np.int64(9), "manifest": Path("/a"), "a": [np.float32(0.5), np.True_]}
    made = source_of("s3://b/", given | {"limits": {"heads": np.uint8(2)}})
    plain = {"descriptors": 9, "manifest": "/a", "a": [0.5, True], "limits": {"heads": 2}}
    assert made == {"kind": "dir", "path": "s3://b/", **plain}


@pytest.mark.usefixtures("run")
def test_an_address_of_the_web_shows_no_password(bucket: Bucket):
    bucket.put("page.txt", b"text")
    with pytest.raises(stocached.StocachedError) as refused:
        source(f"http://user:hunter2@127.0.0.1:{bucket.port}/data/t-{{0..1}}.tar?token=hunter2")
    assert "hunter2" not in str(refused.value)


def test_a_web_address_that_is_read_shows_no_password(run: Path, bucket: Bucket):
    files = {"/rows.npy": (bucket.folder / "rows.npy").read_bytes()}
    with Web(files) as web:
        rows = AddressDataset(f"http://user:hunter2@127.0.0.1:{web.server_port}/rows.npy?token=hunter2", {})
        assert rows[1].tolist() == [3, 4, 5]
        files["/rows.npy"] = files["/rows.npy"][:-1] + b"x"
        for pid in servers(run):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(stocached.ReplacedError) as replaced:
            rows[2]
    for text in (repr(rows), str(replaced.value)):
        assert "hunter2" not in text
        assert "rows.npy" in text
