"""Datasets that are prepared once, before training: decoded, resized and put into block files of
some hundred MB, of which one sample is one read.

from stocached.prepare import DatasetInfo, DataPreparer, BlockStorage, PreparedDataset, prepare

A DataPreparer makes the samples, a DataStorage keeps them, prepare() has one or several processes
do it, once, even if processes are killed. split() and BlockSampler say which samples are read, and
in which order. NumPy alone is needed."""

from __future__ import annotations

from ._block_storage import BlockStorage
from ._dataset import PreparedDataset
from ._errors import BusyError, InTheWayError, NotPreparedError, PreparerError
from ._fingerprint import fingerprint
from ._indices import IndexSet
from ._info import DatasetInfo
from ._memory_storage import MemoryStorage
from ._preparer import DataPreparer
from ._run import prepare
from ._sampler import BlockSampler
from ._split import Split, split
from ._storage import DataStorage

__all__ = [
    "BlockSampler",
    "BlockStorage",
    "BusyError",
    "DataPreparer",
    "DataStorage",
    "DatasetInfo",
    "InTheWayError",
    "IndexSet",
    "MemoryStorage",
    "NotPreparedError",
    "PreparedDataset",
    "PreparerError",
    "Split",
    "fingerprint",
    "prepare",
    "split",
]
