"""Datasets that are prepared once, before training: decoded, resized and put into block files of
some hundred MB, of which one sample is one read.

from stocached.prepare import DatasetInfo, DataPreparer, BlockStorage, PreparedDataset, prepare

A DataPreparer makes the samples, a DataStorage keeps them, prepare() has one or several processes
do it, once, even if processes are killed. split() and BlockSampler say which samples are read, and
in which order. NumPy alone is needed."""

from __future__ import annotations

from ._order.block_sampler import BlockSampler
from ._order.indices import IndexSet
from ._order.splits import Split, split
from ._pipes.preparing import DataPreparer, prepare
from ._prepared.block_storage import BlockStorage
from ._prepared.dataset import PreparedDataset
from ._prepared.errors import BusyError, InTheWayError, NotPreparedError, PreparerError
from ._prepared.fingerprint import fingerprint
from ._prepared.info import DatasetInfo
from ._prepared.storage import DataStorage

__all__ = [
    "BlockSampler",
    "BlockStorage",
    "BusyError",
    "DataPreparer",
    "DataStorage",
    "DatasetInfo",
    "InTheWayError",
    "IndexSet",
    "NotPreparedError",
    "PreparedDataset",
    "PreparerError",
    "Split",
    "fingerprint",
    "prepare",
    "split",
]
