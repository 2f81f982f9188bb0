"""The bytes of a block file, as docs/spec/block.md has them. Every constant here is part of the
format."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.checksum import crc32c
from .._common.errors import CorruptError, VersionError

VERSION = 1
ALIGN = 4096  # alignment of blocks and footers
MAX_BLOCK_SAMPLES = 1 << 16
MAX_FILE_SAMPLES = 1 << 20  # a file with as many takes no further block
MAX_BLOCK_BYTES = 1 << 30
MAX_FILE_BYTES = 1 << 50
DEFAULT_BLOCK_BYTES = 8 << 20
DEFAULT_FILE_BYTES = 256 << 20

# A record of the block table.
SPAN = np.dtype([("offset", "<u8"), ("bytes", "<u8"), ("first", "<u8")])
# One of the index.
ENTRY = np.dtype([("offset", "<u8"), ("stored", "<u4"), ("length", "<u4"), ("crc", "<u4"), ("reserved", "<u4")])
ENTRY_STRUCT = struct.Struct("<QIIII")  # the same, for one at a time

_TRAILER = struct.Struct("<QQQQ16sI12sII8s")
TRAILER_BYTES = _TRAILER.size
_BEFORE_CRC = TRAILER_BYTES - 16  # what of it the checksum covers
MAGIC = b"STOCBLK\n"

Records = npt.NDArray[Any]


def aligned(count: int) -> int:
    """The next place where a block may begin."""
    return -(-count // ALIGN) * ALIGN


@dataclass(frozen=True)
class Trailer:
    """What the last bytes of a block file say."""

    first: int  # sample, in the dataset
    samples: int
    blocks: int
    id: bytes
    number: int
    crc: int = 0

    @property
    def footer_bytes(self) -> int:
        return SPAN.itemsize * self.blocks + ENTRY.itemsize * self.samples + TRAILER_BYTES


def encode_footer(trailer: Trailer, spans: Records, entries: Records) -> tuple[bytes, int]:
    """Block table, index and trailer, and the checksum in it."""
    said = (trailer.footer_bytes, trailer.first, trailer.samples, trailer.blocks, trailer.id, trailer.number, bytes(12))
    covered = spans.tobytes() + entries.tobytes() + _TRAILER.pack(*said, 0, 0, b"")[:_BEFORE_CRC]
    crc = crc32c(covered)
    return covered + struct.pack("<II8s", crc, VERSION, MAGIC), crc


def decode_trailer(raw: bytes, file_bytes: int) -> Trailer:
    """The trailer in the last bytes of a file. Raises CorruptError, also if it leads outside the file, and
    VersionError."""
    if len(raw) != TRAILER_BYTES:
        raise CorruptError(f"it has {file_bytes} bytes, too few for a block file")
    footer, first, samples, blocks, identity, number, _, crc, version, magic = _TRAILER.unpack(raw)
    if magic != MAGIC:
        raise CorruptError(f"it does not end in the magic of a block file, but in {magic!r}")
    if version != VERSION:
        raise VersionError(f"it has version {version} of the block format, this package knows {VERSION}")
    trailer = Trailer(first, samples, blocks, identity, number, crc)
    if not 1 <= blocks <= samples <= file_bytes // ENTRY.itemsize or first >= 2**63 - samples:
        raise CorruptError(
            f"its trailer says {samples} samples in {blocks} blocks from sample {first} on, in a file of {file_bytes} bytes"
        )
    if footer != trailer.footer_bytes or footer > file_bytes:
        raise CorruptError(
            f"its trailer says {footer} bytes of footer, want {trailer.footer_bytes}; the file has {file_bytes}"
        )
    return trailer


def check_footer(
    trailer: Trailer, raw: bytes, begin: int, least: int, most: int, compressed: bool
) -> tuple[int, Records]:
    """Checks the block table and the index of a file. Returns the bytes of the largest sample, and the first sample of each
    block. begin: of the footer in the file, which is the end of the blocks. Raises CorruptError, also for a sample below
    `least` or above `most` bytes."""
    spans: Records = np.frombuffer(raw, SPAN, trailer.blocks)
    entries: Records = np.frombuffer(raw, ENTRY, trailer.samples, SPAN.itemsize * trailer.blocks)
    crc = crc32c(raw[:-16])
    if crc != trailer.crc:
        raise CorruptError(f"its footer has CRC-32C {crc:08x}, and says {trailer.crc:08x}")
    if any(raw[-28:-16]):
        raise CorruptError("reserved bytes of its trailer are not 0")
    _check_spans(trailer, spans, begin)
    stored, length = entries["stored"], entries["length"]
    # Of the blocks, among the samples of the file.
    firsts = (spans["first"] - np.uint64(trailer.first)).astype(np.int64)
    # Where each sample has to begin: after those before it in its block.
    ends = np.cumsum(stored, dtype=np.uint64)
    before = ends - stored
    counts = np.diff(firsts, append=trailer.samples)
    wanted = before - np.repeat(before[firsts], counts) + np.repeat(spans["offset"], counts)
    _none(
        entries["offset"] != wanted,
        lambda k: f"its sample {trailer.first + k} says offset {entries['offset'][k]}; want {wanted[k]}",
    )
    last = np.append(firsts[1:], trailer.samples) - 1
    sums = ends[last] - before[firsts]
    _none(
        sums != spans["bytes"],
        lambda k: f"its block {k} says {spans['bytes'][k]} bytes, and its samples take {sums[k]}",
    )
    _none(
        (length < least) | (length > most),
        lambda k: f"its sample {trailer.first + k} has {length[k]} bytes; want {least} to {most}",
    )
    wrong = stored > length if compressed else stored != length
    _none(
        wrong,
        lambda k: f"its sample {trailer.first + k} of {length[k]} bytes takes {stored[k]}, compressed: {compressed}",
    )
    _none(entries["reserved"] != 0, lambda k: f"reserved bytes of its sample {trailer.first + k} are not 0")
    return int(length.max()), spans["first"].copy()


def _check_spans(trailer: Trailer, spans: Records, end: int) -> None:
    """end: of the blocks."""
    offset, size, first = spans["offset"], spans["bytes"], spans["first"]
    _none(
        (offset > end) | (size > end),
        lambda k: f"its block {k} says {size[k]} bytes at {offset[k]}, and blocks end at {end}",
    )
    ends = (offset + size + np.uint64(ALIGN - 1)) // np.uint64(ALIGN) * np.uint64(ALIGN)
    begins = np.append(np.uint64(0), ends[:-1])
    _none(offset != begins, lambda k: f"its block {k} says offset {offset[k]}; want {begins[k]}")
    if ends[-1] != end:
        raise CorruptError(f"its blocks end at {ends[-1]}, and its footer begins at {end}")
    low = np.append(np.uint64(trailer.first), first[:-1] + np.uint64(1))
    wrong = (first < low) | (first >= trailer.first + trailer.samples)
    wrong[0] = first[0] != trailer.first
    _none(
        wrong,
        lambda k: (
            f"its block {k} says first sample {first[k]}; want {low[k]} or more of {trailer.samples} from {trailer.first} on"
        ),
    )


def _none(wrong: npt.NDArray[np.bool_], message: Any) -> None:
    """Raises CorruptError with the message for the first record that is wrong."""
    if wrong.any():
        raise CorruptError(message(int(wrong.argmax())))
