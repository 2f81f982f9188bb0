"""Tells the server of a cache what a job reads, when workers read the cache themselves."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from typing import Any

from .._cache.attachment import Attachment
from .._cache.served import announce, announce_reads
from .._common.background import Background
from .._common.errors import StocachedError
from .._datasets.cache_backed import CacheBacked
from .._order.epoch import Shard
from .._order.nodes import Deal
from .._order.order import Order

_EVERY = 0.02  # seconds between two numbers for the server

_log = logging.getLogger("stocached")
_said: set[tuple[str, str]] = set()


def say_unannounced(dataset: Any, shard: Shard | Deal | None) -> None:
    """Logs a warning, once in a program for each cache and reason, if the cache of a dataset keeps what jobs
    read soonest, and a loader cannot tell its server what it reads. shard: that it reads; None: of a foreign
    sampler."""
    if not (isinstance(dataset, CacheBacked) and dataset.cache.policy == "planned"):
        return
    if not dataset.served:
        why = "it loads the samples itself; SourceDataset(name) has the server load them"
    elif dataset.indices is not None:
        why = "the dataset is a Subset, whose samples have other numbers than those of the cache"
    elif shard is None:
        why = "a sampler of the program gives the order; shuffle=True with seed=, and order=, have one to announce"
    elif isinstance(shard, Deal):
        why = "several nodes deal the samples of a batch"
    elif not isinstance(shard.epoch.order, Order):
        why = "weights or a mix give the order, in which a sample has no single position"
    else:
        return
    cache = dataset.cache
    if (cache.name or "", why) not in _said:
        _said.add((cache.name or "", why))
        _log.warning(
            "the cache %s has the policy planned, and this loader does not tell its server what it reads: %s. It "
            "gets all its samples, but the cache keeps those of other jobs (docs/guides/server.md)",
            cache.name,
            why,
        )


class Announcer:
    """Announces the order of one epoch, and how far the training loop is: workers count what they read
    in records of their own. A thread does it, because a server that is away would stop the training
    loop. Without effect where the cache does not keep what is read soonest."""

    def __init__(self, cache: Attachment, shard: Shard | Deal, batch_size: int) -> None:
        self._cache, self._shard, self._batch_size = cache, shard, batch_size
        self._background = Background()
        self._begun = False
        self._used = True  # or not known yet
        self._busy = False  # the thread talks to the server
        self._told = 0.0  # seconds, of the last number

    def begin(self) -> None:
        """Call it when the training loop asks for the first batch. Not before: the epoch before may still go on."""
        if not self._begun:
            self._begun = True
            self._put(0, first=True)

    def gave(self, samples: int, *, complete: bool = False) -> None:
        """samples: of this epoch that the training loop has got."""
        late = not self._busy and time.monotonic() >= self._told + _EVERY
        if self._used and (late or complete):
            self._put(samples)

    def close(self) -> None:
        self._background.close()

    def _put(self, samples: int, *, first: bool = False) -> None:
        self._busy = True
        self._background.put(functools.partial(self._tell, samples, first))

    def _tell(self, samples: int, first: bool) -> None:
        # After an error the library announces the plan on the next connection.
        with contextlib.suppress(StocachedError):
            self._used = not first or announce(self._cache, self._shard, self._batch_size)
            self._used = self._used and announce_reads(self._cache, samples)
        self._told, self._busy = time.monotonic(), False
