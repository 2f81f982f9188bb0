"""Tells the server of a cache what a job reads, when workers read the cache themselves."""

from __future__ import annotations

import contextlib
import functools
import time

from .._cache.attachment import Attachment
from .._cache.served import announce, announce_reads
from .._common.errors import StocachedError
from .._order.epoch import Shard
from .._order.nodes import Deal
from .background import Background

_EVERY = 0.02  # seconds between two numbers for the server


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
