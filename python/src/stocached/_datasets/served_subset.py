"""torch's Subset of a dataset whose cache a server fills, as loaders read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._cache.cache import Cache
from .._cache.gathering import Indices
from .._common.errors import SampleIndexError, UnsupportedError
from .._common.subsets import as_array, unwrapped
from .._samples.tree import Tree
from .cache_backed import CacheBacked


class ServedSubset(CacheBacked):
    """Gives the samples of the Subset. Orders and random numbers depend on the index in the Subset, as for other
    datasets; the cache has the sample by its index in the whole dataset."""

    served = True
    _parts_given = ("_whole",)

    def __init__(self, dataset: Any, whole: Any, indices: Sequence[Any]) -> None:
        """dataset: the user's. whole, indices: of `unwrapped`. UnsupportedError: as `as_array`."""
        self.dataset, self._whole = dataset, whole
        self.indices: Indices = as_array(indices, len(whole))
        self.cache, self.timeout = whole.cache, whole.timeout
        self.transform, self.decode = whole.transform, whole.decode
        self.thread_hits = whole.thread_hits

    def _take(self, cache: Cache) -> None:
        self.cache = self._whole.cache = cache

    def in_cache(self, wanted: Indices) -> Indices:
        n = len(self.indices)
        outside = wanted[(wanted < 0) | (wanted >= n)]
        if outside.size:
            raise SampleIndexError(f"index {outside[0]} is out of range; the Subset has {n} samples")
        return self.indices[wanted]

    def gathered_tree(self) -> Tree | None:
        tree: Tree | None = self._whole.gathered_tree()
        return tree

    def blank(self) -> Any:
        return self._whole.blank()

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self._whole[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self._whole.__getitems__(self.indices[indices].tolist())

    def __repr__(self) -> str:
        return f"<Subset of {len(self)} samples of {self._whole!r}>"


def served_subset(dataset: Any) -> ServedSubset | None:
    """A dataset as a ServedSubset; None if it is none, or if its indices are no indices of samples."""
    whole, indices = unwrapped(dataset)
    if indices is None or not getattr(whole, "served", False):
        return None
    try:
        return ServedSubset(dataset, whole, indices)
    except UnsupportedError:
        return None
