"""Writes a dataset in block files, as docs/spec/block.md has it: the same samples make the same
files, here and in Go."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.errors import CorruptError, InvalidError, VersionError
from . import _description, _layout, _zstd
from ._block_file import BlockFile
from ._block_reader import PART, read_document
from ._checksum import as_bytes, crc32c
from ._description import Description, Document, File, file_name
from ._errors import BusyError, InTheWayError, NotPreparedError
from ._info import MAX_SAMPLE_BYTES, values_of
from ._layout import ENTRY, SPAN, Trailer, aligned, encode_footer

_POLL = 0.05  # seconds between two looks at a lock that another process has
# Seconds to wait for a lock in any case: a process that was killed keeps it until its last write
# is done.
_LEAST_WAIT = 1.0


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
            frame = _zstd.compress(data)
            stored = frame if len(frame) < len(data) else data
        return Packed(stored, len(data), crc32c(data))


class BlockWriter:
    """Takes samples in the order of their indices, then `finish`. Until then the folder does not exist, and the files
    lie in a folder beside it, with ".part" after its name. The next writer of the same source continues there: `next`
    is the first sample that is missing. For one thread."""

    def __init__(
        self,
        folder: str,
        description: Description,
        notes: Mapping[str, str],
        *,
        wait: float | None = 0,
        restart: bool = False,
    ) -> None:
        """wait: seconds to wait for another writer; None: no limit. restart: discards what an interrupted writer of
        other data left.

        The parent of the folder must exist. `whole`: the dataset was there, or another writer has finished it during
        the wait. Then there is nothing to write, and nothing is open. Raises InTheWayError, BusyError, OSError."""
        self.folder, self.part = os.path.abspath(folder), os.path.abspath(folder) + PART
        self.description, self.notes = description, notes
        self.id = description.identity()
        self.files: list[File] = []
        self.next = 0
        self.largest = 0
        self._file = -1
        self._lock = -1
        self._begin_file()
        self._error: BaseException | None = None
        self.whole = self._check_target()
        if self.whole:
            return
        self._take_lock(wait)
        if self.whole:
            return
        try:
            self._go_on(restart)
        except BaseException:
            self._let_go()
            raise

    # ---------------------------------------------------------------------------------------- begin

    def _check_target(self) -> bool:
        """True if the dataset is there, False if it can be made. InTheWayError."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            raise InTheWayError(f"{self.folder} is not a folder; write elsewhere") from None
        if not names:
            self._check_empty()
            return False
        try:
            document = read_document(self.folder)
        except NotPreparedError:
            raise InTheWayError(f"{self.folder} is a folder with something in it; write elsewhere") from None
        if document.id == self.id:
            return True
        raise InTheWayError(
            f"{self.folder} is a dataset in block files made from other data or otherwise (fingerprint {document.description.fingerprint!r}, want "
            f"{self.description.fingerprint!r}); remove it, or write elsewhere"
        )

    def _check_empty(self) -> None:
        """Raises InTheWayError now, not after the work, if the empty folder cannot be replaced."""
        if os.path.islink(self.folder):
            raise InTheWayError(f"{self.folder} is a symbolic link; write to where it leads")
        if os.path.ismount(self.folder):
            raise InTheWayError(f"{self.folder} is a mount point; write to a folder in it")

    def _take_lock(self, wait: float | None) -> None:
        """Becomes the only writer of the folder that is written to, and makes it."""
        began = time.monotonic()
        limit = max(_LEAST_WAIT, wait) if wait is not None else None
        while True:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.part)
            try:
                self._lock = os.open(self.part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue  # renamed or removed since
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise InTheWayError(f"{self.part} is not a folder; write elsewhere, or remove it") from None
                raise
            _locks.add(self)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The folder may have been renamed before the lock.
                if os.path.samestat(os.fstat(self._lock), os.stat(self.part)):
                    break
            except (BlockingIOError, FileNotFoundError):
                pass
            except BaseException:
                self._let_go()
                raise
            self._let_go()
            if limit is not None and time.monotonic() - began > limit:
                raise BusyError(f"another process is preparing {self.folder}; wait for it (wait=True), or come back")
            time.sleep(_POLL)
            self.whole = self._check_target()
            if self.whole:
                return
        try:
            # Now that no other process can write: the one before may have finished.
            self.whole = self._check_target()
        except BaseException:
            self._remove_empty()
            self._let_go()
            raise
        if self.whole:
            self._remove_empty()
            self._let_go()

    def _remove_empty(self) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self.part)

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        _locks.discard(self)

    def _go_on(self, restart: bool) -> None:
        """Keeps what an interrupted writer left whole, and removes the rest of it."""
        left = list(os.scandir(self.part))
        for entry in left:
            if not _OURS.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                raise InTheWayError(
                    f"{entry.path} is not of an interrupted writer; write elsewhere, or remove {self.part}"
                )
        while self._keep(restart):
            pass
        kept = {file.name for file in self.files}
        for entry in left:
            if entry.name not in kept:
                os.unlink(entry.path)
        os.fsync(self._lock)

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
            if file.trailer.id != self.id:
                if number == 0 and not restart:
                    raise InTheWayError(
                        f"{self.part} was left by an interrupted writer of other data, or with other options; begin again (restart=True), or remove it"
                    )
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

    @property
    def kept(self) -> int:
        """Samples that are in whole block files, and stay if this process dies now."""
        return sum(file.samples for file in self.files)

    def append(self, packed: Packed) -> None:
        """Writes the next sample. OSError; after one nothing can be written any more."""
        if self._error is not None or self._lock < 0:
            raise InvalidError(f"{self.part}: nothing can be written any more: {self._error or 'it was closed'}")
        try:
            in_block = len(self._entries) - self._block_first
            if in_block and (
                self._block_bytes + len(packed.stored) > self.description.block_bytes
                or in_block >= _layout.MAX_BLOCK_SAMPLES
            ):
                self._end_block()
                if self._end >= self.description.file_bytes or len(self._entries) >= _layout.MAX_FILE_SAMPLES:
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
            path = os.path.join(self.part, file_name(len(self.files)) + PART)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._spans.append((self._end, self._block_bytes, self.next - (len(self._entries) - self._block_first)))
        padded = aligned(self._block_bytes)
        _write(self._file, b"".join([*self._block, bytes(padded - self._block_bytes)]))
        self._end += padded
        self._begin_block()

    def _end_file(self) -> None:
        samples = len(self._entries)
        trailer = Trailer(self.next - samples, samples, len(self._spans), self.id, len(self.files))
        footer, crc = encode_footer(trailer, np.array(self._spans, SPAN), np.array(self._entries, ENTRY))
        _write(self._file, footer)
        os.fsync(self._file)
        done, self._file = self._file, -1
        os.close(done)
        name = file_name(len(self.files))
        self._rename(name)
        self.files.append(File(name, self._end + len(footer), samples, trailer.blocks, f"{crc:08x}"))
        self._begin_file()

    def _rename(self, name: str) -> None:
        """Gives a file in the folder its final name, for good."""
        path = os.path.join(self.part, name)
        os.rename(path + PART, path)
        os.fsync(self._lock)

    def finish(self) -> None:
        """Makes the dataset whole: its folder appears. InvalidError when no sample was written,
        InTheWayError when something came in the way; OSError."""
        if self._error is not None or self._lock < 0:
            raise InvalidError(f"{self.part}: it cannot be finished: {self._error or 'it was closed'}")
        if self.next == 0:
            raise InvalidError("a dataset without samples is impossible; write one at least")
        try:
            if self._entries:
                self._end_block()
                self._end_file()
            self._write_document()
            self._appear()
        except BaseException as error:
            self._error = error
            raise
        self.whole = True
        self._let_go()

    def _write_document(self) -> None:
        largest = self.largest if self.description.variable else self.description.most
        document = Document(self.description, self.id, self.next, largest, self.notes, tuple(self.files))
        file = os.open(
            os.path.join(self.part, _description.NAME + PART),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
            0o666,
        )
        try:
            _write(file, document.text())
            os.fsync(file)
        finally:
            os.close(file)
        self._rename(_description.NAME)

    def _appear(self) -> None:
        try:
            # Over an empty folder perhaps, never over anything else.
            os.rename(self.part, self.folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise InTheWayError(
                    f"another program made {self.folder}; the dataset is whole in {self.part}, and can be renamed"
                ) from None
            raise
        above = os.open(os.path.dirname(self.folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(above)
        finally:
            os.close(above)

    def discard(self) -> None:
        """Removes what is written, also by an interrupted writer before; it ends."""
        for file in self.files:
            os.unlink(os.path.join(self.part, file.name))
        self.close()

    def close(self) -> None:
        """Gives up, unless it is finished: what is whole of the dataset stays beside its folder,
        for the next writer."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            with contextlib.suppress(OSError):
                # The next writer does it otherwise.
                os.unlink(os.path.join(self.part, file_name(len(self.files)) + PART))
        if self._lock >= 0:
            self._remove_empty()
            self._let_go()

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


_OURS = re.compile(r"(?:dataset\.json|(?:\d{5}|[1-9]\d{5,})\.stocblk)(?:\.part)?")


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


_locks: weakref.WeakSet[BlockWriter] = weakref.WeakSet()


def _forget() -> None:
    """A forked child must not keep the lock when its parent is gone: it belongs to the open
    description, which both have. Closing it here does not unlock it there."""
    for writer in list(_locks):
        for name in ("_lock", "_file"):
            if getattr(writer, name) >= 0:
                os.close(getattr(writer, name))
                setattr(writer, name, -1)


os.register_at_fork(after_in_child=_forget)
