"""Samples that the workers of a loader make, in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

loader: Any = None  # the class Loader, which the package sets: it is on a higher floor


def samples(dataset: Any, workers: int, together: int, **options: Any) -> Iterator[Any]:
    """The samples of a dataset or a pipe in order, made by so many processes, `together` of them in one task. options: of
    a Loader. The dataset need not be pickled if they are forked.

    A process that dies is replaced, and its samples are made again. Raises what the dataset raises, and
    WorkerLostError if processes die too often."""
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
