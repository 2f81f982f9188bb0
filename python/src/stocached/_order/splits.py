"""Splits of a dataset into training, validation and test samples: docs/guides/prepare.md says how,
so that other programs can make the same."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._common.numbers import index_of, real, whole
from .indices import IndexSet, Indices
from .order import Order

_EPOCH = 2**64 - 1  # splits use the order of this epoch, which no training reaches


@dataclass(frozen=True)
class Split:
    """Three sets, each in ascending order. Together they are the dataset, and no two have a sample in common."""

    train: IndexSet  # the samples for training
    validation: IndexSet  # those for validation
    test: IndexSet  # those for the test

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name).to_dict() for name in ("train", "validation", "test")}

    @classmethod
    def from_dict(cls, said: Any) -> Split:
        """The inverse. CorruptError, VersionError, InvalidError."""
        if not isinstance(said, dict) or said.keys() != {"train", "validation", "test"}:
            raise InvalidError(f"this is no split: {str(said)[:100]}")
        return cls(*(IndexSet.from_dict(said[name]) for name in ("train", "validation", "test")))


def split(
    samples: int, validation: float | int = 0.1, test: float | int = 0, *, seed: int = 0, labels: Any = None
) -> Split:
    """Splits samples 0..samples-1 at random, the same each time and everywhere.

    validation, test: how many samples, as a whole number, or a fraction of all as a float (rounded,
    a half up). The rest is for training.
    labels: a number or string for each sample. Then each part has its share of each class, to within one sample.

    Raises InvalidError if more are asked for than there are, or none is left for training."""
    n = whole("samples", samples, 1, 2**40)
    wanted = {"validation": _count("validation", validation, n), "test": _count("test", test, n)}
    if sum(wanted.values()) >= n:
        raise InvalidError(
            f"validation and test take {wanted['validation']} and {wanted['test']} of {n} samples, and none is left for training"
        )
    classes = [np.arange(n, dtype=np.int64)] if labels is None else _classes(labels, n)
    left = [
        members[Order(members.size, "shuffled", seed).epoch(_EPOCH - k).indices()] for k, members in enumerate(classes)
    ]
    parts = []
    for count in wanted.values():
        shares = _shares(count, [members.size for members in left])
        parts.append(np.concatenate([members[:share] for members, share in zip(left, shares)]))
        left = [members[share:] for members, share in zip(left, shares)]
    sets = [IndexSet(np.sort(part), n) for part in (np.concatenate(left), *parts)]
    return Split(*sets)


def _count(what: str, wanted: float | int, n: int) -> int:
    number = real(what, wanted, f"a whole number of samples of 0 to {n}, or a fraction of 0.0 to 1.0", 0, n)
    with contextlib.suppress(TypeError):
        return index_of(wanted)
    if number > 1:
        raise InvalidError(f"{what}={wanted!r}; a fraction is 0.0 to 1.0, and a number of samples has no point")
    return int(np.floor(number * n + 0.5))


def _classes(labels: Any, n: int) -> list[Indices]:
    """The samples of each class in ascending order, classes in ascending order of their labels."""
    array = np.asarray(labels)
    if array.shape != (n,) or array.dtype.hasobject:
        raise InvalidError(
            f"labels have shape {array.shape} and dtype {array.dtype}; want a number or a string for each of {n} samples"
        )
    _, inverse = np.unique(array, return_inverse=True)
    order = np.argsort(inverse, kind="stable").astype(np.int64)
    return np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1)


def _shares(count: int, sizes: list[int]) -> list[int]:
    """`count` divided in the proportion of the sizes: each rounded down, what is left to the
    largest remainders, of equal ones to the first."""
    total = sum(sizes)
    shares = [count * size // total for size in sizes]
    remainders = [count * size % total for size in sizes]
    for k in sorted(range(len(sizes)), key=lambda k: (-remainders[k], k))[: count - sum(shares)]:
        shares[k] += 1
    return shares
