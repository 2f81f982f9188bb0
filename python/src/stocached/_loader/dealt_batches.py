"""The batches of a loader with `affinity=`, which the ranks of a node deal together ahead of time."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .._cache.cache import Cache
from .._cache.named import create_or_attach
from .._common.background import Background
from .._common.errors import StocachedError
from .._order.nodes import Deal

_GROUP = 65536  # indices that a rank deals ahead at a time; in short epochs fewer, so that each rank has some groups
_LEAST_GROUP = 16384
_PATIENCE = 0.1  # seconds that a rank waits for a group; to deal it takes a few milliseconds
_PAUSE = 0.001
# Indices. In a shorter epoch each rank deals for itself, which costs less than the shared cache.
_SHORT = 1 << 18


def dealt_batches(deal: Deal, drop_last: bool) -> Iterator[npt.NDArray[np.int64]]:
    """The samples of one batch of a rank after the other."""
    count = deal.batches(deal.batch_size, drop_last)
    if len(deal) * deal.world_size < _SHORT:
        for number in range(count):
            yield deal.node_batch(number)[deal.local_rank]
        return
    ahead, number = _Ahead(deal), 0
    while number < count:
        some = ahead.batches(number)[: count - number]
        number += len(some)
        yield from some  # in small batches each statement here would cost more than their share of the deal


class _Ahead:
    """Batches that the ranks of a node deal ahead of time, in groups of some batches. They share the groups in
    a cache of their own. Rank r of n ranks deals the groups r, r + n, r + 2n, ... If a group is not there in
    time, because its rank was killed or is late, each rank that needs one of its batches deals this batch, and waits
    for no other group of that rank until one is there."""

    def __init__(self, deal: Deal) -> None:
        self._deal, self._background = deal, Background()
        whole = deal.batch_size * deal.world_size
        group = min(_GROUP, max(_LEAST_GROUP, deal.batches_in_all * whole // deal.local_world_size))
        self._each = max(group // whole, 1)  # batches of a group
        self._groups = -(-deal.batches_in_all // self._each)
        self._next = deal.local_rank  # the next group that this rank deals ahead
        self._window = 2 * deal.local_world_size  # groups
        self._cache: Cache | None = None
        self._own: dict[int, npt.NDArray[np.int64]] = {}  # without the cache
        self._late: set[int] = set()  # local ranks whose groups are not there in time
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

    def batches(self, number: int) -> list[npt.NDArray[np.int64]]:
        """This rank's part of batch `number`, and of those after it that are there too. One thread calls it, for one
        batch after the other."""
        deal, group = self._deal, number // self._each
        last = min(group + self._window, self._groups - 1)
        while self._next <= last:
            if self._next >= group:
                self._background.put(functools.partial(self._make, self._next))
            self._next += deal.local_world_size
        rows = self._rows(group)
        if rows is None:
            return [deal.node_batch(number)[deal.local_rank]]
        first = group * self._each
        mine = list(np.ascontiguousarray(rows[number - first :, deal.local_rank]))[: deal.batches_in_all - number]
        if first + self._each >= deal.batches_in_all:  # the last batch may have fewer samples
            mine[-1] = mine[-1][: len(deal) - (deal.batches_in_all - 1) * deal.batch_size]
        return mine

    def _rows(self, group: int) -> npt.NDArray[np.int64] | None:
        """A group, for which it waits unless its rank is late. None: it is not there in time."""
        owner, pause, until = group % self._deal.local_world_size, _PAUSE, time.monotonic() + _PATIENCE
        while True:
            rows = self._own.pop(group, None)
            if rows is None and self._cache is not None:
                with contextlib.suppress(StocachedError):
                    rows = self._cache.get(group, copy=True)
            if rows is not None:
                self._late.discard(owner)
                return rows
            if owner in self._late:
                return None
            if time.monotonic() > until:
                self._late.add(owner)
            else:
                time.sleep(pause)
                pause *= 2

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
