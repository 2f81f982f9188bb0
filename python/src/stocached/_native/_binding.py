"""Makes ctypes objects of all that a header of the C libraries declares: constants, structs, handles and functions,
under their names there without their prefix. Structs and handles get names in the style of Python's classes."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from . import _library

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CONSTANT = re.compile(r"^#define (STOC_\w+) (\(?-?\d+u?\)?|UINT64_MAX)[ \t]*$", re.MULTILINE)
_DIRECTIVE = re.compile(r'^#.*$|^extern "C" \{$', re.MULTILINE)
_DECLARATION = re.compile(r" ?([^;{}]*[^;{} ]) ?(?:\{([^}]*)\})?;")

_SCALARS: dict[str, Any] = {
    "void": None,
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "char": ctypes.c_char,
    "unsigned char": ctypes.c_ubyte,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "struct iovec": _library.IoVec,
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
# Parameters that callers give as an address, perhaps of a NumPy array. Other pointers to numbers become POINTER(...),
# which takes a ctypes object.
_ARRAYS = {"indices", "hit", "lengths", "offsets", "states", "positions", "nanoseconds", "rows"}
# More such parameters, each of one function.
_ADDRESSES = {
    "get.size_t *length",
    "copy.size_t *length",
    "fetch_each.void **data",
    "fetch_end.void **data",
    "queue_push.const struct stoc_task *tasks",
    "weights_open.const double *weights",
    "decode.uint8_t *dst",
}
# Functions of nanoseconds, called with the GIL. All others copy, wait or enter the kernel, and are called without it.
_BRIEF = """
abi_version version strerror explain close close_keep_payload info field view view_slot
learn_length locate locate_slot state hold fetch_end count_passed epoch_open epoch_open_weighted epoch_open_mixed
epoch_close epoch_length epoch_at epoch_position epoch_shard weights_close queue_bytes queue_init queue_push queue_take
queue_done queue_release queue_cancel queue_held queue_repost queue_stop queue_overflow queue_reserve worker_new worker_free
message target plan vectors use_vectors
"""
BRIEF = frozenset(_BRIEF.split())


def names_of(header: str, prefix: str, releasing: ctypes.CDLL, holding: ctypes.CDLL) -> dict[str, Any]:
    """What a header of this folder declares. prefix: begins all names in it. releasing, holding: the library, as in
    _library.py.

    Raises ImportError for what this does not understand, or if the library is of another ABI version."""
    return _Header(Path(__file__).with_name(header).read_text("ascii"), prefix, releasing, holding).names


class _Header:
    def __init__(self, text: str, prefix: str, releasing: ctypes.CDLL, holding: ctypes.CDLL) -> None:
        self.names: dict[str, Any] = {}
        self._prefix, self._releasing, self._holding = prefix, releasing, holding
        self._seen: dict[str, Any] = {}  # types of parameters
        text = _COMMENT.sub("", text)
        for name, value in _CONSTANT.findall(text):
            self.names[self._short(name)] = 2**64 - 1 if value == "UINT64_MAX" else int(value.strip("()u"))
        _library.check_abi(holding, f"{prefix}abi_version", self.names["ABI_VERSION"])
        for head, body in _DECLARATION.findall(" ".join(_DIRECTIVE.sub("", text).split())):
            try:
                self._declare(head, body)
            except (KeyError, ValueError, TypeError) as error:
                raise ImportError(f"stocached: this declaration of {prefix}* is not understood: {head}") from error

    def _declare(self, head: str, body: str) -> None:
        kind, name = head.split(" ", 1)
        if kind == "enum":
            for entry in body.split(","):
                key, value = entry.split(" = ")
                self.names[self._short(key.strip())] = int(value)
        elif kind == "struct":
            fields = [field for member in body.strip("; ").split("; ") for field in self._members(member)]
            self._add(name, ctypes.Structure, {"_fields_": fields})
        elif kind == "typedef":  # a handle: a pointer object of its own, which keeps what hangs on it alive in a call
            self._add(name.split(" ")[-1], ctypes.c_void_p, {})
        elif kind in ("STOC_API", "STOC_IMAGE_API"):
            declared, parameters = name.removesuffix(")").split("(")
            result, name, _ = self._variable(declared)
            short = self._short(name)
            library = self._holding if short in BRIEF else self._releasing
            self.names[short] = _library.bind(library, name, self._type(result), *self._types(parameters, short))
        else:
            raise ValueError(kind)

    def _add(self, name: str, base: type, members: dict[str, Any]) -> None:
        name = self._class(name)
        self.names[name] = type(name, (base,), {**members, "__module__": __package__})

    def _members(self, member: str) -> list[tuple[str, Any]]:
        """Those of one line of a struct."""
        if " (*" in member:
            result, _, callback = member.partition(" (*")
            name, parameters = callback.removesuffix(")").split(")(")
            kind = self.names[self._class(name)] = ctypes.CFUNCTYPE(self._type(result), *self._types(parameters, ""))
            return [(name, kind)]
        first, *others = member.split(", ")
        c, *one = self._variable(first)
        written = self._type(c)
        made = [one, *(self._variable(f"int {other}")[1:] for other in others)]
        return [(name, written * int(items) if items else written) for name, items in made]

    def _types(self, parameters: str, function: str) -> list[Any]:
        types = []
        for parameter in parameters.split(", ") if parameters != "void" else []:
            made = self._seen.get(parameter)  # most functions have the same few parameters
            if made is None:
                c, name, _ = self._variable(parameter)
                made = self._seen[parameter] = self._type(c, name in _ARRAYS)
            types.append(ctypes.c_void_p if f"{function}.{parameter}" in _ADDRESSES else made)
        return types

    @staticmethod
    def _variable(declared: str) -> tuple[str, str, str]:
        """Its type, its name, and how many items it has ("": it is no array)."""
        declared, _, items = declared.removesuffix("]").partition("[")
        cut = max(declared.rfind(" "), declared.rfind("*")) + 1
        return declared[:cut], declared[cut:], items

    def _type(self, c: str, address: bool = False) -> Any:
        """The ctypes type of a C type. address: a pointer becomes c_void_p."""
        stars = c.count("*")
        if stars and address:
            return ctypes.c_void_p
        base = c.replace("const", "").replace("*", "").strip()
        made: Any
        if stars and base == "void":
            made, stars = ctypes.c_void_p, stars - 1
        elif stars and base.endswith("char"):
            made, stars = ctypes.c_char_p, stars - 1
        elif base in _SCALARS:
            made = _SCALARS[base]
        else:
            made = self.names[self._class(base.removeprefix("struct "))]
            stars -= not base.startswith("struct ")  # a handle is a pointer itself
        for _ in range(stars):
            made = ctypes.POINTER(made)
        return made

    def _short(self, name: str) -> str:
        return name.removeprefix(self._prefix).removeprefix(self._prefix.upper())

    def _class(self, name: str) -> str:
        return "".join(word[:1].upper() + word[1:] for word in self._short(name).split("_"))
