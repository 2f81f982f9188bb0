"""A prepared dataset, or a part of it, as a map-style dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._common.errors import InvalidError
from .._common.numbers import position_of
from .._order.indices import IndexSet
from .fingerprint import fingerprint
from .storage import DataStorage, check_storage


class PreparedDataset:
    """The samples of a storage by index, for torch's DataLoader and ours. A batch is read at once,
    neighbours in one go.

    Can be pickled as its storage and transform can. Any number of threads and forked children."""

    _parts_given = ("storage", "transform")  # for `only_ours`

    def __init__(
        self, storage: DataStorage, indices: IndexSet | None = None, transform: Callable[[Any], Any] | None = None
    ) -> None:
        """indices: the samples that this dataset has; its indices are local ones. None: all of the
        storage.
        transform: is called with each sample, and returns what the caller gets.

        Raises NotPreparedError if the storage is not prepared, InvalidError if the indices are of
        another dataset."""
        check_storage(storage)
        samples = len(storage)
        if indices is not None and indices.samples != samples:
            raise InvalidError(
                f"the indices are of a dataset of {indices.samples} samples, and the storage has {samples}"
            )
        self.storage, self.indices, self.transform = storage, indices, transform
        self._n = samples if indices is None else len(indices)

    @property
    def fingerprint(self) -> str:
        """Names these samples before the transform: by it a cache with a name notices that they are
        others."""
        made = self.storage.load_dataset_info().fingerprint
        return made if self.indices is None else f"{made} {fingerprint(self.indices.indices)}"

    def __len__(self) -> int:
        return self._n

    def _global(self, index: int) -> int:
        k = position_of(index, self._n)
        return k if self.indices is None else int(self.indices.indices[k])

    def __getitem__(self, index: int) -> Any:
        sample = self.storage.load_sample(self._global(index))
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples = self.storage.load_samples([self._global(index) for index in indices])
        return samples if self.transform is None else [self.transform(sample) for sample in samples]

    def __repr__(self) -> str:
        return f"<stocached.prepare.PreparedDataset of {self._n} samples of {self.storage!r}>"
