"""The preparation of a dataset, by one process or several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from .._errors import InvalidError
from ._parts import Parts, checked_samples
from ._preparer import DataPreparer
from ._storage import DataStorage


def prepare(
    preparer: DataPreparer,
    storage: DataStorage,
    *,
    processes: int = 0,
    context: str | None = None,
    wait: bool | float = True,
    restart: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> bool:
    """Prepares a dataset once. True: this call did it; False: it was there, or another process finished it while this one waited.

    A call that was interrupted, by Ctrl-C, an exception or kill -9, leaves nothing that could be taken for the whole dataset; the next one goes on
    behind the last block file that is whole, and the result is the same to the last byte, whatever the number of processes.

    processes: that prepare a part each; 0: this one does it. This one writes.
    context: how they are started: "fork", "forkserver", "spawn"; None: Python's default.
    wait: for another process that prepares the same: True as long as it takes, False not at all, or seconds; BusyError when it is not done by then.
    restart: throws away what an interrupted preparation of other data left, which is InTheWayError otherwise.
    progress: called with the samples that are there and how many there will be, None if nobody knows, after each sample.

    Raises what the preparer raises (with the traceback of its process), PreparerError if it gives more or fewer samples than it said or a process
    dies, SchemaError if a sample does not fit the fields, OSError."""
    if not isinstance(processes, int) or processes < 0:
        raise InvalidError(f"processes={processes!r}; 0 for this one, or how many")
    info = preparer.dataset_info().checked()
    if processes and info.samples is None:
        raise InvalidError(f"processes={processes} need to know how many samples there are; give samples= in dataset_info(), or leave out processes=")
    if storage.is_prepared(info):
        return False
    first = storage.start_preparation(info, wait=None if wait is True else float(wait), restart=restart)
    if first is None:
        return False
    try:
        if progress is not None:
            progress(first, info.samples)
        packer = storage.packer() if processes else None
        save: Any = storage.save_sample if packer is None else storage.save_packed
        with closing(_samples(preparer, packer, first, info.samples, processes, context)) as samples:
            for index, sample in enumerate(samples, first):
                save(index, sample)
                if progress is not None:
                    progress(index + 1, info.samples)
        storage.finish_preparation()
    finally:
        storage.stop_preparation()
    return True


def _samples(preparer: DataPreparer, packer: Any, first: int, stop: int | None, processes: int, context: str | None) -> Generator[Any, None, None]:
    """The samples from `first` on, as the packer makes them where there are processes."""
    if stop is not None and first == stop:
        return
    if not processes:
        yield from checked_samples(preparer, first, stop)
        return
    assert stop is not None
    with closing(Parts(preparer, packer, first, stop, min(processes, stop - first), multiprocessing.get_context(context))) as parts:
        yield from parts
