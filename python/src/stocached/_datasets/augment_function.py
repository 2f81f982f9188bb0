"""What `augment=` and `batch_augment=` take: how many arguments, and what the first one is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .._common.errors import InvalidError
from .._common.one_line import one_line


def takes_generator(function: Callable[..., Any], subject: Callable[[], str] | None = None) -> bool:
    """Whether a function of a sample takes a NumPy generator too. Raises InvalidError if it takes something else.

    subject: names it in errors; None: it is augment=."""
    if getattr(function, "takes_generator", False):
        return True  # without a signature, which takes a while
    subject, second = subject or (lambda: f"augment={one_line(function)}"), _required(function)[1:]
    if second not in ([], ["generator"]):
        here = f"The second one here is {second[0]!r}" if second[0] != "generator" else "There is no third one"
        raise InvalidError(
            f"{subject()} takes {1 + len(second)} arguments, and gets one: the whole sample, such as the tuple "
            f"(image, label). Unpack it in the function. A second parameter must be named generator: then it gets a NumPy "
            f"generator for the sample. {here}"
        )
    _check_call(function, subject)
    return bool(second)


def check_alone(function: Callable[..., Any], name: str, what: str) -> None:
    """Raises InvalidError if a function that gets only a sample or a batch takes more."""
    more = [] if getattr(function, "takes_generator", False) else _required(function)[1:]
    if more:
        raise InvalidError(
            f"{name}={one_line(function)} takes {1 + len(more)} arguments, and gets one: {what}. Unpack it in the function; "
            f"{', '.join(more)} must have defaults"
        )


def _check_call(function: Callable[..., Any], subject: Callable[[], str]) -> None:
    """Raises InvalidError for a function that cannot be called with a sample alone."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of a library in C
        return
    if all(each.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD) for each in parameters):
        raise InvalidError(f"{subject()} takes no argument by position, and gets one: the whole sample")
    named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    if named:
        raise InvalidError(
            f"{subject()} needs {', '.join(named)}, and gets the whole sample alone; give "
            f"functools.partial(function, {named[0]}=...)"
        )


def _required(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that a call must give by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of a library in C
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in positional and each.default is each.empty]
