"""torch's Subset, also when torch is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UnsupportedError


def is_subset(dataset: Any) -> bool:
    """Whether a dataset is a Subset of torch, and of no class derived from it."""
    kind = type(dataset)
    return kind.__module__ == "torch.utils.data.dataset" and kind.__name__ == "Subset"


def unwrapped(dataset: Any) -> tuple[Any, Any]:
    """The dataset inside of Subsets, and the indices of its samples; None: it is no Subset."""
    indices: Any = None
    while is_subset(dataset):
        indices = dataset.indices if indices is None else [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return dataset, indices


def as_array(indices: Sequence[Any], samples: int) -> npt.NDArray[np.int64]:
    """Indices of a Subset as numbers from 0 to samples - 1, whatever they are in: a list, a range, an array, a tensor.
    Negative ones count from the end. UnsupportedError: one of them is no whole number, or no sample has it."""
    array = np.asarray(indices)
    if array.size and array.dtype.kind not in "iu":
        raise UnsupportedError(f"indices of the Subset are {array.dtype}, not whole numbers")
    array = array.astype(np.int64)
    array[array < 0] += samples
    outside = array[(array < 0) | (array >= samples)]
    if array.ndim != 1 or outside.size:
        raise UnsupportedError(f"the Subset has indices that its dataset of {samples} samples has not")
    return array
