"""CachedDataset: `CachedSamples` as a dataset of torch."""

from __future__ import annotations

from typing import Any

from .._common.torch_version import torch
from .cached_samples import CachedSamples


class CachedDataset(CachedSamples, torch.utils.data.Dataset[Any]):
    """Gives the samples of `dataset`, each loaded once and from then on out of the cache, with the Python types that they had.

    Samples are tensors, arrays, numbers, strings, bytes, or tuples, lists, dicts and dataclasses of them, also those of torchvision and tensordict;
    which, is learnt from a few. Tensors come back contiguous and without a gradient; on a miss, the sample is what the dataset gave. What the cache
    gives is the caller's own: private copies, within a batch rows of one private tensor. Of the memory of batches that are gone, up to 64 MiB for each field
    and size of a batch is kept for the next ones. A sample that does not fit the schema is passed through uncached; one warning for all workers says
    how many, and `stats().passed` counts them.

    The cache is made here and now, in this process, so that workers share it whether they are forked or spawned, and some samples are loaded for
    that. What this changes in the attributes of the dataset is put back: a file that it opens for its first sample is opened by each worker anew. One
    that it opens in its constructor is shared by forked workers, as without a cache.
    Concurrency: DataLoader with any number of workers. Ranks share a cache by `name`."""


CachedDataset.__module__ = "stocached.torch"  # where users find it
