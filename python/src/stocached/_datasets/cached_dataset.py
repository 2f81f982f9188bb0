"""CachedDataset: `CachedSamples` as a dataset of torch."""

from __future__ import annotations

from typing import Any

from .._common.torch_version import torch
from .._workers import set_up
from .cached_samples import CachedSamples


class CachedDataset(CachedSamples, torch.utils.data.Dataset[Any]):
    """Gives the samples of `dataset`, with their Python types. Each is loaded once; later reads
    come from the cache.

    Samples are tensors, arrays, numbers, strings, bytes, or tuples, lists, dicts and dataclasses of
    them, also those of torchvision and tensordict. A few samples are loaded to learn which. Tensors
    come back contiguous and without a gradient. Samples are private copies, from the cache and on a
    miss; in a batch, those of the cache are rows of one private tensor. It keeps up to 64 MiB of the
    memory of dropped batches, for each field and batch size. A sample that does not fit the schema is
    not cached. One warning for all workers says how many, and `stats().passed` counts them.

    The constructor makes the cache, so that forked and spawned workers share it, and loads a few
    samples for that. Where the platform forks workers, it does that in a forked child. So this
    process opens no file that the dataset opens for its first sample, and each worker opens its
    own. Forked workers share a file that the dataset opens in its constructor, as without a cache.
    Concurrency: DataLoader with any number of workers. Ranks share a cache by `name`."""

    _enter_worker = staticmethod(set_up.torch_worker)


CachedDataset.__module__ = "stocached.torch"  # where users find it
