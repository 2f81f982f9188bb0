"""Fingerprints that are derived from a dataset, for caches with a name and for loaders that are made
again.

A cache's header holds `auto1 d=0123456789abcd h=012345 t=6789ab x311=0123456789abcd`:
- auto1: the format.
- d: a digest of the data: files, arrays, and all attributes that the dataset uses.
- h: a digest of hints, which may differ without a change of the samples: where files lie, and
  versions of libraries.
- t: a digest of the times of files. They count if `h` is the same: a copied folder has other times.
- x and the version of Python that compiled the code: a digest of the code of the dataset, and of the
  types, arguments and code of its transforms.
`?` stands after a part that does not cover everything."""

from __future__ import annotations

import array
import collections
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import getattr_static
from itertools import chain, islice
from typing import Any, Literal

import numpy as np

from .._common.once_per_machine import once_a_machine
from .._memory.texts import Texts
from .code_names import is_library
from .columns import is_table
from .identity import Identity, NoDigestError, attributes, digest_of
from .plain_values import of_plain

MOST_FILES = 10_000  # whose sizes and times are read
_LONG = 32  # a list with as many items is data, a shorter list is a setting
_TEXT = re.compile(r"auto1 d=([0-9a-f]{14}\??) h=([0-9a-f]{6}) t=([0-9a-f]{6}) x(\d+O?)=([0-9a-f]{14}\??)")
_PYTHON = f"{sys.version_info[0]}{sys.version_info[1]}{'O' if sys.flags.optimize else ''}"
Kind = Literal["data", "hint", "time", "code", "mark"]


