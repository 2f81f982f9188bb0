"""What a loader asks a dataset whose samples come out of a cache. Needs no torch, unlike
`SourceDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._cache.cache import Cache
from .._samples.tree import Tree
from .notices import Notices


class CacheBacked:
    """`CachedSamples`, which fills its cache itself, or `SourceDataset`, whose cache a server
    fills."""

    cache: Cache
    served = False  # a server fills the cache
    timeout: float | None = None  # seconds that a batch from the server may take
    augment: Callable[[Any], Any] | None = None  # the random part of a sample, which comes after the cache
    given = 0  # samples that came out of the cache in this thread
    notices: Notices | None = None

    def gathered_tree(self) -> Tree | None:
        """How a sample is put together, if each of its values is a field of the cache and nothing
        changes it afterwards; else None."""
        raise NotImplementedError
