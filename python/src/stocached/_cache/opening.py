"""Handles for `Cache.create` and `Cache.attach`: their arguments are checked, and a server is asked
for a name."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _native
from .._common import errors
from .._common.errors import CacheNotFoundError, CacheTimeoutError, InvalidError, NoServerError, StocachedError
from .._common.numbers import index_of
from .._common.sizes import parse_size
from .._common.warning import warn_user
from .._samples import schema
from . import fetch_calls as _fetch
from . import handle as _handle
from . import policies
from .attachment import Attachment
from .handle import Handle
from .option_table import NUMBERS

SERVER_WAIT = 60.0  # seconds for a server that is away, such as one that restarts; Go and C wait as long
BRIEF_WAIT = 2.0  # where the program goes on without the server
_QUIET = 2.0  # seconds of a wait before a warning
_Made = TypeVar("_Made")


def create(
    kind: Callable[[Handle], _Made],
    name: str | None,
    progress: Callable[[int, int], None] | None,
    **given: Any,
) -> _Made:
    """Creates a segment and makes a `kind` of its handle. If that or `progress` raises, no file
    stays.

    given: other arguments of `Cache.create`, and lengths: whether samples are lists, of which the cache remembers how
    many items each has."""
    options = _options(defaultdict(lambda: None, given))
    failure: list[BaseException] = []
    if progress is not None:
        report = progress

        def call(_: int | None, done: int, total: int) -> None:
            try:
                if not failure:
                    report(done, total)
            except BaseException as error:  # an exception cannot cross C: it is raised below
                failure.append(error)

        options.progress = _native.Progress(call)
    if name is not None:
        _text("name", name)
    handle = _handle.create(name, options)
    try:
        if failure:
            raise failure[0]
        if handle.replaced:
            warn_user(handle.replaced)
        return kind(handle)
    except BaseException:
        if name is not None:
            errors.called(_native.unlink, handle.info().path)
        raise


def _options(given: dict[str, Any]) -> _native.Options:
    """The arguments as the library takes them, which checks them together. Raises InvalidError."""
    unlink, folder, fingerprint, size = given["unlink"], given["dir"], given["fingerprint"], given["size"]
    if unlink not in (None, "last"):
        raise InvalidError(f'unlink={unlink!r}; it must be None or "last"')
    given["size"] = size if size is None or type(size) is int else parse_size(size)
    numbers = {NUMBERS[name][0]: _number(name, given[name]) for name in NUMBERS if given[name] is not None}
    described = {name: given[name] for name in ("shape", "dtype", "fields", "variable")}
    fields = schema.to_native(schema.make_fields(sample_bytes=numbers.get("sample_bytes"), **described))
    return _native.Options(
        fields=fields,
        field_count=len(fields),
        variable=bool(given["variable"]),
        lengths=bool(given["lengths"]),
        policy=policies.number_of(given["policy"]),
        reserve=bool(given["reserve"]),
        unlink_last=unlink == "last",
        directory=None if folder is None else os.fsencode(folder),
        fingerprint=None if fingerprint is None else _text("fingerprint", fingerprint),
        **numbers,
    )


def _number(name: str, value: Any) -> int:
    """An option within its range. Raises InvalidError, as the library does."""
    _, least, most, wanted = NUMBERS[name]
    with contextlib.suppress(TypeError):
        if least <= (number := index_of(value)) <= most:
            return number
    raise InvalidError(f"{name}: {value} is not {wanted}")


def has_run(socket: str) -> bool:
    """Whether a server has run, perhaps without leaving its socket: one that was stopped in order."""
    return os.path.exists(socket) or os.path.exists(os.path.join(os.path.dirname(socket), "served"))


def attach(
    name_or_path: str | os.PathLike[str],
    fingerprint: str | None,
    read_only: bool,
    timeout: float | None = BRIEF_WAIT,
    waits: Callable[[str], bool] = os.path.exists,
) -> Handle:
    """Attaches by name or path, or through a server if this process does not see the name.

    timeout: seconds for the server; None: SERVER_WAIT. waits: says whether to wait for a server with this socket."""
    milliseconds = _fetch.milliseconds(SERVER_WAIT if timeout is None else timeout)  # InvalidError
    if fingerprint is not None:
        _text("fingerprint", fingerprint)
    where = os.fspath(name_or_path)
    _text("name_or_path", where)
    try:
        return _handle.attach(where, fingerprint=fingerprint, read_only=read_only)
    except CacheNotFoundError as error:
        if "/" in where:
            raise
        missing, number, socket = str(error), error.errno or 0, _handle.data_socket()
    hint = f"no server on {socket}; start it with: stocached serve -c config.yaml (or set STOCACHED_SOCKETS_DIR to where it listens)"
    if waits(socket):
        try:
            meanwhile = _say_once(where, milliseconds / 1000, socket)
            return _handle.dial(where, milliseconds, meanwhile, fingerprint=fingerprint, read_only=read_only)
        except (CacheNotFoundError, NoServerError, CacheTimeoutError) as error:
            hint = str(error)
    raise errors.make(_native.ENOENT, f"{missing}; {hint}", number)


def _say_once(name: str, seconds: float, socket: str) -> Callable[[], None]:
    """What is called again and again during a wait warns once, if the wait is not short."""
    since: float | None = time.monotonic() if seconds > _QUIET else None

    def say() -> None:
        nonlocal since
        if since is not None and time.monotonic() - since >= _QUIET:
            since = None
            warn_user(
                f"waiting up to {seconds:g} s for the server of the cache {name!r}: none answers on {socket}; start it: "
                "stocached serve -c config.yaml; or check the name: stocached ls"
            )

    return say


def attach_remade(cache: Attachment) -> Handle | None:
    """The cache that was made under the name of this one after it was removed, for the same samples: with the same
    fingerprint, number of samples and fields. None: there is no such cache."""
    if cache.name is None or cache.fingerprint is None or os.fstat(cache._handle.info().fd).st_nlink:
        return None
    with contextlib.suppress(StocachedError):
        handle = attach(cache.path or cache.name, cache.fingerprint, cache.read_only)
        info = handle.info()
        same = (int(info.samples), bool(info.variable)) == (cache.samples, cache.variable)
        fields = tuple(map(schema.from_native, handle.fields(info.field_count)))
        if same and fields == cache.fields and bytes(info.uuid) != cache.uuid:
            return handle
    return None


def attach_pickled(path: str | None, pid: int, fd: int, uuid: bytes, read_only: bool) -> Handle:
    """Attaches to a cache that process `pid` has pickled: by path, or through that process."""
    if path is not None:
        return _handle.attach(path, uuid=uuid, read_only=read_only)
    return _handle.attach_process(pid, fd, uuid, read_only=read_only)


def unlink(path: str | None, name: str | None) -> None:
    """Removes the file of a named cache."""
    if path is None:
        if name is None:
            raise InvalidError("this cache has no name; it goes with its last process")
        raise InvalidError(f"this process sees no file of the cache {name!r}; remove it where it was made")
    errors.called(_native.unlink, os.fsencode(path))


def _text(what: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidError(f"{what} is {value!r}; it must be a string")
    if "\0" in value:
        raise InvalidError(f"{what} is {value!r}; it must not contain NUL")
    try:
        return value.encode(errors="surrogateescape")  # the bytes of a name that is not UTF-8
    except UnicodeEncodeError:
        raise InvalidError(f"{what} is {value!r}; it has a character that UTF-8 cannot encode") from None
