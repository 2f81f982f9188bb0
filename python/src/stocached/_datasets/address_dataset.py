"""The samples of an address, such as s3://bucket/train-{000..127}.tar, which a server reads that this package starts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .._cache import handle
from .._cache.cache import Cache
from .._cache.fetch_calls import milliseconds
from .._cache.gathering import Flags, Indices
from .._cache.on_demand import OnDemand
from .._cache.served import fetch_and_count, prefetch
from .._common.errors import (
    BadSampleError,
    CacheNotFoundError,
    FetchError,
    InvalidError,
    NoServerError,
    ReplacedError,
    StocachedError,
)
from .._common.numbers import index_of
from .._common.one_line import one_line
from .._common.remote_addresses import WEB, shown
from .._common.warning import warn_user
from .._image.decoded_members import decoded_item
from .._samples.schema import Field
from .._shards.wildcards import WILD
from .served_samples import ServedSamples

_ENDINGS = {".tar": "tar", ".npy": "npy"}
_HIDDEN = re.compile(r"(?:^|[/{,])\.")
_KEY = "__key__"  # the key of a sample of tar shards
_STATE = ("address", "settings", "_server", "_name", "classes", "class_to_idx")
_TIMEOUT = 60.0  # seconds of a batch
_BRIEF = 0.2  # seconds: nobody waits for what is told ahead
_ENDED = (CacheNotFoundError, NoServerError, ReplacedError)  # errors of a cache whose server has ended
_DENIED = "permission denied"  # text in the messages of failures
_HOW = ("path", "remote", "limits", "retry", "read_ahead", "index", "descriptors", "open_files", "verify")  # it is read
_FILES = ("manifest", "index")  # settings that name files of this machine


class FilesError(Exception):
    """An address has files that are not read whole."""


class AddressDataset(ServedSamples):
    """A sample is the bytes of an object, a row, or a dict of the fields of a sample of tar shards.

    The list of the address is made when the object is made, and stays as it is then: ReplacedError if its data change.
    With labels that have names, it has `classes` and `class_to_idx`, as torchvision's ImageFolder.
    Can be pickled; forked children read by connections of their own. Threads."""

    _parts_given: ClassVar[tuple[str, ...]] = ()
    classes: list[str]
    class_to_idx: dict[str, int]

    def __init__(self, address: str, settings: Mapping[str, Any], files: str = "", path: str = "") -> None:
        """settings: keys of a source (docs/spec/sources.md). files: a pattern of names of files that are not read whole.
        path: what the server reads, if not the address. Raises FilesError if there is one; and as `OnDemand.open`."""
        self.address, self.settings = address, source_of(path or address, settings)
        self._server = OnDemand()
        try:
            opened = self._server.open(self.settings, files=files)
        except InvalidError as error:
            raise InvalidError(f"source({one_line(shown(address))}): {error}") from None
        if "name" not in opened:
            raise FilesError
        self._name = opened["name"]
        if "classes" in opened:
            self.classes = opened["classes"]
            self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        for text in opened.get("advice", ()):
            warn_user(f"{shown(address)}: {text}")
        self._attach()

    def _attach(self) -> None:
        """Raises ReplacedError if the server has other data now."""
        end = time.monotonic() + _TIMEOUT
        while True:
            try:
                attached = handle.dial(
                    self._name, milliseconds(_TIMEOUT), self._server.check, sockets_dir=self._server.folder
                )
                break
            except (CacheNotFoundError, NoServerError):  # it has started anew
                if time.monotonic() > end:
                    raise
                self._open()
        cache = Cache(attached)
        cache._watch = self._server.check
        self._read(cache, None, _TIMEOUT)

    def _open(self) -> None:
        name = self._server.open(self.settings, self._name)["name"]
        if name != self._name:
            raise ReplacedError(
                f"the data of {shown(self.address)} have changed since this program listed them: make the pipe again"
            )

    def fetch(self, wanted: Indices | list[int], out: Any = None) -> tuple[Any, Flags]:
        """As that of other served samples. It starts the server again if that has ended, and hands over keys that have
        changed."""
        end, handed = time.monotonic() + _TIMEOUT, False
        while True:
            if self._server.has_old_keys():
                self._open()
            cache = self.cache
            try:
                return fetch_and_count(cache, wanted, out, self.timeout)
            except FetchError as error:
                if not handed and any(_DENIED in failure.message for failure in error.failures):
                    handed = True
                    self._open()  # another program has given the server keys that are wrong, or old
                    continue
                ending = {failure.kind for failure in error.failures} <= {"CLOSING", "CANCELLED"} and error.failures
                if not ending or time.monotonic() > end:
                    raise
            except _ENDED:
                if time.monotonic() > end:
                    raise
            self._attach_after(cache)

    def _attach_after(self, cache: Cache) -> None:
        if self.cache is cache:  # else another thread has attached again
            self._attach()

    @property
    def fingerprint(self) -> str:
        """Of the objects, and of what a sample has of them."""
        about = {name: value for name, value in self.settings.items() if name not in _HOW}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
        return f"{self.cache.fingerprint} {digest[:16]}"

    def _shown(self, field: Field, value: Any) -> Any:
        return os.fsdecode(value) if field.name == _KEY and self.settings.get("keys") else super()._shown(field, value)

    def _value(self, value: Any, code: int) -> Any:
        made = super()._value(value, code)
        return int(made) if isinstance(made, np.int64) and self._has_numbers else made

    def _rows(self, values: Any) -> list[Any]:
        return values.tolist() if values.ndim == 1 and self._has_numbers else super()._rows(values)

    @property
    def _has_numbers(self) -> bool:
        """Whether a number of a sample is a label or a text, and no row of an array."""
        return self.settings["kind"] in ("dir", "tar")

    def ahead(self, indices: Indices) -> None:
        """The server reads these samples at once, before they are fetched."""
        cache = self.cache
        with contextlib.suppress(StocachedError):  # a fetch tells what is wrong
            try:
                prefetch(cache, indices, _BRIEF)
            except _ENDED:
                self._attach_after(cache)

    def attach_again(self) -> bool:
        return False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name in _STATE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._attach()

    def __repr__(self) -> str:
        return f"<{shown(self.address)}, {len(self):,} samples>"


class DecodedAddress(AddressDataset):
    """The samples of tar shards as dicts of decoded values."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples, fields = super().__getitems__(indices), self.cache.fields
        if len(fields) == 1:
            samples = [{fields[0].name: sample} for sample in samples]
        made = []
        for index, sample in zip(indices, samples):
            try:
                made.append(decoded_item(None, sample.items()))
            except BadSampleError as error:
                raise BadSampleError(error.reason, f"{shown(self.address)}, sample {index}") from None
        return made


