"""A prepared dataset in block files."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import CorruptError
from .._common.sizes import parse_size
from .._samples import dtypes
from . import zstd
from .block_reader import BlockReader
from .block_writer import BlockWriter, Packed, Packer
from .description import Description
from .folder_storage import FolderStorage
from .info import DatasetInfo
from .layout import DEFAULT_BLOCK_BYTES, DEFAULT_FILE_BYTES


class BlockStorage(FolderStorage):
    """A folder of block files (docs/spec/block.md), as `stocached pack` makes them and a server reads them. A sample is
    one pread, and its checksum is compared.

    The first load opens the files, and they stay open. Any number of threads and forked children may load. A process
    that unpickles a storage opens the files again; CorruptError if the folder has another dataset by then. One thread
    at a time may prepare."""

    writes = BlockWriter
    _parts_given = ()  # for `only_ours`

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        verify: bool = True,
        compression: str = "none",
        block_bytes: int | str = DEFAULT_BLOCK_BYTES,
        file_bytes: int | str = DEFAULT_FILE_BYTES,
    ) -> None:
        """folder: appears when the dataset is whole. Until then the work is in a folder beside it, with ".part" after
            its name.
        verify: compares each sample that is loaded with its checksum.
        The others are for preparing:
        compression: "none", or "zstd" for each sample that it makes smaller. Before Python 3.14 that needs the package
            zstandard.
        block_bytes: a multiple of 4096. A larger sample has a block of its own.
        file_bytes: a file with so many bytes takes no further block. An interrupted preparation may have to do as much
            again."""
        self.folder = os.path.abspath(os.fspath(folder))
        self.verify = bool(verify)
        self.compression = compression
        self.block_bytes, self.file_bytes = parse_size(block_bytes, "block_bytes"), parse_size(file_bytes, "file_bytes")
        self._lock = threading.Lock()  # guards the opening
        self._reader: BlockReader | None = None
        self._packer: Packer | None = None
        # Checksum of the dataset that was open where this was pickled.
        self._known: bytes | None = None

    # -------------------------------------------------------------------------------------- prepare

    def _document(self, info: DatasetInfo) -> Description:
        info = info.checked()
        settings = self.compression, self.block_bytes, self.file_bytes
        return Description(info.schema(), info.variable, *settings, info.kind, info.fingerprint).checked()

    def _new_writer(self, info: DatasetInfo, wait: float | None, restart: bool) -> BlockWriter:
        description = self._document(info)
        if description.compression == "zstd":
            zstd.check()
        self._packer = Packer(description)
        return BlockWriter(self.folder, description, dict(info.notes), wait=wait, restart=restart)

    def save_sample(self, index: int, sample: Any) -> None:
        self._writing()
        assert self._packer is not None
        self.save_packed(index, self._packer.pack(sample))

    def packer(self) -> Packer | None:
        self._writing()
        return self._packer

    def save_packed(self, index: int, packed: Packed) -> None:
        self._writing(index).append(packed)

    # ----------------------------------------------------------------------------------------- load

    @property
    def reader(self) -> BlockReader:
        """The open dataset."""
        return self._reader or self._open()

    def _open(self) -> BlockReader:
        with self._lock:
            if self._reader is None:
                reader = BlockReader(self.folder, self.verify)
                if self._known is not None and self._known != _state(reader):
                    reader.close()
                    raise CorruptError(
                        f"{self.folder} is another dataset than when this was pickled; make a new storage"
                    )
                self._reader = reader
            return self._reader

    def load_dataset_info(self) -> DatasetInfo:
        return self.reader.document.info()

    def load_sample(self, index: int) -> Any:
        return (self._reader or self._open()).sample(index)

    def load_samples(self, indices: Sequence[int]) -> list[Any]:
        """Several samples; those that lie side by side are one read."""
        return self.reader.samples(indices)

    def load_field(self, name: str) -> npt.NDArray[Any]:
        """As DataStorage.load_field. If samples have one size and are not compressed, it reads only the bytes of the
        field, which no checksum covers."""
        reader = self.reader
        said = reader.document.description
        if said.variable or said.compression != "none":
            return super().load_field(name)
        field = self._field(name)
        if field.code == dtypes.BYTES:
            return super().load_field(name)
        raw = b"".join(part for file in reader.files for part in file.parts(field.offset, field.bytes))
        return np.frombuffer(bytearray(raw), field.dtype).reshape(
            len(reader), *(dim for dim in field.shape if dim is not None)
        )

    def __len__(self) -> int:
        return len(self.reader)

    def block_samples(self) -> int:
        """Samples of a block, on average if they differ in size: a good block_size of a BlockSampler."""
        reader = self.reader
        if reader.document.description.variable or reader.document.description.compression != "none":
            return -(-len(reader) // sum(file.blocks for file in reader.files))
        # Except the last one, blocks of samples of one size have as many.
        firsts = reader.files[0].firsts
        return int(firsts[1] - firsts[0]) if firsts.size > 1 else reader.files[0].samples

    def close(self) -> None:
        """Closes the files; the next load opens them again. No thread may be loading."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def __getstate__(self) -> dict[str, Any]:
        state = {key: getattr(self, key) for key in ("folder", "verify", "compression", "block_bytes", "file_bytes")}
        state["_known"] = self._known if self._reader is None else _state(self._reader)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._reader = self._writer = self._packer = None

    def __repr__(self) -> str:
        return f"<stocached.prepare.BlockStorage {self.folder}>"


def _state(reader: BlockReader) -> bytes:
    return reader.document.text()
