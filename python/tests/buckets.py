"""Storage for tests: a bucket of versitygw, a real server of S3 that checks signatures, and a web server."""

from __future__ import annotations

import http.client
import http.server
import io
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from processes import until
from served import ROOT

_GATEWAY = ROOT / ".tools" / "versitygw"
KEYS = ("example", "only-for-a-test")


def gateway() -> Path:
    """The program, which `make test-python` builds; this function does so if it is missing."""
    if not _GATEWAY.exists():
        subprocess.run([ROOT / "tools" / "setup.sh", "versitygw"], cwd=ROOT, check=True)
    return _GATEWAY


class Bucket:
    """A bucket named `data`. Its objects are files."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="bucket-", dir="/tmp"))
        self.folder = self._root / "data"
        self.folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start(*KEYS)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, key: str, secret: str) -> None:
        """Begins to answer, for requests with these keys."""
        command = [
            gateway(),
            "--port",
            f"127.0.0.1:{self.port}",
            "--region",
            "eu-1",
            "--access",
            key,
            "--secret",
            secret,
        ]
        command += ["--health", "/health", "--quiet", "posix", self._root]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._answers)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def put_tar(self, name: str, members: Mapping[str, bytes]) -> None:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as shard:
            for member, data in members.items():
                about = tarfile.TarInfo(member)
                about.size = len(data)
                shard.addfile(about, io.BytesIO(data))
        self.put(name, made.getvalue())

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._root)


class Web(http.server.ThreadingHTTPServer):
    """A web server with ranges, inside a `with` block. refuses: the status of an error for a request, or None."""

    daemon_threads = True

    def __init__(
        self, files: Mapping[str, bytes], refuses: Callable[[http.server.BaseHTTPRequestHandler], Any] = lambda _: None
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Ranges)
        self.files, self.refuses = files, refuses
        self.sent: list[int] = []  # bytes of each answer

    def __enter__(self) -> Web:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        super().__exit__(*error)


class _Ranges(http.server.BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", 1 << 20
    server: Web

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        if status := self.server.refuses(self):
            self.send_error(status)
            return
        data = self.server.files[self.path.partition("?")[0]]
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        part = data[int(first) : int(last or len(data)) + 1]
        self.server.sent.append(len(part))
        self.send_response(206)
        self.send_header("ETag", f'"{hash(data)}"')
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


def environment(bucket: Bucket, run: Path, idle: str = "1s") -> dict[str, str]:
    """Variables with which the package reads the bucket. run: the folder of its servers."""
    return {
        "AWS_ENDPOINT_URL": bucket.endpoint,
        "AWS_REGION": "eu-1",
        "AWS_ACCESS_KEY_ID": KEYS[0],
        "AWS_SECRET_ACCESS_KEY": KEYS[1],
        "AWS_EC2_METADATA_DISABLED": "true",
        "XDG_RUNTIME_DIR": str(run),
        "STOCACHED_IDLE": idle,
    }


def servers(run: Path) -> list[int]:
    """The processes of servers on demand whose sockets lie below this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--on-demand" in words and any(word.startswith(os.fsencode(run)) for word in words):
                found.append(int(entry.name))
    return found
