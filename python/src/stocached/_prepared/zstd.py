"""zstd frames, for datasets with that compression: Python 3.14 has it, older ones need the package
zstandard. Nothing else here does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .._common.errors import UnsupportedError

# Compressors and decompressors of `zstandard` are for one thread at a time.
_local = threading.local()


def check() -> None:
    """Raises UnsupportedError, with the next step, where there is no zstd."""
    _functions()


def compress(data: Any) -> bytes:
    """One frame that says how many bytes are in it, without a checksum."""
    return _functions()[0](data)


def decompress(frame: Any, length: int) -> bytes:
    """What is in a frame; ValueError unless that is `length` bytes."""
    data = _functions()[1](frame, length)
    if len(data) != length:
        raise ValueError(f"{len(data)} bytes come out of it")
    return data


def _functions() -> tuple[Callable[[Any], bytes], Callable[[Any, int], bytes]]:
    found: tuple[Callable[[Any], bytes], Callable[[Any, int], bytes]] | None = getattr(_local, "functions", None)
    if found is None:
        found = _local.functions = _of_package() or _of_python()
    if found is None:
        raise UnsupportedError(
            "the samples of this dataset are compressed with zstd, and this Python cannot: pip install zstandard "
            "(Python 3.14 and later need nothing), or pack the dataset again without compression (stocached pack --compress none)"
        )
    return found


def _of_package() -> tuple[Callable[[Any], bytes], Callable[[Any, int], bytes]] | None:
    try:
        import zstandard
    except ImportError:
        return None
    compressor, decompressor = zstandard.ZstdCompressor(), zstandard.ZstdDecompressor()

    def decompress(frame: Any, length: int) -> bytes:
        try:
            # -1: the frame does not say. Looked at first: it is how much memory is taken.
            said = zstandard.frame_content_size(frame)
            if said not in (-1, length):
                raise ValueError(f"its frame says {said} bytes")
            return bytes(decompressor.decompress(frame, max_output_size=max(1, length), allow_extra_data=False))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None

    return (lambda data: bytes(compressor.compress(data))), decompress


def _of_python() -> tuple[Callable[[Any], bytes], Callable[[Any, int], bytes]] | None:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None

    def decompress(frame: Any, length: int) -> bytes:
        decoder = zstd.ZstdDecompressor()
        try:
            data: bytes = decoder.decompress(bytes(frame), length + 1)
        except zstd.ZstdError as error:
            raise ValueError(str(error)) from None
        if not decoder.eof or decoder.unused_data:
            raise ValueError("it is not one whole frame of that length")
        return data

    return (lambda data: bytes(zstd.compress(bytes(data)))), decompress
