"""Creates a named cache, or attaches to it if another process has created it: for ranks that start
together."""

from __future__ import annotations

from collections.abc import Callable

from .._checks.derived_fingerprint import Derived
from .._common.errors import CacheExistsError, CacheNotFoundError, FingerprintError
from . import opening
from .cache import Cache

_TRIES = 100  # each of create and attach, as other processes may create and remove the cache in between


def create_or_attach(
    name: str | None, create: Callable[[], Cache], fingerprint: str | None, *, derived: bool = False
) -> tuple[Cache, bool]:
    """The cache, and whether this call created it.

    A cache that exists must have this fingerprint, or none if it is None. derived: with None, a
    cache with a derived fingerprint is accepted too."""
    if name is None:
        return create(), True
    for attempt in range(_TRIES):
        try:
            return create(), True
        except CacheExistsError:
            if attempt == _TRIES - 1:
                raise
        try:
            cache = Cache(opening.attach(name, fingerprint, False))
        except CacheNotFoundError:
            continue  # another process has removed it since
        if fingerprint is None and cache.fingerprint is not None and not (derived and Derived.parse(cache.fingerprint)):
            raise FingerprintError(
                f"cache {name!r} has the fingerprint {cache.fingerprint!r} and none was asked for; pass fingerprint={cache.fingerprint!r} if it is yours, "
                "else another name"
            )
        return cache, False
    raise AssertionError("unreachable")
