"""What Python code names: the methods, attributes and global values that functions and classes
use."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, NamedTuple

# What a loader calls of a transform or dataset.
_CALLED = ("__call__", "forward", "__getitem__", "__getitems__")
# Members of a class that no sample depends on.
_NOT_CALLED = {
    "__annotations__",
    "__class_getitem__",
    "__del__",
    "__dict__",
    "__doc__",
    "__eq__",
    "__getstate__",
    "__hash__",
    "__init__",
    "__init_subclass__",
    "__len__",
    "__module__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__repr__",
    "__setstate__",
    "__slots__",
    "__str__",
    "__weakref__",
}


def is_library(module: str | None) -> bool:
    """Whether a module belongs to a library, so that its code changes only with the library's
    version."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names or top in ("builtins", "stocached"):
        return top != "__main__"
    file = values_of(sys.modules.get(module or "")).get("__file__") or values_of(sys.modules.get(top)).get("__file__")
    return file is not None and "-packages" in file


def values_of(module: Any) -> dict[str, Any]:
    """The attributes of a module that are there. This calls no __getattr__ of the module, and loads no lazy one."""
    return object.__getattribute__(module, "__dict__") if isinstance(module, types.ModuleType) else {}


@functools.lru_cache(maxsize=256)
def _names_in(module: types.ModuleType) -> frozenset[str] | None:
    """The names that the code of a lazy module binds whenever it runs. None: any value of the module is there from the
    start, or its code is not known."""
    values = values_of(module)
    if "__getattr__" not in values and type(module) is types.ModuleType:
        return None
    loader = getattr(values.get("__spec__"), "loader", None)
    if not isinstance(loader, SourceFileLoader):
        return None
    with contextlib.suppress(ImportError, OSError, SyntaxError):
        code = loader.get_code(values["__name__"])
        steps = [] if code is None else dis.get_instructions(code)
        bound = {one.argval for one in steps if one.opname in ("STORE_NAME", "IMPORT_NAME")}
        return frozenset(part for name in bound for part in name.split("."))
    return None


class SourceFile(NamedTuple):
    """The file of a module that a function imports when it runs."""

    module: str
    path: str

    @property
    def is_library(self) -> bool:
        return "-packages" in self.path

    def code(self) -> types.CodeType | None:
        """Its code, which is not run. None: it is no code of Python."""
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            if self.path.endswith(".py"):
                return compile(Path(self.path).read_bytes(), self.module, "exec", dont_inherit=True)
        return None


def _source_of(module: str) -> SourceFile | None:
    """The file of a module, found without an import of it or of the packages that it lies in. None: it has none, as
    one of Python itself or of a notebook."""
    if module.partition(".")[0] in (*sys.stdlib_module_names, "stocached"):
        return None
    path: Any = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return SourceFile(module, spec.origin) if spec is not None and spec.has_location and spec.origin else None


class Reach:
    """The methods of a class that a loader calls, the methods that these name in turn, and the
    attributes that all of them name."""

    def __init__(self, kind: type, all_methods: bool) -> None:
        self.all_methods = all_methods
        self.functions: list[types.FunctionType] = []
        self.constants: dict[str, Any] = {}  # attributes of the class
        self.names: set[str] = set()
        classes = [base for base in kind.__mro__ if base is not object]
        own = [base for base in classes if not is_library(base.__module__)]
        self.library = not own  # whether a method of a library's class is called
        theirs = {name for base in classes if base not in own for name in vars(base)}
        todo = {*_CALLED, *(name for base in own for name in vars(base) if all_methods or name in theirs)} - _NOT_CALLED
        while todo:
            name = todo.pop()
            self.names.add(name)
            definers = [base for base in classes if name in vars(base)]
            self.library |= bool(definers) and definers[0] not in own
            for base in (base for base in definers if base in own):
                todo |= self._add(name, vars(base)[name], name in theirs) - self.names

    def _add(self, name: str, member: Any, overrides: bool) -> set[str]:
        """Adds a member of the program's classes; returns the names that it uses."""
        functions = list(_functions(member))
        self.functions += functions
        if not functions and not hasattr(type(member), "__get__") and not name.startswith(("__", "_abc_")):
            self.constants.setdefault(name, member)
        used = set().union(*(_attribute_names(function.__code__) for function in functions))
        self.library |= overrides and "super" in used
        return used


