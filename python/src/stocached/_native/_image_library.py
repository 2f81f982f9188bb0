"""Finds and loads the C library for pictures, and binds its functions.

Raises ImportError where the library is missing: an installation without the headers of libjpeg-turbo
does not have it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from . import _library
from ._library import bind as bind


def image_library_path() -> Path:
    """The library to load: beside the one of $STOCACHED_LIB_PATH, else the one in the package."""
    path = _library.path.parent / "libstocached_image.so"
    if not path.is_file():
        hint = (
            "build it there: make build"
            if os.environ.get("STOCACHED_LIB_PATH")
            else "install the headers of libjpeg-turbo (Debian: apt install libjpeg62-turbo-dev), then install this "
            "package again: pip install --force-reinstall --no-binary stocached stocached"
        )
        raise ImportError(f"stocached.image: no library at {path}; {hint}")
    return path


path = image_library_path()
releasing = ctypes.CDLL(str(path))  # releases the GIL during a call
holding = ctypes.PyDLL(str(path))  # keeps it: cheaper, for functions of nanoseconds


def check_abi(version: int) -> None:
    """Checks that the library has the ABI version of this package."""
    found = bind(holding, "stoc_image_abi_version", ctypes.c_uint32)()
    if found != version:
        raise ImportError(
            f"stocached.image: {path} speaks ABI version {found}, this package needs {version}; "
            "install both from one release"
        )
