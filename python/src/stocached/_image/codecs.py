"""Whether the library decodes files. One that was built without the headers of libjpeg-turbo, libpng, libdeflate and
libwebp does not: then Pillow decodes them."""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing

from .._native import _image_header as native
from .._native._image_library import with_codecs
from .workers import Memory

_log = logging.getLogger("stocached")


@functools.cache
def pixels() -> int:
    """Which pixels the library makes of files: other versions of its decoders may make others. 0: it decodes none."""
    memory = Memory()
    return int(native.pixels(memory.handle))


def missing() -> str:
    """Why the library decodes no files, and what to run."""
    return f"this installation was built without libjpeg-turbo, libpng, libdeflate or libwebp; {with_codecs()}"


@functools.cache
def warn_if_missing() -> None:
    """Says once in a program that Pillow decodes all files. Worker processes say nothing. Without Pillow, the first
    file is an error."""
    if pixels() or multiprocessing.parent_process() is not None:
        return
    with contextlib.suppress(ImportError):
        import PIL  # noqa: F401

        _log.warning("Pillow decodes pictures, which takes longer: %s", missing())
