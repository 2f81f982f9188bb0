"""The parameters of our loaders beyond torch's: their list, their checks, and the sampler that they
determine.

Both constructors name them again, because editors, type checkers and `help` read signatures.
test_loader_again.py fails if a signature differs from this list."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

from .._cache import disk, policies
from .._cache.policies import Policy
from .._common import sizes
from .._common.errors import InvalidError
from .._common.numbers import whole
from .._datasets import stores
from .._datasets.augment_function import check_alone, takes_generator
from .._datasets.cache_backed import CacheBacked
from .._datasets.cached_samples import BadSamplesAre, CachedSamples, check_bad_samples, check_cache
from .._datasets.making import CacheOptions
from .._datasets.stores import Store
from .._order.order import KINDS, Order
from .._trace import writable
from .._workers.stateful import is_stateful
from .affinity import AffinityNodes, check_affinity
from .sampling import Ends, OrderSampler, order_within

Worker = Literal["process", "thread", "native"]

_MAKING = tuple(field.name for field in dataclasses.fields(CacheOptions))
_OF_CACHE = (*_MAKING, "allow_random", "store")


@dataclasses.dataclass(init=False, eq=False, repr=False)
class LoaderOptions:
    """The parameters of a loader beyond torch's, with their defaults. Each is a parameter of both
    constructors and an attribute of a loader: frameworks make a loader again from its attributes,
    with another sampler."""

    cache: Any = None
    size: int | str | None = None
    name: str | None = None
    fingerprint: str | None = None
    variable: bool | None = None
    policy: Policy | None = None
    disk: int | str | None = None
    disk_dir: str | os.PathLike[str] | None = None
    disk_policy: Policy | None = None
    allow_random: bool = False
    store: Store = "decoded"
    augment: Callable[..., Any] | None = None
    batch_augment: Callable[[Any], Any] | None = None
    worker: Worker | None = None
    restart_workers: bool = False
    bad_samples: BadSamplesAre = "error"
    seed: int | None = None
    order: Any = None
    rank: int | None = None
    world_size: int | None = None
    ends: Ends | None = None
    affinity: AffinityNodes | None = None
    local_world_size: int | None = None
    prefetch_bytes: int | str = "512MiB"
    pool_bytes: int | str = "2GiB"
    gather_threads: int | None = None
    snapshot_every_n_steps: int | None = 1
    trace: str | os.PathLike[str] | None = None


def given_options(settings: dict[str, Any]) -> LoaderOptions:
    """The options among the arguments of a constructor."""
    options = LoaderOptions()
    for field in dataclasses.fields(LoaderOptions):
        setattr(options, field.name, settings[field.name])
    return options


def is_ordered(options: LoaderOptions) -> bool:
    """Whether the loader has an order of stocached, which it shards itself."""
    return options.seed is not None or options.order is not None


def cache_options(settings: LoaderOptions | dict[str, Any]) -> dict[str, Any]:
    """The options of the cache that a loader makes and fills."""
    values = settings if isinstance(settings, dict) else vars(settings)
    return {name: values[name] for name in _OF_CACHE}


def takes_cache(options: LoaderOptions) -> bool:
    """Whether the options give the loader a cache, of the user or of its own."""
    return options.cache is not None or options.size is not None or options.name is not None


def makes_cache(options: LoaderOptions) -> bool:
    """Whether an option needs a cache that the loader makes."""
    return any(getattr(options, name) != getattr(LoaderOptions, name) for name in _MAKING)


def check(
    options: LoaderOptions,
    dataset: Any,
    iterable: bool,
    shuffle: bool,
    sampler: Any,
    batch_sampler: Any,
    batch_size: int | None,
) -> None:
    """Raises InvalidError, which names the argument."""
    cached = takes_cache(options)
    _check_values(options)
    if iterable:
        _check_iterable(options, cached)
    _check_cache(options, dataset, cached)
    if is_stateful(dataset) and not is_ordered(options) and not cached and options.restart_workers:
        raise InvalidError(
            "restart_workers=True, and the dataset has a state (state_dict()), which a worker that dies takes with it; leave out restart_workers=, "
            "or give seed= or order=, with which the dataset is not asked for its state"
        )
    _check_order(options, shuffle, sampler if batch_sampler is None else batch_sampler)
    _check_affinity(options, dataset, cached, batch_size, batch_sampler)


def _check_values(options: LoaderOptions) -> None:
    """Checks each option by itself."""
    if options.gather_threads is not None:
        whole("gather_threads", options.gather_threads, 1, 1024)
    if options.snapshot_every_n_steps is not None:
        whole("snapshot_every_n_steps", options.snapshot_every_n_steps)
    if options.trace is not None:
        writable(options.trace)
    if options.size is not None and sizes.parse_size(options.size) == 0:
        raise InvalidError(f"size={options.size!r} holds no sample; leave out size= for a loader without a cache")
    if options.worker not in (None, *get_args(Worker)):
        raise InvalidError(f'worker={options.worker!r}; it must be "process", "thread" or "native"')
    check_bad_samples(options.bad_samples)
    if options.ends not in (None, "uneven", "pad", "drop"):
        raise InvalidError(f'ends={options.ends!r}; it must be "uneven", "pad" or "drop"')
    for name in ("augment", "batch_augment"):
        if getattr(options, name) is not None and not callable(getattr(options, name)):
            raise InvalidError(f"{name}={getattr(options, name)!r} cannot be called")
    if options.augment is not None:
        takes_generator(options.augment)
    if options.batch_augment is not None:
        check_alone(options.batch_augment, "batch_augment", "the batch, such as the tuple (images, labels)")
    check_cache(options.cache)
    if isinstance(options.order, str) and options.order not in KINDS:
        raise InvalidError(f"order={options.order!r} is none of {', '.join(KINDS)}")
    for name in ("prefetch_bytes", "pool_bytes"):
        sizes.parse_size(getattr(options, name), name)


def _check_iterable(options: LoaderOptions, cached: bool) -> None:
    if cached or options.augment is not None or is_ordered(options):
        raise InvalidError(
            "cache=, size=, name=, augment=, seed= and order= need a dataset with len() and [index]; this one is iterable"
        )
    if options.bad_samples == "skip":
        raise InvalidError(
            'bad_samples="skip" needs a dataset with len() and [index]; this one is iterable, and can leave bad '
            "samples out itself"
        )
    if options.restart_workers:
        raise InvalidError(
            "restart_workers=True needs a dataset with len() and [index]; this one is iterable, and a new worker would begin its part again"
        )


def _check_cache(options: LoaderOptions, dataset: Any, cached: bool) -> None:
    if cached and isinstance(dataset, CachedSamples) and (options.cache is not dataset.cache or makes_cache(options)):
        raise InvalidError("the dataset has a cache already; leave out cache=, size= and name=")
    policies.check(options.policy)
    disk.check(options.disk, options.disk_dir, options.disk_policy)
    for name in ("fingerprint", "variable", "policy", "disk", "disk_dir", "disk_policy"):
        if getattr(options, name) is not None and not cached:
            raise InvalidError(f'{name}= is for a cache that is made here; give size=, such as size="32GiB", or name=')
    stores.check(options.store)
    if options.store != "decoded" and not cached:
        raise InvalidError('store= is for a cache; give size=, such as size="32GiB", or name=')


def _check_order(options: LoaderOptions, shuffle: bool, given: Any) -> None:
    """given: a sampler or batch sampler of the program; None: neither."""
    if is_ordered(options) and given is not None and order_within(given) is None:
        raise InvalidError(
            "seed= and order= use an order of stocached, sampler= and batch_sampler= one of yours; give one of them"
        )
    if options.order is not None and shuffle:
        raise InvalidError("order= says how samples are shuffled; leave out shuffle=")
    if not is_ordered(options) and (
        options.ends is not None or options.rank is not None or options.world_size is not None
    ):
        raise InvalidError("rank=, world_size= and ends= need an order of stocached: give seed= or order=")


def _check_affinity(
    options: LoaderOptions, dataset: Any, cached: bool, batch_size: int | None, batch_sampler: Any
) -> None:
    check_affinity(options.affinity, options.local_world_size)
    if options.affinity is None:
        return
    if not is_ordered(options):
        raise InvalidError("affinity= deals an order of stocached: give seed= or order=")
    if options.ends == "uneven":
        raise InvalidError(
            'ends="uneven" with affinity=: all ranks of a global batch get the same number of samples; give "pad" or "drop"'
        )
    if batch_size is None or batch_sampler is not None:
        raise InvalidError("affinity= deals batches to nodes; give batch_size=, and leave out batch_sampler=")
    if not cached and not isinstance(dataset, CacheBacked):
        raise InvalidError(
            "affinity= deals samples to the nodes whose caches own them, and this loader has no cache; give size= or name="
        )


def order_sampler(
    options: LoaderOptions, samples: int, shuffle: bool, kind: type[OrderSampler] = OrderSampler
) -> OrderSampler:
    """A sampler in the order of seed= and order=."""
    if samples < 1:
        raise InvalidError("the dataset is empty, so there is no order of its samples")
    order = options.order
    if order is None or isinstance(order, str):
        order = Order(samples, cast(Any, order or ("shuffled" if shuffle else "sequential")), seed=options.seed or 0)
    elif options.seed is not None:
        raise InvalidError(f"seed={options.seed} with order={order!r}, which has its own seed; leave out seed=")
    if order.samples != samples:
        raise InvalidError(f"order={order!r} is for {order.samples} samples, the dataset has {samples}")
    return kind(order, options.rank, options.world_size, options.ends)


def gather_threads(given: int | None) -> int:
    """The number of threads that copy hits. given: None: the default."""
    return given or min(4, os.cpu_count() or 1)
