"""Which rank of a job this process is."""

from __future__ import annotations

import os
import sys

from .errors import InvalidError
from .numbers import whole


def ranks_here(rank: int | None = None, world_size: int | None = None, local: int | None = None) -> int:
    """The ranks of this job on this machine, as far as is known. rank, world_size: as of `rank_of`. local: what the program
    says."""
    try:
        _, world_size = rank_of(rank, world_size)
        return min(world_size, local or int(os.environ.get("LOCAL_WORLD_SIZE") or world_size))
    except ValueError:
        return 1


def rank_of(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Rank and number of ranks. They come from the first of these:

    the arguments; torch.distributed if it is initialised; RANK and WORLD_SIZE, which launchers set;
    0 and 1. Raises InvalidError for impossible numbers, and if WORLD_SIZE is set without RANK."""
    if (rank is None) != (world_size is None):
        raise InvalidError(
            f"rank={rank}, world_size={world_size}: give both, or neither to take them from the environment"
        )
    if rank is not None and world_size is not None:
        rank, world_size = whole("rank", rank), whole("world_size", world_size)
        if not rank < world_size:
            raise InvalidError(f"rank={rank} is not in 0..world_size-1, world_size={world_size}")
        return rank, world_size
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    theirs, count = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    try:
        rank, world_size = int(theirs or "0"), int(count or "1")
    except ValueError:
        raise InvalidError(f"RANK={theirs!r}, WORLD_SIZE={count!r}: they must be whole numbers") from None
    if not theirs and world_size > 1:  # each rank would be rank 0, and read the same samples
        raise InvalidError(
            f"WORLD_SIZE={world_size} is set and RANK is not, so the rank of this process is unknown: give rank= and world_size=, or "
            "call torch.distributed.init_process_group() first"
        )
    if not 0 <= rank < world_size:
        raise InvalidError(f"RANK={rank} is not in 0..WORLD_SIZE-1, WORLD_SIZE={world_size}")
    return rank, world_size
