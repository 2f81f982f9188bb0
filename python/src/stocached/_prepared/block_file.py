"""An open block file, and the samples in it."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from typing import Any

import numpy as np

from .._common.checksum import crc32c
from .._common.errors import CorruptError, FormatError, VersionError
from . import zstd
from .layout import ENTRY, ENTRY_STRUCT, SPAN, TRAILER_BYTES, Footer, decode_trailer

_SPANS_READ_AT_ONCE = 1024  # buffers of one preadv: IOV_MAX


class BlockFile:
    """A block file that is open for reading. Its index is mapped: it takes no memory of its own,
    and forked children share it.

    Safe for any number of threads and in forked children: reads have no position. A process that
    truncates the file kills its readers (SIGBUS); writers of ours never do."""

    def __init__(self, path: str, least: int, most: int, compressed: bool) -> None:
        """Raises CorruptError, VersionError and OSError, with the path."""
        self.path = path
        # NONBLOCK: a pipe is refused below, and not waited for.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(self.fd)
            if not stat.S_ISREG(status.st_mode):
                raise FormatError("it is not a regular file")
            self.bytes = status.st_size
            self._stamp = (status.st_size, status.st_mtime_ns)
            self.trailer = decode_trailer(
                os.pread(self.fd, TRAILER_BYTES, max(0, self.bytes - TRAILER_BYTES)), self.bytes
            )
            self.begin = self.bytes - self.trailer.footer_bytes
            self._map_footer()
            self.largest = self.footer.check(least, most, compressed)
        except BaseException as error:
            self.close()
            if isinstance(error, (CorruptError, VersionError, FormatError)):
                raise type(error)(f"{path}: {error}") from None
            raise

    def _map_footer(self) -> None:
        start = self.begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        self._map = mmap.mmap(self.fd, self.bytes - start, mmap.MAP_SHARED, mmap.PROT_READ, offset=start)
        raw = memoryview(self._map)[self.begin - start :]
        self.footer = Footer(self.trailer, raw, self.begin)
        self.first, self.samples, self.blocks = self.trailer.first, self.trailer.samples, self.trailer.blocks
        self._index = raw[SPAN.itemsize * self.blocks :]

    def entry(self, k: int) -> tuple[int, int, int, int]:
        """Of the k-th sample of the file: offset, stored bytes, bytes, checksum."""
        offset, stored, length, crc, _ = ENTRY_STRUCT.unpack_from(self._index, k * ENTRY.itemsize)
        return offset, stored, length, crc

    def read(self, k: int, verify: bool) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of the k-th sample of the file, the caller's own: one pread. Raises
        CorruptError, UnsupportedError, OSError."""
        offset, stored, length, crc = self.entry(k)
        raw = np.empty(stored, np.uint8)
        if stored:
            self._fill([raw], offset, stored)
        return self._unpack(k, raw, offset, length, crc, verify)

    def read_run(self, k: int, count: int, verify: bool) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
        """The bytes of `count` samples that lie side by side in one block, each in memory of its
        own: one preadv for a thousand of them."""
        samples = []
        for begin in range(k, k + count, _SPANS_READ_AT_ONCE):
            entries = [self.entry(j) for j in range(begin, min(begin + _SPANS_READ_AT_ONCE, k + count))]
            raws = [np.empty(stored, np.uint8) for _, stored, _, _ in entries]
            self._fill([raw for raw in raws if raw.size], entries[0][0], sum(raw.size for raw in raws))
            samples += [
                self._unpack(begin + j, raw, offset, length, crc, verify)
                for j, (raw, (offset, _, length, crc)) in enumerate(zip(raws, entries))
            ]
        return samples

    def read_part(self, k: int, at: int, count: int) -> bytes:
        """Some of the bytes of a sample that is not compressed, which no checksum covers."""
        offset, _, _, _ = self.entry(k)
        data = os.pread(self.fd, count, offset + at)
        if len(data) != count:
            raise self._changed()
        return data

    def _fill(self, buffers: list[Any], offset: int, count: int) -> None:
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
        status = os.fstat(self.fd)
        if (status.st_size, status.st_mtime_ns) != self._stamp:
            return self._changed()
        return CorruptError(f"{self.path}: sample {self.first + k}, {stored} bytes at {offset}: {what}")

    def _changed(self) -> CorruptError:
        status = os.fstat(self.fd)
        return CorruptError(
            f"{self.path} has changed since it was opened: it had {self._stamp[0]} bytes, it has {status.st_size}; prepare the dataset again, or open it again"
        )

    def close(self) -> None:
        """Arrays that point into the index keep it mapped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "fd", -1) >= 0:
            close(self.fd)
