"""The native API: `Cache`, samples by index in shared memory, as NumPy arrays."""

from __future__ import annotations

from ._cache.cache import Cache, SetResult, State

__all__ = ["Cache", "SetResult", "State"]
