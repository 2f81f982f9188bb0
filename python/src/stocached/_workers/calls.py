"""Calls of one function by the workers of a loader, whose results come in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

loader: Any = None  # the class Loader, which stocached.pipes sets: it is on a higher floor


class _Results:
    """A dataset: sample k is function(k)."""

    def __init__(self, function: Callable[[int], Any], n: int) -> None:
        self._function, self._n = function, n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Any:
        return self._function(index)


def results(
    function: Callable[[int], Any], n: int, workers: int, *, together: int = 1, context: Any = None
) -> Iterator[Any]:
    """function(0), ..., function(n - 1), by so many processes. It need not be pickled if they are forked.

    together: calls of one task. context: how processes start; None: as those of a loader. A process that dies is
    replaced, and its calls are made again. Raises what the function raises, and WorkerLostError if they die too often."""
    assert loader is not None
    made = loader(
        _Results(function, n),
        together,
        num_workers=workers,
        worker="process",
        restart_workers=True,
        collate_fn=list,
        order="sequential",
        rank=0,  # this rank needs all of them
        world_size=1,
        multiprocessing_context=context,
    )
    with contextlib.closing(made):
        for some in made:
            yield from some
