"""The options of our loaders beyond torch's arguments: their list, their checks, and the sampler
that they determine."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast, get_args

import numpy as np

from .._common import sizes
from .._common.errors import InvalidError
from .._common.numbers import seconds, whole
from .._datasets import mistaken
from .._datasets.augment_function import check_alone, takes_generator
from .._datasets.cache_backed import CacheBacked
from .._datasets.cached_samples import BadSamplesAre, CachedSamples, check_bad_samples, check_cache
from .._datasets.lists import WithoutIndex
from .._datasets.making import OF_CACHE, CacheOptions
from .._datasets.stores import Store
from .._order.order import KINDS, Order
from .._pipes.caching import REMEDY
from .._pipes.loader_arguments import of_loader
from .._pipes.pipe import Pipe
from .._trace import writable
from .._workers.stateful import is_stateful
from .affinity import AffinityNodes, check_affinity
from .sampling import Ends, OrderSampler, order_within

Worker = Literal["process", "thread", "native"]

_P = ParamSpec("_P")
_L = TypeVar("_L")

_MAKING = tuple(field.name for field in dataclasses.fields(CacheOptions))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(CacheOptions):
    """cache: a Cache whose fields take the leaves of a sample. Or the loader makes one, with size=
        ("32GiB", or bytes) or name= (ranks and jobs that give the same name share it), and
        fingerprint= (of data and transform). The dataset's samples are cached, so they must not be
        random: NondeterministicDatasetError. augment= may be random.
    allow_random: caches the dataset's samples without that check.
    variable: True: caches samples of any shape. False: of one shape, which is faster. None: as a
        few samples need.
    policy: which samples a full cache keeps, as for CachedDataset.
    disk, disk_dir, disk_policy: a file behind the cache, on a local disk, as for CachedDataset.
    store: of pictures: "decoded", "encoded" or "auto", as for CachedDataset. stats().store says which.
    augment: a function of a sample, or of a sample and a numpy Generator. Its random numbers depend
        only on (seed, epoch, index). Worker processes seed torch, numpy and random for each sample;
        threads seed only the Generator.
    batch_augment: a function of a batch, called when the training loop gets the batch.
    worker: "process"; "thread" for datasets that release the GIL; "native" for datasets and steps of
        stocached.image, whose samples threads make in C. None: "native" where that is possible, else
        "process".
    restart_workers: replaces a worker that dies and loads its sample again, instead of
        WorkerLostError.
    bad_samples: "error" raises BadSampleError for a sample that cannot be used, such as a damaged
        picture. "skip" leaves it out of its batch, and counts and lists it in `stats()`.
    seed, order: an order of stocached instead of torch's. `seed` shuffles by that seed if
        shuffle=True. `order` is "sequential", "shuffled", or a stocached.Order; for weights and mixes, give
        the loader a pipe. It is the same for any number of workers and ranks, and resumes with any.
    rank, world_size: default: from torch.distributed, or RANK and WORLD_SIZE, when the loader is
        read.
    ends: if samples do not divide by ranks: "pad" (some are read twice; the default of several
        ranks), "uneven", "drop". Of the rows of a pipe: as of stocached.streams, or "uneven".
    affinity: "node" deals each global batch to the nodes whose caches own its samples, so that together
        the nodes need not hold more than the dataset. A list of stocached.order.Node says which nodes
        there are. It needs a cache, which the ranks of a node share. local_world_size: ranks on each
        node; default: LOCAL_WORLD_SIZE, or the ranks of one host name.
    prefetch_bytes: the most memory of batches made ahead.
    pool_bytes: the most memory of batches, those in use included. Further batches come in ordinary
        memory.
    gather_threads: the number that copy hits. trace: the file of a timeline (docs/spec/trace.md).
    snapshot_every_n_steps: batches between two states of workers, for `state_dict()` of a dataset
        that has a state. 0 or None: only the first state."""

    # Each is an attribute of a loader too: frameworks make a loader again from its attributes, with
    # another sampler.
    cache: Any = None
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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OwnArguments:
    """The arguments that mean the same as torch's."""

    dataset: Any
    batch_size: int | None = 1
    shuffle: bool = False
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: np.random.Generator | None = None
    prefetch_factor: int | None = dataclasses.field(default=None, kw_only=True)
    persistent_workers: bool = dataclasses.field(default=False, kw_only=True)
    in_order: bool = dataclasses.field(default=True, kw_only=True)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Arguments(Options, OwnArguments):
    """All arguments: first those that torch's loader has too."""


