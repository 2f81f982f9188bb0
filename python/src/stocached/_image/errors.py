"""The error for a file that gives no picture."""

from __future__ import annotations

from .._common.errors import BadSampleError, UnsupportedError


class DecodeError(BadSampleError):
    """A file is no picture, or it is broken, cut off, or larger than max_pixels. The message names the file."""


class NoDecoderError(DecodeError, UnsupportedError):
    """A file needs a decoder that is not installed. The sample is not bad, so loaders do not skip it."""


DecodeError.__module__ = "stocached.image"