def _functions(member: Any) -> Iterator[types.FunctionType]:
    """The functions of a method, static method, class method or property, also wrapped ones."""
    inner = [getattr(member, name, None) for name in ("__func__", "fget", "func", "__wrapped__")]
    yield from (function for function in (member, *inner) if isinstance(function, types.FunctionType))


def _attribute_names(code: types.CodeType) -> set[str]:
    """Names that a function and the functions inside it use. Globals are included, which does no
    harm."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_attribute_names, inner))


def _member(path: str, module: types.ModuleType, name: str) -> tuple[str, Any] | None:
    """A value of a module of the program, or the file that has it where it comes only when it is needed."""
    values = values_of(module)
    own, spec = values.get("__name__", ""), values.get("__spec__")
    if is_library(own):
        return None
    if (
        spec is not None and isinstance(spec.loader_state, dict) and spec.origin
    ):  # a module of importlib.util.LazyLoader
        return f"import {own}", SourceFile(own, spec.origin)
    names = _names_in(module)
    if names is None or name in names:
        return (f"{path}.{name}", values[name]) if name in values else None
    source = _source_of(f"{own}.{name}")
    return None if source is None else (f"import {source.module}", source)


def global_values(function: types.FunctionType) -> dict[str, Any]:
    """The global values that a function uses, by name. Instead of a module of the program: the
    values that the function takes from it. Of a module that it imports itself, when it runs: the file. So
    the answer is the same before and after the function has run."""
    package = function.__globals__.get("__package__") or ""
    found: dict[str, Any] = {}
    todo = [function.__code__]
    while todo:
        code = todo.pop()
        todo += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        at: tuple[str, Any] | None = None  # a value that the next instruction may take an attribute of
        imported = ""  # the module of the last import
        before: list[Any] = [0, None]  # what the last two instructions load: of an import, the dots before its name
        for instruction in dis.get_instructions(code):
            operation, name = instruction.opname, instruction.argval
            if operation == "EXTENDED_ARG":
                continue
            if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
                at = (name, function.__globals__[name]) if name in function.__globals__ else None
            elif operation == "IMPORT_NAME":
                source, imported = None, ""
                with contextlib.suppress(ImportError):  # beyond the outermost package
                    source = _source_of(resolve_name("." * before[0] + name, package))
                if source is not None:
                    imported = source.module
                    at = (f"import {imported}", source)
                else:
                    at = (name, sys.modules[name]) if name in sys.modules else None
            elif operation == "IMPORT_FROM" and imported:
                source = _source_of(f"{imported}.{name}")  # a module of a package
                at = None if source is None else (f"import {source.module}", source)
            elif (
                operation in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
                and at is not None
                and isinstance(at[1], types.ModuleType)
            ):
                at = _member(*at, name)
            else:
                at = None
            before = [before[1], instruction.argval]
            if at is not None:
                found[at[0]] = at[1]
    return found


def without_docstring(code: types.CodeType) -> tuple[int, bytes, list[Any]]:
    """The flags, instructions and constants of a function, as if it had no docstring."""
    constants = list(code.co_consts)
    if not hasattr(inspect, "CO_HAS_DOCSTRING"):  # before Python 3.14, the first constant is the docstring or None
        if not code.co_name.startswith("<") and constants and isinstance(constants[0], str):
            constants[0] = None
        return code.co_flags, code.co_code, constants
    # A docstring moves the other constants by one. Without it, a constant that no instruction loads may be the first. So
    # constants get numbers in the order in which instructions load them.
    body, loaded, numbers, extended = bytearray(code.co_code), [], bytearray(), 0
    for k in range(0, len(body), 2):
        argument = body[k + 1] | extended
        extended = argument << 8 if body[k] == dis.EXTENDED_ARG else 0
        if body[k] in dis.hasconst:
            if argument not in loaded:
                loaded.append(argument)
            numbers += loaded.index(argument).to_bytes(4, "little")
            body[k + 1] = 0
    return code.co_flags & ~inspect.CO_HAS_DOCSTRING, bytes(body + numbers), [constants[k] for k in loaded]


def is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the cell is still empty
        return False
