"""Where the samples of a prepared dataset come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from .._files.info import DatasetInfo


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
