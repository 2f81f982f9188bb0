"""A dataset in block files, open for reading."""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from .._common import errors
from .._common.errors import ClosedError, CorruptError, SampleIndexError, SystemCallError, VersionError
from .block_file import BlockFile
from .description import MAX_BYTES, NAME, Document, parse
from .errors import NotPreparedError
from .folder_writer import PART
from .info import values_of
from .layout import ENTRY

_KEPT = 64 << 20  # bytes of all indexes that stay in memory


def read_document(folder: str) -> Document:
    """dataset.json of a folder. NotPreparedError where there is none, CorruptError, VersionError,
    OSError."""
    path = os.path.join(folder, NAME)
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotPreparedError(_missing(folder)) from None
    except NotADirectoryError:
        raise NotPreparedError(f"{folder} is a file, and a dataset in block files is a folder") from None
    if len(text) > MAX_BYTES:
        raise CorruptError(f"{path} has more than {MAX_BYTES} bytes")
    try:
        return parse(text)
    except (CorruptError, VersionError) as error:
        raise type(error)(f"{path}: {error}") from None


def _missing(folder: str) -> str:
    if os.path.isdir(folder + PART) or folder.endswith(PART):
        return f"{folder}: the dataset is not whole: run again what was preparing it, and it continues where it stopped"
    return f"{folder}: no dataset in block files, such as stocached.prepare and `stocached pack` make"


class BlockReader:
    """Reads the samples of a dataset in block files by index, each with one pread.

    Every file stays open. Safe for any number of threads and in forked children."""

    def __init__(self, folder: str, verify: bool) -> None:
        """Everything but the samples is checked: all indices and all sizes. Raises
        NotPreparedError, CorruptError, VersionError, OSError."""
        self.folder, self.verify = folder, verify
        self.document = read_document(folder)
        self.files: list[BlockFile] = []
        try:
            self._open_files()
        except BaseException:
            self.close()
            raise
        self._firsts = [file.first for file in self.files]
        said = self.document.description
        self.values = values_of(said.fields, said.variable)

    def _open_files(self) -> None:
        document = self.document
        said = document.description
        compressed = said.compression != "none"
        keep = document.samples * ENTRY.itemsize <= _KEPT
        samples = largest = 0
        for number, entry in enumerate(document.files):
            path = os.path.join(self.folder, entry.name)
            try:
                file = BlockFile(path, said.least, document.sample_bytes, compressed, keep)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    hint = "allow more open files (ulimit -n), or make larger files (file_bytes=)"
                    what = f"{error}; a reader keeps all {len(document.files)} block files open: {hint}"
                    raise errors.make(SystemCallError.code, what, error.errno) from None
                raise
            self.files.append(file)
            there = (
                file.bytes,
                file.samples,
                file.blocks,
                f"{file.trailer.crc:08x}",
                file.trailer.id,
                file.first,
                file.trailer.number,
            )
            want = (entry.bytes, entry.samples, entry.blocks, entry.footer_crc32c, document.id, samples, number)
            if there != want:
                raise CorruptError(
                    f"{path} is {there}, and {NAME} says {want} (bytes, samples, blocks, checksum, id, first sample, number)"
                )
            samples, largest = samples + file.samples, max(largest, file.largest)
        if largest != document.sample_bytes:
            raise CorruptError(
                f"{self.folder}: {NAME} says {document.sample_bytes} bytes for the largest sample, and it has {largest}"
            )

    def __len__(self) -> int:
        return self.document.samples

    def find(self, index: int) -> tuple[BlockFile, int]:
        """The file of a sample, and which of its samples it is. SampleIndexError."""
        if not 0 <= index < self.document.samples:
            raise SampleIndexError(f"index {index} is not in 0..{self.document.samples - 1}")
        if not self.files:
            raise ClosedError(f"the dataset {self.folder} was closed")
        file = self.files[bisect_right(self._firsts, index) - 1]
        return file, index - file.first

    def sample(self, index: int) -> Any:
        file, k = self.find(index)
        return self.values.decode(file.read(k, self.verify), True)

    def samples(self, indices: Sequence[int]) -> list[Any]:
        """Samples in the order that was asked for; those that lie side by side in a block are one
        read."""
        order = sorted(range(len(indices)), key=indices.__getitem__)
        found: list[Any] = [None] * len(indices)
        at = 0
        while at < len(order):
            file, k = self.find(indices[order[at]])
            count, most = 1, min(len(order) - at, file.samples - k)
            while count < most and indices[order[at + count]] == file.first + k + count:
                count += 1
            if count == 1:
                found[order[at]] = self.values.decode(file.read(k, self.verify), True)
                at += 1
                continue
            entries = file.entries(k, count)
            ends = (offset + stored for offset, stored, *_ in entries)
            count = next((j for j, (end, (offset, *_)) in enumerate(zip(ends, entries[1:]), 1) if offset != end), count)
            for j, raw in enumerate(file.read_run(k, entries[:count], self.verify)):  # those of one block
                found[order[at + j]] = self.values.decode(raw, True)
            at += count
        return found

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files = []
