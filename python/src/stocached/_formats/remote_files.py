"""Files of addresses. Those of buckets and web servers are read by the server on demand, others by fsspec."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import numpy as np

from .._cache.on_demand import OnDemand
from .._common.cached import cached_property
from .._common.errors import (
    BadSampleError,
    CacheNotFoundError,
    CachePermissionError,
    CacheTimeoutError,
    InvalidError,
    ReplacedError,
    StocachedError,
    UnsupportedError,
)
from .._common.one_line import one_line
from .._common.remote_addresses import ADDRESSES, WEB, shown
from .._memory.texts import Texts
from .._shards.braces import expanded
from .._shards.wildcards import INDEX, WILD, literal, plain, split

THREADS = 16  # requests at a time of a program that opens files
GAP = 16 << 10  # bytes between two parts that are read together, at most
_SURPLUS = 20  # all gaps that are read take at most this part of the bytes that were asked for
_OVER = 512  # bytes that the first of them has of the second, at most, as members of zip do
_SURE = 2  # so often parts follow each other before more is read
_AHEAD = 4  # bytes that are read ahead, for each that came one after the other
_MOST_AHEAD, _MOST_RUNS = 4 << 20, 16
_MOST_TOLD = 500  # parts of a request, which takes 1 MiB: names have 1,024 bytes
_MOST_PART = 16 << 20  # bytes of a read, as in server/admin/parts.go
_ANY, _WILDCARDS = "**", {"*": "[^/]*", "?": "[^/]"}
_INDEX = INDEX.decode()
_TOKEN = re.compile(r"\[[^\]]+\]|.", re.DOTALL)
# What file systems call that by which a change of a file shows, the surest first. Reads and backups change other things.
_TELL = (
    "etag",
    "generation",
    "sha",
    "blob_id",
    "checksum",
    "rev",
    "mtime",
    "lastmodified",
    "last_modified",
    "modified",
    "modify",
    "modificationtime",
    "updated",
    "created",
)

Listed = tuple[str, int, int]
"""The address of a file, its bytes, and a number that changes with it (0: nothing tells a change)."""
Span = tuple[int, int, int]
"""A part of a file: the number of the file, place and bytes."""


class ByServer:
    """Objects of s3://, gs://, https:// and http://. remote: as of a source."""

    _of_errors = ("_server",)

    def __init__(self, remote: Mapping[str, Any] | None) -> None:
        self._how = {} if remote is None else {"remote": dict(remote)}
        self._server = OnDemand()

    def shown(self, address: str) -> str:
        """The name of a file or folder, as messages and keys of items have it."""
        return shown(address)

    def file(self, address: str) -> Listed:
        ((_, size, tag),) = self._ask(address, False)
        return address, size, tag

    def below(self, folder: str, fits: Callable[[str], bool]) -> list[Listed]:
        """The files whose names begin with `folder`. fits: takes the rest of a name."""
        if folder.startswith(WEB):
            raise InvalidError(
                f"source({one_line(shown(folder))}): a web server lists nothing; name its files by braces"
            )
        return [(name, size, tag) for name, size, tag in self._ask(folder, True) if fits(name[len(folder) :])]

    def _ask(self, path: str, many: bool) -> Any:
        body = {"source": {"path": path, **self._how}, "list": many}
        return self._server.ask("/v1/objects", body)["objects"]

    def read(self, file: RemoteFile, at: int, size: int, more: int) -> bytes:
        """more: bytes after these that are welcome."""
        body = {"source": {"path": file.address, **self._how}, "bytes": file.size, "tag": file.stamp[1]}
        made = []
        for k in range(at, at + size, _MOST_PART):
            part = {"at": k, "size": min(_MOST_PART, at + size - k), "more": more if size + more <= _MOST_PART else 0}
            made.append(self._server.ask("/v1/part", body | part, hand=False))
        return made[0] if len(made) == 1 else b"".join(made)

    def ahead(self, spans: list[tuple[RemoteFile, int, int]]) -> None:
        """The server reads these parts at once."""
        parts = [
            {"path": file.address, "bytes": file.size, "tag": file.stamp[1], "at": at, "size": size}
            for file, at, size in spans
        ]
        for k in range(0, len(parts), _MOST_TOLD):
            try:
                self._server.ask("/v1/ahead", {"source": self._how, "parts": parts[k : k + _MOST_TOLD]}, hand=False)
            except CacheTimeoutError:  # who reads them would wait as long again
                raise
            except StocachedError:
                pass  # who reads them gets the error


