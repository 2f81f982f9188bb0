"""Several datasets read as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.errors import InvalidError, SampleIndexError
from .._common.numbers import whole


@dataclass(unsafe_hash=True)
class Concatenation:
    """Several datasets read as one: the samples of the first, then those of the second, and so on,
    as in torch's ConcatDataset. Immutable.

    samples: of each dataset; 0 for an empty one. Raises InvalidError."""

    samples: Any  # an iterable of numbers; here a tuple

    def __post_init__(self) -> None:
        self.samples = tuple(whole(f"samples[{d}]", n) for d, n in enumerate(self.samples))
        if not 0 < sum(self.samples) <= 2**40:
            raise InvalidError(
                f"{len(self.samples)} datasets have {sum(self.samples)} samples; together they have 1 to {2**40}"
            )
        self._begins = np.concatenate([[0], np.cumsum(self.samples, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    def locate(self, index: int) -> tuple[int, int]:
        """The dataset of a sample, and its index in that dataset. Raises SampleIndexError."""
        if not 0 <= index < len(self):
            raise SampleIndexError(f"index {index} is not in 0..{len(self) - 1}")
        dataset = int(self._begins.searchsorted(index, side="right")) - 1
        return dataset, int(index - self._begins[dataset])

    def index(self, dataset: int, local: int) -> int:
        """The inverse of `locate`, for one sample. Raises SampleIndexError."""
        if not (0 <= dataset < len(self.samples) and 0 <= local < self.samples[dataset]):
            raise SampleIndexError(f"there is no sample {local} of dataset {dataset} of {self!r}")
        return int(self._begins[dataset]) + local
