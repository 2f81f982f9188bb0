"""Where prepared samples are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError
from .._samples.schema import Field
from .info import DatasetInfo


class DataStorage(ABC):
    """Keeps the samples of one prepared dataset. They are saved once, in the order of their indices, and loaded any
    number of times in any order.

    `prepare` calls start_preparation, then save_sample for each sample, then finish_preparation. Without the last call
    the dataset is not prepared."""

    @abstractmethod
    def is_prepared(self, info: DatasetInfo | None = None) -> bool:
        """Whether a whole dataset is here: the one of `info`, or any."""

    @abstractmethod
    def start_preparation(self, info: DatasetInfo, *, wait: float | None = 0, restart: bool = False) -> int | None:
        """Begins to take samples, or continues where an interrupted preparation of the same dataset
        stopped: the index of the first sample that is missing. None: another process finished the
        dataset while this one waited for it.

        wait: seconds to wait for another process that prepares it, None: as long as it takes.
        restart: discards what was left of a preparation of other data. Raises BusyError,
        InTheWayError."""

    @abstractmethod
    def save_sample(self, index: int, sample: Any) -> None:
        """Takes the next sample. Raises SchemaError if it does not fit the fields."""

    @abstractmethod
    def finish_preparation(self) -> None:
        """Makes the dataset whole: from now on it is prepared, for all processes."""

    def stop_preparation(self) -> None:
        """Ends a preparation that is not finished; nothing happens after finish_preparation. What
        can be kept for the next one is kept."""
        return

    def discard_preparation(self) -> None:
        """Ends a preparation whose samples are of no use: nothing of it is kept, where the storage
        can do that."""
        self.stop_preparation()

    @abstractmethod
    def load_dataset_info(self) -> DatasetInfo:
        """Of the prepared dataset. Raises NotPreparedError."""

    @abstractmethod
    def load_sample(self, index: int) -> Any:
        """A sample: an array (bytes for a field of dtype bytes), a mapping of them by name where
        there are several fields. It is the caller's own. Raises NotPreparedError,
        SampleIndexError."""

    def load_samples(self, indices: Sequence[int]) -> list[Any]:
        """Several samples."""
        return [self.load_sample(index) for index in indices]

    def load_field(self, name: str) -> npt.NDArray[Any]:
        """One field of all samples, of fixed size, such as the labels that a split is made by: an
        array (samples, *shape)."""
        field = self._field(name)
        if not field.fixed:
            raise InvalidError(f"field {name!r} has shape {field.shape}; only one of fixed size makes an array")
        several = len(self.load_dataset_info().fields) > 1
        return np.stack([sample[name] if several else sample for sample in map(self.load_sample, range(len(self)))])

    def _field(self, name: str) -> Field:
        fields = {field.name: field for field in self.load_dataset_info().schema()}
        if name not in fields:
            raise InvalidError(f"samples have no field {name!r}; theirs are {', '.join(fields)}")
        return fields[name]

    def __len__(self) -> int:
        samples = self.load_dataset_info().samples
        assert samples is not None  # a prepared dataset knows its size
        return samples

    def packer(self) -> Any:
        """An object with pack(sample), whose result save_packed takes. Processes that prepare a part call it before
        they send a sample. Can be pickled. None: samples are sent as they are. Called after start_preparation."""
        return None

    def save_packed(self, index: int, packed: Any) -> None:
        """save_sample of what the packer made."""
        self.save_sample(index, packed)


def check_storage(storage: Any) -> None:
    """Raises InvalidError if the argument storage is no storage, such as the path of a folder."""
    if not callable(getattr(storage, "load_sample", None)):
        raise InvalidError(f"storage={storage!r:.100} is no DataStorage; of a folder, BlockStorage(folder) is one")
