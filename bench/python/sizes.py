"""The kinds of samples of the table, with the numbers of bench/measure/size.go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Size:
    name: str
    shape: tuple[int, ...]  # of a sample, uint8
    samples: int  # of the cache
    reads: int  # samples that a run of a copying case reads
    views: int  # samples that a run of a view case reads
    sets: int  # samples that a run of a storing case stores
    batch: int

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape))

    def order(self) -> npt.NDArray[np.int64]:
        return np.random.default_rng(1).permutation(self.samples).astype(np.int64)

    def data(self) -> list[npt.NDArray[np.uint8]]:
        """Samples to store: several, as a loader decodes one after the other, but few enough for
        the processor's cache."""
        rng = np.random.default_rng(2)
        return [rng.integers(0, 256, self.shape, np.uint8) for _ in range(min(16, max(1, (4 << 20) // self.bytes)))]


FULL = (
    Size("image", (3, 224, 224), 4096, 2048, 50_000, 2048, 256),
    Size("small", (3, 32, 32), 1_000_000, 65_536, 50_000, 65_536, 256),
    Size("large", (8, 1024, 1024), 64, 64, 50_000, 64, 8),
)
QUICK = (
    Size("image", (3, 224, 224), 128, 128, 500, 64, 32),
    Size("small", (3, 32, 32), 10_000, 2000, 500, 2000, 256),
    Size("large", (8, 1024, 1024), 4, 4, 500, 4, 2),
)


class Walk:
    """Gives out a random order piece by piece. So no run finds the samples of the run before in the
    processor's cache, if a run reads only a part of them."""

    def __init__(self, order: npt.NDArray[np.int64], n: int) -> None:
        self._order, self._n, self._at = order, n, 0
        self.now = order[:0]
        self.numbers: list[int] = []

    def step(self) -> None:
        if self._at + self._n > len(self._order):
            self._at = 0
        self.now = self._order[self._at : self._at + self._n]
        self.numbers = self.now.tolist()
        self._at += self._n

    def batches(self, size: int) -> list[npt.NDArray[np.int64]]:
        return [self.now[at : at + size] for at in range(0, len(self.now) - size + 1, size)]
