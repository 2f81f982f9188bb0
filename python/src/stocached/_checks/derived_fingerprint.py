"""Fingerprints that are derived from a dataset, for caches with a name. They have a part for its
data, a part for its transforms, and hints.

A cache's header holds `auto1 d=0123456789abcdef h=0123456789ab x311=0123456789abcdef`:
- auto1: the format.
- d: a digest of the data.
- h: a digest of what may differ without a change of the samples: times of files, versions of
  libraries, code and plain attributes of the dataset.
- x and the version of Python that compiled the code: a digest of the transforms' types, arguments
and code.
`?` stands for a part that is unknown."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import getattr_static
from itertools import islice
from typing import Any

import numpy as np

from .._common.once_per_machine import once_a_machine
from .code_names import is_library
from .identity import MOST_BYTES, Identity, NoDigestError, digest_of

MOST_FILES = 10_000  # whose sizes and times are read
_LONG = 32  # a list with as many items is data, a shorter list is a setting
_TEXT = re.compile(r"auto1 d=([0-9a-f]{16}|\?) h=([0-9a-f]{12}|\?) x(\d+O?)=([0-9a-f]{16}|\?)")
_PYTHON = f"{sys.version_info[0]}{sys.version_info[1]}{'O' if sys.flags.optimize else ''}"


@dataclass(frozen=True)
class Derived:
    """A fingerprint that the user did not give."""

    data: str
    hints: str
    code: str
    python: str = _PYTHON
    sampled: bool = False  # only a part of the data was read
    reasons: tuple[str, ...] = ()  # why parts are unknown

    def __str__(self) -> str:
        return f"auto1 d={self.data} h={self.hints} x{self.python}={self.code}"

    @classmethod
    def parse(cls, text: str | None) -> Derived | None:
        found = _TEXT.fullmatch(text or "")
        return None if found is None else cls(found[1], found[2], found[4], found[3])

    def changed(self, old: Derived) -> str | None:
        """What has certainly changed since `old`: "data" or "transform"."""
        if "?" not in (self.data, old.data) and self.data != old.data:
            return "data"
        comparable = "?" not in (self.code, old.code) and self.python == old.python
        return "transform" if comparable and self.code != old.code else None

    def certain(self, old: Derived) -> bool:
        """Whether certainly nothing has changed since `old`."""
        return str(self) == str(old) and "?" not in str(self) and not self.sampled


def derive(dataset: Any) -> Derived:
    """The fingerprint of a dataset. Loads no sample, and never raises.

    Reads sizes and times of at most 10,000 files, and at most 64 MiB of each list of arrays."""
    made = _Derivation()
    try:
        made.note_names(dataset)
        made.add(dataset)
    except Exception as error:  # of the dataset's own code, such as a property
        made.give_up(f"{type(error).__name__}: {error}")
    return made.result()


class _Derivation:
    def __init__(self) -> None:
        # Of transforms, of attributes, and of the datasets' classes.
        self._code, self._settings, self._classes = Identity(), Identity(), Identity()
        self._data_parts: list[bytes] = []
        self._code_parts: list[bytes] = []
        self._hint_parts: list[bytes] = []
        self._unknown_data: list[str] = []
        self._unknown_code: list[str] = []
        self._folders: list[str] = []  # whose files were read
        self._seen: set[int] = set()
        self._used: set[str] = set()  # names of attributes that the code of the program's datasets uses
        self._sampled = False

    def result(self) -> Derived:
        for identity, parts in ((self._code, self._code_parts), (self._classes, self._hint_parts)):
            try:
                parts.append(identity.bodies())
            except NoDigestError as error:
                self._unknown_code.append(f"it uses {error}")
        met = (self._code, self._settings, self._classes)
        named = sorted(
            path
            for path in set().union(*(identity.paths for identity in met))
            if not any(_within(path, folder) for folder in self._folders)
        )
        if named:
            self._unknown_data.append(f"it names {named[0]}, which may be read")
        for module, version in sorted({pair for identity in met for pair in identity.versions.items()}):
            self._hint_parts.append(digest_of("version", module.encode(), version.encode()))
        data, code, hints = (
            digest_of("parts", *parts).hex() for parts in (self._data_parts, self._code_parts, self._hint_parts)
        )
        return Derived(
            "?" if self._unknown_data else data[:16],
            hints[:12],
            "?" if self._unknown_code else code[:16],
            sampled=self._sampled or any(identity.sampled for identity in met),
            reasons=(
                *(f"data: {reason}" for reason in self._unknown_data),
                *(f"transform: {reason}" for reason in self._unknown_code),
            ),
        )

    def give_up(self, why: str) -> None:
        self._unknown_data.append(why)
        self._unknown_code.append(why)

    # ------------------------------------------------------------ datasets

    def note_names(self, dataset: Any) -> None:
        """Collects the names of the attributes that datasets use: of their own and of datasets
        inside them."""
        todo, seen = [dataset], set()
        while todo:
            value = todo.pop()
            if isinstance(value, (list, tuple)) and len(value) < MOST_FILES:
                todo += [item for item in value if _is_dataset(item)]
            elif _is_dataset(value) and id(value) not in seen:
                seen.add(id(value))
                self._used |= self._classes.used_names(type(value)) or set()
                todo += getattr(value, "__dict__", {}).values()

    def add(self, dataset: Any) -> None:
        if id(dataset) in self._seen:
            self._data_parts.append(digest_of("again"))
            return
        self._seen.add(id(dataset))
        own = _own_fingerprint(dataset)
        if own is not None:
            self._data_parts.append(digest_of("own", own.encode()))
            if _is_of(dataset, "datasets"):  # Hugging Face's fingerprint covers the transforms
                return
        elif _is_array(dataset) or isinstance(dataset, (list, tuple, range)):
            self._add_values(dataset)
            return
        self._add_class(dataset)
        sources = 0
        for name, value in self._attributes(dataset):
            if own is None or _calls(value):
                sources += self._add_attribute(dataset, name, value)
        if own is None and not sources:
            self._unknown_data.append(f"{type(dataset).__name__} does not say where its samples come from")

    def _add_class(self, dataset: Any) -> None:
        try:
            self._hint_parts.append(self._classes.add_code(type(dataset)))
        except NoDigestError as error:
            self._unknown_code.append(f"it uses {error}")

    def _attributes(self, dataset: Any) -> Iterator[tuple[str, Any]]:
        used = self._classes.used_names(type(dataset))
        arrays = _is_of(dataset, "torchvision.datasets") and _is_array(getattr(dataset, "data", None))
        for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
            if (used is None or name in self._used) and not (arrays and name == "root"):  # the arrays hold its files
                yield name, value

    def _add_attribute(self, dataset: Any, name: str, value: Any) -> int:
        """1 if samples come from the attribute, else 0."""
        if _is_dataset(value):
            self.add(value)
            return 1
        if isinstance(value, (list, tuple)) and value and _is_dataset(value[0]):
            for inner in value:
                self.add(inner)
            return 1
        if isinstance(value, dict) and value and _is_dataset(next(iter(value.values()))):
            for key in sorted(value, key=repr):
                self.add(value[key])
            return 1
        if _calls(value):
            self._add_digest(self._code_parts, self._unknown_code, name, lambda: self._code.of(value))
            return 0
        # Such as the indices of a Subset.
        theirs = isinstance(value, (list, tuple)) and is_library(type(dataset).__module__)
        if _is_array(value) or _holds_arrays(value) or _is_long(value) or theirs:
            return self._add_values(value, name, lists_all=is_library(type(dataset).__module__))
        self._add_digest(self._hint_parts, self._unknown_data, name, lambda: self._settings.of(value))
        return 0

    def _add_digest(self, parts: list[bytes], unknown: list[str], name: str, digest: Callable[[], bytes]) -> None:
        try:
            parts.append(digest_of("attribute", name.encode(), digest()))
        except NoDigestError as error:
            unknown.append(f"its {name} holds {error}")

    # ------------------------------------------------------------ data

    def _add_values(self, values: Any, name: str = "", *, lists_all: bool = False) -> int:
        """Adds arrays, files or labels. 1 if samples come from them, else 0. lists_all: if these
        are files, samples come from no other file."""
        if id(values) in self._seen and name:  # ImageFolder has two attributes with its files
            return 0
        self._seen.add(id(values))
        if isinstance(values, np.memmap) and values.filename is not None:
            self._hint_parts.append(digest_of("time", str(os.stat(values.filename).st_mtime_ns).encode()))
        if not _is_array(values) and _is_file(_first(values)):
            self._add_files(values)
            self._sampled |= not lists_all
            return 1
        identity = Identity()
        try:
            self._data_parts.append(digest_of("values", name.encode(), _items(values, identity)))
        except NoDigestError as error:
            self._unknown_data.append(f"its {name or 'values'} hold {error}")
        self._sampled |= identity.sampled
        return int(_is_array(values) or _holds_arrays(values) or not name)

    def _add_files(self, values: Sequence[Any]) -> None:
        """Adds a list of paths, or of tuples that begin with a path."""
        chosen = [values[k] for k in _spread(len(values))]
        self._sampled |= len(chosen) < len(values)
        paths = [
            os.path.abspath(os.fspath(_first(value) if isinstance(value, (tuple, list)) else value)) for value in chosen
        ]
        rest = [tuple(value[1:]) if isinstance(value, (tuple, list)) else () for value in chosen]
        folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        self._folders.append(folder)
        names = "\0".join(path[len(folder) :] for path in paths)
        identity = Identity()
        labels = (
            repr(rest).encode()
            if all(type(label) in (int, str, float, bool) for row in rest for label in row)
            else identity.of(rest)
        )
        status = os.stat(folder)  # another container may have other files at this path
        key = digest_of(
            "files", repr((status.st_dev, status.st_ino)).encode(), *(os.fsencode(path) for path in paths)
        ).hex()
        sizes, times = once_a_machine(key, lambda: _sizes_and_times(paths)).split()
        self._data_parts.append(
            digest_of("files", str(len(values)).encode(), names.encode(errors="surrogatepass"), labels, sizes.encode())
        )
        self._hint_parts.append(digest_of("times", times.encode()))


def _sizes_and_times(paths: list[str]) -> str:
    sizes, times = [], []
    for path in paths:
        try:
            status = os.stat(path)
            sizes.append(status.st_size)
            times.append(status.st_mtime_ns)
        except OSError:
            sizes.append(-1)
    return f"{digest_of('sizes', repr(sizes).encode()).hex()} {digest_of('times', repr(times).encode()).hex()}"


def _spread(n: int, most: int = MOST_FILES) -> Sequence[int]:
    """At most `most` positions of 0..n-1, spread evenly."""
    most = min(most, MOST_FILES)
    return range(n) if n <= most else [int(k) for k in np.linspace(0, n - 1, most)]


def _items(values: Any, identity: Identity) -> bytes:
    if _is_array(values) or isinstance(values, range):
        return identity.of(values)
    if all(type(value) in (int, bool, float) for value in islice(values, 1000)):
        array = np.array(values)  # labels and indices, of which there may be millions
        if array.dtype.kind in "biuf" and array.ndim == 1:
            return identity.of(array)
    chosen = _spread(len(values), max(MOST_BYTES // max(_bytes_of(values[0]), 1), _LONG) if len(values) else 1)
    identity.sampled |= len(chosen) < len(values)
    return digest_of("list", str(len(values)).encode(), *(identity.of(values[k]) for k in chosen))


def _bytes_of(value: Any) -> int:
    """The bytes of the arrays in an item of a list."""
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes_of, value))
    return len(value) if isinstance(value, bytes) else int(getattr(value, "nbytes", 0))


def _own_fingerprint(dataset: Any) -> str | None:
    """The fingerprint that the dataset itself has, not one of a dataset inside it."""
    name = "_fingerprint" if _is_of(dataset, "datasets") else "fingerprint"
    if getattr_static(dataset, name, None) is None:
        return None
    found = getattr(dataset, name)
    found = found() if callable(found) else found
    return str(found) if isinstance(found, (str, bytes, int)) else None


def _is_of(value: Any, package: str) -> bool:
    return any(f"{kind.__module__}.".startswith(f"{package}.") for kind in type(value).__mro__)


def _is_array(value: Any) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    return isinstance(value, (np.ndarray, tensor))


def _is_dataset(value: Any) -> bool:
    plain = (
        isinstance(value, (str, bytes, bytearray, list, tuple, dict, set, frozenset, range, type))
        or _is_array(value)
        or callable(value)
    )
    return not plain and hasattr(type(value), "__getitem__") and hasattr(type(value), "__len__")


def _calls(value: Any) -> bool:
    """Whether a value is a transform: a function, or a list or dict of functions."""
    if isinstance(value, dict):
        value = list(islice(value.values(), _LONG))
    if isinstance(value, (list, tuple)):
        return any(callable(item) and not isinstance(item, type) for item in value[:_LONG])
    return callable(value) and not isinstance(value, type)


def _first(value: Any) -> Any:
    """The first item of a list, and of the lists or tuples in it."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def _is_file(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and os.path.isfile(value)


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and (_is_array(_first(value)) or isinstance(_first(value), bytes))


def _is_long(value: Any) -> bool:
    return isinstance(value, range) or (
        isinstance(value, (list, tuple)) and len(value) > 0 and (len(value) >= _LONG or _is_file(_first(value)))
    )


def _within(path: str, folder: str) -> bool:
    """Whether one of them lies in the other, or they are equal."""
    return os.path.commonpath([path, folder]) in (path, folder)
