"""Some of the samples of a dataset, with numbers of their own."""

from __future__ import annotations

import base64
import contextlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.checksum import crc32c
from .._common.errors import CorruptError, InvalidError, SampleIndexError, VersionError
from .._common.numbers import index_of, number_of, whole

Indices = npt.NDArray[np.int64]


class IndexSet:
    """Which samples of a dataset belong to a part of it. The global index of a sample is that of
    the dataset, its local index its number in this set: 0 for the first.

    The order is the one it was made with; each sample is in it once. Immutable. Iterating gives
    global indices; set[k] is the global index of local k."""

    def __init__(self, indices: Iterable[int], samples: int) -> None:
        """indices: global ones, in local order. samples: of the dataset. Raises InvalidError for
        one that is not in the dataset, or comes twice."""
        array = np.array(indices if isinstance(indices, (np.ndarray, range, list, tuple)) else list(indices))
        if array.size and array.dtype.kind not in "iu":
            raise InvalidError(f"indices are whole numbers, not {array.dtype}")
        self.samples = whole("samples", samples)
        self.indices: Indices = array.astype(np.int64).reshape(-1)
        self.indices.flags.writeable = False
        if self.indices.size and (self.indices.min() < 0 or self.indices.max() >= self.samples):
            wrong = self.indices[(self.indices < 0) | (self.indices >= self.samples)][0]
            raise InvalidError(f"index {wrong} is not in 0..{self.samples - 1}")
        # Local indices by global ones; None where they are in that order already.
        self._order: Indices | None = None
        ascending = self.indices
        if not bool((np.diff(self.indices) > 0).all()):
            self._order = np.argsort(self.indices, kind="stable")
            ascending = self.indices[self._order]
            again = np.flatnonzero(np.diff(ascending) == 0)
            if again.size:
                raise InvalidError(f"index {ascending[again[0]]} comes twice; a sample is once in an index set")
        self._ascending: Indices = ascending

    def __len__(self) -> int:
        return int(self.indices.size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices.tolist())

    def __getitem__(self, local: int) -> int:
        """The global index of a local one. SampleIndexError."""
        k = index_of(local)
        if not -len(self) <= k < len(self):
            raise SampleIndexError(f"local index {k} is out of range; the set has {len(self)} samples")
        return int(self.indices[k])

    def local(self, index: Any) -> int:
        """The local index of a global one. SampleIndexError if the sample is not in the set."""
        index = number_of(index)
        place = int(np.searchsorted(self._ascending, index))
        if place == len(self) or self._ascending[place] != index:
            raise SampleIndexError(f"sample {index} is not in the set")
        return place if self._order is None else int(self._order[place])

    def __contains__(self, index: object) -> bool:
        with contextlib.suppress(InvalidError, SampleIndexError):  # no number, or none of these
            return self.local(index) >= 0
        return False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, IndexSet)
            and self.samples == other.samples
            and np.array_equal(self.indices, other.indices)
        )

    def __hash__(self) -> int:
        return hash((self.samples, self.indices.tobytes()))

    def __repr__(self) -> str:
        return f"<stocached.prepare.IndexSet of {len(self)} of {self.samples} samples>"

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexSet, (self.indices, self.samples)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the differences of neighbours (the first from 0) as little-endian int64,
        deflated by zlib, in base64; crc32c is the CRC-32C of the indices as little-endian int64."""
        steps = np.diff(self.indices, prepend=0).astype("<i8")
        return {
            "format": "stocached-indices",
            "version": 1,
            "samples": self.samples,
            "count": len(self),
            "indices": base64.b64encode(zlib.compress(steps.tobytes(), 6)).decode(),
            "crc32c": f"{self.checksum():08x}",
        }

    @classmethod
    def from_dict(cls, said: Any) -> IndexSet:
        """The inverse of to_dict. CorruptError, VersionError."""
        if not isinstance(said, dict) or said.get("format") != "stocached-indices" or said.get("version") != 1:
            raise VersionError(f"this is no index set of version 1: {str(said)[:100]}")
        try:
            steps = np.frombuffer(zlib.decompress(base64.b64decode(said["indices"], validate=True)), "<i8")
            made = cls(np.cumsum(steps.astype(np.int64)), said["samples"])
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise CorruptError(f"the index set is damaged: {error}") from None
        if len(made) != said.get("count") or f"{made.checksum():08x}" != said.get("crc32c"):
            raise CorruptError(
                f"the index set is damaged: {len(made)} indices with CRC-32C {made.checksum():08x}, and it says {said.get('count')} and {said.get('crc32c')}"
            )
        return made

    def checksum(self) -> int:
        """CRC-32C of the global indices in local order, as little-endian int64: names the set in a
        checkpoint."""
        return crc32c(self.indices.astype("<i8").tobytes())