# Those that are whole numbers, with the least and the most of each.
_WHOLE: dict[str, tuple[int, ...]] = {
    "batch_size": (1, 2**63 - 1),
    "prefetch_factor": (),
    "seed": (),
    "gather_threads": (1, 1024),
    "snapshot_every_n_steps": (),
}

NAMES = tuple(field.name for field in dataclasses.fields(Options))


def of_pipe(loader: Any, arguments: Any, collate: Callable[..., Any]) -> Any:
    """The arguments of a loader, checked where they are numbers. If its dataset is a Pipe, they have another dataset that
    does what the pipe says. collate: how the loader makes a batch by default. Raises InvalidError for what is certainly no
    dataset."""
    _check_dataset(type(loader).__name__, arguments.dataset)
    if not isinstance(arguments.dataset, Pipe) and hasattr(arguments, "pin_memory"):
        with contextlib.suppress(InvalidError):  # torch's constructor raises its own; `checked` follows it
            return checked(arguments)
        return arguments
    arguments = checked(arguments)
    if not isinstance(arguments.dataset, Pipe):
        return arguments
    loader._remedy, loader._given = REMEDY, dict(vars(arguments))
    return of_loader(arguments.dataset._stage, arguments, collate)


def _check_dataset(loader: str, dataset: Any) -> None:
    mistaken.refuse(loader, dataset)
    if isinstance(dataset, getattr(sys.modules.get("stocached._image.conversion"), "Converted", ())):
        raise InvalidError(
            f"{loader}(): this is the pair that convert made; write dataset, augment = image.convert(...), and then "
            f"{loader}(dataset, ..., augment=augment)"
        )


def checked(arguments: Any) -> Any:
    """Arguments whose numbers are Python's, also where torch would take only those. Raises InvalidError."""
    made = {
        name: whole(name, value, *bounds)
        for name, bounds in _WHOLE.items()
        if (value := getattr(arguments, name)) is not None
    }
    made["num_workers"] = whole("num_workers", arguments.num_workers)
    timeout = seconds("timeout", arguments.timeout)  # torch's attribute has the type that was given
    return dataclasses.replace(arguments, **made, timeout=int(timeout) if timeout.is_integer() else timeout)


def makes_as_default(collate: Any, default: Any) -> bool:
    """Whether a collate function is the default, or that of a pipe which does the same."""
    return collate is default or getattr(collate, "by_default", False)


def takes(
    arguments: Callable[_P, Any],
) -> Callable[[Callable[Concatenate[_L, ...], None]], Callable[Concatenate[_L, _P], None]]:
    """Gives a constructor the parameters of a dataclass, for type checkers, `help` and frameworks."""

    def mark(construct: Any) -> Any:
        init = arguments.__init__
        construct.__signature__ = inspect.signature(init)
        construct.__annotations__ = typing.get_type_hints(arguments) | {"return": type(None)}
        init.__qualname__ = construct.__qualname__  # in the TypeError for a wrong argument
        return construct

    return mark


def with_options(document: str | None) -> str:
    """The document of a loader, and of its options."""
    return f"{document}\n\n    {Options.__doc__}"


def is_ordered(options: Options) -> bool:
    """Whether the loader has an order of stocached, which it shards itself."""
    return options.seed is not None or options.order is not None


def cache_options(options: Any) -> dict[str, Any]:
    """The options of the cache that a loader makes and fills."""
    return {name: getattr(options, name) for name in OF_CACHE}


def takes_cache(options: Options) -> bool:
    """Whether the options give the loader a cache, of the user or of its own."""
    return options.cache is not None or options.size is not None or options.name is not None or _of_stage(options)


def makes_cache(options: Options) -> bool:
    """Whether an option needs a cache that the loader makes."""
    return any(getattr(options, name) != getattr(Options, name) for name in _MAKING) or _of_stage(options)


def _of_stage(options: Any) -> bool:
    """Whether a .cache() of a pipe has the loader make one, which needs no option."""
    chain = getattr(options.order, "chain", None)
    return chain is not None and chain.cache is not None and not isinstance(options.dataset, CacheBacked)


