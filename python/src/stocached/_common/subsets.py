"""torch's Subset, also when torch is not imported."""

from __future__ import annotations

from typing import Any


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
