"""The batches of a loader with `affinity=`, which the ranks of a node deal together ahead of time."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .._cache.cache import Cache
from .._cache.named import create_or_attach
from .._common.errors import StocachedError
from .._order.nodes import Deal
from .background import Background

_GROUP = 16384  # indices that a rank deals ahead at a time
# Indices. In a shorter epoch each rank deals for itself, which costs less than the shared cache.
_SHORT = 1 << 18


def dealt_batches(deal: Deal, drop_last: bool) -> Iterator[npt.NDArray[np.int64]]:
    """The samples of one batch of a rank after the other."""
    count = deal.batches(deal.batch_size, drop_last)
    ahead = _Ahead(deal) if len(deal) * deal.world_size >= _SHORT else None
    for number in range(count):
        rows = deal.node_batch(number) if ahead is None else ahead.node_batch(number)
        yield rows[deal.local_rank]


class _Ahead:
    """Batches that the ranks of a node deal ahead of time, in groups of some batches. They share the groups in
    a cache of their own. Rank r of n ranks deals the groups r, r + n, r + 2n, ... If a group is not there in
    time, because its rank was killed or is late, each rank that needs one of its batches deals this batch."""

    def __init__(self, deal: Deal) -> None:
        self._deal, self._background = deal, Background()
        self._each = max(_GROUP // (deal.batch_size * deal.world_size), 1)  # batches of a group
        self._groups = -(-deal.batches_in_all // self._each)
        self._next = deal.local_rank  # the next group that this rank deals ahead
        self._window = 2 * deal.local_world_size  # groups
        self._cache: Cache | None = None
        self._own: dict[int, npt.NDArray[np.int64]] = {}  # without the cache
        self._current: tuple[int, npt.NDArray[np.int64]] | None = None  # the group of the last batch
        if deal.local_world_size > 1:
            with contextlib.suppress(StocachedError):  # no memory for it, or no rights: each rank deals for itself
                name = f"deal-{deal.digest:016x}-{deal.node}-{self._each}"
                self._cache, _ = create_or_attach(name, functools.partial(self._create, name), None)

    def _create(self, name: str) -> Cache:
        deal = self._deal
        return Cache.create(
            name,
            samples=self._groups,
            shape=(self._each, deal.local_world_size, deal.batch_size),
            dtype=np.int64,
            slots=min(self._groups, 4 * deal.local_world_size),
            policy="fifo",
            unlink="last",
        )

    def node_batch(self, number: int) -> npt.NDArray[np.int64]:
        """As `Deal.node_batch`. One thread calls it, for one batch after the other."""
        group = number // self._each
        last = min(group + self._window, self._groups - 1)
        while self._next <= last:
            if self._next > group:
                self._background.put(functools.partial(self._make, self._next))
            self._next += self._deal.local_world_size
        if self._current is None or self._current[0] != group:
            rows = self._own.pop(group, None)
            if rows is None and self._cache is not None:
                with contextlib.suppress(StocachedError):
                    rows = self._cache.get(group, copy=True)
            if rows is None:
                return self._deal.node_batch(number)
            self._current = group, rows
        each = min(self._deal.batch_size, len(self._deal) - number * self._deal.batch_size)
        return self._current[1][number % self._each, :, :each]

    def _make(self, group: int) -> None:
        deal, first = self._deal, group * self._each
        rows = np.zeros((self._each, deal.local_world_size, deal.batch_size), np.int64)
        for number in range(first, min(first + self._each, deal.batches_in_all)):
            dealt = deal.node_batch(number)
            rows[number - first, :, : dealt.shape[1]] = dealt
        if self._cache is None:
            self._own[group] = rows
            return
        with contextlib.suppress(StocachedError):
            self._cache.put(group, rows)