def check(arguments: Any, iterable: bool, sampler: Any) -> None:
    """Raises InvalidError, which names the argument. arguments: of a constructor, with the options
    among them."""
    cached = takes_cache(arguments)
    _check_values(arguments)
    if iterable:
        _check_iterable(arguments, cached)
    _check_cache(arguments, cached)
    if arguments.restart_workers and not is_ordered(arguments) and not cached and is_stateful(arguments.dataset):
        raise InvalidError(
            "restart_workers=True, and the dataset has a state (state_dict()), which a worker that dies takes with it; leave out restart_workers=, "
            "or give seed= or order=, with which the dataset is not asked for its state"
        )
    _check_order(arguments, sampler if arguments.batch_sampler is None else arguments.batch_sampler)
    _check_affinity(arguments, cached)


def _check_values(options: Options) -> None:
    """Checks each option by itself."""
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


def _check_iterable(options: Options, cached: bool) -> None:
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


def _check_cache(options: Any, cached: bool) -> None:
    dataset = options.dataset
    if cached and isinstance(dataset, CachedSamples) and (options.cache is not dataset.cache or makes_cache(options)):
        raise InvalidError("the dataset has a cache already; leave out cache=, size= and name=")
    options.check(options.store)
    for name in ("fingerprint", "variable", "policy", "disk", "disk_dir", "disk_policy"):
        if getattr(options, name) is not None and not cached:
            raise InvalidError(f'{name}= is for a cache that is made here; give size=, such as size="32GiB", or name=')
    if options.store != "decoded" and not cached:
        raise InvalidError('store= is for a cache; give size=, such as size="32GiB", or name=')


def _check_order(options: Any, given: Any) -> None:
    """given: a sampler or batch sampler of the program; None: neither."""
    if is_ordered(options) and given is not None and order_within(given) is None:
        raise InvalidError(
            "seed= and order= use an order of stocached, sampler= and batch_sampler= one of yours; give one of them"
        )
    if options.order is not None and options.shuffle:
        raise InvalidError("order= says how samples are shuffled; leave out shuffle=")
    if not is_ordered(options) and (
        options.ends is not None or options.rank is not None or options.world_size is not None
    ):
        raise InvalidError("rank=, world_size= and ends= need an order of stocached: give seed= or order=")


def _check_affinity(options: Any, cached: bool) -> None:
    check_affinity(options.affinity, options.local_world_size)
    if options.affinity is None:
        return
    if not is_ordered(options):
        raise InvalidError("affinity= deals an order of stocached: give seed= or order=")
    if options.ends == "uneven":
        raise InvalidError(
            'ends="uneven" with affinity=: all ranks of a global batch get the same number of samples; give "pad" or "drop"'
        )
    if options.batch_size is None or options.batch_sampler is not None:
        raise InvalidError("affinity= deals batches to nodes; give batch_size=, and leave out batch_sampler=")
    if not cached and not isinstance(options.dataset, CacheBacked):
        raise InvalidError(
            "affinity= deals samples to the nodes whose caches own them, and this loader has no cache; give size= or name="
        )


def order_sampler(
    options: Any, shuffle: bool, kind: type[OrderSampler] = OrderSampler, *, drawn: int = 0
) -> OrderSampler:
    """A sampler in the order of seed= and order=. drawn: the seed, if neither is given."""
    if isinstance(options.dataset, WithoutIndex):
        return kind(options.order, options.rank, options.world_size, options.ends)
    samples = len(options.dataset)
    if samples < 1:
        raise InvalidError("the dataset is empty, so there is no order of its samples")
    order = options.order
    if order is None or isinstance(order, str):
        order = Order(
            samples, cast(Any, order or ("shuffled" if shuffle else "sequential")), seed=options.seed or drawn
        )
    elif options.seed is not None:
        raise InvalidError(f"seed={options.seed} with order={order!r}, which has its own seed; leave out seed=")
    if order.samples != samples:
        raise InvalidError(f"order={order!r} is for {order.samples} samples, the dataset has {samples}")
    return kind(order, options.rank, options.world_size, options.ends)


def gather_threads(given: int | None) -> int:
    """The number of threads that copy hits. given: None: the default."""
    return given or min(4, os.cpu_count() or 1)
