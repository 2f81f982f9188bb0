"""The other end of the data socket: servers of other users, and texts from a server."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stocached import Cache, CachePermissionError, FetchError, StocachedError

STRANGER = 65534
BAD = "a\x1b]0;b\x07c\x9b31md\u202ee\x7f\n"
ERROR = 11


def frame(kind: int, request: int, body: bytes) -> bytes:
    return struct.pack("<IHHQ", len(body), kind, 0, request) + body


def listen(place: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "data.sock"))
    os.chmod(place / "data.sock", 0o777)
    listener.listen()
    return listener


@contextmanager
def impostor(place: Path) -> Iterator[Callable[[], int]]:
    """A process of another user that listens in a folder. Yields a function that ends it and
    returns how many bytes clients sent."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        listener = listen(place)
        os.write(writing, b"!")
        got = 0
        while True:
            connection, _ = listener.accept()
            while data := connection.recv(1 << 16):
                got += len(data)
                if data == b"end":
                    os.write(writing, str(got - len(data)).encode())
                    os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"!"

    def end() -> int:
        with socket.socket(socket.AF_UNIX) as last:  # it accepts one connection after the other
            last.connect(str(place / "data.sock"))
            last.send(b"end")
            return int(os.read(reading, 100))

    try:
        yield end
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


@pytest.fixture
def base(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that others may enter, in place of the default folder of the sockets."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder.chmod(0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("STOCACHED_SOCKETS_DIR")
    return folder


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("owner", "mode", "says"),
    [
        (STRANGER, 0o755, "belongs to user id 65534"),
        (0, 0o755, "user id 65534 listens on"),
        (0, 0o777, "has mode 0777"),
    ],
)
def test_nothing_is_sent_to_a_server_of_another_user(base, monkeypatch, named, owner, mode, says):
    place = base / "stocached"
    place.mkdir()
    place.chmod(0o777)
    if named:
        monkeypatch.setenv("STOCACHED_SOCKETS_DIR", str(place))
    with impostor(place) as end:
        os.chown(place, owner, -1)
        place.chmod(mode)
        with pytest.raises(CachePermissionError, match=says):
            Cache.attach("a-secret-name")
        with Cache.create("served", samples=4, sample_bytes=9, dir=base) as cache:
            with pytest.raises(CachePermissionError, match=says):
                cache.fetch([1])
            with pytest.raises(CachePermissionError, match=says):
                cache.prefetch([1])
        assert end() == 0


def test_what_a_server_says_does_nothing_to_a_terminal(folder, monkeypatch):
    monkeypatch.setenv("STOCACHED_SOCKETS_DIR", str(folder))
    listener = listen(folder)
    code = 4  # NOT_FOUND, then an unknown code

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.send(frame(ERROR, 2, struct.pack("<HH", code, 0) + BAD.encode() + b"\xff\xc2"))
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for code in (4, 99):
            for call in (lambda: Cache.attach("no-such-cache"), lambda: cache.fetch([1])):
                with (
                    Cache.create(f"served-{code}", samples=4, sample_bytes=9, dir=folder) as cache,
                    pytest.raises((StocachedError, FetchError)) as caught,
                ):
                    call()
                (folder / f"served-{code}").unlink()
                text = str(caught.value)
                assert "a?]0;b?c" in text
                assert not [c for c in text if unicodedata.category(c) == "Cc" or c == "\u202e"], repr(text)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
