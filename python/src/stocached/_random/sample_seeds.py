"""Seeds of samples: functions of only (seed, epoch, index)."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def mix(x: int) -> int:
    """The finalizer of splitmix64 (docs/spec/order.md)."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """The seed of a sample's random numbers. It depends only on (seed, epoch, index), not on the
    worker."""
    return mix(((_epoch_seed(seed, epoch) ^ index) + _GOLDEN) & _MASK)


def sample_seeds(seed: int, epoch: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """`sample_seed` of many indices."""
    x = (np.uint64(_epoch_seed(seed, epoch)) ^ indices.view(np.uint64)) + np.uint64(_GOLDEN)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ x >> np.uint64(31)
    return mixed


@functools.lru_cache(maxsize=16)
def _epoch_seed(seed: int, epoch: int) -> int:
    return mix(((mix((seed + _GOLDEN) & _MASK) ^ epoch) + _GOLDEN) & _MASK)
