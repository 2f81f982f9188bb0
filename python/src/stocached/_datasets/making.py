"""Makes the cache of a dataset, or attaches to it by its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from .._cache import disk, opening, policies
from .._cache.cache import Cache
from .._cache.named import create_or_attach
from .._cache.policies import Policy
from .._checks.derived_fingerprint import Derived
from .._common.errors import CacheNotFoundError, InvalidError, SchemaError
from .._common.sizes import parse_size, show_size
from .._common.warning import warn_user
from .._samples import dtypes
from .._samples.schema import Field
from . import probe, stores

# A variable-size cache without size= has room for samples that are all so many times as large as the largest probed.
_GENEROUS = 1.25
_CONTROL = 64 * 1024**2  # bytes of that cache besides its samples


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """What the user says of the cache to make: the parameters of CachedSamples."""

    size: int | str | None = None
    name: str | None = None
    fingerprint: str | None = None
    variable: bool | None = None
    policy: Policy | None = None
    disk: int | str | None = None
    disk_dir: str | os.PathLike[str] | None = None
    disk_policy: Policy | None = None

    def check(self, store: Any) -> None:
        """Raises InvalidError, which names the option. store: as of CachedSamples."""
        if self.variable not in (None, False, True):
            raise InvalidError(f"variable={self.variable!r}; it must be True, False or None")
        if self.size is not None:
            parse_size(self.size)
        policies.check(self.policy)
        disk.check(self.disk, self.disk_dir, self.disk_policy)
        stores.check(store)
        if store == "encoded" and self.variable is False:
            raise InvalidError('store="encoded" caches files, which differ in size; leave variable=False out')

    def existing(self) -> Cache | None:
        """The cache of this name, to read, if there is one. The caller closes it."""
        if self.name is not None:
            with contextlib.suppress(CacheNotFoundError):
                return Cache(opening.attach(self.name, None, True))
        return None

    def exists(self) -> bool:
        there = self.existing()
        if there is not None:
            there.close()
        return there is not None


OF_CACHE = (*(field.name for field in fields(CacheOptions)), "allow_random", "store")
"""Those of a cache and of how it is filled, as parameters of CachedSamples."""


def make(
    options: CacheOptions,
    samples: int,
    fields: list[Field],
    sample_bytes: list[int],
    derived: Derived | None,
    best: Policy,
    lists: bool,
    check: Callable[[Cache], None],
) -> tuple[Cache, bool]:
    """The cache, and whether it is new.

    sample_bytes: of the probed samples, in rising order. derived: the fingerprint, if the user gives none. best: the
    policy, if there is something to choose and the user names none. lists: whether samples are lists. check: is called
    with a cache that existed, and raises an error if it is not one for these samples."""
    name, policy = options.name, options.policy
    varies, size = bool(options.variable) or not all(field.fixed for field in fields), options.size
    if varies and size is None:
        size = int(sample_bytes[-1] * samples * _GENEROUS) + _CONTROL + (32 if lists else 24) * samples
    slot_bytes = policies.slot_bytes_for(sample_bytes[len(sample_bytes) // 2]) if varies else None
    specs = {field.name: (field.shape, dtypes.NAMES[field.code]) for field in fields}
    fingerprint = options.fingerprint or (None if derived is None else str(derived))

    def create(policy: Policy = policy or "first-come") -> Cache:
        if policy == "planned" and not options.exists():
            raise InvalidError(
                'policy="planned" needs a server, which knows what jobs read: write policy: planned into its configuration '
                "(stocached serve) and read with SourceDataset(name), or take policy=None"
            )
        return opening.create(
            Cache,
            name,
            None,
            samples=samples,
            fields=specs,
            size=size,
            variable=varies,
            policy=policy,
            fingerprint=fingerprint,
            slot_bytes=slot_bytes if policies.evicts(policy) else None,
            lengths=lists,
        )

    cache, made = create_or_attach(name, create, options.fingerprint, derived=True)
    if policy is None and name is None and not varies and cache.slots < samples:
        cache.close()  # there may be no memory for two
        cache = create(best)  # there is something to choose
    if not made:
        check(cache)
    if cache.samples != samples:
        raise SchemaError(
            f"cache {name!r} exists for {cache.samples} samples, the dataset has {samples}; use another name, or remove it (stocached rm {name})"
        )
    if options.variable not in (None, cache.variable):
        kind = "any shape" if cache.variable else "one shape"
        raise SchemaError(
            f"cache {name!r} exists for samples of {kind}, and variable={options.variable} was asked for; leave variable= out, use another name, or "
            f"remove it (stocached rm {name})"
        )
    if policy not in (None, cache.policy):
        raise InvalidError(
            f"cache {name!r} exists with policy={cache.policy!r}, and policy={policy!r} was asked for; leave policy= out, use another name, or "
            f"remove it (stocached rm {name})"
        )
    if not made:
        _say_if_smaller(cache, options.size)
    return cache, made


def _say_if_smaller(cache: Cache, size: int | str | None) -> None:
    """Warns if a cache that exists has no room for all samples, and a larger one was asked for."""
    there = cache._limit_bytes
    if size is None or there == 0 or parse_size(size) <= there:
        return
    stats = cache.stats()
    if (stats.full or stats.evicted) if cache.variable else cache.slots < cache.samples:
        warn_user(
            f"cache {cache.name!r} exists with a size of {show_size(there)}, which does not hold all samples. It keeps "
            f"this size, though size={size!r} was asked for. To make it larger, end its programs and remove it{probe.removal(cache)}"
        )


def add_disk(options: CacheOptions, cache: Cache, derived: Derived | None, store: str) -> None:
    """Opens the disk cache behind a cache, if the user wants one. derived: the fingerprint, if the user gives none.
    Raises InvalidError if the fingerprint is not certain."""
    if options.disk is None or options.disk_dir is None:
        return
    fingerprint = options.fingerprint
    if fingerprint is None:
        fingerprint = str(derived)
        if derived is None or derived.sampled or "?" in fingerprint:
            why = "the dataset is too large to look at all of it"
            if derived is not None and derived.reasons:
                why = derived.reasons[0]
            raise InvalidError(
                f"disk= keeps samples longer than the program runs, and it is not certain which dataset these are ({why}); "
                "give fingerprint=, a text that changes with the data and the transform"
            )
    cache._disk = disk.open_behind(
        cache, options.disk, options.disk_dir, fingerprint, (store,), options.disk_policy or "first-come"
    )


def check_fields(cache: Cache, fields: list[Field]) -> None:
    """Raises SchemaError if the leaves of samples do not fit the fields of the cache, which another program may have
    made."""
    have, named = cache.fields, Derived.parse(cache.fingerprint) is not None  # by the samples of a dataset
    fit = len(have) == len(fields) and all(
        h.code == f.code
        and (h.name == f.name or not named)
        and len(h.shape) == len(f.shape)
        and all(a is None or b is None or a == b for a, b in zip(h.shape, f.shape))
        for h, f in zip(have, fields)
    )
    if not fit:
        raise SchemaError(
            f"samples of the dataset are ({', '.join(map(str, fields))}), those of the cache are ({', '.join(map(str, have))}); "
            f"use another cache or name, or remove the old one{probe.removal(cache)}"
        )
