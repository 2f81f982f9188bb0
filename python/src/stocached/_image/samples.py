"""The picture of a sample: the sample itself, or one of the values of a tuple, a list or a mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._common.errors import BYTES, InvalidError
from .errors import DecodeError
from .passes import is_picture

KEY = "__key__"
PICTURES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm")
"""Endings of files."""
PICTURE = "an array or tensor of three dimensions"
FILE = "the bytes or the path of a file, as Decode is the first step"

_OF_TABLES = {"bytes", "path"}  # the keys of a picture in tables of Hugging Face
_BEGIN = {
    b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"GIF8": "gif", b"BM": "bmp", b"II*\0": "tif", b"MM\0*": "tif", b"P5": "ppm",
    b"P6": "ppm",
}  # fmt: skip


def ending_of(data: Any) -> str:
    """The ending of a picture's file by its first bytes; "": it is none."""
    head = bytes(memoryview(data)[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        return "webp"
    return next((ending for begin, ending in _BEGIN.items() if head.startswith(begin)), "")


def _of_table(value: Any) -> bool:
    return type(value) is dict and value.keys() == _OF_TABLES


def _is_null(value: Any) -> bool:
    return value is None or (_of_table(value) and value["bytes"] is None and value["path"] is None)


def _is_table_picture(value: Any) -> bool:
    """Whether a value is a picture of a table, and no sound or other file."""
    if not _of_table(value):
        return False
    return bool(ending_of(value["bytes"] or b"")) or str(value["path"]).lower().rpartition(".")[2] in PICTURES


def changed(
    sample: Any,
    chosen: Callable[[Iterable[Any]], Callable[[Any], bool]],
    change: Callable[[Any], Any],
    step: Any,
    wanted: str,
) -> Any:
    """The sample with change(value) in place of the first value that is accepted. chosen: gives what accepts, from all
    values. Raises InvalidError if there is none, with the class of the step and what is wanted; DecodeError for a null."""
    several = isinstance(sample, (Mapping, tuple, list))
    names = list(sample) if isinstance(sample, Mapping) else []
    values = list(sample.values()) if isinstance(sample, Mapping) else list(sample) if several else [sample]
    keyed, files = isinstance(sample, dict) and KEY in sample, wanted is FILE  # the endings of files name their values
    order = [at for at in range(len(values)) if not (keyed and names[at] == KEY)]
    pictures = [at for at in order if str(names[at]).rpartition(".")[2] in PICTURES] if keyed and files else []
    tables = [at for at in order if _of_table(values[at])] if files else []
    sure = [at for at in tables if _is_table_picture(values[at])]
    # A text beside a picture is no path: beside bytes, a decoded one, or one of a table.
    accepts = chosen([b""] if sure or (pictures and is_picture(values[pictures[0]])) else values)
    found = [at for at in (*pictures[:1], *order) if at in sure or accepts(values[at])]
    found = found or [at for at in tables if not _is_null(values[at])]  # only Pillow knows it, or it is damaged
    if not found:
        by, kind = type(step).__name__, type(sample).__name__
        if files and any(map(is_picture, values)):
            raise InvalidError(
                f"{by}: the picture in {kind} is decoded already: leave Decode out, or write Resize in its place"
            )
        nulls = [str(names[at] if names else at) for at in order if files and _is_null(values[at])]
        if nulls and several:
            raise DecodeError(f"{', '.join(nulls)}: null in place of a picture", BYTES)
        raise InvalidError(f"{by}: no picture in {kind}: it must be {wanted}, or a tuple, list or mapping that has one")
    value = values[found[0]]
    if found[0] in tables:
        value = value["path"] if value["bytes"] is None else value["bytes"]
    values[found[0]] = change(value)
    if names:
        return dict(zip(names, values))
    if isinstance(sample, tuple):
        return type(sample)(*values) if hasattr(sample, "_fields") else tuple(values)
    return values if several else values[0]
