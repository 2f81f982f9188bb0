"""Values of the program, and names of files, in messages."""

from __future__ import annotations

from typing import Any


def one_line(value: Any, most: int = 80) -> str:
    """The repr in one line of at most so many characters: that of a torchvision Compose has several lines."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable(name: str) -> str:
    """The name of a file for a message: a byte that is not UTF-8 would end print with an error."""
    return name.encode(errors="surrogateescape").decode(errors="replace")