class ByFsspec:
    """Files of any other scheme. remote: the storage options of its file system, more than those that the address has."""

    def __init__(self, address: str, remote: Mapping[str, Any] | None) -> None:
        self._scheme, self._address, self._options = address.split(":", 1)[0], address, dict(remote or {})
        self._looked = dict[Listed, Listed]()  # what a look at a file told that is as it was listed
        self._system()

    def _system(self) -> Any:
        """fsspec keeps one for each process and thread."""
        try:
            import fsspec
        except ImportError as error:
            raise UnsupportedError(
                f"{self._scheme}:// addresses need fsspec ({error}); run: pip install stocached[fsspec]"
            ) from None
        try:
            kind = fsspec.get_filesystem_class(self._scheme)  # an address may have a host, a user or a repository
            return fsspec.filesystem(self._scheme, **{**kind._get_kwargs_from_urls(self._address), **self._options})
        except Exception as error:  # chains such as dir:// raise errors of any kind without the file system below
            raise UnsupportedError(
                f"fsspec does not read {self._scheme}:// addresses here: {one_line(str(error))}"
            ) from error

    def _listed(self, system: Any, path: str, about: Mapping[str, Any]) -> Listed:
        known = {
            key.lower(): str(value.timestamp() if isinstance(value, datetime) else value)
            for key, value in about.items()
            if value
        }
        told = [*[known[key] for key in _TELL if key in known][:1], known.get("ino", "")]
        tag = int.from_bytes(hashlib.sha256(json.dumps(told).encode()).digest()[:7], "little") if told[0] else 0
        return self._name(system, path), int(about["size"] or 0), tag

    def _name(self, system: Any, path: str) -> str:
        """With the host, which file systems leave out, and two of them have files of one name."""
        host = system.storage_options.get("host")
        return f"{self._scheme}://{host}{path}" if host and path[:1] == "/" else str(system.unstrip_protocol(path))

    def shown(self, address: str) -> str:
        """As that of `ByServer`."""
        system = self._system()
        slash = "/" if address.endswith("/") else ""
        return self._name(system, system._strip_protocol(address)).rstrip("/") + slash

    def exists(self, address: str) -> bool:
        system = self._system()
        return bool(system.exists(system._strip_protocol(address)))

    def file(self, address: str) -> Listed:
        system = self._system()
        path = system._strip_protocol(address)
        try:
            return self._listed(system, path, system.info(path))
        except FileNotFoundError:
            raise CacheNotFoundError(f"{shown(address)}: there is no file of this name; correct the address") from None

    def below(self, folder: str, fits: Callable[[str], bool]) -> list[Listed]:
        """As that of `ByServer`."""
        system = self._system()
        root = system._strip_protocol(folder).rstrip("/") + "/"
        found = system.find(root, detail=True)
        return [self._listed(system, path, about) for path, about in found.items() if fits(path[len(root) :])]

    def read(self, file: RemoteFile, at: int, size: int, more: int) -> bytes:
        """As that of `ByServer`."""
        system = self._system()
        path = system._strip_protocol(file.address)
        data = system.cat_file(path, at, at + size + more)
        system.invalidate_cache(path)  # some keep what they have listed
        # No call reads only if a file has not changed, so a look follows each read.
        if len(data) != size + more or not self._is_same(system, path, (file.address, *file.stamp)):
            raise ReplacedError("it is another file now")
        return bytes(data)

    def _is_same(self, system: Any, path: str, was: Listed) -> bool:
        """Some file systems tell other things of a file in a list of its folder."""
        now = self.file(was[0])
        if now == self._looked.get(was, was):
            return True
        if all(self._listed(system, one["name"], one) != was for one in system.ls(system._parent(path), detail=True)):
            return False
        self._looked[was] = now
        return True


class _Runs:
    """Reads of files one part after the other: then a request is for more than the part, and has those after it. Of several
    workers, each reads a batch here and there: so a run gets what the one before it had. Files of arrays have a run in
    each of them. The last few are kept in a process."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def read(self, file: RemoteFile, at: int, size: int) -> bytes:
        key = file.place, file.address, file.stamp  # a name may lack the port or more
        before = [run for run in self._runs if run.key == key and run.last <= at + _OVER]
        run = max(before, key=lambda run: run.last, default=None) or _Run(key)
        # A thread takes it while it reads: another one then begins a run of its own.
        try:
            self._runs.remove(run)
        except ValueError:
            run = _Run(key)
        data = run.read(file, at, size)
        self._runs.append(run)
        del self._runs[:-_MOST_RUNS]
        return data


class _Run:
    """key: of the file. last: where the last read ended. limit: bytes of the run before it, and more if this one has more."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self._begin, self._kept = 0, b""  # what the last request gave
        self._at = self.last = -1  # where the last read was
        self._start = self._limit = self._reads = 0
        self._longer = False

    def read(self, file: RemoteFile, at: int, size: int) -> bytes:
        if not (-_OVER <= at - self.last <= max(size, _OVER) and at != self._at):
            self._limit = self.last - self._start if self._reads > _SURE else 0
            self._start, self._reads, self._longer = at, 0, False
        self._at, self.last = at, at + size
        self._reads += 1
        place = at - self._begin
        data = self._kept[place : place + size] if place >= 0 else b""
        if len(data) < size:
            more = self._more(at, size, file.size)
            self._begin, self._kept = at, data + file.now(at + len(data), size - len(data), more)
            data = self._kept[:size]
        if len(self._kept) <= size:
            self._kept = b""
        return data

    def _more(self, at: int, size: int, end: int) -> int:
        """Bytes after these that will be asked for."""
        if 0 < self._limit <= at - self._start:  # a little more, or, if that is not enough either, much more
            self._limit += 3 * self._limit if self._longer else self._limit // 16
            self._longer = True
        if self._limit:
            most = self._start + self._limit - at
        elif self._reads > _SURE:
            most = size + _AHEAD * (at + size - self._start)
        else:
            return 0
        return max(min(most, _MOST_AHEAD, end - at) - size, 0)


