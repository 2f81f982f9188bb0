"""Finds and loads the C library, and binds its functions."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any


def library_path() -> Path:
    """The library to load: $STOCACHED_LIB_PATH (the file, or its folder), else the one in the
    package."""
    override = os.environ.get("STOCACHED_LIB_PATH")
    path = Path(override) if override else Path(__file__).parent.parent
    if path.is_dir():
        path = path / "libstocached.so"
    if not path.is_file():
        raise ImportError(
            f"stocached: no library at {path}"
            + (
                " (STOCACHED_LIB_PATH)"
                if override
                else "; install the package with pip, or build libstocached.so and set STOCACHED_LIB_PATH to it"
            )
        )
    return path


path = library_path()
releasing = ctypes.CDLL(str(path))  # releases the GIL during a call
holding = ctypes.PyDLL(str(path))  # keeps it: cheaper, for functions of nanoseconds


class IoVec(ctypes.Structure):
    """struct iovec"""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def bind(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name, None)
    if function is None:
        raise ImportError(f"stocached: {library._name} has no function {name}; it is older than this package")
    function.restype = result
    function.argtypes = arguments
    return function


def rebind(library: ctypes.CDLL, function: Any) -> Any:
    """The same function, bound to another handle of the library."""
    return bind(library, function.__name__, function.restype, *function.argtypes)


def check_abi(library: ctypes.CDLL, function: str, version: int) -> None:
    """Checks, before any other function is bound, that the library has the ABI version of this package. function:
    returns that of the library."""
    found = bind(library, function, ctypes.c_uint32)()
    if found != version:
        raise ImportError(
            f"stocached: {library._name} speaks ABI version {found}, this package needs {version}; install both from "
            "one release"
        )
