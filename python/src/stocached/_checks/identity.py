"""Digests of transforms and other values, from their types, arguments and code. They are the same
in every process.

A digest depends on what a value does, not on where it lies. It never depends on addresses, hash
seeds, line numbers, file names, comments, or the order of sets and of keywords. Code of the program
counts as bytecode, with the functions, classes and global values that it names. Code of a library
counts by its name."""

from __future__ import annotations

import array
import collections
import contextlib
import enum
import functools
import hashlib
import inspect
import logging
import os
import random
import re
import struct
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _native
from .._common.array_addresses import address_of
from .._common.errors import StocachedError
from .._memory.texts import Texts
from .._samples import schema
from .code_names import Reach, SourceFile, global_values, is_filled, is_library, values_of, without_docstring
from .columns import columns_of, is_table
from .plain_values import of_plain

MOST_OBJECTS = 20_000  # limit of one Identity; plain values do not count
# It reads these many bytes of all arrays (by CRC, 0.1 s), of one that is not contiguous, and of one whose file is mapped.
# Of a larger array it reads places of _PLACE bytes, spread evenly.
MOST_BYTES = 1024**3
_MOST_COPIED = 16 * 1024**2
_MOST_MAPPED = 1024**2
_PLACE = 16 * 1024
_BLOCK = 1024**2  # bytes for one call of a CRC


class NoDigestError(Exception):
    """A value has no digest that would be the same in another process. The text says which
    value."""


def digest_of(kind: str, *parts: bytes) -> bytes:
    made = hashlib.blake2b(digest_size=16)
    for part in (kind.encode(), *parts):
        made.update(struct.pack("<Q", len(part)))
        made.update(part)
    return made.digest()


def _digest_of_bytes(kind: str, head: bytes, data: Any) -> bytes:
    """The digest of bytes, or of a C-contiguous array. Of more than a place by their CRCs, which take a tenth of the time."""
    if isinstance(data, (bytes, bytearray)):
        data = np.frombuffer(data, np.uint8)
    if data.nbytes <= _PLACE:
        return digest_of(kind, head, data.tobytes())
    raw = data.reshape(-1).view(np.uint8)
    crcs = array.array("I")
    for start in range(0, raw.size, _BLOCK):
        block = raw[start : start + _BLOCK]
        crcs.append(_native.crc32c(0, address_of(block), block.size))
    return digest_of(f"{kind} by CRC", head, str(raw.size).encode(), crcs.tobytes())


