"""Seeds that a loader draws for its workers at the start of each epoch.

A dataset that iterates over a loader draws such a seed for each of its samples. That does not make
the samples random."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from .generators import kept

_T = TypeVar("_T")
_here = threading.local()


def drawn(draw: Callable[[], _T]) -> _T:
    """The result of `draw`. Within `hidden`, the generators keep their states."""
    if not getattr(_here, "hidden", False):
        return draw()
    with kept():
        return draw()


@contextmanager
def hidden() -> Iterator[None]:
    """Within it, loaders in this thread, ours and torch's, draw base seeds without a change of the
    generators. For one thread at a time."""
    module = sys.modules.get("torch.utils.data.dataloader")
    torchs: Any = getattr(module, "_BaseDataLoaderIter", None)  # its constructor draws the seed, since torch 1.2
    original = getattr(torchs, "__init__", None)

    def begin(iteration: Any, *arguments: Any, **options: Any) -> None:
        drawn(lambda: original(iteration, *arguments, **options))  # type: ignore[misc]

    before, _here.hidden = getattr(_here, "hidden", False), True
    try:
        if torchs is not None:
            torchs.__init__ = begin
        yield
    finally:
        _here.hidden = before
        if torchs is not None:
            torchs.__init__ = original
