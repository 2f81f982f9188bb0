"""Arrays of unlike shapes, made alike for a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.errors import InvalidError


@dataclass
class Padding:
    """A collate function that first pads the arrays of samples to the largest extent of each dimension.

    pad: the value, or a value for each key of samples that are dicts, whose other arrays stay as they are.
    collate: makes the batch."""

    pad: Any
    collate: Callable[[Sequence[Any]], Any]

    def __call__(self, samples: Sequence[Any]) -> Any:
        return self.collate(_padded(samples, self.pad))


def _padded(samples: Sequence[Any], pad: Any) -> list[Any]:
    first = samples[0]
    if isinstance(first, Mapping):
        values = pad if isinstance(pad, Mapping) else dict.fromkeys(first, pad)
        columns = {key: _padded([sample[key] for sample in samples], values[key]) for key in first if key in values}
        return [{**sample, **{key: column[k] for key, column in columns.items()}} for k, sample in enumerate(samples)]
    if isinstance(pad, Mapping):
        raise InvalidError(f"pad={pad!r:.100} names keys, and items are no dicts, but {type(first).__name__}")
    if isinstance(first, (tuple, list)):
        sides = [_padded(column, pad) for column in zip(*samples)]
        return [
            type(sample)(*side) if hasattr(sample, "_fields") else type(sample)(side)
            for sample, side in zip(samples, zip(*sides))
        ]
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    if not isinstance(first, (np.ndarray, tensor)) or len({tuple(sample.shape) for sample in samples}) == 1:
        return list(samples)
    if len({sample.ndim for sample in samples}) > 1:
        raise InvalidError(
            f"pad={pad!r}: arrays of a batch have {sorted({sample.ndim for sample in samples})} dimensions"
        )
    return [_grown(sample, np.max([each.shape for each in samples], axis=0).tolist(), pad) for sample in samples]


def _grown(array: Any, shape: list[int], pad: Any) -> Any:
    made = np.full(shape, pad, array.dtype) if isinstance(array, np.ndarray) else array.new_full(shape, pad)
    made[tuple(map(slice, array.shape))] = array
    return made
