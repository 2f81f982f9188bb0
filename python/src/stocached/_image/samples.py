"""The picture of a sample: the sample itself, or one of the values of a tuple, a list or a mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._common.errors import InvalidError
from .passes import is_picture

KEY = "__key__"
PICTURES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm")
"""Endings of files."""
PICTURE = "an array or tensor of three dimensions"
FILE = "the bytes or the path of a file, as Decode is the first step"

_OF_TABLES = {"bytes", "path"}  # the keys of a picture in tables of Hugging Face


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
    for key, value in sample.items() if wanted is FILE and isinstance(sample, dict) else ():
        if type(value) is dict and value.keys() == _OF_TABLES:
            return {**sample, key: change(value["path"] if value["bytes"] is None else value["bytes"])}
    several = isinstance(sample, (Mapping, tuple, list))
    values = sample.values() if isinstance(sample, Mapping) else sample if several else [sample]
    keyed = isinstance(sample, dict) and KEY in sample  # the endings of files name their values
    pictures = [name for name in sample if str(name).rpartition(".")[2] in PICTURES] if keyed and wanted is FILE else []
    decoded = bool(pictures) and is_picture(sample[pictures[0]])
    accepts = chosen([b""] if decoded else values)  # a text beside a decoded picture is no path, as beside bytes
    if pictures and accepts(sample[pictures[0]]):
        return {**sample, pictures[0]: change(sample[pictures[0]])}

    def first(value: Any) -> Any:
        if found[0] or not accepts(value):
            return value
        found[0] = True
        return change(value)

    made: Any
    if isinstance(sample, Mapping):
        made = {key: value if keyed and key == KEY else first(value) for key, value in sample.items()}
    elif several:
        made = [first(value) for value in sample]
        if isinstance(sample, tuple):
            made = type(sample)(*made) if hasattr(sample, "_fields") else tuple(made)
    else:
        made = first(sample)
    if not found[0]:
        by, kind = type(step).__name__, type(sample).__name__
        if wanted is FILE and any(map(is_picture, values)):
            raise InvalidError(
                f"{by}: the picture in {kind} is decoded already: leave Decode out, or write Resize in its place"
            )
        raise InvalidError(f"{by}: no picture in {kind}: it must be {wanted}, or a tuple, list or mapping that has one")
    return made
