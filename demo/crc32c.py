"""CRC-32C of many samples at once in NumPy: the checksum that the readers in Go and C compute
too."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

POLYNOMIAL = 0x82F63B78  # reflected
CHUNK = 256  # bytes whose tables fit into the processor's cache
ONES = np.uint32(0xFFFFFFFF)


def _byte_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


BYTE = _byte_table()


def _past_zeros(crc: npt.NDArray[np.uint32], count: int) -> npt.NDArray[np.uint32]:
    """The registers after `count` zero bytes."""
    for _ in range(count):
        crc = crc >> np.uint32(8) ^ BYTE[crc & np.uint32(255)]
    return crc


# A CRC is linear. The CRC of a chunk is the XOR of the contributions of its bytes, each by value
# and place. The CRC of all chunks follows from the CRCs of the chunks.
PLACES = np.stack([_past_zeros(BYTE, CHUNK - 1 - k) for k in range(CHUNK)]).ravel()
PAST_CHUNK = [_past_zeros(np.arange(256, dtype=np.uint32) << np.uint32(8 * k), CHUNK) for k in range(4)]


def crc32c(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The checksum of the bytes of each row, at least four bytes."""
    data = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    bare = data.shape[1]
    chunks = -(-bare // CHUNK)
    padded = np.zeros((len(rows), chunks * CHUNK), np.uint8)  # leading zeros change nothing while the register is 0
    padded[:, -bare:] = data
    padded[:, padded.shape[1] - bare :][:, :4] ^= 255  # as if the register had begun with ones
    result = np.zeros(len(rows), np.uint32)
    each = np.empty((len(rows), chunks), np.uint32)
    places = np.arange(CHUNK, dtype=np.intp) * 256
    for k, row in enumerate(padded):
        each[k] = np.bitwise_xor.reduce(PLACES[row.reshape(chunks, CHUNK) + places], axis=1)
    for chunk in range(chunks):
        moved = np.zeros(len(rows), np.uint32)
        for k, table in enumerate(PAST_CHUNK):
            moved ^= table[result >> np.uint32(8 * k) & np.uint32(255)]
        result = moved ^ each[:, chunk]
    return result ^ ONES
