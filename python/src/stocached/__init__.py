"""one cache of training samples in shared memory for all processes of a machine.

    from stocached import Cache                 # the native API: NumPy
    from stocached import Loader                # batches of a dataset, cached: NumPy
    from stocached import SharedCache           # the calls of the stocaching library: torch
    from stocached.torch import DataLoader      # torch's DataLoader, with the cache as its transport
    from stocached.torch import CachedDataset   # wraps a map-style dataset: torch
    from stocached.torch import SourceDataset   # reads what a server fills: torch

docs/guides/python.md shows how to use them.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from . import _native
from ._cache.cache import Cache, SetResult, State
from ._cache.stats import Stats
from ._common.errors import (
    BadSampleError,
    CacheExistsError,
    CacheMemoryError,
    CacheNotFoundError,
    CachePermissionError,
    CacheTimeoutError,
    ClientsError,
    ClosedError,
    CorruptError,
    FetchError,
    FingerprintError,
    FormatError,
    InvalidError,
    LostError,
    NondeterministicDatasetError,
    NoServerError,
    ReadOnlyError,
    ReplacedError,
    SampleIndexError,
    SchemaError,
    StateError,
    StocachedError,
    StreamError,
    SystemCallError,
    UnsupportedError,
    VersionError,
    WorkerLostError,
)
from ._common.load_time import LoadTime
from ._common.sizes import get_shm_size
from ._formats.registry import file_format
from ._loader.advise import Advice, advise
from ._loader.numpy_loader import Loader
from ._loader.progress import progress
from ._loader.stats import LoaderStats
from ._order.order import Order
from ._pipes.pipe import Pipe, mix, source
from ._workers import calls
from ._workers.worker_info import get_worker_info

if TYPE_CHECKING:
    from .shared_cache import SharedCache

calls.loader = Loader  # lower floors do not import it

__version__ = _native.version().decode()

__all__ = [
    "Advice",
    "BadSampleError",
    "Cache",
    "CacheExistsError",
    "CacheMemoryError",
    "CacheNotFoundError",
    "CachePermissionError",
    "CacheTimeoutError",
    "ClientsError",
    "ClosedError",
    "CorruptError",
    "FetchError",
    "FingerprintError",
    "FormatError",
    "InvalidError",
    "LoadTime",
    "Loader",
    "LoaderStats",
    "LostError",
    "NoServerError",
    "NondeterministicDatasetError",
    "Order",
    "Pipe",
    "ReadOnlyError",
    "ReplacedError",
    "SampleIndexError",
    "SchemaError",
    "SetResult",
    "SharedCache",
    "State",
    "StateError",
    "Stats",
    "StocachedError",
    "StreamError",
    "SystemCallError",
    "UnsupportedError",
    "VersionError",
    "WorkerLostError",
    "advise",
    "file_format",
    "get_shm_size",
    "get_worker_info",
    "mix",
    "progress",
    "source",
]


def _has_torch() -> bool:
    try:
        return sys.modules.get("torch") is not None or importlib.util.find_spec("torch") is not None
    except ModuleNotFoundError:  # a finder of the program says that it is missing
        return False


if not _has_torch():  # `from stocached import *` and help() would raise its error
    __all__.remove("SharedCache")


_ELSEWHERE = {  # names of other modules that a program may look for here
    "stocached.torch": "CachedDataset DataLoader SourceDataset",
    "stocached.image": "CenterCrop ColorJitter Compose Decode DecodeError Folder Normalize RandomCrop RandomErasing "
    "RandomHorizontalFlip RandomResizedCrop Resize Shards ToDtype convert decode",
    "stocached.streams": "StreamBatch Streams",
    "stocached.order": "Epoch Node Shard",
    "stocached.prepare": "BlockSampler BlockStorage BusyError DataPreparer DataStorage DatasetInfo InTheWayError "
    "IndexSet NotPreparedError PreparedDataset PreparerError Split fingerprint split",
    "stocached.lightning": "DataModule",
}


def __getattr__(name: str) -> Any:
    if name == "SharedCache":  # imports torch, which the rest of the package does without
        from .shared_cache import SharedCache

        return SharedCache
    module = next((module for module, names in _ELSEWHERE.items() if name in names.split()), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"{name} is not in {__name__!r}, but in {module!r}: from {module} import {name}"
    # `from stocached import` would replace the text of an AttributeError by its own.
    importing = sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap"
    raise ImportError(text, name=name) if importing else AttributeError(text)


def __dir__() -> list[str]:
    return sorted(__all__)
