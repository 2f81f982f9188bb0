"""Whether the library decodes JPEG files. One that was built without the headers of libjpeg-turbo does not: then
Pillow decodes them."""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing

from .._native import _image_header as native
from .._native._image_library import with_jpeg
from .workers import Memory

_log = logging.getLogger("stocached")


@functools.cache
def pixels() -> int:
    """Which pixels the library makes of JPEG files: other versions of libjpeg-turbo may make others. 0: it decodes
    none."""
    memory = Memory()
    return int(native.jpeg_pixels(memory.handle))


def missing() -> str:
    """Why the library decodes no JPEG files, and what to run."""
    return f"this installation was built without libjpeg-turbo; {with_jpeg()}"


@functools.cache
def warn_if_missing() -> None:
    """Says once in a program that Pillow decodes JPEG files. Worker processes say nothing. Without Pillow, the first
    file is an error."""
    if pixels() or multiprocessing.parent_process() is not None:
        return
    with contextlib.suppress(ImportError):
        import PIL  # noqa: F401

        _log.warning("Pillow decodes JPEG files, which takes longer: %s", missing())
