"""Storage that fails, and objects that change: each format gives the right samples, or an error that names object and
element."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from buckets import Bucket
from made import CASES, ONE_OF_EACH, Made, plain
from processes import until

import stocached
from stocached import source
from stocached._formats import remote_files

pytest.importorskip("fsspec", reason="fsspec is missing")  # as in test_formats_at_addresses.py
pytestmark = pytest.mark.usefixtures("run")
KINDS = [kind for kind in ONE_OF_EACH if kind != "a program's own" and "tar" not in kind] + ["zip, decoded"]
SOME = (0, 1, 20, 40, 59)
CHECKED = ("zip", "tfrecord", "mds, gz")


class Storage(http.server.ThreadingHTTPServer):
    """A bucket behind a server that spoils answers. cut: each body ends in its middle. busy: five requests of
    ten are refused."""

    daemon_threads = True

    def __init__(self, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.behind, self.how, self.requests, self.spoilt = behind, "", 0, 0


class _Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Storage

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.server.how == "busy" and self.server.requests % 2 and self.server.spoilt < 5:
            self.server.spoilt += 1
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        with contextlib.closing(behind):
            behind.request(self.command, self.path, headers=dict(self.headers.items()))
            answer = behind.getresponse()
            data = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name not in ("Transfer-Encoding", "Connection"):
                self.send_header(name, value)
        self.end_headers()
        is_object = self.command == "GET" and "?" not in self.path
        sent = (len(data) + 1) // 2 if is_object and self.server.how == "cut" else len(data)
        self.wfile.write(data[:sent])
        if sent < len(data):
            self.server.spoilt += 1
            self.close_connection = True

    do_HEAD = do_GET


@pytest.fixture(scope="module")
def storage(bucket: Bucket) -> Iterator[Storage]:
    with Storage(bucket.port) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


class Case:
    """Files of a format in the bucket."""

    def __init__(self, kind: str, bucket: Bucket, storage: Storage) -> None:
        self.checked, folder = kind.startswith(CHECKED), bucket.folder / kind.replace(",", "").replace(" ", "-")
        folder.mkdir()
        self.made: Made = CASES[kind](folder)
        self.text = f"s3://data{self.made.text.removeprefix(str(bucket.folder))}"
        self.remote = {"endpoint": f"http://127.0.0.1:{storage.server_port}"}
        self.wanted = [*map(plain, self.made.items)]
        self.paths = sorted(path for path in folder.glob("**/*") if path.is_file() and path.name != "index.json")

    def source(self) -> Any:
        remote_files._runs._runs.clear()  # what this process has read is right, and no request
        return source(self.text, **self.made.options, remote=self.remote)


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, bucket: Bucket, storage: Storage) -> Case:
    return Case(request.param, bucket, storage)


@pytest.mark.parametrize("how", ["cut", "busy"])
def test_answers_that_fail(case: Case, storage: Storage, how: str):
    storage.how, storage.spoilt = how, 0
    pipe = case.source()
    assert all(plain(pipe[number]) == case.wanted[number] for number in SOME)
    assert storage.spoilt


def said(error: BaseException) -> str:
    return str(error) + "".join(getattr(error, "__notes__", []))


def test_objects_that_change_or_go(case: Case, storage: Storage):
    storage.how = ""
    path, pipe = case.paths[0], case.source()
    data, now = path.read_bytes(), path.stat()
    for change in ("other bytes", "other size", "gone"):
        if change == "gone":
            path.unlink()
        else:
            path.write_bytes(data[::-1] if change == "other bytes" else data + data)
            os.utime(path, (1e9, 1e9))
        errors = list[str]()

        def are_met(errors: list[str] = errors) -> bool:
            remote_files._runs._runs.clear()
            made = pickle.loads(pickle.dumps(pipe))  # it has kept nothing
            for number in SOME:
                try:
                    assert plain(made[number]) == case.wanted[number]
                except (stocached.ReplacedError, stocached.CacheNotFoundError) as error:
                    errors.append(said(error))
            return bool(errors)

        until(are_met)  # a read counts as a look for a second
        assert all(path.name in error and "stocached: in s3://" in error for error in errors), errors
    path.write_bytes(data)
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns))


def test_objects_that_are_cut(case: Case, storage: Storage):
    storage.how = ""
    path = case.paths[0]
    data = path.read_bytes()
    for part in (0, 0.3, 0.6, 0.95):
        path.write_bytes(data[: int(part * len(data))])
        pipe, errors = list[Any](), list[str]()
        try:
            pipe = case.source()
        except stocached.StocachedError as error:
            errors.append(said(error))
        for number in range(0, len(pipe), 9):
            try:
                assert not case.checked or plain(pipe[number]) in case.wanted
            except stocached.StocachedError as error:
                errors.append(said(error))
        assert all(path.name in error for error in errors), errors
    path.write_bytes(data)
