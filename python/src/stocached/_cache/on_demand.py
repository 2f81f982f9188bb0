"""The server of addresses, such as s3://bucket/name, that this package starts (docs/spec/on-demand.md). There is one for
each user, endpoint and identity of a machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import os
import select
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .._common.errors import (
    CacheMemoryError,
    CacheNotFoundError,
    CachePermissionError,
    CacheTimeoutError,
    FetchError,
    InvalidError,
    NoServerError,
    ReplacedError,
    StocachedError,
)
from .._common.program import program

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_OTHERS = ("file", "iam", "none")  # remote.credentials that leave out the keys of the environment
# What decides which storage answers, and as whom. Programs with the same values share a server.
_IDENTITY = (
    "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "HOME", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL",
    "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_EC2_METADATA_DISABLED", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "XDG_CACHE_HOME", "STOCACHED_IDLE",
)  # fmt: skip
# A server has another working directory, so these become absolute.
_FILES = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "SSL_CERT_FILE", "XDG_CACHE_HOME")
_LONGEST = 60  # bytes of $XDG_RUNTIME_DIR: an address of a socket has 107
_FOLDER, _LOCK, _LOG = "on-demand-", "start.lock", "server.log"
_START = 30.0  # seconds for a server to start, or for another program to start it
_PAUSE = 0.02  # seconds between two looks
_KEPT = 24 * 3600.0  # seconds for which the folder of a server that has ended stays, as errors name its log
_TURN = 1000  # milliseconds of a look for an answer; if this program is frozen too, that is one look
_QUIET, _SILENT = 10, 60  # looks before a program asks whether the server lives, and before the error that it does not
_TRIES = 5  # a server may end while a program asks it
_ERRORS: Mapping[int, type[StocachedError]] = {
    400: InvalidError,
    403: CachePermissionError,
    404: CacheNotFoundError,
    409: ReplacedError,
    507: CacheMemoryError,
}
_UNAVAILABLE, _GONE = 503, 0
_ALIVE = b"GET /healthz HTTP/1.0\r\n\r\n"


class OnDemand:
    """The server for the environment of this process, whether or not it runs. Can be pickled. Any number of threads and
    processes."""

    def __init__(self) -> None:
        values = {name: os.environ[name] for name in _IDENTITY if name in os.environ}
        values.update({name: os.path.abspath(values[name]) for name in _FILES if values.get(name)})
        self._identity = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]
        # Proxies may have passwords, and this object is pickled.
        self._values = {
            name: value for name, value in values.items() if not name.lower().endswith("_proxy") and name not in _KEYS
        }
        self._handed = ""  # digest of the keys that the server has got from this object
        run = os.environ.get("XDG_RUNTIME_DIR", "")
        usable = run.startswith("/") and len(os.fsencode(run)) <= _LONGEST and os.access(run, os.W_OK | os.X_OK)
        usable = usable and os.stat(run).st_uid == os.geteuid()  # sudo may keep that of another user
        self._base = os.path.join(run, "stocached") if usable else f"/tmp/stocached-{os.getuid()}"

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a worker whose environment may be of another time: the server has better keys than it."""
        vars(self).update(state, _handed=_digest(_keys()))

    @property
    def folder(self) -> str:
        """Of the sockets and the log. That of another user, or one that others may write to, raises
        CachePermissionError."""
        base = self._base
        for folder in (base, made := os.path.join(base, f"{_FOLDER}{self._identity}")):
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                pass
            except OSError as error:
                raise NoServerError(
                    f"no folder for the server of addresses: {error}; set XDG_RUNTIME_DIR to a folder of yours on this machine"
                ) from None
            try:
                status = os.lstat(folder)
            except FileNotFoundError:
                return self.folder  # another program has just swept it
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise CachePermissionError(
                    f"{folder} must be a folder of user id {os.geteuid()} that no other user may write to; remove it, or set "
                    "XDG_RUNTIME_DIR to a folder of yours"
                )
        return made

    @property
    def log(self) -> str:
        return os.path.join(self.folder, _LOG)

    def open(self, source: Mapping[str, Any], name: str = "", files: str = "") -> Mapping[str, Any]:
        """Opens the samples of an address as a cache of the server: its `name`, the `classes` of its labels if they have names,
        and `advice` about the data (docs/spec/on-demand.md). It starts the server if there is none.
        source: the keys of a source (docs/spec/sources.md). name: of a cache that this program has; if the server still has
        it, it only takes the keys. files: if an object has a name of this pattern, none opens, and there is no name.
        Raises InvalidError, CacheNotFoundError, CachePermissionError, CacheMemoryError, FetchError; NoServerError and
        UnsupportedError without a server."""
        opened: Mapping[str, Any] = self.ask("/v1/open", {"source": source, "name": name, "files": files})
        return opened

    def ask(self, path: str, body: Mapping[str, Any], hand: bool = True) -> Any:
        """What the server answers. It starts the server if there is none. hand: the keys of the environment; without it, only
        if the server lacks them. Raises as `open`, and ReplacedError."""
        for left in reversed(range(_TRIES)):
            keys = _keys()
            hand = hand or self.has_old_keys()
            if hand:
                _check_keys(keys, body["source"])
            # The server reads YAML, which knows no pairs of surrogates.
            text = json.dumps({**body, "keys": _as_body(keys) if hand else None}, ensure_ascii=False)
            status, answer = self._post(path, text)
            if status == _GONE and left:
                self._start()
                hand = True
                continue
            if status == _UNAVAILABLE and left:
                time.sleep(_PAUSE)
                continue
            if (
                status == http.HTTPStatus.FORBIDDEN and not hand
            ):  # another program has given it keys that are wrong, or old
                hand = True
                continue
            if status in (_UNAVAILABLE, _GONE):
                raise NoServerError(
                    f"the server on {self.folder} ends again and again: {answer['error']}; its log: {self.log}"
                )
            if status != http.HTTPStatus.OK:
                text = answer.get("error")
                log = "" if status == http.HTTPStatus.BAD_REQUEST else f"; the log of the server: {self.log}"
                raise _ERRORS.get(status, FetchError)(f"{text}{log}")
            if hand:
                self._handed = _digest(keys)
            return answer
        raise AssertionError("unreachable")

    def has_old_keys(self) -> bool:
        """Whether the keys of the environment have changed since the server got them."""
        return self._handed != _digest(_keys())

    def check(self) -> None:
        """Raises NoServerError if no server answers."""
        if not self._answers():
            raise NoServerError(f"the server on {self.folder} has ended")

    # ------------------------------------------------------------ asking

    def _post(self, path: str, body: str) -> tuple[int, Any]:
        """The status and the answer, bytes if it is no JSON. _GONE: no server answers, or the server has ended during the request."""
        connection = _Connection(os.path.join(self.folder, "admin.sock"))
        try:
            connection.request(
                "POST", path, body.encode(errors="surrogateescape"), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            data = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return response.status, json.loads(data) if is_json else data
        except (CachePermissionError, CacheTimeoutError):
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            return _GONE, {"error": f"no server answers ({error})"}
        finally:
            connection.close()

    def _answers(self) -> bool:
        return _answers(self.folder)

    # ------------------------------------------------------------ starting

    def _start(self) -> None:
        """Starts the server, or waits until another program has done so."""
        start = os.environ.get("STOCACHED_START")
        if start not in (None, "", "never"):
            raise InvalidError(f"STOCACHED_START={start!r}: give never, which forbids to start a server, or unset it")
        if start == "never":
            raise NoServerError(
                f"no server of addresses on {self.folder}, and STOCACHED_START=never forbids to start one; start it: "
                f"stocached serve --on-demand --sockets {self.folder}"
            )
        command = [program("an address"), "serve", "--on-demand", "--sockets", self.folder, "--by", _by()]
        command += ["--idle", self._values["STOCACHED_IDLE"]] if "STOCACHED_IDLE" in self._values else []
        until = time.monotonic() + _START
        with self._alone(until) as alone:
            if not alone or self._answers():
                return
            _run(command, self.log, until, self._environment())
        _sweep(self._base)

    def _environment(self) -> dict[str, str]:
        """Of the server: what decides who it is as when this object was made, which may have changed since."""
        made = {**os.environ, **self._values}
        proxies = {name for name in _IDENTITY if name.lower().endswith("_proxy")}
        others = {name for name in _IDENTITY if name not in self._values} - proxies
        return {name: value for name, value in made.items() if name not in _KEYS and name not in others}

    @contextlib.contextmanager
    def _alone(self, until: float) -> Iterator[bool]:
        """Inside, no other program starts this server. False: one has done so."""
        while True:
            try:
                lock = os.open(os.path.join(self.folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # another program has just swept the folder
            try:
                if not self._locked(lock, until):
                    yield False
                    return
                if not _is_of(lock, self.folder):  # likewise
                    continue
                try:
                    yield True
                finally:
                    fcntl.flock(lock, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
                return
            finally:
                os.close(lock)

    def _locked(self, lock: int, until: float) -> bool:
        """False: another program has started this server."""
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if self._answers():
                    return False
                if time.monotonic() >= until:
                    raise NoServerError(
                        f"another program has been starting the server on {self.folder} for {_START:g} s; its log: {self.log}"
                    ) from None
                time.sleep(_PAUSE)


def _answers(folder: str) -> bool:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(_START)
        return s.connect_ex(os.path.join(folder, "admin.sock")) in (0, errno.EAGAIN)  # too many wait


def _is_of(lock: int, folder: str) -> bool:
    """Whether a folder still has this lock. Another program may have removed it, and a third one made it again."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), os.stat(os.path.join(folder, _LOCK)))
    return False


def _sweep(base: str) -> None:
    """Removes the folders of servers that ended long ago."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            with contextlib.suppress(OSError):  # such as a lock that another program has: it starts a server there
                if entry.name.startswith(_FOLDER):
                    _sweep_one(entry.path)


def _sweep_one(folder: str) -> None:
    lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        age = time.time() - os.stat(os.path.join(folder, _LOG)).st_mtime
        if age > _KEPT and _is_of(lock, folder) and not _answers(folder):
            ended = f"{folder}.{os.getpid()}"
            os.rename(folder, ended)  # a program that starts a server there meanwhile makes the folder anew
            shutil.rmtree(ended)
    finally:
        os.close(lock)


def _run(command: list[str], log: str, until: float, environment: Mapping[str, str]) -> None:
    """Starts a server of its own session, with no descriptor of this process, and waits until it serves, or is killed before
    it says why."""
    told, tell = os.pipe()
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        try:
            # The shell ends at once: then the server is no child of this process, which need not wait for its end.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", *command],
                stdin=subprocess.DEVNULL, stdout=tell, stderr=written, env=environment, cwd="/", start_new_session=True,
                check=False,
            )  # fmt: skip
        finally:
            os.close(tell)
            os.close(written)
        ready, _, _ = select.select([told], [], [], max(until - time.monotonic(), 0.0))
        if not ready or not os.read(told, 1):
            with open(log, errors="replace") as file:
                said = file.read()[-2000:].strip()
            if said or not ready:
                raise NoServerError(f"the server did not start: {said or 'it said nothing'}; its log: {log}")
    finally:
        os.close(told)


def _by() -> str:
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return f"{'python' if name in ('', '-', '-c', '-m') else name}, pid {os.getpid()}"


def _keys() -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in _KEYS)


def _check_keys(keys: tuple[str | None, ...], source: Mapping[str, Any]) -> None:
    """Raises InvalidError for one key without the other, if requests would have the keys of the environment."""
    remote = source.get("remote")
    chosen = remote.get("credentials") if isinstance(remote, Mapping) else None
    has, lacks = _KEYS[:2] if keys[0] else _KEYS[1::-1]
    if bool(keys[0]) != bool(keys[1]) and chosen not in _OTHERS and not str(source.get("path", "")).startswith("http"):
        raise InvalidError(
            f"{has} is set in the environment, and {lacks} is missing: set both or neither; "
            'remote={"credentials": "none"} is for public buckets, "file" for the keys of a profile'
        )


def _digest(keys: tuple[str | None, ...]) -> str:
    return hashlib.sha256(repr(keys).encode()).hexdigest()


def _as_body(keys: tuple[str | None, ...]) -> dict[str, str] | None:
    given, secret, token = keys
    return {"id": given, "secret": secret, "token": token or ""} if given and secret else None


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket of this user or of root."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = _Socket(self._path)
        _, uid, _ = self.sock.peer
        if uid not in (os.geteuid(), 0):
            raise CachePermissionError(
                f"user id {uid} listens on {self._path}, and you are {os.geteuid()}; nothing was sent there"
            )


class _Socket(socket.socket):
    """Connected to a server. It waits while the server lives: a list of millions of objects takes minutes. Raises
    CacheTimeoutError."""

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX)
        self._path, self.peer = path, (0, 0, 0)  # process, user and group id
        limit = struct.pack("ll", *divmod(_SILENT * _TURN * 1000, 10**6))
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)  # too many programs may wait to connect
        try:
            self.connect(path)
            size = struct.calcsize("3i")
            self.peer = struct.unpack("3i", self.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        except BlockingIOError:
            self.close()
            raise self._silent() from None
        except BaseException:
            self.close()
            raise

    def sendall(self, data: Any, flags: int = 0) -> None:
        left = memoryview(data)
        while left:
            self._wait(select.POLLOUT)
            with contextlib.suppress(BlockingIOError):
                left = left[self.send(left, flags | socket.MSG_DONTWAIT) :]

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self._wait(select.POLLIN)
        return super().recv_into(buffer, nbytes, flags)

    def _wait(self, event: int) -> None:
        while not _looks([(self, event)], _QUIET):
            with socket.socket(socket.AF_UNIX) as other:
                other.setblocking(False)
                asked: list[tuple[socket.socket, int]] = [(self, event)]
                with contextlib.suppress(OSError):  # it ends, and answers what it has begun; or too many wait
                    other.connect(self._path)
                    other.send(_ALIVE)
                    asked.append((other, select.POLLIN))
                if not _looks(asked, _SILENT - _QUIET):
                    raise self._silent()

    def _silent(self) -> CacheTimeoutError:
        folder = os.path.dirname(self._path)
        name = f"pid {self.peer[0]}" if self.peer[0] else self._path
        return CacheTimeoutError(
            f"the server of addresses ({name}) has answered nothing for {_SILENT * _TURN / 1000:g} s; it may be stopped (SIGSTOP, "
            "a frozen container) or overloaded: let it go on (SIGCONT), or end it (SIGKILL) and the next read starts "
            f"another one; its log: {os.path.join(folder, _LOG)}"
        )


def _looks(waited: list[tuple[socket.socket, int]], most: int) -> bool:
    """Whether one of these sockets has its event, or its end, in so many looks."""
    poll = select.poll()
    for one, event in waited:
        poll.register(one, event)
    return any(poll.poll(_TURN) for _ in range(most))
