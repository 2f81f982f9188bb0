"""What files have, or a part of it, as a map-style dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from .._common.errors import InvalidError
from .._common.numbers import position_of
from .._order.indices import IndexSet
from .block_storage import BlockStorage
from .description import FORMAT as BLOCK_FORMAT
from .description import NAME, file_name
from .fingerprint import fingerprint
from .items import NOTE, structure_of
from .layout import MAGIC
from .storage import DataStorage, check_storage
from .tar_storage import TarStorage
from .tar_writer import FORMAT as TAR_FORMAT
from .tar_writer import shard_name

_BEGINS = 100  # bytes of dataset.json, which have the format


class PreparedDataset:
    """The samples of a storage by index, for torch's DataLoader and ours. Of the files that a pipe has written: its
    items, with arrays in place of tensors. A batch is read at once, neighbours in one go.

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
        info = storage.load_dataset_info()
        form = info.notes.get(NOTE) if info.kind == "pipe" else None
        self._fields = () if form is None else info.schema()
        self._structure = None if form is None else structure_of(form, self._fields)
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

    def _made(self, sample: Any) -> Any:
        if self._structure is not None:
            sample = self._structure.sample(sample, self._fields)
        return sample if self.transform is None else self.transform(sample)

    def __getitem__(self, index: int) -> Any:
        return self._made(self.storage.load_sample(self._global(index)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [*map(self._made, self.storage.load_samples([*map(self._global, indices)]))]

    def __repr__(self) -> str:
        return f"<stocached.prepare.PreparedDataset of {self._n} samples of {self.storage!r}>"


def dataset_in(folder: str) -> PreparedDataset:
    """What a folder of block files or tar shards has. Raises NotPreparedError, CorruptError, VersionError."""
    tars = os.path.isfile(os.path.join(folder, shard_name(0)))
    return PreparedDataset(TarStorage(folder) if tars else BlockStorage(folder))


def is_written(folder: str) -> bool:
    """Whether .write() or prepare() has made the files of a folder, also if dataset.json is damaged, or empty after a loss of
    power. Others write files of this name too."""
    begins = _part(os.path.join(folder, NAME), 0, _BEGINS)
    first = (file_name(0), BLOCK_FORMAT), (shard_name(0), TAR_FORMAT)
    if begins is not None and any(
        os.path.isfile(os.path.join(folder, name)) and (not begins or f'"{form}"'.encode() in begins)
        for name, form in first
    ):
        return True
    return _part(os.path.join(folder, file_name(0)), -len(MAGIC), len(MAGIC)) == MAGIC


def _part(path: str, at: int, size: int) -> bytes | None:
    """Some bytes of a file, from its end if at is below 0; None: it has none there."""
    try:
        with open(path, "rb") as file:
            file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            return file.read(size)
    except OSError:
        return None
