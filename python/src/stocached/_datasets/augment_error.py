"""Says what an error of `augment=` is about: the sample that the function got, its number, and its file. Steps get a
picture, and know neither its number nor its file."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NoReturn

from .._common.errors import BadSampleError, InvalidError
from .._common.notes import no_end, raise_noted
from .._common.one_line import one_line
from .._common.subsets import is_subset
from .cache_backed import CacheBacked

_MOST = 6  # values of a sample in a message


def raise_of_sample(error: Exception, function: Any, sample: Any, dataset: Any, index: Any) -> NoReturn:
    """Raises the error of the function, with the sample that it got. An InvalidError names its file too, if that is
    known."""
    error = no_end(error, _named(function))
    if isinstance(error, BadSampleError):
        raise error.named(_where(function, index)) from error.__cause__  # it says all of the sample
    if type(error) is InvalidError:
        file = _file_of(dataset, index)
        named = InvalidError(f"sample {index}: {error}" if file is None else f"sample {index}: {file}: {error}")
        named.__notes__ = getattr(error, "__notes__", [])  # the stage of a pipe
        named.__cause__, error = error, named
    raise_noted(error, f"stocached: {_named(function)} was called with {_where(function, index)}, {shown(sample)}")


def without_result(function: Any, sample: Any, index: Any) -> InvalidError:
    return InvalidError(
        f"{_where(function, index)}: {_named(function)} returned None for {shown(sample)}: it must return the sample that goes into "
        "the batch. Is a return missing?"
    )


def _named(function: Any) -> str:
    return f"{'' if hasattr(function, 'seeded') else 'augment='}{one_line(function)}"  # seeded: the stages of a pipe


def _where(function: Any, index: Any) -> str:
    return str(getattr(function, "where", "sample {}".format)(index))


def shown(value: Any) -> str:
    """The types in a sample."""
    if isinstance(value, dict):
        return f"a dict of {_listed([f'{key!r}: {_shown(item)}' for key, item in value.items()])}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {_listed(list(map(_shown, value)))}"
    return _shown(value)


def _listed(items: list[str]) -> str:
    return f"({', '.join(items[:_MOST])}{', ...' if len(items) > _MOST else ''})"


def _shown(value: Any) -> str:
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return name if shape is None else f"{name} of {dtype} {tuple(shape)}"


def _file_of(dataset: Any, index: Any) -> str | None:
    folder = sys.modules.get("stocached._image.folder")
    with contextlib.suppress(Exception):  # the error of the step counts
        while True:
            if is_subset(dataset):
                dataset, index = dataset.dataset, dataset.indices[index]
            elif isinstance(dataset, CacheBacked) and not dataset.served:
                dataset = dataset.dataset  # type: ignore[attr-defined]
            else:
                break
        if folder is not None and isinstance(dataset, folder.Decoded):
            return str(dataset.name(index))
    return None
