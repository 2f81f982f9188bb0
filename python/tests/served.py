"""A server for tests: the real program with its own configuration."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from helpers import pattern
from processes import pause, until

__all__ = ["PROGRAM", "ROOT", "Server", "expected", "program", "until", "write_pictures", "write_records"]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bin" / "stocached"


def program() -> Path:
    """The program `stocached` of this checkout. `make test-python` builds it; this function does so
    if it is missing."""
    if not PROGRAM.exists():
        environment = os.environ | {"CGO_ENABLED": "0"}
        subprocess.run(
            [os.environ.get("GO", "go"), "build", "-trimpath", "-o", PROGRAM, "./cmd/stocached"],
            cwd=ROOT,
            env=environment,
            check=True,
        )
    return PROGRAM


def write_records(path: Path, n: int, size: int = 1000) -> None:
    """Records for a source of kind raw: `pattern(i, size)` each."""
    path.write_bytes(b"".join(pattern(i, size).tobytes() for i in range(n)))


class Server:
    """`stocached serve` with one cache, whose segment lies in a folder of its own. No other test
    uses its name. sockets: of a server that the clients of this process do not find."""

    def __init__(self, segments: Path, sockets: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="served-", dir="/tmp"))
        self.segments = segments
        self.sockets = sockets or Path(os.environ["STOCACHED_SOCKETS_DIR"])  # set in conftest.py
        self.data = self.folder / "data"  # the source
        self.name = f"served-{os.getpid()}-{os.urandom(4).hex()}"
        self.process: subprocess.Popen[str] | None = None

    @property
    def path(self) -> Path:
        """Path of the segment."""
        return self.segments / self.name

    def serve(self, source: dict[str, Any], **cache: Any) -> Server:
        """Writes the configuration as JSON, which is valid YAML, and starts the server."""
        settings = {"name": self.name, "source": {"path": str(self.data), **source}, "dir": str(self.segments), **cache}
        self.folder.joinpath("config.yaml").write_text(
            json.dumps({"caches": [settings], "sockets": {"dir": str(self.sockets)}})
        )
        self.start()
        return self

    def records(
        self, n: int = 100, sample_bytes: int = 1000, *, limits: dict[str, Any] | None = None, **cache: Any
    ) -> Server:
        """Serves n records. Sample i is `pattern(i, sample_bytes)`."""
        write_records(self.data, n, sample_bytes)
        return self.serve(
            {"kind": "raw", "sample_bytes": sample_bytes} | ({"limits": limits} if limits else {}), **cache
        )

    def files(self, files: dict[str, bytes], settings: dict[str, Any] | None = None, **cache: Any) -> Server:
        """Serves files, in the order of their paths."""
        for name, data in files.items():
            path = self.data / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return self.serve({"kind": "dir", **(settings or {})}, **cache)

    def start(self) -> None:
        with open(self.folder / "log", "a") as log:
            command = [program(), "serve", "-c", self.folder / "config.yaml"]
            environment = os.environ | {"STOCACHED_SOCKETS_DIR": str(self.sockets)}
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serving"), f"{line}\n{self.log()}"

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends the server, and waits until it has gone."""
        if self.process is None:
            return
        self.process.send_signal(number)
        if number != signal.SIGKILL:
            self.process.send_signal(signal.SIGCONT)
        self.process.communicate(timeout=60)
        self.process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Stops the server until `resume`: it exists and answers nothing."""
        assert self.process is not None
        pause(self.process.pid)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)
        shutil.rmtree(self.sockets, ignore_errors=True)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def get(self, path: str) -> str:
        """What the admin socket answers."""
        connection = http.client.HTTPConnection("stocached", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.sockets / "admin.sock"))
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def about(self) -> dict[str, Any]:
        """What the server says of the cache."""
        answer: dict[str, Any] = json.loads(self.get(f"/v1/caches/{self.name}"))
        return answer

    def metric(self, name: str, cache: str | None = None) -> float:
        """A metric of the cache, or of another one, from the admin socket."""
        text = self.get("/metrics")
        found = re.findall(rf'^{name}\{{cache="{cache or self.name}"\}} (\S+)$', text, re.M)
        assert len(found) == 1, text
        return float(found[0])

    def reads(self, cache: str | None = None) -> int:
        return int(self.metric("stocached_source_reads_total", cache))


def write_pictures(server: Server, n: int = 6) -> list[bytes]:
    """PNG files of 8 x 8 pixels of one colour, which the server decodes. Fields: `image` (3, 4, 4)
    and `label`, ants before cats."""
    pictures = [_png(40 * k) for k in range(n)]
    names = [f"{'cat' if k % 2 else 'ant'}/{k}.png" for k in range(n)]
    server.files(dict(zip(names, pictures)), {"labels": "folders"}, decode={"resize": [4, 4]})
    return pictures


def _png(colour: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([colour, 0, 255 - colour]) * 8 for _ in range(8))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def expected(indices: Any, size: int = 1000) -> np.ndarray:
    return np.stack([pattern(int(i), size) for i in indices])
