"""Writes a dataset in block files, as docs/spec/block.md has it: the same samples make the same
files, here and in Go."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.checksum import as_bytes, crc32c
from .._common.errors import CorruptError, InvalidError, VersionError
from . import layout, zstd
from .block_file import BlockFile
from .block_reader import read_document
from .description import NAME, Description, Document, File, file_name
from .folder_writer import FolderWriter, Name
from .info import MAX_SAMPLE_BYTES, values_of
from .layout import ENTRY, SPAN, Trailer, aligned, encode_footer


@dataclass(frozen=True)
class Packed:
    """A sample as it is stored."""

    stored: bytes
    length: int
    crc: int


class Packer:
    """Makes samples ready to be written, which is most of the work: any process can do it. Can be
    pickled."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self._values = values_of(description.fields, description.variable)

    def pack(self, sample: Any) -> Packed:
        """Raises SchemaError if the sample does not fit the schema, UnsupportedError if zstd is not installed."""
        data = b"".join([as_bytes(part) for part in self._values.parts(sample)])
        if len(data) > MAX_SAMPLE_BYTES:
            raise InvalidError(f"a sample of {len(data)} bytes, none has more than {MAX_SAMPLE_BYTES}")
        stored = data
        if self.description.compression == "zstd":
            frame = zstd.compress(data)
            stored = frame if len(frame) < len(data) else data
        return Packed(stored, len(data), crc32c(data))


class BlockWriter(FolderWriter):
    """Writes block files."""

    kind = "block"
    ours = re.compile(r"(?:dataset\.json|(?:\d{5}|[1-9]\d{5,})\.stocblk)(?:\.part)?")

    def __init__(
        self,
        folder: str,
        description: Description,
        notes: Mapping[str, str],
        *,
        wait: float | None = 0,
        restart: bool = False,
    ) -> None:
        """As FolderWriter."""
        self.description, self.notes = description, notes
        self.files: list[File] = []
        self.largest = 0
        self._begin_file()
        super().__init__(folder, description.name, wait=wait, restart=restart)

    @staticmethod
    def name_of(folder: str) -> Name:
        document = read_document(folder)
        return Name(document.id, document.description.fingerprint)

    def _kept(self) -> set[str]:
        return {file.name for file in self.files}

    def _keep(self, restart: bool) -> bool:
        """Takes over the next block file, if it is whole and follows on those before."""
        number = len(self.files)
        said = self.description
        try:
            file = BlockFile(
                os.path.join(self.part, file_name(number)), said.least, said.most, said.compression != "none"
            )
        except (CorruptError, VersionError, FileNotFoundError):
            return False
        with contextlib.closing(file):
            if file.trailer.id != self.name.id:
                if number == 0 and not restart:
                    raise self._of_other_data()
                return False
            if file.first != self.next or file.trailer.number != number:
                return False
            try:
                for k in range(file.samples):
                    file.read(k, True)
            except CorruptError:
                return False
            self.files.append(File(file_name(number), file.bytes, file.samples, file.blocks, f"{file.trailer.crc:08x}"))
            self.next += file.samples
            self.largest = max(self.largest, file.largest)
        return True

    # ---------------------------------------------------------------------------------------- write

    def append(self, packed: Packed) -> None:
        """Writes the next sample. OSError; after one nothing can be written any more."""
        self._check_usable()
        try:
            in_block = len(self._entries) - self._block_first
            if in_block and (
                self._block_bytes + len(packed.stored) > self.description.block_bytes
                or in_block >= layout.MAX_BLOCK_SAMPLES
            ):
                self._end_block()
                if self._end >= self.description.file_bytes or len(self._entries) >= layout.MAX_FILE_SAMPLES:
                    self._end_file()
        except BaseException as error:
            self._error = error
            raise
        self._entries.append((self._end + self._block_bytes, len(packed.stored), packed.length, packed.crc, 0))
        self._block.append(packed.stored)
        self._block_bytes += len(packed.stored)
        self.next += 1
        self.largest = max(self.largest, packed.length)

    def _begin_file(self) -> None:
        self._spans: list[tuple[int, int, int]] = []
        self._entries: list[tuple[int, int, int, int, int]] = []  # as ENTRY has them
        self._end = 0  # end of the blocks written to the file
        self._begin_block()

    def _begin_block(self) -> None:
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._block_first = len(self._entries)

    def _end_block(self) -> None:
        if self._file < 0:
            self._create(file_name(len(self.files)))
        self._spans.append((self._end, self._block_bytes, self.next - (len(self._entries) - self._block_first)))
        padded = aligned(self._block_bytes)
        self._write(b"".join([*self._block, bytes(padded - self._block_bytes)]))
        self._end += padded
        self._begin_block()

    def _end_file(self) -> None:
        samples = len(self._entries)
        trailer = Trailer(self.next - samples, samples, len(self._spans), self.name.id, len(self.files))
        footer, crc = encode_footer(trailer, np.array(self._spans, SPAN), np.array(self._entries, ENTRY))
        self._write(footer)
        name = file_name(len(self.files))
        self._finish_file(name)
        self.files.append(File(name, self._end + len(footer), samples, trailer.blocks, f"{crc:08x}"))
        self._begin_file()

    def _write_rest(self) -> None:
        if self._entries:
            self._end_block()
            self._end_file()
        largest = self.largest if self.description.variable else self.description.most
        document = Document(self.description, self.name.id, self.next, largest, self.notes, tuple(self.files))
        self._create(NAME)
        self._write(document.text())
        self._finish_file(NAME)
