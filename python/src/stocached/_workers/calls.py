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
    yield from samples(_Results(function, n), workers, together, multiprocessing_context=context, order="sequential")


def samples(dataset: Any, workers: int, together: int, **options: Any) -> Iterator[Any]:
    """The samples of a dataset or a pipe in order, read by so many processes, `together` of them in one task. Raises as
    `results`. options: of a Loader."""
    assert loader is not None
    made = loader(
        dataset,
        together,
        num_workers=workers,
        worker="process",
        restart_workers=True,
        collate_fn=list,
        rank=0,  # this rank needs all of them
        world_size=1,
        **options,
    )
    with contextlib.closing(made):
        for some in made:
            yield from some
