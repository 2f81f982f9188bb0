"""An open block file, and the samples in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._common.checksum import crc32c
from .._common.errors import CorruptError, FormatError, VersionError
from .._common.local_file import pread, stamp_of
from . import zstd
from .layout import ENTRY, ENTRY_STRUCT, SPAN, TRAILER_BYTES, check_footer, decode_trailer

Entry = tuple[int, int, int, int, int]
_SPANS_READ_AT_ONCE = 1024  # buffers of one preadv: IOV_MAX


class BlockFile:
    """A block file that is open for reading. Nothing of it is mapped: a mapped page that cannot be read ends the process
    (SIGBUS).

    Safe for any number of threads and in forked children: reads have no position."""

    def __init__(self, path: str, least: int, most: int, compressed: bool, keep: bool = False) -> None:
        """keep: the index stays in memory, else it is read for each sample, which takes some microseconds.

        Raises CorruptError, VersionError and OSError, with the path."""
        self.path = path
        # NONBLOCK: a pipe is refused below, and not waited for.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(self.fd)
            if not stat.S_ISREG(status.st_mode):
                raise FormatError("it is not a regular file")
            self.bytes = status.st_size
            self._stamp = stamp_of(status)
            self.trailer = decode_trailer(
                pread(self.fd, max(0, self.bytes - TRAILER_BYTES), TRAILER_BYTES, path), self.bytes
            )
            self.begin = self.bytes - self.trailer.footer_bytes
            self.first, self.samples, self.blocks = self.trailer.first, self.trailer.samples, self.trailer.blocks
            self._entries = self.begin + SPAN.itemsize * self.blocks  # where the index begins
            raw = pread(self.fd, self.begin, self.trailer.footer_bytes, path)
            if len(raw) != self.trailer.footer_bytes:
                raise self._changed()
            self._kept = raw[SPAN.itemsize * self.blocks :] if keep else None
            # firsts: of the blocks.
            self.largest, self.firsts = check_footer(self.trailer, raw, self.begin, least, most, compressed)
        except BaseException as error:
            self.close()
            if isinstance(error, (CorruptError, VersionError, FormatError)):
                raise type(error)(f"{path}: {error}") from None
            raise

    def entries(self, k: int, count: int) -> list[Entry]:
        """Of samples of the file: offset, stored bytes, bytes, checksum, and 0."""
        at, size = k * ENTRY.itemsize, count * ENTRY.itemsize
        raw = pread(self.fd, self._entries + at, size, self.path) if self._kept is None else self._kept[at : at + size]
        if len(raw) != size:
            raise self._changed()
        return [*ENTRY_STRUCT.iter_unpack(raw)]

    def read(self, k: int, verify: bool) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of the k-th sample of the file, the caller's own. Raises CorruptError, UnsupportedError, OSError."""
        kept = self._kept
        entry = self.entries(k, 1)[0] if kept is None else ENTRY_STRUCT.unpack_from(kept, k * ENTRY.itemsize)
        offset, stored, length, crc, _ = entry
        raw = np.empty(stored, np.uint8)
        if stored:
            self._fill([raw], offset, stored)
        return self._unpack(k, raw, offset, length, crc, verify)

    def read_run(self, k: int, entries: list[Entry], verify: bool) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
        """The bytes of the samples from the k-th on that have these entries, each in memory of its own. They lie side by side
        in one block: one preadv for a thousand of them."""
        samples = []
        for begin in range(0, len(entries), _SPANS_READ_AT_ONCE):
            part = entries[begin : begin + _SPANS_READ_AT_ONCE]
            raws = [np.empty(stored, np.uint8) for _, stored, *_ in part]
            self._fill([raw for raw in raws if raw.size], part[0][0], sum(raw.size for raw in raws))
            samples += [
                self._unpack(k + begin + j, raw, offset, length, crc, verify)
                for j, (raw, (offset, _, length, crc, _)) in enumerate(zip(raws, part))
            ]
        return samples

    def parts(self, at: int, count: int) -> Iterator[bytes]:
        """Some of the bytes of each sample, if they are not compressed. No checksum covers them."""
        for begin in range(0, self.samples, _SPANS_READ_AT_ONCE):
            for offset, *_ in self.entries(begin, min(_SPANS_READ_AT_ONCE, self.samples - begin)):
                data = pread(self.fd, offset + at, count, self.path)
                if len(data) != count:
                    raise self._changed()
                yield data

    def _fill(self, buffers: list[Any], offset: int, count: int) -> None:
        try:
            got = os.preadv(self.fd, buffers, offset) if buffers else 0
            while got < count:  # more than 2 GiB come in pieces, and a file that was cut ends
                rest, skip = [], got
                for buffer in buffers:
                    rest.append(buffer[min(skip, buffer.size) :])
                    skip -= min(skip, buffer.size)
                more = os.preadv(self.fd, [buffer for buffer in rest if buffer.size], offset + got)
                if more == 0:
                    raise self._changed()
                got += more
        except OSError as error:
            error.filename = error.filename or self.path
            raise

    def _unpack(
        self, k: int, raw: np.ndarray[Any, Any], offset: int, length: int, crc: int, verify: bool
    ) -> np.ndarray[Any, np.dtype[np.uint8]]:
        sample = raw
        if raw.size < length:
            try:
                sample = np.frombuffer(bytearray(zstd.decompress(raw.data, length)), np.uint8)
            except ValueError as error:
                raise self._damaged(k, raw.size, offset, f"it does not decompress to {length} bytes: {error}") from None
        if verify:
            found = crc32c(sample)
            if found != crc:
                raise self._damaged(
                    k, raw.size, offset, f"its bytes have CRC-32C {found:08x}, the index says {crc:08x}"
                )
        return sample

    def _damaged(self, k: int, stored: int, offset: int, what: str) -> CorruptError:
        if stamp_of(os.fstat(self.fd)) != self._stamp:
            return self._changed()
        return CorruptError(f"{self.path}: sample {self.first + k}, {stored} bytes at {offset}: {what}")

    def _changed(self) -> CorruptError:
        status = os.fstat(self.fd)
        return CorruptError(
            f"{self.path} has changed since it was opened: it had {self._stamp[0]} bytes, it has {status.st_size}; prepare the dataset again, or open it again"
        )

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "fd", -1) >= 0:
            close(self.fd)