def _array_digest(items: np.ndarray[Any, Any], room: int) -> tuple[bytes, bool]:
    """The digest of shape, dtype and items, and whether all items were read. room: the most bytes
    to read, but at least one place."""
    head = digest_of("array", items.dtype.str.encode(), repr(items.shape).encode())
    if items.nbytes <= (room if items.flags.c_contiguous else min(room, _MOST_COPIED)):
        return _digest_of_bytes("items", head, np.ascontiguousarray(items)), True
    places = max(min(room, _MOST_COPIED) // _PLACE, 1)
    if items.flags.c_contiguous:
        raw = items.reshape(-1).view(np.uint8)
        starts = np.linspace(0, max(raw.size - _PLACE, 0), places).astype(np.int64)
        return digest_of("places", head, *(raw[start : start + _PLACE].tobytes() for start in starts.tolist())), False
    rows = np.linspace(0, len(items) - 1, min(len(items), places)).astype(np.int64)
    return digest_of(
        "rows", head, *(items[row].ravel()[: max(_PLACE // items.itemsize, 1)].tobytes() for row in rows.tolist())
    ), False


class Identity:
    """Makes digests of several values, and one digest of all code that they lead to."""

    def __init__(self, unknown: list[str] | None = None) -> None:
        """unknown: gets the kinds of values without a digest, which then count by their kinds. None: NoDigestError."""
        self.sampled = False  # whether an array was read only in part
        self._unknown = unknown
        self.paths: set[str] = set()  # texts among the values that name a file or folder
        self.versions: dict[str, str] = {}  # for modules of libraries: their version and when they were installed
        self.most_bytes = MOST_BYTES  # limit of the arrays that it reads
        self._objects, self._room = 0, self.most_bytes
        self._open: list[int] = []  # ids of the values whose digest is being made, outermost first
        self._kept: list[Any] = []  # keeps functions alive, so that no id is reused
        self._bodies: dict[str, set[bytes]] = {}  # digests of the functions of the program, by their name
        self._functions: set[int] = set()
        self._todo: list[types.FunctionType] = []
        self._classes: dict[type, Reach] = {}
        self._sources: dict[SourceFile, bytes] = {}

    # ------------------------------------------------------------ values

    def of(self, value: Any) -> bytes:
        """The digest of a value. Raises NoDigestError."""
        self._objects += 1
        if self._objects > MOST_OBJECTS:
            raise NoDigestError(f"more than {MOST_OBJECTS:,} objects")
        if id(value) in self._open:
            return digest_of("cycle", str(len(self._open) - self._open.index(id(value))).encode())
        self._open.append(id(value))
        try:
            return self._of(value)
        finally:
            self._open.pop()

    def _of(self, value: Any) -> bytes:
        kind: Any = type(value)
        if value is None or kind in (bool, int, float, complex) or value is Ellipsis or value is NotImplemented:
            return digest_of(kind.__name__, repr(value).encode())
        if kind is str or isinstance(value, os.PathLike):
            text = os.fsdecode(value)
            self._note_path(text)
            return digest_of("str", text.encode(errors="surrogatepass"))
        if kind in (bytes, bytearray):
            return _digest_of_bytes("bytes", b"", value)
        if isinstance(value, (range, slice)):
            return digest_of(kind.__name__, repr(value).encode())
        if isinstance(value, np.generic):
            return (
                digest_of("scalar", value.dtype.str.encode(), value.tobytes())
                if not value.dtype.hasobject
                else self._refuse(value)
            )
        if isinstance(value, enum.Enum):
            return digest_of(
                "member", self._kind(kind), value.name.encode() if value.name else repr(value.value).encode()
            )
        items = self._items(value)
        if items is not None:
            return digest_of(
                "items", self._kind(kind), *items, *([self._state(value)] if getattr(value, "__dict__", None) else [])
            )
        return self._of_object(value, kind)

    def _items(self, value: Any) -> list[bytes] | None:
        """Digests of the items of a list, dict or number, subclasses included. None: it is none of
        these."""
        if isinstance(value, (list, tuple, collections.deque)):
            return [self._sequence(list(value))]
        if isinstance(value, (dict, types.MappingProxyType)):
            factory = self.of(getattr(value, "default_factory", None))
            return [factory, self._sequence(list(value)), self._sequence(list(value.values()))]
        if isinstance(value, (set, frozenset)):
            alike = set(map(type, value)) in ({int}, {str}, {bytes})
            return [self._sequence(sorted(value))] if alike else sorted(map(self.of, value))
        bases: tuple[Any, ...] = (str, bytes, int, float, complex)
        for base in bases:
            if isinstance(value, base):
                return [self.of(base.__str__(value) if base is str else base(value))]
        return None

    def _sequence(self, items: list[Any]) -> bytes:
        """The digest of items in their order."""
        plain = of_plain(items)
        if plain is None:
            return digest_of("sequence", *map(self.of, items))
        for text in plain.texts:
            self._note_path(text)
        return digest_of("plain", plain.digest)

    def _of_object(self, value: Any, kind: Any) -> bytes:
        if isinstance(
            value,
            (
                types.FunctionType,
                types.BuiltinFunctionType,
                types.MethodType,
                functools.partial,
                functools._lru_cache_wrapper,
                type,
            ),
        ):
            return self._of_callable(value)
        if isinstance(value, types.ModuleType):
            return digest_of("module", values_of(value)["__name__"].encode())
        if isinstance(value, (np.dtype, np.ufunc)) or _is_torch(value, "dtype", "device", "layout", "memory_format"):
            return digest_of(kind.__name__, str(value).encode())
        if isinstance(value, Texts):
            self._note_path(value[0])
            return digest_of(
                "texts", value.folder.encode(errors="surrogatepass"), *map(self.of, (value.data, value.ends))
            )
        if isinstance(value, array.array):
            return digest_of("machine values", value.typecode.encode(), value.tobytes())
        if isinstance(value, re.Pattern):
            return digest_of("pattern", str(value.flags).encode(), self.of(value.pattern))
        if isinstance(value, _WITHOUT_STATE) or _is_torch(value, "Generator"):
            return digest_of("stateless", self._kind(kind))
        if isinstance(value, np.ndarray) or _is_torch(value, "Tensor"):
            return self._of_array(value)
        if is_table(value):
            return digest_of("table", self._kind(kind), *map(self.of, columns_of(value)))
        if not _has_python_state(kind):
            return self._refuse(value)
        return digest_of("object", self._kind(kind, methods=True), self._state(value))

    def _of_array(self, value: Any) -> bytes:
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            return digest_of("objects", repr(value.shape).encode(), self._sequence(value.reshape(-1).tolist()))
        if getattr(value, "is_meta", False) or getattr(getattr(value, "device", None), "type", "cpu") not in (
            "cpu",
            None,
        ):
            return self._refuse(value)
        try:
            items = value if isinstance(value, np.ndarray) else schema.as_array(value)
        except StocachedError:  # a sparse tensor, or another dtype that NumPy lacks
            return self._refuse(value)
        if isinstance(items, np.ma.MaskedArray):
            return digest_of("masked", self._of_array(items.filled()), self._of_array(np.ma.getmaskarray(items)))
        room = min(self._room, _MOST_MAPPED) if isinstance(items, np.memmap) else self._room
        made, whole = _array_digest(items, room)
        self._room = max(self._room - (items.nbytes if whole else min(room, _MOST_COPIED)), 0)
        self.sampled |= not whole
        return made

    def _state(self, value: Any) -> bytes:
        """The attributes of an object."""
        state = dict(attributes(value))
        if _is_module(value):
            state = {name: item for name, item in state.items() if name not in _module_internals()}
            state["_modules"] = list(state["_modules"].items())  # their order matters: they run in it
        return self._named(state)

    def _named(self, values: dict[str, Any]) -> bytes:
        """The digest of attributes or keywords, in any order."""
        return digest_of(
            "named", *(digest_of("value", name.encode(), self.of(item)) for name, item in sorted(values.items()))
        )

    def _refuse(self, value: Any) -> bytes:
        kind = f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
        if self._unknown is None:
            raise NoDigestError(kind)
        self._unknown.append(kind)
        return digest_of("unknown", kind.encode())

    def _note_path(self, text: str) -> None:
        if os.sep in text and len(text) < 4096 and "\0" not in text and text.strip("/. \n") and os.path.exists(text):
            self.paths.add(os.path.abspath(text))

    # ------------------------------------------------------------ code

    def functions(self) -> dict[str, tuple[bytes, bool]]:
        """The digests of all functions of the program that the values so far lead to, by their name, and whether they
        cover all that these use."""
        whole: dict[str, bool] = {}
        while self._todo:
            function, before = self._todo.pop(), len(self._unknown or ())
            name = f"{function.__module__}.{function.__qualname__}"
            self._bodies.setdefault(name, set()).add(self._of_function(function))
            whole[name] = whole.get(name, True) and len(self._unknown or ()) == before
        return {name: (digest_of("bodies", *sorted(self._bodies[name])), whole[name]) for name in sorted(whole)}

    def used_names(self, kind: type) -> set[str] | None:
        """The attributes that the code of a class uses, of its objects and of others. None: a
        library's code is called, which may use any attribute."""
        reach = self._reach(kind)
        return None if reach.library else reach.names

    def add_code(self, kind: type) -> bytes:
        """The digest of a class whose methods are called."""
        return self._kind(kind, methods=True)

    def _of_callable(self, value: Any) -> bytes:
        if isinstance(value, type):
            return digest_of("class", self._kind(value, methods=True, all_methods=True))
        if isinstance(value, functools.partial):
            return digest_of("partial", self.of(value.func), self.of(value.args), self._named(value.keywords))
        if isinstance(value, types.MethodType):
            return digest_of("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, types.BuiltinFunctionType):
            owner = value.__self__
            named = digest_of("builtin", str(value.__module__).encode(), value.__qualname__.encode())
            return (
                named
                if owner is None or isinstance(owner, types.ModuleType)
                else digest_of("bound", named, self.of(owner))
            )
        return digest_of("wrapper", self._kind(type(value)), self.of(value.__wrapped__))

    def _of_function(self, function: types.FunctionType) -> bytes:
        """Of its code (of its name if it is a library's), its defaults and its closure."""
        cells = [cell.cell_contents for cell in function.__closure__ or () if is_filled(cell)]
        with_it = [
            self.of(function.__defaults__),
            self._named(function.__kwdefaults__ or {}),
            *map(self.of, cells),
        ]
        if is_library(function.__module__):
            self._note_version(function.__module__)
            return digest_of("library", function.__module__.encode(), function.__qualname__.encode(), *with_it)
        return digest_of("function", self._code(function.__code__), *self._globals(function), *with_it)

    def _code(self, code: types.CodeType) -> bytes:
        flags, instructions, consts = without_docstring(code)
        made = [self._code(const) if isinstance(const, types.CodeType) else self.of(const) for const in consts]
        numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = repr((numbers, arguments, code.co_names, code.co_freevars, code.co_cellvars)).encode()
        return digest_of("code", instructions, names, getattr(code, "co_exceptiontable", b""), *made)

    def _globals(self, function: types.FunctionType) -> Iterator[bytes]:
        """Digests of the global values that its code names."""
        for name, value in sorted(global_values(function).items()):
            if isinstance(value, types.ModuleType):  # first: other checks ask a lazy module for its class, and load it
                module = values_of(value)["__name__"]
                self._note_version(module)
                yield digest_of("global", name.encode(), module.encode())
            elif isinstance(value, SourceFile):
                if value not in self._sources:
                    self._sources[value] = self._source(value)
                yield self._sources[value]
            elif isinstance(value, types.FunctionType) and not is_library(value.__module__):
                self._add_body(value)
                yield digest_of("global", name.encode())
            elif inspect.isclass(value):
                yield digest_of("global", name.encode(), self._kind(value, methods=True, all_methods=True))
            else:
                yield digest_of("global", name.encode(), self.of(value))

    def _source(self, source: SourceFile) -> bytes:
        """The digest of a module that a function imports when it runs: of its code, or of when a library was installed."""
        code = None if source.is_library else source.code()
        if code is None:
            with contextlib.suppress(OSError):
                self.versions[f"import {source.module}"] = str(os.stat(source.path).st_mtime_ns)
        return digest_of("import", source.module.encode(), *([] if code is None else [self._code(code)]))

    def _kind(self, kind: Any, *, methods: bool = False, all_methods: bool = False) -> bytes:
        """The digest of a class: its name, and with `methods` the code of the methods that a loader
        calls, or with `all_methods` of all."""
        if is_library(kind.__module__):
            self._note_version(kind.__module__)
            return digest_of("kind", kind.__module__.encode(), kind.__qualname__.encode())
        if methods:
            reach = self._reach(kind, all_methods=all_methods)
            for function in reach.functions:
                self._add_body(function)
            constants = [
                digest_of("constant", name.encode(), self.of(value)) for name, value in sorted(reach.constants.items())
            ]
            return digest_of("kind", self._kind(kind), *constants)
        bases = [base for base in kind.__mro__[1:] if is_library(base.__module__)]
        return digest_of(
            "kind", kind.__qualname__.encode(), *(f"{base.__module__}.{base.__qualname__}".encode() for base in bases)
        )

    def _add_body(self, function: types.FunctionType) -> None:
        if id(function) not in self._functions:
            self._functions.add(id(function))
            self._kept.append(function)
            self._todo.append(function)

    def _reach(self, kind: type, *, all_methods: bool = False) -> Reach:
        known = self._classes.get(kind)
        if known is None or (all_methods and not known.all_methods):
            known = self._classes[kind] = Reach(kind, all_methods)
        return known

    def _note_version(self, module: str) -> None:
        top, loaded = module.partition(".")[0], sys.modules.get(module)
        file = values_of(loaded).get("__file__")
        if module not in self.versions and top not in sys.stdlib_module_names and file is not None:
            with contextlib.suppress(OSError):
                version = values_of(sys.modules.get(top)).get("__version__", "")
                self.versions[module] = f"{version} {os.stat(file).st_mtime_ns}"
                if module == "stocached._image.decoding":
                    self.versions[module] += f" {loaded.decoder()}"  # type: ignore[union-attr]


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, also those in slots."""
    yield from getattr(value, "__dict__", {}).items()
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _has_python_state(kind: type) -> bool:
    """Whether the attributes of an object hold all its state: its class is no larger than a class
    written in Python."""
    if issubclass(kind, types.SimpleNamespace):
        return True
    members = [
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if name in ("__dict__", "__weakref__") or inspect.ismemberdescriptor(member)
    ]
    return kind.__basicsize__ <= object.__basicsize__ + struct.calcsize("P") * len(members)


def _is_torch(value: Any, *names: str) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(
        value, tuple(getattr(torch, name) for name in names if hasattr(torch, name))
    )


def _is_module(value: Any) -> bool:
    return isinstance(value, getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", ()))


@functools.cache
def _module_internals() -> frozenset[str]:
    """Attributes of every torch.nn.Module that do not change what it computes: hooks."""
    return frozenset(vars(sys.modules["torch"].nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}


# Values whose state does not change a sample. A generator of random numbers does, but then a cache
# is of no use.
_WITHOUT_STATE = (
    logging.Logger,
    type(threading.Lock()),
    type(threading.RLock()),
    np.random.Generator,
    np.random.RandomState,
    random.Random,
)
