"""The attributes and methods that a loader uses of a dataset whose samples come from a cache. Needs
no torch, unlike `SourceDataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from .._cache.cache import Cache
from .._cache.gathering import Flags, Indices
from .._cache.served import fetch_and_count
from .._common.errors import ReplacedError
from .._common.reads_ahead import ReadsAhead
from .._samples.tree import Tree
from .notices import Notices
from .thread_hits import ThreadHits


class CacheBacked(ReadsAhead):
    """`CachedSamples`, which fills its cache itself, or `SourceDataset`, whose cache a server
    fills."""

    cache: Cache
    _parts_given: ClassVar[tuple[str, ...]]  # for `only_ours`
    served = False  # a server fills the cache
    timeout: float | None = None  # seconds that a batch from the server may take
    augment: Callable[[Any], Any] | None = None  # the random part of a sample, applied after the cache
    notices: Notices | None = None
    transform: Any = None  # applied to samples of a served cache
    decode: Any = None  # the Decode of a served cache that keeps files
    indices: Indices | None = None  # sample in the cache, by the index of the dataset. None: the same
    thread_hits: ThreadHits

    def attach_again(self) -> bool:
        """Reads, and fills, the cache that was made in place of its own for the same samples after that was removed.
        Returns whether there is one."""
        cache = self.cache._remade()
        if cache is not None:
            self._take(cache)
        return cache is not None

    def _take(self, cache: Cache) -> None:
        self.cache = cache

    def fetch(self, wanted: Indices | list[int], out: Any = None) -> tuple[Any, Flags]:
        """As `fetch_and_count`, of indices in a served cache, and of its successor if the server has replaced it."""
        cache = self.cache
        try:
            return fetch_and_count(cache, wanted, out, self.timeout)
        except ReplacedError:
            if not self.attach_again() and self.cache is cache:  # else another thread has attached meanwhile
                raise
            return fetch_and_count(self.cache, wanted, out, self.timeout)

    def in_cache(self, wanted: Indices) -> Indices:
        """The indices in the cache of samples of the dataset."""
        return wanted

    def gathered_tree(self) -> Tree | None:
        """The structure of a sample, if each of its values is a field of the cache and no transform
        changes it; else None."""
        raise NotImplementedError

    def blank(self) -> Any:
        """A sample of a served cache before transform=, whose values are zero. None: samples differ in size."""
        raise NotImplementedError
