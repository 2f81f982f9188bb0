"""Several datasets read as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError, SampleIndexError
from .._common.numbers import whole


class Concatenation:
    """Several datasets read as one: the samples of the first, then those of the second, and so on,
    as in torch's ConcatDataset. Immutable.

    samples: of each dataset; 0 for an empty one. Raises InvalidError."""

    def __init__(self, samples: Iterable[int]) -> None:
        self.samples = tuple(whole(f"samples[{d}]", n) for d, n in enumerate(samples))
        if not 0 < sum(self.samples) <= 2**40:
            raise InvalidError(
                f"{len(self.samples)} datasets have {sum(self.samples)} samples; together they have 1 to {2**40}"
            )
        self._begins = np.concatenate([[0], np.cumsum(self.samples, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __repr__(self) -> str:
        return f"Concatenation({list(self.samples)})"

    def __eq__(self, other: object) -> bool:
        return self.samples == other.samples if isinstance(other, Concatenation) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.samples)

    @overload
    def locate(self, indices: int) -> tuple[int, int]: ...
    @overload
    def locate(self, indices: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
    def locate(
        self, indices: int | npt.NDArray[np.integer[Any]]
    ) -> tuple[int, int] | tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The dataset of a sample, and its index in that dataset. Takes one index or an array.
        Raises SampleIndexError."""
        asked = np.asarray(indices)
        outside = (asked < 0) | (asked >= len(self))
        if outside.any():
            raise SampleIndexError(f"index {int(asked[outside].flat[0])} is not in 0..{len(self) - 1}")
        datasets = np.searchsorted(self._begins, asked, side="right") - 1
        local = asked - self._begins[datasets]
        if asked.ndim == 0:
            return int(datasets), int(local)
        return datasets.astype(np.int64, copy=False), local.astype(np.int64, copy=False)

    def index(self, dataset: int, local: int) -> int:
        """The inverse of `locate`, for one sample. Raises SampleIndexError."""
        if not (0 <= dataset < len(self.samples) and 0 <= local < self.samples[dataset]):
            raise SampleIndexError(f"there is no sample {local} of dataset {dataset} of {self!r}")
        return int(self._begins[dataset]) + local
