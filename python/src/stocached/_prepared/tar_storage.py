"""A prepared dataset in tar shards."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from typing import Any

import numpy as np

from .._common.errors import CorruptError, SampleIndexError
from .._common.local_file import LocalFile
from .._common.sizes import parse_size
from .._shards.tar_index import Members, members_of
from .._shards.tar_members import member_value
from .description import NAME
from .folder_storage import FolderStorage
from .info import DatasetInfo
from .layout import DEFAULT_FILE_BYTES
from .tar_writer import TarDocument, TarWriter, tar_document


class TarStorage(FolderStorage):
    """A folder of shards that webdataset reads. A sample is saved as a mapping from the endings of its members to their bytes;
    "__key__" names it, else its number does. A load is one read, and gives the values of the members.

    The first load of a shard opens it. Any number of threads and forked children may load. Can be pickled."""

    writes = TarWriter
    _parts_given = ()  # for `only_ours`

    def __init__(self, folder: str | os.PathLike[str], *, file_bytes: int | str = DEFAULT_FILE_BYTES) -> None:
        """folder: as of BlockStorage. file_bytes: a shard with so many bytes takes no further sample."""
        self.folder, self.file_bytes = os.path.abspath(os.fspath(folder)), parse_size(file_bytes, "file_bytes")
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()  # guards the opening
        self._writer = None
        self._open: tuple[TarDocument, list[LocalFile], list[Members], list[int]] | None = None

    def _document(self, info: DatasetInfo) -> TarDocument:
        return TarDocument(info.kind, info.fingerprint, self.file_bytes)

    def _new_writer(self, info: DatasetInfo, wait: float | None, restart: bool) -> TarWriter:
        return TarWriter(self.folder, self._document(info), wait=wait, restart=restart)

    def save_sample(self, index: int, sample: Any) -> None:
        writer, members = self._writing(index), dict(sample)
        writer.append(members.pop("__key__", f"{index:09d}"), members)

    def _opened(self) -> tuple[TarDocument, list[LocalFile], list[Members], list[int]]:
        with self._lock:
            if self._open is None:
                document = tar_document(self.folder)
                paths = [os.path.join(self.folder, name) for name in document.shards]
                members = [members_of(path) for path in paths]
                ends = np.cumsum([len(each.starts) - 1 for each in members]).tolist()
                if sum(ends[-1:]) != document.samples:
                    raise CorruptError(
                        f"{os.path.join(self.folder, NAME)} says {document.samples} samples, and its shards have "
                        f"{sum(ends[-1:])}; write the dataset again"
                    )
                files = [LocalFile(path, each.stamp) for path, each in zip(paths, members)]
                self._open = document, files, members, ends
            return self._open

    def load_dataset_info(self) -> DatasetInfo:
        document, _, members, _ = self._opened()
        fields = {name: ((None,), "bytes") for each in members for name in each.fields}
        return DatasetInfo(fields, document.samples, document.fingerprint, True, {}, document.kind)

    def load_sample(self, index: int) -> dict[str, Any]:
        _, files, all_members, ends = self._open or self._opened()
        if not 0 <= index < ends[-1]:
            raise SampleIndexError(f"index {index} is not in 0..{ends[-1] - 1}")
        k = bisect_right(ends, index)
        members = all_members[k]
        local = index - (ends[k - 1] if k else 0)
        own = slice(*members.starts[local : local + 2])
        places, sizes = members.places[own].tolist(), members.sizes[own].tolist()
        data = files[k].read(places[0], places[-1] + sizes[-1] - places[0])
        names = [members.fields[number] for number in members.numbers[own]]
        starts = [at - places[0] for at in places]
        return {name: member_value(name, data[at : at + size]) for name, at, size in zip(names, starts, sizes)}

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "file_bytes": self.file_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"<stocached.prepare.TarStorage {self.folder}>"
