"""Classes of a program that say what samples are, and the call that writes them once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from .._checks.randomness import Remedy
from .._common.errors import InvalidError
from .._common.numbers import seconds, whole
from .._prepared.info import DatasetInfo
from .._prepared.storage import DataStorage, check_storage
from .filling import fill
from .pictures import preparer_of

_REMEDY = Remedy(
    "Move what is random to the training, such as augment= of its loader, or have it follow from the index, as numpy.random.default_rng(index) does.",
    "prepare(..., allow_random=True)",
    "the preparer",
    frozen="the storage would keep the first result for ever",
)


class DataPreparer(ABC):
    """Makes the samples of a dataset, once, before training: downloads, decodes, resizes, tokenises.

    Several processes may ask at once, each for another part. So it can be pickled (or inherited by a fork), and opens
    its files in `samples`. It MUST give the same sample for an index each time and in every process, because another
    process may continue an interrupted preparation."""

    @abstractmethod
    def dataset_info(self) -> DatasetInfo:
        """What the dataset is. Each preparation calls it once, in the process that began it. Do here what all parts
        need."""

    @abstractmethod
    def samples(self, first: int, stop: int | None) -> Iterator[Any]:
        """Yields samples first, first + 1, ... stop - 1, each as the fields of dataset_info() say:
        a mapping by name, or the value of a single field.
        stop: None where dataset_info() does not know how many there are; then up to the last
        one."""


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
    processes = whole("processes", processes)
    check_storage(storage)
    preparer = preparer_of(preparer)
    if not callable(getattr(preparer, "dataset_info", None)):
        raise InvalidError(
            f"a {type(preparer).__name__} is no DataPreparer, and no Folder or Shards of stocached.image: "
            "write a class whose dataset_info() has the fields, and whose samples() gives the samples of the dataset"
        )
    return fill(
        preparer,
        storage,
        _remedy,
        processes=processes,
        context=context,
        wait=None if wait is True else 0.0 if wait is False else seconds("wait", wait),
        restart=restart,
        progress=progress,
        allow_random=allow_random,
    )
