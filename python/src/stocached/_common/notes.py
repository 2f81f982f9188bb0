"""Errors of the user's code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn, TypeVar

_E = TypeVar("_E", bound=BaseException)


def no_end(error: _E, who: str) -> _E | RuntimeError:
    """What an error of a function of the program is raised as. A StopIteration would end an epoch in silence, so it becomes a
    RuntimeError, which names whose it is."""
    if isinstance(error, StopIteration):
        made = RuntimeError(f"{who} raised StopIteration({error})").with_traceback(error.__traceback__)
        made.__cause__ = error
        return made
    return error


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