def source_of(address: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the source of an address. The ending says the kind, if settings do not. The last part
    of an address of files is a pattern, or a name, if it has a dot."""
    made = {name: _plain(name, value) for name, value in settings.items()}
    path = shown(address) if address.startswith(WEB) else address  # without a query
    kind = made.setdefault("kind", _ENDINGS.get(os.path.splitext(path)[1], "dir"))
    made["path"] = address
    start = address.index("://") + 3
    wild = WILD.search(address, start)
    single = "." in address[address.rfind("/", start) + 1 :] and "/" in address[start:]
    if kind == "dir" and (wild is not None or single) and not made.keys() & {"manifest", "glob"}:
        cut = address.rfind("/", 0, len(address) if wild is None else wild.start()) + 1
        made["path"], made["glob"] = address[:cut], address[cut:]
    if kind == "dir" and _HIDDEN.search(made.get("glob") or "") and not WILD.search(made["glob"]):
        made.setdefault("hidden", True)  # it has their names
    for name in _FILES:
        if isinstance(made.get(name), str) and made[name] not in ("none", "beside"):
            made[name] = _local(name, made[name])
    remote = made.get("remote")
    if isinstance(remote, dict) and isinstance(remote.get("ca"), str):
        remote["ca"] = _local("remote.ca", remote["ca"])
    return made


def _local(name: str, path: str) -> str:
    if "://" in path:
        raise InvalidError(
            f"source(): {name}={one_line(shown(path))} is an address; copy the file to this machine, and give its path"
        )
    return os.path.abspath(path)


def _plain(name: str, value: Any) -> Any:
    """A setting as JSON has it. Raises InvalidError, naming the key."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidError(f"source(): {name} has the key {key!r:.100}; keys are texts")
        return {key: _plain(f"{name}.{key}", each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(name, each) for each in value]
    with contextlib.suppress(TypeError):  # a whole number of any type
        return index_of(value)
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (bool, str, float)):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise InvalidError(f"source(): {name}={value!r:.100}; give a text, a number, a truth, or lists or dicts of them")