_runs = _Runs()


class RemoteFile:
    """A file at an address, as `LocalFile`. Can be pickled. Any number of threads and forked children."""

    def __init__(self, place: ByServer | ByFsspec, listed: Listed) -> None:
        self.place = place
        self.address, self.size, tag = listed
        self.path, self.stamp = shown(self.address), (self.size, tag)

    def read(self, at: int, size: int) -> bytes:
        """Raises BadSampleError if the file ends before, ReplacedError if it has changed, and those of the storage."""
        if at + size > self.size:
            raise BadSampleError(f"the file ends at byte {self.size:,}, in the middle of this element")
        return _runs.read(self, at, size) if size else b""

    def now(self, at: int, size: int, more: int = 0) -> bytes:
        """By a request of its own. more: bytes after these that are welcome, so the result may be longer."""
        try:
            return self.place.read(self, at, size, more)
        except ReplacedError:
            raise ReplacedError(f"{self.path} has changed since it was opened; make the pipe again") from None

    def pread(self, size: int, at: int) -> bytes:
        """For `AsRaw`."""
        return self.read(at, size)

    def __str__(self) -> str:
        return self.path


class RemoteFiles:
    """The files of an address, each once, in byte order. folder: of all."""

    _of_errors = ("_place",)  # names, sizes and tags say which data they are

    def __init__(self, place: ByServer | ByFsspec, listed: list[Listed], folder: str) -> None:
        self._place, self.folder = place, folder
        self.names = [name for name, _, _ in listed]
        self._states = np.array([[size, tag] for _, size, tag in listed], np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, k: int) -> RemoteFile:
        size, tag = self._states[k].tolist()
        return RemoteFile(self._place, (self.names[k], size, tag))

    @property
    def tell(self) -> Callable[[Iterable[Span]], None] | None:
        """Has parts of files read soon. None: it cannot."""
        return self._tell if isinstance(self._place, ByServer) else None

    def _tell(self, spans: Iterable[Span]) -> None:
        merged, spans = list[tuple[RemoteFile, int, int]](), sorted(spans)
        last, end, narrow = -1, 0, _narrow(spans)
        for k, at, size in spans:
            if merged and k == last and at - end < narrow and at + size - merged[-1][1] <= _MOST_AHEAD:
                end = max(end, at + size)
                merged[-1] = merged[-1][0], merged[-1][1], end - merged[-1][1]
            else:  # as `ByServer.read` asks for them
                merged += [(self[k], a, min(_MOST_PART, at + size - a)) for a in range(at, at + size, _MOST_PART)]
                last, end = k, at + size
        assert isinstance(self._place, ByServer)
        self._place.ahead(merged)

    @cached_property
    def texts(self) -> Texts:
        """The names, as messages have them."""
        made = Texts.of_list([*map(shown, self.names)])
        assert made is not None
        return made

    def of_names(self, names: Iterable[str]) -> RemoteFiles:
        """Some of these files, in this order."""
        numbers = {name: k for k, name in enumerate(self.names)}
        listed = [(name, *self._states[numbers[name]].tolist()) for name in names]
        return RemoteFiles(self._place, listed, self.folder)

    def whole(self, k: int) -> Span:
        return k, 0, int(self._states[k, 0])

    def __iter__(self) -> Iterator[RemoteFile]:
        return map(self.__getitem__, range(len(self)))


def _narrow(spans: list[Span]) -> int:
    """Gaps between parts are read with them if they have fewer bytes. spans: sorted."""
    pairs, room = itertools.pairwise(spans), sum(size for _, _, size in spans) // _SURPLUS
    gaps = sorted(max(after[1] - sum(before[1:]), 0) for before, after in pairs if before[0] == after[0])
    return min([GAP + 1, *(gap for gap, both in zip(gaps, itertools.accumulate(gaps)) if both > room)])


