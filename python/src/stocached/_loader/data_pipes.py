"""Supports DataPipes as torch's loader does: each rank and worker gets its shard of a
`sharding_filter`, and all of them shuffle alike. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch.utils.data import IterDataPipe, MapDataPipe, graph_settings
from torch.utils.data.graph import traverse_dps

from .._common.errors import InvalidError


def is_pipe(dataset: Any) -> bool:
    return isinstance(dataset, (IterDataPipe, MapDataPipe))


@dataclass
class Epoch:
    """The settings of pipes for an epoch. shared_seed: of all random numbers in them, the same for
    all ranks and workers; None: they draw none."""

    rank: int
    world_size: int
    shared_seed: int | None

    def seed(self, pipe: Any) -> None:
        if self.shared_seed is not None:
            graph_settings.apply_random_seed(pipe, torch.Generator().manual_seed(self.shared_seed))

    def shard(self, pipe: Any, worker: int, workers: int) -> None:
        """A rank has every n-th sample of all, a worker every n-th sample of its rank."""
        graph_settings.apply_sharding(pipe, workers * self.world_size, worker * self.world_size + self.rank)


class Pipes:
    """The pipes of one loader. Rank 0 sends its seed to the others in a separate process group, as
    in torch's loader."""

    def __init__(self, dataset: Any, workers: int, *, threads: bool, cached: bool) -> None:
        self._draws = isinstance(dataset, IterDataPipe)
        self._group: Any = None
        self._world: Any = None  # the process group that the ranks were in when this one was made
        if threads and workers > 1 and _has_shards(dataset):
            raise InvalidError(
                f'num_workers={workers} with worker="thread" and a DataPipe with sharding: the threads share it, and it has one shard a process; use '
                'worker="process", or num_workers=1'
            )
        if cached and _has_shards(dataset):
            raise InvalidError(
                "cache=, size= and name= with a DataPipe with sharding: samples are cached by their index, and each worker gives another sample for one index"
            )

    def epoch(self, generator: torch.Generator | None) -> Epoch:
        """The settings of the epoch that begins. Draws a random number where torch's loader
        does."""
        distributed = torch.distributed
        ranks = distributed.is_available() and distributed.is_initialized()
        seed = None
        if self._draws:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=generator)
            if ranks:
                distributed.broadcast(drawn, src=0, group=self._ranks())
            seed = int(drawn.item())
        return Epoch(distributed.get_rank(), distributed.get_world_size(), seed) if ranks else Epoch(0, 1, seed)

    def _ranks(self) -> Any:
        world = torch.distributed.group.WORLD
        if self._world is not world:
            self._world, self._group = world, torch.distributed.new_group(backend="gloo")
        return self._group


def _has_shards(pipe: Any) -> bool:
    pipes = graph_settings.get_all_graph_pipes(traverse_dps(pipe))
    return any(callable(getattr(one, "apply_sharding", None)) for one in pipes)