@dataclass(frozen=True)
class Derived:
    """A fingerprint that the user did not give."""

    data: str
    hints: str
    times: str
    code: str
    python: str = _PYTHON
    sampled: bool = False  # only a part of the data was read
    reasons: tuple[str, ...] = ()  # why parts are not covered
    # Each by itself, in this process, and whether the digest covers it; b"": it has none.
    parts: dict[str, tuple[bytes, bool]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"auto1 d={self.data} h={self.hints} t={self.times} x{self.python}={self.code}"

    @classmethod
    def parse(cls, text: str | None) -> Derived | None:
        found = _TEXT.fullmatch(text or "")
        return None if found is None else cls(found[1], found[2], found[3], found[5], found[4])

    def changed(self, old: Derived) -> str | None:
        """What has certainly changed since `old`, which another program may have derived."""
        if self.python == old.python and self.code.rstrip("?") != old.code.rstrip("?"):
            return "the code of the dataset or of its transform"
        other_times = self.hints == old.hints and self.times != old.times
        return "the data of the dataset" if other_times or self.data.rstrip("?") != old.data.rstrip("?") else None

    def certain(self, old: Derived) -> bool:
        """Whether certainly nothing has changed since `old`."""
        return str(self) == str(old) and "?" not in str(self) and not self.sampled

    def moved(self, old: Derived) -> set[str]:
        """The parts that differ from those of `old`, which this process has derived. What has no digest does not
        count, such as a file that was opened since."""
        names = self.parts.keys() | old.parts.keys()
        return {name for name in names if _differ(self.parts.get(name), old.parts.get(name))}


def _differ(part: tuple[bytes, bool] | None, other: tuple[bytes, bool] | None) -> bool:
    if part is None or other is None:
        one = part or other
        return one is not None and one[1]
    return part[0] != other[0] and part[1] == other[1] and b"" not in (part[0], other[0])


def derive(dataset: Any) -> Derived:
    """The fingerprint of a dataset. Loads no sample, and never raises.

    Reads sizes and times of at most 10,000 files, and at most 1 GiB of each list of arrays. Plain values are read
    whole: ten million numbers or texts in 1.5 s."""
    made = _Derivation()
    try:
        made.note_names(dataset)
        made.add(dataset)
    except Exception as error:  # the dataset's own code failed, such as a property
        made.give_up(f"{type(error).__name__}: {error}")
    return made.result()


class _Derivation:
    def __init__(self) -> None:
        self._unknown: list[str] = []  # kinds of values inside others that have no digest
        # Of transforms, of attributes, and of the datasets' classes.
        self._code, self._settings, self._classes = (Identity(self._unknown) for _ in range(3))
        self._parts: dict[tuple[Kind, str], tuple[bytes, bool]] = {}
        self._where: list[str] = []  # names of the attributes that lead to the dataset that is looked at
        self._unknown_data: list[str] = []
        self._unknown_code: list[str] = []
        self._folders: list[str] = []  # whose files were read
        self._seen: set[int] = set()
        self._used: set[str] = set()  # names of attributes that the code of the program's datasets uses
        self._sampled = False

    def result(self) -> Derived:
        met = (self._code, self._settings, self._classes)
        for identity in met:
            self._add_functions(identity)
        named = sorted(
            path
            for path in set().union(*(identity.paths for identity in met))
            if not any(_within(path, folder) for folder in self._folders)
        )
        if named:
            self._unknown_data.append(f"it names {named[0]}, which may be read")
        for module, version in sorted({pair for identity in met for pair in identity.versions.items()}):
            self._parts["hint", module] = digest_of("version", module.encode(), version.encode()), True
        return Derived(
            self._text("data", 14) + "?" * bool(self._unknown_data),
            self._text("hint", 6),
            self._text("time", 6),
            self._text("code", 14) + "?" * bool(self._unknown_code),
            sampled=self._sampled or any(identity.sampled for identity in met),
            reasons=(
                *(f"data: {reason}" for reason in self._unknown_data),
                *(f"code: {reason}" for reason in self._unknown_code),
            ),
            parts={f"{kind} {name}": part for (kind, name), part in self._parts.items()},
        )

    def _text(self, kind: Kind, digits: int) -> str:
        """The digest of all parts of a kind, whatever their names."""
        return digest_of("parts", *sorted(part for (one, _), (part, _) in self._parts.items() if one == kind)).hex()[
            :digits
        ]

    def _add(self, kind: Kind, name: str, digest: Callable[[], bytes], holds: str = "") -> None:
        """Adds a part. holds: words for the part, if it has no digest."""
        at, before = ".".join([*self._where, name]), len(self._unknown)
        unknown = self._unknown_code if kind == "code" else self._unknown_data
        try:
            part = digest_of(kind, at.encode(), digest())
        except NoDigestError as error:
            self._parts[kind, at] = b"", False
            unknown.append(f"{holds} {error}")
            return
        found = self._unknown[before:]
        self._parts[kind, at] = part, not found
        unknown += [f"{holds} {value}" for value in found[:1]]

    def _add_functions(self, identity: Identity) -> None:
        before = len(self._unknown)
        try:
            for name, made in identity.functions().items():
                self._parts["code", f"function {name}"] = made
        except NoDigestError as error:
            self._unknown_code.append(f"it uses {error}")
        except Exception as error:  # a value's own code failed, such as a property
            self._unknown_code.append(f"{type(error).__name__}: {error}")
        self._unknown_code += [f"it uses {value}" for value in self._unknown[before:][:1]]

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
                todo += dict(attributes(value)).values()

    def add(self, dataset: Any, name: str = "") -> None:
        """name: of the attribute that holds it."""
        self._where.append(name)
        try:
            self._add_dataset(dataset)
        finally:
            self._where.pop()

    def _add_dataset(self, dataset: Any) -> None:
        if id(dataset) in self._seen:
            self._add("data", "again", lambda: b"")
            self._add_class(dataset)
            return
        self._seen.add(id(dataset))
        own = _own_fingerprint(dataset)
        if own is not None:
            self._add("data", "own", own.encode)
            if _is_of(dataset, "datasets"):  # Hugging Face's fingerprint covers the transforms
                return
        sources = 0
        if own is None and _is_values(dataset):
            sources += self._add_values(dataset)
            if is_library(type(dataset).__module__):
                return
        self._add_class(dataset)
        for name, value in self._attributes(dataset):
            if own is None or _calls(value):
                sources += self._add_attribute(dataset, name, value)
        if own is None and not sources:
            self._unknown_data.append(f"{type(dataset).__name__} does not say where its samples come from")

    def _add_class(self, dataset: Any) -> None:
        self._add("code", "class", lambda: self._classes.add_code(type(dataset)), "it uses")

    def _attributes(self, dataset: Any) -> Iterator[tuple[str, Any]]:
        used = self._classes.used_names(type(dataset))
        arrays = _is_of(dataset, "torchvision.datasets") and _is_array(getattr(dataset, "data", None))
        of_errors = getattr(type(dataset), "_of_errors", ())  # attributes of our own datasets that change no sample
        ours = type(dataset).__module__.partition(".")[0] == "stocached"
        only = getattr(type(dataset), "_samples_of", None) if ours else None  # the others change as a program reads
        for name, value in sorted(attributes(dataset)):
            if only is not None and name not in only:
                continue
            if (
                name not in of_errors and (used is None or name in self._used) and not (arrays and name == "root")
            ):  # the arrays hold its files
                yield name, value

    def _add_attribute(self, dataset: Any, name: str, value: Any) -> int:
        """1 if samples come from the attribute, else 0."""
        inside = _datasets_in(value)
        if inside:
            self._add("data", name, lambda: self._settings.of(list(inside)))
            for at, inner in inside.items():
                self.add(inner, f"{name}{at}")
            return 1
        if _calls(value):
            self._add("code", name, lambda: self._code.of(value), f"its {name} holds")
        elif isinstance(value, (str, os.PathLike)) and os.path.exists(value):
            self._add("hint", name, lambda: self._settings.of(value))
        # Such as the indices of a Subset.
        elif _is_array(value) or is_table(value) or _holds_arrays(value) or _is_long(value):
            return self._add_values(value, name, lists_all=is_library(type(dataset).__module__))
        else:
            self._add("data", name, lambda: self._settings.of(value), f"its {name} holds")
        return 0

    # ------------------------------------------------------------ data

    def _add_values(self, values: Any, name: str = "", *, lists_all: bool = False) -> int:
        """Adds arrays, files or labels. 1 if samples come from them, else 0. lists_all: if these
        are files, samples come from no other file."""
        if id(values) in self._seen and name:  # ImageFolder has two attributes with its files
            return 0
        self._seen.add(id(values))
        if isinstance(values, np.memmap) and values.filename is not None:
            self._add_place(os.path.dirname(values.filename), name)
            modified = os.stat(values.filename).st_mtime_ns
            self._add("time", name, lambda: digest_of("time", str(modified).encode()))
        if not _is_array(values) and _is_file(_first(values)):
            self._add_files(values, name)
            self._sampled |= not lists_all
            return 1
        identity = Identity(self._unknown)
        self._add("data", name, lambda: _items(values, identity), f"its {name or 'values'} hold")
        if identity.sampled:
            self._sampled = True
            self._add("mark", name, lambda: _marks(values))
        return int(_is_array(values) or is_table(values) or _holds_arrays(values) or not name)

    def _add_place(self, folder: str, name: str) -> os.stat_result:
        status = os.stat(folder)  # another container may have other files at this path
        self._add("hint", f"place of {name}", lambda: digest_of("place", repr((status.st_dev, status.st_ino)).encode()))
        return status

    def _add_files(self, values: Sequence[Any], name: str) -> None:
        """Adds a list of paths, or of tuples that begin with a path: the names and labels of all, the sizes and times
        of some."""
        names: Any = values
        relative: Any
        if isinstance(values, Texts):
            labels, folder, relative = list[Any](), values.folder, (values.data, values.ends)
        else:
            names, labels = _columns(values)
            folder = os.path.dirname(os.path.commonprefix([min(names), max(names)]))  # noqa: RUF071 - of all, also if some are relative
            relative = "\0".join(names)[len(folder) :].replace(f"\0{folder}", "\0")
        self._folders.append(os.path.abspath(folder))
        paths = [os.path.abspath(names[k]) for k in _spread(len(names))]
        self._sampled |= len(paths) < len(names)
        status = self._add_place(os.path.abspath(folder), name)
        place = repr((status.st_dev, status.st_ino)).encode()
        key = digest_of("files", place, *(os.fsencode(path) for path in paths)).hex()
        sizes, times = once_a_machine(key, lambda: _sizes_and_times(paths)).split()
        listed = Identity(self._unknown)
        self._add(
            "data",
            name,
            lambda: digest_of("files", listed.of(relative), listed.of(labels), sizes.encode()),
            "labels of its files hold",
        )
        self._sampled |= listed.sampled
        self._add("time", name, lambda: digest_of("times", times.encode()))


def _columns(values: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """The paths of a list of files, and lists of what stands beside them. Quick for a million tuples."""
    labels: list[Any] = []
    if set(map(type, values)) == {tuple} and len(set(map(len, values))) == 1:
        values, *labels = ([value[k] for value in values] for k in range(len(values[0])))
    elif not isinstance(values[0], (str, os.PathLike)):
        labels = [value[1:] if isinstance(value, (tuple, list)) else () for value in values]
    if set(map(type, values)) == {str}:
        return list(values), labels
    return [os.fspath(_first(value)) for value in values], labels


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
    plain = of_plain(list(values)) if isinstance(values, (list, tuple)) else None
    if plain is not None:
        return digest_of(type(values).__name__, plain.digest)
    if not isinstance(values, (list, tuple)):
        return identity.of(values)
    chosen = _spread(len(values), max(identity.most_bytes // max(_bytes_of(values[0]), 1), _LONG) if len(values) else 1)
    identity.sampled |= len(chosen) < len(values)
    return digest_of("list", str(len(values)).encode(), *(identity.of(values[k]) for k in chosen))


def _marks(values: Any) -> bytes:
    """What tells in this process that another array or text lies in a list, or that torch has written into a tensor."""
    items = list(values) if isinstance(values, (list, tuple)) else [values]
    items += chain.from_iterable([item for item in items if isinstance(item, (list, tuple))])
    return digest_of(
        "marks", array.array("Q", map(id, items)).tobytes(), array.array("Q", map(_version, items)).tobytes()
    )


def _version(value: Any) -> int:
    try:
        return int(getattr(value, "_version", 0))
    except RuntimeError:  # a tensor of torch.inference_mode
        return 0


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


def _is_values(value: Any) -> bool:
    """Whether a value holds its samples itself, and no code of the program loads them."""
    kinds = (str, bytes, bytearray, list, tuple, dict, range, collections.deque, array.array)
    return _is_array(value) or is_table(value) or isinstance(value, (*kinds, Texts))


def _is_dataset(value: Any) -> bool:
    plain = _is_values(value) or isinstance(value, (set, frozenset, type)) or callable(value)
    return not plain and hasattr(type(value), "__getitem__") and hasattr(type(value), "__len__")


def _datasets_in(value: Any) -> dict[str, Any]:
    """The datasets that a value is or holds, by their place in it."""
    if _is_dataset(value):
        return {"": value}
    if isinstance(value, dict) and value and _is_dataset(next(iter(value.values()))):
        return {f"[{key!r}]": inner for key, inner in value.items()}
    if isinstance(value, (list, tuple)) and value and _is_dataset(value[0]):
        return {f"[{k}]": inner for k, inner in enumerate(value)}
    return {}


def _calls(value: Any) -> bool:
    """Whether a value is a transform: a function, or a list or dict of functions."""
    if isinstance(value, dict):
        value = list(islice(value.values(), _LONG))
    if isinstance(value, (list, tuple)):
        return any(callable(item) and not isinstance(item, type) for item in value[:_LONG])
    return callable(value) and not isinstance(value, type)


def _first(value: Any) -> Any:
    """The first item of a list, and of the lists or tuples in it."""
    if isinstance(value, Texts):
        return value[0]
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def _is_file(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and os.path.isfile(value)


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and (_is_array(_first(value)) or isinstance(_first(value), bytes))


def _is_long(value: Any) -> bool:
    return isinstance(value, range) or (
        isinstance(value, (list, tuple, Texts)) and len(value) > 0 and (len(value) >= _LONG or _is_file(_first(value)))
    )


def _within(path: str, folder: str) -> bool:
    """Whether one of them lies in the other, or they are equal."""
    return os.path.commonpath([path, folder]) in (path, folder)
