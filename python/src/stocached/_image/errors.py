"""The error for a file that gives no picture."""

from __future__ import annotations

from .._common.errors import StocachedError


class DecodeError(StocachedError, ValueError):
    """A file is no picture, or it is broken, cut off, or larger than max_pixels. The message names the file."""


DecodeError.__module__ = "stocached.image"
