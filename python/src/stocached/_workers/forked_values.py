"""Values and exceptions of a forked child on their way to its parent: pickled. What the parent had
before the fork and pickle cannot name, such as a class within a function, goes by its address."""

from __future__ import annotations

import contextlib
import gc
import io
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

from .._common.errors import SchemaError
from .errors import RemoteError


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and not _has_name(value):
            return id(value), *_name(value)
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, place: Any) -> Any:
        address, *name = place
        for value in gc.get_objects():
            # The name too: the child may have made the value after the fork.
            if id(value) == address and isinstance(value, (type, FunctionType)) and _name(value) == name:
                return value
        raise SchemaError(
            f"samples need {'.'.join(map(str, name))}, which was made when the first of them was loaded; define it in a module"
        )


def _name(value: type | FunctionType) -> list[str]:
    return [value.__module__, value.__qualname__]


def _has_name(value: Any) -> bool:
    """Whether pickle finds a class or function by its name."""
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _pickled(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _can_be_sent(value: Any) -> bool:
    try:
        _unpickled(_pickled(value))
    except Exception:
        return False
    return True


def _unpickled(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()


def sent(value: Any) -> bytes:
    """A value, for `value_of` in the parent."""
    return _pickled((value, None))


def raised(error: BaseException, where: str) -> bytes:
    """An exception, for `value_of` in the parent to raise it with its type, attributes and notes, and with this
    traceback as its cause. where: it was raised."""
    kind, remote = type(error), RemoteError.of(error, where)
    # A constructor of the user may make another text of the arguments, or take none.
    if remote.data is None or (isinstance(kind.__init__, FunctionType) and kind.__reduce__ is BaseException.__reduce__):
        arguments = tuple(value if _can_be_sent(value) else repr(value) for value in error.args)
        attributes = {name: value for name, value in vars(error).items() if _can_be_sent(value)}
        if _can_be_sent(kind):
            return _pickled((remote, _pickled((kind, arguments, attributes))))
    return _pickled((remote, None))


def value_of(data: bytes) -> Any:
    """The value, or raises the exception."""
    value, parts = _unpickled(data)
    if not isinstance(value, RemoteError):
        return value
    made: Callable[[str], BaseException] = RuntimeError
    if parts is not None:
        with contextlib.suppress(SchemaError):  # the child has made the class: a RuntimeError tells its text
            made, value = partial(_made, *_unpickled(parts)), replace(value, data=None)
    raise value.rebuilt(made)


def _made(
    kind: type[BaseException], arguments: tuple[Any, ...], attributes: dict[str, Any], text: str
) -> BaseException:
    """An exception without a call of its constructor. text: is not needed."""
    error = kind.__new__(kind, *arguments)
    vars(error).update(attributes)
    return error
