"""Notes in errors of the user's code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn


@contextlib.contextmanager
def noted(note: str, kind: type[Exception] = Exception) -> Iterator[None]:
    """Errors of the kind inside get this note; "": none."""
    try:
        yield
    except kind as error:
        if not note:
            raise
        raise_noted(error, note)


def raise_noted(error: Exception, note: str) -> NoReturn:
    """Raises the error, which is being handled, with a note. Before Python 3.11, another one of its type whose message
    has the note."""
    if hasattr(error, "add_note"):
        error.add_note(note)
        raise error
    try:  # Python 3.10
        made = type(error)(f"{error}\n{note}")
    except Exception:  # its constructor takes other arguments
        raise error from None
    raise made from error
