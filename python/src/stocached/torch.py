"""Datasets and the loader for torch. `CachedDataset`: any map-style dataset, cached in shared
memory for all workers and ranks of the machine. `SourceDataset`: a cache that `stocached serve`
fills, without dataset code."""

from __future__ import annotations

from ._datasets.cached_dataset import CachedDataset
from ._datasets.source_dataset import SourceDataset
from ._loader.torch_loader import DataLoader

__all__ = ["CachedDataset", "DataLoader", "SourceDataset"]
