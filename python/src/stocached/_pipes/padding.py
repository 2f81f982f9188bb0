"""How the items of a batch are put together; arrays of unlike shapes are made alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._common.notes import raise_noted
from .._samples.keys import check_keys


@dataclass
class Batching:
    """The collate function of a stage. Its errors name the stage.

    where: the stage and its line. collate: makes the batch. by_default: as the loader does.
    pad: first pads the arrays of samples to the largest extent of each dimension: the value, or a value for each key of
    samples that are dicts, whose other arrays stay as they are. None: it does not."""

    where: str
    collate: Callable[[Sequence[Any]], Any]
    by_default: bool
    pad: Any = None

    def __call__(self, samples: Sequence[Any]) -> Any:
        try:
            if (self.by_default or self.pad is not None) and any(sample is None for sample in samples):
                raise InvalidError("a batch has no place for None")
            return self.collate(samples if self.pad is None else _padded(samples, self.pad))
        except Exception as error:
            raise_noted(error, f"stocached: in {self.where}{self._why(samples)}")

    def _why(self, samples: Sequence[Any]) -> str:
        none = next((k for k, sample in enumerate(samples) if sample is None), None)
        if none is not None:
            return f": item {none} of these {len(samples)} is None. Is a return missing in a function above?"
        if not self.by_default:
            return ""
        return (
            f", of {len(samples)} items, which must be alike; pad= is for arrays of unlike shapes, and collate= makes "
            "batches of any items"
        )


def _padded(samples: Sequence[Any], pad: Any) -> list[Any]:
    first = samples[0]
    if isinstance(first, Mapping):
        values = pad if isinstance(pad, Mapping) else dict.fromkeys(first, pad)
        if unknown := [key for key in values if key not in first]:
            raise InvalidError(f"pad= names the key {unknown[0]!r}, and items have {', '.join(map(repr, first))}")
        check_keys(samples)
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
