"""The preparation of a dataset, by one process or several."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from .._checks.fills import Fills
from .._checks.randomness import Guard, Remedy
from .._common.errors import InvalidError, NondeterministicDatasetError
from .._files.info import values_of
from .._files.storage import DataStorage, check_storage
from .parts import CheckedPreparer, prepared
from .pictures import preparer_of
from .preparer import DataPreparer

_REMEDY = Remedy(
    "Move what is random to the training, such as augment= of its loader, or have it follow from the index, as numpy.random.default_rng(index) does.",
    "prepare(..., allow_random=True)",
    "the preparer",
)


def prepare(
    preparer: DataPreparer | Any,
    storage: DataStorage,
    *,
    processes: int = 0,
    context: str | None = None,
    wait: bool | float = True,
    restart: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
    allow_random: bool = False,
    _remedy: Remedy = _REMEDY,
) -> bool:
    """Prepares a dataset once. True: this call did it. False: it was there, or another process finished it while this
    one waited.

    If a call is interrupted by Ctrl-C, an exception or kill -9, there is no dataset yet. The next call continues after
    the last block file that is whole. The result is the same to the last byte for any number of processes.

    preparer: a DataPreparer, or a Folder or Shards of stocached.image, or torch's Subset of one. Such a
    dataset gives the fields "image" and "label". The image is the decoded picture; if the dataset
    has neither a size nor steps, it is the bytes of the file.
    processes: how many prepare a part each, while this one writes. 0: this one does both.
    context: how they start: "fork", "forkserver", "spawn"; None: Python's default.
    wait: for another process that prepares the same. True: as long as it takes. False: not at all. Or seconds, and
    then BusyError.
    restart: discards what an interrupted preparation of other data left. Without it that is InTheWayError.
    progress: called after each sample with the number of samples so far, and how many there will be (None: unknown).
    allow_random: stores random samples too. Without it, samples that draw random numbers are loaded a second time. So
    are the first 32 samples, and 1 in 64 of the others, up to 256. If one is random, nothing of the preparation stays.

    Raises NondeterministicDatasetError if a sample is random; what the preparer raises, with the traceback of its
    process; PreparerError if it gives more or fewer samples than it said, or a process dies; SchemaError if a sample
    does not fit the fields; OSError."""
    if not isinstance(processes, int) or processes < 0:
        raise InvalidError(f"processes={processes!r}; 0 for this one, or how many")
    check_storage(storage)
    preparer = preparer_of(preparer)
    if not callable(getattr(preparer, "dataset_info", None)):
        raise InvalidError(
            f"a {type(preparer).__name__} is no DataPreparer, and no Folder or Shards of stocached.image: "
            "write a class whose dataset_info() has the fields, and whose samples() gives the samples of the dataset"
        )
    info = preparer.dataset_info().checked()
    if processes and info.samples is None:
        advice = "give samples= in dataset_info(), or leave out processes="
        raise InvalidError(f"processes={processes} need to know how many samples there are; {advice}")
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
        encoded = values_of(info.schema(), info.variable).encoded
        guard = None if allow_random else Guard(Fills(), _remedy, encoded, _nothing_stays)
        checked = CheckedPreparer(preparer, guard)
        samples: Any = checked.samples(first, info.samples)
        if processes and info.samples is not None and first < info.samples:
            samples = prepared(checked, packer, info, first, min(processes, info.samples - first), context)
        with closing(samples):
            for index, sample in enumerate(samples, first):
                save(index, sample)
                if progress is not None:
                    progress(index + 1, info.samples)
        storage.finish_preparation()
    except NondeterministicDatasetError:
        storage.discard_preparation()
        raise
    finally:
        storage.stop_preparation()
    return True


def _nothing_stays(fills: Fills) -> str:
    return "The preparation is discarded."
