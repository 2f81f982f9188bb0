"""Pictures of formats that a server does not decode: this program decodes them. docs/spec/control.md, Files of other
formats."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _native
from .._common.array_addresses import address_of
from .._common.errors import FetchFailure, UnsupportedError
from .._samples.values import VariableValues
from . import fetched_samples, programs
from .attachment import Attachment
from .gathering import Flags, Indices

_HOW = 128  # bytes before a file
_KEYS = {"height", "width", "fit", "layout", "max_pixels", "bad_samples"}
_PLUGINS = ("AVIF", "HEIC", "JPEG XL")  # formats that Pillow may know or not


def fetch_rows(
    cache: Attachment, wanted: Indices, address: int, stride: int, ok: Flags, wait: int
) -> Sequence[FetchFailure]:
    """As `fetched_samples.fetch_rows`, and decodes what the server leaves to its clients."""
    if cache.programs:
        return fetched_samples.fetch_rows(cache, wanted, address, stride, ok, wait)
    end = time.monotonic() + wait / 1000
    failed: list[FetchFailure] = []
    while True:
        left = max(int((end - time.monotonic()) * 1000), 1) if wait else 0
        ok[[failure.position for failure in failed]] = True  # they are not asked for again
        try:
            failures = fetched_samples.fetch_rows(cache, wanted, address, stride, ok, left, _native.FETCH_LOADS)
        finally:
            ok[[failure.position for failure in failed]] = False
        mine = [failure for failure in failures if failure.kind == "LOAD"]
        cache._loading.update(failure.index for failure in mine)
        failed += [failure for failure in failures if failure.kind not in ("LOAD", "LOADING")]
        with programs.ended(cache, [failure.index for failure in mine]):
            for failure in mine:
                why = _decode(cache, failure, address + failure.position * stride, left)
                if why is None:
                    ok[failure.position] = True
                else:
                    failed.append(why)
        loading = [failure for failure in failures if failure.kind == "LOADING"]
        if not loading:
            return sorted(failed, key=lambda failure: failure.position)
        if not mine:  # the time is up
            return sorted(failed + loading, key=lambda failure: failure.position)


def _decode(cache: Attachment, failure: FetchFailure, address: int, wait: int) -> FetchFailure | None:
    """Decodes a sample, offers it, and writes it to `address`; or returns why it cannot."""
    from .._image.errors import DecodeError, NoDecoderError

    i, field = failure.index, cache.fields[0]
    found, failures = fetched_samples.fetch_each(cache, np.array([i], np.int64), wait, _native.FETCH_FILES, _bytes)
    if failures:
        return FetchFailure(failure.position, i, failures[0].kind, failures[0].message)
    text = bytes(found[0][:_HOW]).rstrip(b"\0").decode()
    how, kind = decode_of(text, cache.name)
    values = VariableValues((dataclasses.replace(field, shape=(None,)), *cache.fields[1:]))
    sample = values.decode(found[0][_HOW:], True)
    file = sample if values.bare else sample.pop(field.name)
    try:
        picture = how.decode(file.tobytes(), None)
    except DecodeError as error:
        lacks = isinstance(error, NoDecoderError)
        if (
            not lacks
            and "unknown format" in error.reason
            and any(f"{name} file" in failure.message for name in _PLUGINS)
        ):
            lacks, error = True, DecodeError("Pillow lacks the plugin for it, such as pillow-heif or pillow-jxl-plugin")
        if lacks:
            raise NoDecoderError(error.reason, f"sample {i} of cache {cache.name!r}: {failure.message}") from error
        programs.damaged(cache, i, error.reason)
        return FetchFailure(failure.position, i, kind, f"{_file_of(failure)} does not decode: {error.reason}")
    parts = cache._values.parts(picture if values.bare else {field.name: picture, **sample})
    whole = np.concatenate(
        [
            np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part.reshape(-1).view(np.uint8)
            for part in parts
        ]
    )
    programs.offer(cache, i, (_native.IoVec * 1)(_native.IoVec(address_of(whole), whole.nbytes)), 1)
    ctypes.memmove(address, whole.ctypes.data, whole.nbytes)
    return None


def _file_of(failure: FetchFailure) -> str:
    """The name of the file of a sample with LOAD."""
    return failure.message.partition(" does not decode: ")[0]


def _bytes(address: int, length: int) -> Any:
    raw = np.empty(length, np.uint8)
    ctypes.memmove(raw.ctypes.data, address, length)
    return raw


@functools.lru_cache(maxsize=16)
def decode_of(text: str, name: str | None, has: str = "has files of other formats") -> tuple[Any, str]:
    """The Decode that a server wants for a file, and the kind of failure of a file that does not decode. Raises
    UnsupportedError if this program cannot decode, with what to do."""
    said = dict(part.partition("=")[::2] for part in text.split())
    if said.keys() != _KEYS:
        raise UnsupportedError(
            f"cache {name!r} keeps files, and says how to decode them by {', '.join(sorted(said.keys() ^ _KEYS))}, "
            "which this version does not know; install the version of the server"
        )
    try:
        from .._image.decoding import Decode
    except ImportError as error:
        raise UnsupportedError(
            f"cache {name!r} {has}, which each program decodes itself, and this one cannot: {error}"
        ) from error
    size = int(said["height"]), int(said["width"])
    decode = Decode(size, fit=said["fit"], layout=said["layout"], max_pixels=int(said["max_pixels"]))
    return decode, "BAD" if said["bad_samples"] == "skip" else "DAMAGED"
