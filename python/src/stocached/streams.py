"""Contiguous batches: row r of a batch continues where row r of the batch before stopped. For many
files or generators of unequal length: docs/guides/streams.md."""

from __future__ import annotations

from ._streams.batch import StreamBatch
from ._streams.streams import Streams

__all__ = ["StreamBatch", "Streams"]
