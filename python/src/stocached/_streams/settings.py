"""What a stream was made with, and what its iterations have in common. All parts of this package
read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .._memory.batch_pool import BatchPool
from .items import Items
from .reader import Reader


class StreamSettings:
    """The parameters of `Streams`, checked."""

    files: Sequence[Any]
    batch_size: int  # rows of this rank
    lengths: npt.NDArray[np.int64] | None
    shuffle: bool
    seed: int
    ends: Literal["pad", "drop", "cycle"]
    errors: Literal["raise", "skip"]
    num_workers: int
    prefetch_batches: int
    pool_bytes: int | str
    timeout: float
    snapshot_every_n_steps: int
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    rank: int
    world_size: int
    groups: int
    uneven: bool
    reader: Reader
    items: Items | None = None  # what items are made of, once that is known
    batch_pool: tuple[BatchPool, int] | None = None  # pool of the last iteration, and its process

    @property
    def rows(self) -> int:
        """Rows of all ranks."""
        return self.batch_size * self.world_size
