"""The picture of a sample: the sample itself, or one of the values of a tuple, a list or a mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._common.errors import InvalidError

KEY = "__key__"
PICTURES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm")
"""Endings of files."""
PICTURE = "an array or tensor of three dimensions"
FILE = "the bytes or the path of a file, as Decode is the first step"


def changed(
    sample: Any,
    chosen: Callable[[Iterable[Any]], Callable[[Any], bool]],
    change: Callable[[Any], Any],
    step: Any,
    wanted: str,
) -> Any:
    """The sample with change(value) in place of the first value that is accepted. chosen: gives what accepts, from all
    values. Raises InvalidError if there is none, with the class of the step and what is wanted."""
    found = [False]
    if isinstance(sample, dict) and KEY in sample:  # the endings of files name their values
        pictures = [name for name in sample if str(name).rpartition(".")[2] in PICTURES]
        if wanted is FILE and pictures and chosen(sample.values())(sample[pictures[0]]):
            return {**sample, pictures[0]: change(sample[pictures[0]])}
    several = isinstance(sample, (Mapping, tuple, list))
    values = sample.values() if isinstance(sample, Mapping) else sample if several else [sample]
    accepts = chosen(values)

    def first(value: Any) -> Any:
        if found[0] or not accepts(value):
            return value
        found[0] = True
        return change(value)

    made: Any
    if isinstance(sample, Mapping):
        made = {key: first(value) for key, value in sample.items()}
    elif several:
        made = [first(value) for value in sample]
        if isinstance(sample, tuple):
            made = type(sample)(*made) if hasattr(sample, "_fields") else tuple(made)
    else:
        made = first(sample)
    if not found[0]:
        raise InvalidError(
            f"{type(step).__name__}: no picture in {type(sample).__name__}: it must be {wanted}, "
            "or a tuple, list or mapping that has one"
        )
    return made
