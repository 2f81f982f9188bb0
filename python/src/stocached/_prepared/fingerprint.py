"""A name for data and how they are prepared."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .._common.errors import InvalidError


def fingerprint(*settings: Any, files: Iterable[str | os.PathLike[str]] = ()) -> str:
    """A name that changes with any of the settings and files, for DatasetInfo: "prepared-" and 32
    hexadecimal digits, the same in every process and on every machine.

    settings: numbers, strings, bytes, None, arrays, and lists, tuples, dicts and sets of them, such
    as a version number that you raise with the code.
    files: what is read; each counts by its name (without its folder), size and time of
    modification, in this order. A file that is written again counts as another one."""
    digest = hashlib.sha256()
    _add(digest, settings)
    for name in files:
        status = os.stat(name)
        _add(digest, (os.path.basename(os.fspath(name)), status.st_size, status.st_mtime_ns))
    return f"prepared-{digest.hexdigest()[:32]}"


def _add(digest: Any, value: Any) -> None:
    """Each value after its kind and length, so that no two lists of values are the same bytes."""
    if value is None or isinstance(value, (bool, int, float, complex, np.generic)):
        raw = repr(value.item() if isinstance(value, np.generic) else value).encode()
        _bytes(digest, type(value.item() if isinstance(value, np.generic) else value).__name__, raw)
    elif isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        _bytes(digest, "str", text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _bytes(digest, "bytes", bytes(value))
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        _bytes(digest, "array", f"{value.dtype.str} {value.shape}".encode())
        _bytes(digest, "items", np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        _bytes(digest, "mapping", str(len(value)).encode())
        for key in sorted(value, key=lambda key: (type(key).__name__, repr(key))):
            _add(digest, key)
            _add(digest, value[key])
    elif isinstance(value, (set, frozenset)):
        _bytes(digest, "set", str(len(value)).encode())
        for item in sorted(value, key=lambda item: (type(item).__name__, repr(item))):
            _add(digest, item)
    elif isinstance(value, (list, tuple, range)):
        _bytes(digest, "sequence", str(len(value)).encode())
        for item in value:
            _add(digest, item)
    else:
        raise InvalidError(
            f"a fingerprint cannot be made of {type(value).__qualname__}: give numbers, strings, bytes, arrays, or lists and dicts of them"
        )


def _bytes(digest: Any, kind: str, raw: bytes) -> None:
    digest.update(struct.pack("<QQ", len(kind), len(raw)) + kind.encode() + raw)
