"""Values of the program, and names of files, in messages."""

from __future__ import annotations

import functools
import re
from typing import Any


def one_line(value: Any, most: int = 80) -> str:
    """The repr in one line of at most so many characters: that of a torchvision Compose has several lines. Without
    addresses, which differ between processes."""
    text = re.sub(r" at 0x[0-9a-f]+\b", "", " ".join(repr(value).split()))
    return text if len(text) <= most else f"{text[: most - 3]}..."


def name_of(function: Any) -> str:
    """The name of a function. States have it, so it is the same in all processes: of a partial, without arguments."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or one_line(function)


def printable(name: str) -> str:
    """The name of a file for a message: a byte that is not UTF-8 would end print with an error."""
    return name.encode(errors="surrogateescape").decode(errors="replace")
