"""The error for a file that gives no picture."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .._common.errors import BadSampleError, InvalidError, UnsupportedError


class DecodeError(BadSampleError):
    """A file is no picture, or it is broken, cut off, or larger than max_pixels. The message names the file."""


class NoDecoderError(DecodeError, UnsupportedError):
    """A file needs a decoder that is not installed. The sample is not bad, so loaders do not skip it."""


@contextlib.contextmanager
def steps_of(name: Any) -> Iterator[None]:
    """Steps after a decode, whose errors name the file as well."""
    try:
        yield
    except InvalidError as error:
        raise InvalidError(f"{name}: {error}") from error


DecodeError.__module__ = "stocached.image"
