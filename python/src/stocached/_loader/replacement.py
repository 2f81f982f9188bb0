"""Warns when a library replaces a loader of stocached by torch's loader, which would read the
dataset without the cache and without `augment=`.

Such a library gives the attributes of our loader to torch's constructor. So the check is in that
constructor."""

from __future__ import annotations

import functools
import sys
import warnings
from types import FrameType
from typing import Any

import torch.utils.data

from .._checks.code_names import is_library
from .base import BaseLoader
from .made_caches import living


def watch() -> None:
    """From now on, torch's constructor checks whether the new loader replaces one of ours."""
    kind: Any = torch.utils.data.DataLoader
    init = kind.__init__
    if hasattr(init, "_stocached"):
        return

    @functools.wraps(init)
    def watched(self: Any, dataset: Any, *arguments: Any, **settings: Any) -> None:
        init(self, dataset, *arguments, **settings)
        if not isinstance(self, BaseLoader):
            _inspect(dataset, _caller(self, sys._getframe(1)))

    watched._stocached = True  # type: ignore[attr-defined]
    kind.__init__ = watched


def _caller(loader: Any, frame: FrameType | None) -> str:
    """The module that makes the loader. Skips constructors and wrappers around them: their first
    argument is the loader."""
    while frame is not None and frame.f_code.co_argcount and frame.f_locals.get(frame.f_code.co_varnames[0]) is loader:
        frame = frame.f_back
    return "" if frame is None else frame.f_globals.get("__name__", "")


def _inspect(dataset: Any, caller: str) -> None:
    """caller: the module that makes torch's loader. The program itself gets no warning."""
    library = caller.partition(".")[0]
    if library == "stocached" or not is_library(caller):
        return
    for loader in living():
        lost = [
            name
            for name, there in (
                ("cache", loader._cached not in (None, dataset) and not loader._cached.served),
                ("augment=", loader.augment is not None),
            )
            if there
        ]
        if loader.dataset is dataset and lost:
            _say(library, " and the ".join(lost))
            return


@functools.cache
def _say(library: str, lost: str) -> None:
    warnings.warn(
        f"stocached: {library} has made torch's DataLoader of a dataset that a loader of stocached reads too. Torch's loader does not use the {lost} of "
        "that loader. Give the library stocached.torch.CachedDataset(dataset, size=..., augment=...) with torch's DataLoader",
        stacklevel=4,
    )
