"""Seeds of samples: functions of only (seed, epoch, index)."""

from __future__ import annotations

import functools

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def mix(x: int) -> int:
    """The finalizer of splitmix64 (docs/spec/order.md)."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """The seed of a sample's random numbers. It depends only on (seed, epoch, index), not on the
    worker. C computes the same (docs/spec/workers.md)."""
    return mix(((epoch_seed(seed, epoch) ^ index) + _GOLDEN) & _MASK)


@functools.lru_cache(maxsize=16)
def epoch_seed(seed: int, epoch: int) -> int:
    """The part of a sample's seed that all samples of an epoch share."""
    return mix(((mix((seed + _GOLDEN) & _MASK) ^ epoch) + _GOLDEN) & _MASK)


def chain(seed: int, *words: int) -> int:
    """`chain` of docs/spec/order.md."""
    return chained(mix((seed + _GOLDEN) & _MASK), *words)


def chained(key: int, *words: int) -> int:
    """The key of more words: `chain` of docs/spec/order.md goes on from there."""
    for word in words:
        key = mix(((key ^ word) + _GOLDEN) & _MASK)
    return key
