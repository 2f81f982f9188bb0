"""What became of a put, and the states of a sample."""

from __future__ import annotations

import enum

from .. import _native


class SetResult(enum.Enum):
    """What became of a put. Only STORED is true."""

    STORED = _native.STORED  # the cache has the sample now
    EXISTS = _native.EXISTS  # the cache has the sample already; the put did nothing
    BUSY = _native.BUSY  # another client is filling the sample, or a clear runs; the put did nothing
    FULL = _native.FULL  # the cache is full, or memory is short; the put did nothing
    OUT = _native.OUT  # the sample can have no slot (policy="first-indices"); the put did nothing

    def __bool__(self) -> bool:
        return self is SetResult.STORED


# By code of the library. Calling the class instead costs a microsecond.
RESULTS = (SetResult.STORED, SetResult.EXISTS, SetResult.BUSY, SetResult.FULL, SetResult.OUT)


class State(enum.IntEnum):
    """States of a sample, the items of `Cache.states()`."""

    EMPTY = _native.STATE_EMPTY  # the cache does not have it
    WRITING = _native.STATE_WRITING  # a client is filling it
    READY = _native.STATE_READY  # the cache has it
    OUT = _native.STATE_OUT  # it can have no slot (policy="first-indices")


SetResult.__module__ = State.__module__ = "stocached"  # where users find them