def files_of(text: str, remote: Mapping[str, Any] | None) -> RemoteFiles:
    """The files that an address names: braces, wildcards, a folder, or one. remote: how to reach them. Raises InvalidError,
    UnsupportedError, and the errors of an address."""
    place = ByServer(remote) if text.startswith(ADDRESSES) else ByFsspec(text, remote)
    found, single, folders = list[Listed](), list[str](), list[str]()
    exact = isinstance(place, ByFsspec) and literal(text) != text and place.exists(text)
    for address in [text] if exact else expanded(text):
        start = address.index("://") + 3
        path = shown(address)[start:] if address.startswith(WEB) else address[start:]
        name = path if exact else plain(path)
        if name is None:
            base, some = _matching(place, address[:start], path)
            folders.append(place.shown(address[:start] + base))
            found += some
            continue
        if name != path:
            address, path = address[:start] + name, name
        if "." not in path.rpartition("/")[2] or "/" not in path:
            folder = address[:start] + path.rstrip("/") + "/"
            folders.append(place.shown(folder))
            some = place.below(folder, _pattern([_ANY]))
            found += some
            if not some and "/" in path.rstrip("/"):  # a file without an ending
                single.append(address)
        else:
            single.append(address)
            folders.append(place.shown(address))
    with ThreadPoolExecutor(min(THREADS, len(single) or 1)) as pool:
        found += pool.map(place.file, single)
    listed = sorted(
        {each[0]: each for each in found}.values(), key=lambda each: each[0].encode(errors="surrogateescape")
    )
    if not listed:
        raise InvalidError(
            f"source({one_line(shown(text))}): there is no file of this name; names that begin with a dot do not count"
        )
    first = min(folders)
    folder = first[: next((k for k, letters in enumerate(zip(*folders)) if len(set(letters)) > 1), len(first))]
    return RemoteFiles(place, listed, folder[: folder.rfind("/") + 1])


def _matching(place: ByServer | ByFsspec, start: str, path: str) -> tuple[str, list[Listed]]:
    """The folder before the first wildcard, and the files that match. As on this machine, a file or folder of exactly this
    name counts alone. start: of the address, before the path."""
    end, own = path.rfind("/", 0, WILD.search(path).start()) + 1, start + path.rstrip("/")  # type: ignore[union-attr]
    try:
        fits, wrong = _pattern(split(path)[1]), None
    except InvalidError as error:
        fits, wrong = (lambda name: False), error
    rest = path[end:].rstrip("/")
    below = _pattern([_ANY])
    some = place.below(
        start + path[:end],
        lambda name: fits(name) or name == rest or (name.startswith(rest + "/") and below(name[len(rest) + 1 :])),
    )
    exact = [each for each in some if each[0] == own or each[0].startswith(own + "/")]
    if wrong is not None and not exact:
        raise wrong
    return path[:end], exact or some


def exactly(text: str, remote: Mapping[str, Any] | None) -> tuple[str, bool] | None:
    """What `source` reads of a text with special characters that is the name of an object or a folder as it stands: a text
    without wildcards. And whether it is a folder. None: there is none, or nothing lists it."""
    if not text.startswith(("s3://", "gs://")) or literal(text) == text:
        return None
    name = text.rstrip("/")
    # What reads the text as a pattern says what is wrong; a storage that is away is an error here already.
    with contextlib.suppress(InvalidError, CacheNotFoundError, CachePermissionError):
        found = ByServer(remote).below(name, lambda rest: rest[:1] in ("", "/"))
        if not text.endswith("/") and any(one == name for one, _, _ in found):
            return literal(name), False
        if found:
            return literal(name) + "/", True
    return None


def _pattern(parts: list[str]) -> Callable[[str], bool]:
    """What tells names below a folder. The rules are those of files (`wildcards.found`)."""
    if parts[-1] == _ANY:
        parts = [*parts, "*"]
    made = ""
    for k, part in enumerate(parts):
        if part == _ANY:
            made += r"(?:(?!\.)[^/]+/)*"
        else:
            made += ("" if part.startswith(".") else r"(?!\.)") + _TOKEN.sub(_as_regex, part)
            made += "/" if k < len(parts) - 1 else ""
    match = re.compile(made, re.DOTALL).fullmatch
    return lambda name: match(name) is not None and _INDEX not in name


def _as_regex(token: re.Match[str]) -> str:
    text = token[0]
    if text in _WILDCARDS:
        return _WILDCARDS[text]
    return text.replace("[!", "[^") if len(text) > 1 else re.escape(text)
