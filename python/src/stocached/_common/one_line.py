"""Values of the program in messages of one line."""

from __future__ import annotations

from typing import Any


def one_line(value: Any, most: int = 80) -> str:
    """The repr in one line of at most so many characters: that of a torchvision Compose has several lines."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
