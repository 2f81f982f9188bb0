"""Which datasets, steps and orders run no function of the program."""

from __future__ import annotations

from typing import Any


def only_ours(thing: Any) -> bool:
    """Whether it is of this package, and so is each part that its class names in `_parts_given`, which a program gives it.
    None is no code at all. A class that the program derives from one of this package is the program's."""
    if thing is None:
        return True
    if type(thing) in (list, tuple):  # a class derived from these may have code of the program
        return all(map(only_ours, thing))
    kind = type(thing)
    ours = kind.__module__.partition(".")[0] == "stocached" and hasattr(kind, "_parts_given")
    return ours and all(only_ours(getattr(thing, part)) for part in kind._parts_given)
