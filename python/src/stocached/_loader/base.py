"""What the loader of NumPy batches and that of torch have in common: their extra settings, their state, and which way batches are made."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, cast

from .._cache.cache import Cache, _unpickle
from .._checks.derived_fingerprint import Derived, derive
from .._checks.randomness import Remedy
from .._common import sizes
from .._common.errors import FingerprintError, InvalidError, SchemaError, StateError, StocachedError
from .._common.numbers import whole
from .._common.ranks import rank_of
from .._datasets.cached_samples import CachedSamples, check_cache
from .._order.order import KINDS, Order
from .._random import base_seeds
from .._samples.batch_layout import Layout
from .._trace import Recorder, writable
from .._workers.dataset_states import Restored
from .._workers.stateful import is_stateful
from . import checkpoint
from . import worker as _worker
from .gather import RowsIteration
from .iterators import Iteration, MadeIteration, PlainIteration, Plan, Progress, Transport
from .numpy_backend import Flavour, sample_seed
from .sampling import Ends, OrderSampler, Sampled, batches_of, listed, order_within
from .stats import LoaderStats, Meter
from .tracing import Tracing
from .worker import Augment, Job

_AHEAD = 2  # batches, without workers
_STATE = 1  # version, of an order of ours
_MAKING = ("size", "name", "fingerprint", "variable")
_OF_CACHE = (*_MAKING, "allow_random")


@dataclasses.dataclass(init=False, eq=False, repr=False)
class Options:
    """Arguments of a loader beyond those of torch. Each is a parameter of both constructors and an attribute of a loader: frameworks make a loader again out
    of its attributes, with another sampler."""

    cache: Any = None
    size: int | str | None = None
    name: str | None = None
    fingerprint: str | None = None
    variable: bool | None = None
    allow_random: bool = False
    augment: Callable[..., Any] | None = None
    batch_augment: Callable[[Any], Any] | None = None
    worker: Literal["process", "thread"] = "process"
    restart_workers: bool = False
    seed: int | None = None
    order: Any = None
    rank: int | None = None
    world_size: int | None = None
    ends: Ends | None = None
    prefetch_bytes: int | str = "512MiB"
    ring_bytes: int | str = "2GiB"
    gather_threads: int | None = None
    snapshot_every_n_steps: int | None = 1
    trace: str | os.PathLike[str] | None = None


@dataclasses.dataclass
class Extras(Options):
    """The options that a constructor was given."""

    @property
    def ordered(self) -> bool:
        """Whether the loader has an order of ours, which it shards itself."""
        return self.seed is not None or self.order is not None

    def of_cache(self) -> dict[str, Any]:
        """The options that say how a cache is made, and filled."""
        return {name: getattr(self, name) for name in _OF_CACHE}

    def makes_cache(self) -> bool:
        """Whether one was given that only a cache that is made here can have."""
        return any(getattr(self, name) != getattr(Options, name) for name in _MAKING)

    def check(self, dataset: Any, iterable: bool, shuffle: bool, sampler: Any, batch_sampler: Any) -> None:
        """Raises InvalidError, naming the argument."""
        if self.gather_threads is not None:
            whole("gather_threads", self.gather_threads, 1, 1024)
        if self.snapshot_every_n_steps is not None:
            whole("snapshot_every_n_steps", self.snapshot_every_n_steps)
        if self.trace is not None:
            writable(self.trace)
        if self.size is not None and sizes.parse_size(self.size) == 0:
            raise InvalidError(f"size={self.size!r} is room for no sample; leave out size= for a loader without a cache")
        if self.worker not in ("process", "thread"):
            raise InvalidError(f'worker={self.worker!r}; it must be "process" or "thread"')
        if self.ends not in (None, "uneven", "pad", "drop"):
            raise InvalidError(f'ends={self.ends!r}; it must be "uneven", "pad" or "drop"')
        for name in ("augment", "batch_augment"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidError(f"{name}={getattr(self, name)!r} cannot be called")
        check_cache(self.cache)
        if isinstance(self.order, str) and self.order not in KINDS:
            raise InvalidError(f"order={self.order!r} is none of {', '.join(KINDS)}")
        for name in ("prefetch_bytes", "ring_bytes"):
            sizes.parse_size(getattr(self, name), name)
        cached = self.cache is not None or self.size is not None or self.name is not None
        if iterable and (cached or self.augment is not None or self.seed is not None or self.order is not None):
            raise InvalidError("cache=, size=, name=, augment=, seed= and order= need a dataset with len() and [index]; this one is iterable")
        if iterable and self.restart_workers:
            raise InvalidError(
                "restart_workers=True needs a dataset with len() and [index]; this one is iterable, and a new worker would begin its part anew"
            )
        if cached and isinstance(dataset, CachedSamples) and (self.cache is not dataset.cache or self.makes_cache()):
            raise InvalidError("the dataset has a cache already; leave out cache=, size= and name=")
        if self.fingerprint is not None and not cached:
            raise InvalidError('fingerprint= is for a cache that is made here; give size=, such as size="32GiB", or name=')
        if self.variable is not None and not cached:
            raise InvalidError('variable= is for a cache that is made here; give size=, such as size="32GiB", or name=')
        if is_stateful(dataset) and not self.ordered and not cached and self.restart_workers:
            raise InvalidError(
                "restart_workers=True, and the dataset has a state (state_dict()), which a worker that dies takes with it; leave out restart_workers=, "
                "or give seed= or order=, with which the dataset is not asked for its state"
            )
        given = sampler if batch_sampler is None else batch_sampler
        if self.ordered and given is not None and order_within(given) is None:
            raise InvalidError("seed= and order= are for an order of ours, sampler= and batch_sampler= for one of yours; give one of them")
        if self.order is not None and shuffle:
            raise InvalidError("order= says how samples are shuffled; leave out shuffle=")
        if not self.ordered and (self.ends is not None or self.rank is not None or self.world_size is not None):
            raise InvalidError("rank=, world_size= and ends= are for an order of ours: give seed= or order=")

    def sampler(self, samples: int, shuffle: bool, kind: type[OrderSampler] = OrderSampler) -> OrderSampler:
        """A sampler in the order that seed= and order= ask for."""
        if samples < 1:
            raise InvalidError("the dataset is empty, so there is no order of its samples")
        order = self.order
        if order is None or isinstance(order, str):
            order = Order(samples, cast(Any, order or ("shuffled" if shuffle else "sequential")), seed=self.seed or 0)
        elif self.seed is not None:
            raise InvalidError(f"seed={self.seed} beside order={order!r}, which has a seed of its own; leave out seed=")
        if order.samples != samples:
            raise InvalidError(f"order={order!r} is for {order.samples} samples, the dataset has {samples}")
        return kind(order, self.rank, self.world_size, self.ends)


@dataclasses.dataclass
class _Made:
    """How a loader made a cache."""

    options: dict[str, Any]
    derived: Derived | None  # fingerprint of the dataset


class LoaderCore(Options):
    """Mixed into both loaders, whose attributes are those of torch's."""

    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Any
    drop_last: bool
    timeout: float
    worker_init_fn: Any
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    settings: dict[str, Any]
    """The arguments that it was made with."""

    _remedy: ClassVar[Remedy]
    _flavour: Flavour
    _iterable: bool
    _global_generator: str
    """Which of the global generators this class draws from if `generator` is None."""

    def _prepare(
        self, dataset: Any, extras: Extras, flavour: Flavour, cached_kind: type[CachedSamples], default_collate: bool, before: frozenset[str]
    ) -> None:
        """To be called at the end of the constructor; `dataset` as the user gave it; before: the attributes that were there at its beginning."""
        if self._iterable and extras.worker == "thread" and self.num_workers > 1:
            raise InvalidError(
                f'num_workers={self.num_workers} with worker="thread" and an iterable dataset: each thread would give every sample, as get_worker_info() '
                'tells workers apart that are processes; use worker="process", or num_workers=1'
            )
        self.num_workers = whole("num_workers", self.num_workers)
        vars(self).update(vars(extras))
        self._flavour = flavour
        self._meter = Meter()
        self._default_collate = default_collate
        self._epoch = 0  # of the next iteration
        self._told: int | None = None  # the epoch that the sampler was given after the last iteration was made
        self._resume: Mapping[str, Any] | None = None
        self._current: weakref.ref[Iteration] | None = None
        self._kept: Transport | None = None  # of persistent workers
        self._seeds = (0, 0)  # of workers that are kept: their base seed, drawn once as torch does, and how many epochs they have begun with it
        self._began: dict[str, Any] = {}  # of the iteration that was given last, what a state needs
        self._progress: Progress | None = None
        self._sampled: Sampled | None = None
        self._next: Iteration | None = None  # of the epoch that comes next, when it has been begun ahead
        self._pid = os.getpid()
        self._recorder: Recorder | None = None  # made by the first iteration: a loader that a framework replaces writes no file
        self._order = order_within(self.batch_sampler if self._batched() else self.sampler)
        if self._order is not None:
            self._order.tell(self)
            self._epoch = self._order.epoch
        self._cached = _samples_of(dataset, extras, functools.partial(cached_kind, allow_random=extras.allow_random, _remedy=self._remedy))
        if isinstance(self._cached, CachedSamples):
            self._cached.notices.deferred = True  # iterations pass them on
        self.cache = getattr(self._cached, "cache", None)
        if self.worker == "thread" and self.num_workers > 1 and self._asks_dataset():
            raise InvalidError(
                f'num_workers={self.num_workers} with worker="thread", and the dataset has a state (state_dict()), which the threads would share; use '
                'worker="process", num_workers=1, or seed= or order=, with which the dataset is not asked for its state'
            )
        self._own = {name: value for name, value in vars(self).items() if name not in before}
        _living[id(self)] = self

    def __setattr__(self, name: str, value: Any) -> None:
        # While a hook runs, Lightning records assignments to loaders and repeats them on the loader that it makes. Where an iteration is must not be copied.
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """What it was made with, and attributes that were set since. Workers, and how far an epoch is, are not copied; `state_dict` says that."""
        own = self._own
        more = {name: value for name, value in vars(self).items() if name not in own or (name[0] != "_" and value is not own[name])}
        more.pop("_own")
        settings, cache = self.settings, None
        if self.cache in _made:
            settings = settings | {"cache": None}
            if self.name is None and not self.cache.closed:
                cache = self.cache.__reduce__()[1]
        return {"settings": settings, "cache": cache, "more": more}

    def _again(self, **changes: Any) -> Any:
        """A loader like this one, with other values of these arguments."""
        state = self.__getstate__()
        made: Any = object.__new__(type(self))
        made.__setstate__({**state, "settings": {**state["settings"], **changes}})
        return made

    def _restore(self, make: Callable[..., None], state: dict[str, Any]) -> None:
        settings = dict(state["settings"])
        options = {name: settings[name] for name in _OF_CACHE}
        if state["cache"] is not None and _cached_of(settings["dataset"], options) is None:
            with contextlib.suppress(StocachedError):  # the program that made it has ended: the constructor makes another one
                settings["cache"] = _unpickle(*state["cache"])
                _made[settings["cache"]] = _Made(options, None)
        make(self, **settings)
        vars(self).update(state["more"])

    # ------------------------------------------------------------------------------------------------ iterating

    def _new_iteration(self) -> Iteration:
        if self._pid != os.getpid():  # a forked child: another thread of the parent may have held the lock of the meter, and the workers are not ours
            self._pid, self._meter = os.getpid(), Meter()
            self._current = self._next = self._kept = None
            self.trace = None  # the file is the parent's
        if self.trace is not None and self._recorder is None:
            rank, world_size = rank_of(self.rank, self.world_size)
            self._recorder = Recorder(self.trace, settings=self.settings, rank=rank, world_size=world_size)
        start = time.monotonic_ns()
        told, self._told = self._told, None
        if told is not None and self._has_given_nothing():
            self._epoch = told
        current = self._running()
        if current is not None and self.persistent_workers:
            current.end("another iteration over this loader has begun, and with persistent_workers=True there is one at a time")
        if self._kept is not None and not self._kept.usable:
            self._kept.close()
            self._kept = None
            if self._next is not None:
                self._next.close()
                self._next = None
        ahead, self._next = self._next, None
        if ahead is not None:
            if self._resume is None and ahead.plan.epoch == self._epoch:
                return self._give(ahead, start)
            ahead.close()
        resume = self._resume
        try:
            return self._give(self._make_iteration(), start)
        except BaseException:
            self._resume = resume  # for whoever tries again
            raise

    def _running(self) -> Iteration | None:
        """The iteration that was given last, if it goes on."""
        current = self._current() if self._current is not None else None
        return current if current is not None and not current.ended else None

    def _give(self, iteration: Iteration, start: int) -> Iteration:
        """start: when the training loop asked, which waits for workers to start."""
        end = time.monotonic_ns()
        self._meter.wait(end - start)
        if iteration.plan.trace is not None:
            iteration.plan.trace.began(iteration.plan.epoch, start, end)
        self._current = weakref.ref(iteration)
        self._began, self._progress, self._sampled = iteration.plan.began, iteration.plan.progress, iteration.plan.sampled
        self._epoch = iteration.plan.epoch + 1
        return iteration

    def _make_iteration(self) -> Iteration:
        plan = self._plan(self._by_rows())
        if plan.restored is not None and not plan.by_rows and self._kept is not None:
            self._kept.close()  # its workers are where the state is not
            self._kept = None
        iteration = self._iteration_of(plan)
        if plan.restored is not None:
            try:
                iteration.throw_away(plan.restored.before - plan.restored.given)
            except BaseException as error:
                iteration.end(f"it could not go on where its state was: {type(error).__name__}", harshly=True)
                raise
        return iteration

    def _iteration_of(self, plan: Plan) -> Iteration:
        rows = plan.by_rows
        if not self.num_workers and not (rows and plan.layout is not None):
            return PlainIteration(plan)
        owned = self.num_workers > 0 and not self.persistent_workers
        transport = self._kept
        if transport is None:
            transport = Transport(plan, self._context(), self._board_tasks(plan), restart=self.restart_workers)
            if not owned:
                self._kept = transport
        try:
            return (RowsIteration if rows else MadeIteration)(plan, transport, owned)
        except Exception:
            raise
        except BaseException:  # Ctrl-C, at any step: workers may have been asked for what nobody knows of
            transport.close()
            raise

    def _begin_next(self) -> None:
        """Has the first batches of the next epoch made, while the training loop has the last ones of this."""
        if self._next is None and self._resume is None:
            self._next = self._make_iteration()

    def _context(self) -> Any:
        context = getattr(self, "multiprocessing_context", None)
        return multiprocessing.get_context(context) if isinstance(context, str) or context is None else context

    def _board_tasks(self, plan: Plan) -> int:
        return max(64, 4 * (plan.ahead + 1) * max(plan.batch_size or 1, 256))

    def _by_rows(self) -> bool:
        """Whether batches are put together row by row; else workers, or the training loop, make them whole."""
        if self._iterable or not self._default_collate or not self._batched():
            return False
        if self._cached is not None:
            if self._augments():
                return self.num_workers > 0
            return self.num_workers > 0 or self._layout_of_cache(1) is not None
        return self.num_workers > 0 and loads_one_by_one(self.dataset) and not self._deals_as_torch()

    def _deals_as_torch(self) -> bool:
        """Whether workers make whole batches though samples could go to any worker. Each worker's dataset has a state of its own, or a shard; worker_init_fn=
        gives each worker something of its own, such as seeds; with in_order=False users count on who makes which batch. With seed= or order=, a sample depends
        on its index alone, and so do the random numbers of augment=."""
        if self._order is not None:
            return False
        return self._asks_dataset() or self._is_pipe() or (self.augment is None and (self.worker_init_fn is not None or not self.in_order))

    def _asks_dataset(self) -> bool:
        """Whether the state holds that of the dataset. With a cache, seed= or order=, a sample depends on its index alone."""
        return self._cached is None and self._order is None and is_stateful(self.dataset)

    def _keeps_dataset(self) -> bool:
        """Whether the next epoch reads the dataset that this one has read, and not a new copy of the program's."""
        return not self.num_workers or self._kept is not None or self.worker == "thread"

    def _augments(self) -> bool:
        return self.augment is not None or getattr(self._cached, "augment", None) is not None

    def _batched(self) -> bool:
        return self.batch_sampler is not None

    def _layout_of_cache(self, rows: int) -> Layout | None:
        """Of a cache whose samples can be gathered into columns."""
        cached = self._cached
        cache = getattr(cached, "cache", None)
        if cache is None or cache.variable or getattr(cached, "transform", None) is not None:
            return None
        tree = cached.tree() if _is_served(cached) else cached._tree
        if not tree.by_columns or getattr(cached, "_packing", None) is not None:
            return None
        if any(leaf.kind in self._flavour.no_columns or leaf.kind in ("str", "bytes") for leaf in tree.leaves):
            return None
        return Layout(tree, [(field.shape, field.dtype) for field in cache.fields], rows)

    def _plan(self, rows: bool) -> Plan:
        state = self._resume
        wanted, base_seed, key, began, restored = self._begin_epoch()
        ordered = "shard" in began
        if rows and not ordered and self._cached is None:
            wanted, rows = _numbered(wanted)
        follows = rows and ordered and (self.persistent_workers or not self.num_workers)
        augment = None if self.augment is None else Augment(self.augment)
        job = Job(
            dataset=self._cached if self._cached is not None else self.dataset,
            wrapped=self._cached is not None and self._cached is not self.dataset,
            flavour=self._flavour,
            iterable=self._iterable,
            batched=self._batched(),
            collate=self.collate_fn,
            drop_last=self.drop_last,
            augment=augment,
            init=self.worker_init_fn,
            workers=self.num_workers,
            base_seed=base_seed,
            key=key,
            seed_samples=self._seeds_samples(rows or self._order is not None, augment),
            process=self.worker == "process",
            batch_size=self.batch_size,
            snapshots=not rows and self._order is None,
            pipes=began.get("pipes"),
        )
        largest = self.batch_size or 1
        layout = self._layout_of_cache(largest) if rows and self._cached is not None and not self._augments() else None
        return Plan(
            job=job,
            wanted=wanted,
            batch_size=self.batch_size,
            ahead=(self.prefetch_factor or _AHEAD) * max(self.num_workers, 1) if self.prefetch_factor != 0 else 1,
            ahead_bytes=max(sizes.parse_size(self.prefetch_bytes), 1),
            ring_bytes=max(sizes.parse_size(self.ring_bytes), 1),
            timeout=self.timeout,
            in_order=self.in_order or self.num_workers == 0,
            batch_augment=self.batch_augment,
            threads=gather_threads(self.gather_threads),
            cached=self._cached,
            meter=self._meter,
            trace=None if self._recorder is None else Tracing(self._recorder),
            epoch=began["epoch"],
            began=began,
            progress=Progress(),
            ordered=ordered,
            by_rows=rows,
            sampler=self.batch_sampler if self._batched() else self.sampler,
            reported=getattr(self, "_IterableDataset_len_called", None) if self._iterable else None,
            sampled=began.get("sampled"),
            snapshot_every=None if rows or self._order is not None else (self.snapshot_every_n_steps or 0) if self.in_order else 1,
            restored=restored,
            overtaken=frozenset(number - began["skipped"] for number in (state or {}).get("_overtaken", ())),
            layout=layout,
            follow=_weakly(self._begin_next) if follows else None,
            renew=_weakly(self._renewed),
            notices=getattr(self._cached, "notices", None),
        )

    def _seeds_samples(self, by_index: bool, augment: Augment | None) -> bool:
        """Whether the global generators are seeded for each sample: not those of other threads, and not where nothing can be drawn from them, as a cached
        dataset is not random and augment has a generator of its own. by_index: random numbers of the dataset depend on the index, not on the worker."""
        if self.num_workers and self.worker == "thread":
            return False
        if augment is None:
            return by_index and self.num_workers > 0 and self._cached is None
        return self._cached is None or not augment.takes_generator

    # ------------------------------------------------------------------------------------------------ epochs and states

    def _base_seed(self) -> int:
        raise NotImplementedError

    def _generator_state(self) -> Any:
        """Of `generator`, or of the global generator that is drawn from without one."""
        raise NotImplementedError

    def _put_generator_state(self, state: Any) -> None:
        """What `_generator_state` gave, or `_generators.plain` of it."""
        raise NotImplementedError

    def _is_pipe(self) -> bool:
        """Whether the dataset is one of torch's DataPipes."""
        return False

    def _pipes(self) -> Any:
        """What DataPipes are told when an epoch begins; None for other datasets."""
        return None

    def _begin_epoch(self) -> tuple[Iterator[Any], int, int, dict[str, Any], Restored | None]:
        """Indices of one batch after the other, the seed of the workers, the key of samples, what a state of this epoch needs, and what this epoch takes out
        of a state."""
        state, self._resume = self._resume, None
        epoch = self._epoch if state is None else int(state["epoch"])
        order = self._order
        if order is not None:  # no random number of the program's is drawn
            seed = getattr(order.order, "seed", 0)
            base_seed, key = sample_seed(seed, epoch, 1) >> 2, sample_seed(seed, epoch, 0)
        if order is not None and self._reads_in_order():
            order.begin(epoch, 0 if state is None else int(state["position"]))
            shard = order.shard()
            wanted: Iterator[Any] = batches_of(shard, self.batch_size, self.drop_last) if self.batch_size is not None else iter(shard)
            return wanted, base_seed, key, {"epoch": epoch, "shard": shard}, None
        if order is not None:  # a framework makes the batches
            skip = 0 if state is None else int(state["batches"])
            order.begin(epoch)
            wanted = _skipped(iter(self.batch_sampler), skip)
            began: dict[str, Any] = {"epoch": epoch, "skipped": skip, "generators": checkpoint.generators(self), "seeds": (base_seed, 0)}
            return wanted, base_seed, key, began, None
        samplers = self._samplers_with_epochs()
        if state is not None and state.get("sampler_epoch") is not None:
            for sampler in samplers:
                sampler.set_epoch(state["sampler_epoch"])
        checkpoint.finish(self, state)
        with checkpoint.generators_of(self, state) as in_step:
            restored = None if state is None else checkpoint.restored(self, state)
            began = {"epoch": epoch, "skipped": 0 if restored is None else restored.given, "generators": checkpoint.generators(self)}
            began["pipes"] = self._pipes()
            wanted, began["sampled"] = self._sampled_batches(state)
            if samplers:
                wanted = _noting_epoch(wanted, samplers[0], began)
            base_seed, turn = self._draw_seeds(state)
            began["seeds"] = (base_seed, turn)
            if self.num_workers and not turn:
                self._pipes()  # torch's loader draws for them once more when it has started its workers
            if state is not None and restored is not None:
                skip = restored.given - (0 if began["sampled"] is None else began["sampled"].count)
                if not self._iterable and (skip or not in_step or state.get("sampler_asked")):
                    wanted = _skipped(wanted, skip)
                checkpoint.read_again(self, state, restored, in_step)
        return wanted, base_seed, sample_seed(base_seed & (2**64 - 1), turn, 0), began, restored

    def _fetcher(self, snapshot: Mapping[str, Any] | None) -> _worker.Fetcher:
        return _worker.Fetcher(self.dataset, self._iterable, self._batched(), self.collate_fn, self.drop_last, snapshot)

    def _sampled_batches(self, state: Mapping[str, Any] | None) -> tuple[Iterator[Any], Sampled | None]:
        """The sampler's indices of one batch after the other; the same object again, if it may hold states of the sampler."""
        index = self.batch_sampler if self._batched() else self.sampler
        if self._iterable:
            return iter(index), None
        part = state if state is not None and "_sampler_iter_yielded" in state else None
        if part is not None and part["_iterator_finished"]:
            for _ in Sampled(index, None, part):  # the last epoch ended here: its sampler begins the next one
                pass
            part = None
        sampled = Sampled(index, self.snapshot_every_n_steps, part)
        return sampled, sampled

    def _draw_seeds(self, state: Mapping[str, Any] | None) -> tuple[int, int]:
        """The base seed of an epoch and how many have had it before; drawn where torch draws it, so that the generator stands where torch's would: in
        an epoch of a state as well, unless kept workers had the seed before."""
        given = None if state is None else state.get("seeds")
        if given is not None and given[1]:
            base_seed, turn = map(int, given)
        elif state is None and self.persistent_workers and self._kept is not None:
            base_seed, turn = self._seeds[0], self._seeds[1] + 1
        else:
            base_seed, turn = base_seeds.drawn(self._base_seed), 0
        self._seeds = (base_seed, turn)
        return self._seeds

    def _reads_in_order(self) -> bool:
        """Whether batches are `batch_size` samples of an order of ours, one after the other. A framework may put the order into its own batch sampler."""
        return self._order is not None and self._order is self.sampler

    def _samplers_with_epochs(self) -> list[Any]:
        """Samplers of others that take an epoch."""
        samplers = () if self._order is not None else (self.sampler, self.batch_sampler)
        return [sampler for sampler in samplers if callable(getattr(sampler, "set_epoch", None))]

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration, which our order and `augment` depend on; each iteration counts on from there. It begins at its start, but for the
        epoch of a state that was loaded: that goes on where the state is. Passed on to a sampler that has it."""
        epoch, self._told = whole("epoch", epoch), None
        if self._resume is None or int(self._resume["epoch"]) != epoch:
            self._epoch, self._resume = epoch, None
            if self._running() is None and self._progress is not None and not self._progress.complete:
                self._progress = None
        for sampler in self._samplers_with_epochs():
            sampler.set_epoch(epoch)

    def _sampler_set_epoch(self, epoch: int) -> None:
        """Somebody called `set_epoch` of our sampler. Lightning does so after it has made the first iteration, which must be of that epoch."""
        if self._has_given_nothing():
            self._told = epoch
        elif self._resume is None:  # a loaded state has an epoch, which wins
            self.set_epoch(epoch)

    def _has_given_nothing(self) -> bool:
        """Whether there is an iteration, and the last one has given no batch yet."""
        return self._progress is not None and not self._progress.begun and not self._progress.complete

    def _renewed(self, iteration: Iteration) -> Iteration | None:
        """What to read instead of an iteration that has given no batch, if a sampler was given another epoch after it was made; else None."""
        plan = iteration.plan
        if iteration.ended or plan.progress is not self._progress:
            return None
        told, self._told = self._told, None
        sampler = next(iter(self._samplers_with_epochs()), None)
        if told in (None, plan.epoch) and plan.began.get("sampler_epoch") in (None, getattr(sampler, "epoch", None)):
            return None
        iteration.close()
        self._epoch = plan.epoch if told is None else told
        return self._give(self._make_iteration(), time.monotonic_ns())

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop is: the batches that it has got, whatever was prefetched, also when it has left the epoch in its middle. Plain values, for
        any checkpoint.

        With seed= or order=: the epoch, and the position that all ranks are behind, the same on each of them if they have got the same number of batches; any
        number of ranks and workers goes on from there. Else: where the global generators stood when the epoch began and where they stand now, how many batches
        to skip, and the states of a dataset, iterator, sampler or batch sampler that has state_dict(), of the dataset for each worker."""
        if self._resume is not None:
            return dict(self._resume)
        progress = self._progress if self._progress is not None and not self._progress.complete else None
        began = self._began
        if not self._reads_in_order():
            return checkpoint.to_state(self, self._progress)
        state: dict[str, Any] = {"version": _STATE, "order": repr(self.sampler.order), "epoch": self._epoch, "position": 0}
        if progress is not None:
            state["epoch"] = began["epoch"]
            state["position"] = began["shard"].position(progress.samples)
        return state

    def _samples(self) -> int | None:
        """Of the dataset; None where it does not say."""
        try:
            return None if self._iterable else len(self.dataset)
        except (TypeError, NotImplementedError):
            return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where the state was taken. Without seed= and order=, the global generators of random, numpy.random and torch are put where
        they stood then, unless the state is of another rank. Raises StateError (ValueError) if it is of another order, another dataset, another batch_size, or
        another version, or if it holds a state of each worker's dataset and num_workers= is another."""
        ordered = self._reads_in_order()
        if not isinstance(state, Mapping) or state.get("version") != (checkpoint.VERSION if state.get("order") is None else _STATE):
            raise StateError(f"this is no state of a loader of this version: {state!r:.200}")
        order = repr(self.sampler.order) if ordered else None
        if state.get("order") != order:
            theirs, ours = (value or "a sampler, without seed= or order=" for value in (state.get("order"), order))
            raise StateError(f"the state is of {theirs}, this loader has {ours}; make it with the same number of samples, order= and seed=")
        if not ordered:
            checkpoint.check(self, state)
            checkpoint.put_generators(state)
        elif "position" not in state or "epoch" not in state:
            raise StateError(f"the state lacks {'position' if 'epoch' in state else 'epoch'}")
        self._resume = dict(state)

    # ------------------------------------------------------------------------------------------------ figures, the end

    def stats(self) -> LoaderStats:
        """What it has done since it was made."""
        return self._meter.stats()

    def close(self) -> None:
        """Ends workers that are kept, and writes the trace. The loader can be iterated over again; then they are started anew."""
        current = self._running()
        if current is not None:
            current.end("the loader was closed")
        if self._next is not None:
            self._next.close()
            self._next = None
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        if self._recorder is not None:
            self._recorder.close()


_living: weakref.WeakValueDictionary[int, LoaderCore] = weakref.WeakValueDictionary()
_made: weakref.WeakKeyDictionary[Cache, _Made] = weakref.WeakKeyDictionary()  # caches that loaders made
_of_datasets: dict[int, Cache] = {}  # by the id of a dataset: the cache that a loader made for it last. The dataset keeps it


def living() -> list[LoaderCore]:
    """The loaders of this process."""
    return [loader for reference in _living.valuerefs() if (loader := reference()) is not None]


def _usable(cache: Cache | None, options: dict[str, Any]) -> bool:
    """Whether a loader made this cache with these options."""
    return cache is not None and not cache.closed and cache in _made and _made[cache].options == options


def _cached_of(dataset: Any, options: dict[str, Any], cache: Cache | None = None) -> CachedSamples | None:
    """What a loader of this process reads this very dataset from, if it made the cache with these options. cache: only if it is this one."""
    for loader in living():
        if loader.dataset is dataset and cache in (None, loader.cache) and _usable(loader.cache, options):
            return cast(CachedSamples, loader._cached)
    return None


def _samples_of(dataset: Any, extras: Extras, kind: Callable[..., CachedSamples]) -> Any:
    """The dataset if it has a cache, else a `kind` around it; None without a cache.

    A framework may make a loader again out of its attributes: then it gives cache= beside size=. Or it repeats the arguments: then it gives size= once
    more. In both cases the new loader uses the cache of the first one."""
    cache, options = extras.cache, extras.of_cache()
    if cache is not None and extras.makes_cache():
        if not _usable(cache, options):
            raise InvalidError("size=, name=, fingerprint= and variable= are for a cache that is made here; leave them out or leave out cache=")
        return _cached_of(dataset, options, cache) or _around(kind, dataset, cache)
    if isinstance(dataset, CachedSamples) or (_is_served(dataset) and cache in (None, dataset.cache) and not extras.makes_cache()):
        return dataset
    if cache is not None:
        return kind(dataset, cache)
    if extras.size is None and extras.name is None:
        return None
    there = _there(kind, dataset, options) if extras.name is None else None
    if there is not None:
        return there
    cached = kind(dataset, **options)
    _made[cached.cache] = _Made(options, derive(dataset) if extras.name is None else None)
    if extras.name is None:
        _keep(dataset, cached.cache)
    return cached


def _there(kind: Callable[..., CachedSamples], dataset: Any, options: dict[str, Any]) -> CachedSamples | None:
    """The samples in a cache that a loader has made for this very dataset with these options. None if there is none, or if the dataset has changed since."""
    cached = _cached_of(dataset, options)
    cache = _of_datasets.get(id(dataset)) if cached is None else cached.cache
    if cache is None or not _usable(cache, options):
        return None
    before, now = _made[cache].derived, derive(dataset)
    if cached is None:
        try:
            cached = _around(kind, dataset, cache)
        except (FingerprintError, SchemaError, InvalidError):  # other samples, of another kind, or another number of them
            return None
    elif not cached.is_fresh():
        return None
    if before is not None and now.changed(before) is not None and derive(dataset).changed(now) is None:  # loads alone do not change it
        return None
    return cached


def _around(kind: Callable[..., CachedSamples], dataset: Any, cache: Cache) -> CachedSamples:
    """The samples in a cache that a loader has made."""
    cached = kind(dataset, cache)
    cached.made = True
    cached.notices.advice = cached.advice(given=False)
    return cached


def _keep(dataset: Any, cache: Cache) -> None:
    """Keeps the cache as long as the dataset: Lightning forgets the loaders of hooks before it calls them again."""
    if id(dataset) not in _of_datasets:
        try:
            weakref.finalize(dataset, _of_datasets.pop, id(dataset), None).atexit = False
        except TypeError:  # a list or a range, which nothing can refer to weakly
            return
    _of_datasets[id(dataset)] = cache


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a loader, which does not keep the loader alive. It returns None when the loader is gone."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        bound = reference()
        return None if bound is None else bound(*arguments)

    return call


def gather_threads(given: int | None) -> int:
    """How many threads copy hits."""
    return given or min(4, os.cpu_count() or 1)


def _is_served(dataset: Any) -> bool:
    return type(dataset).__name__ == "SourceDataset" and hasattr(dataset, "cache")


def _numbered(wanted: Iterator[Any]) -> tuple[Iterator[Any], bool]:
    """The same batches, and whether the first one's indices are numbers: names and tuples go to the dataset as they are, with their batch."""
    first = next(wanted, wanted)
    if first is wanted:
        return iter(()), True
    first = listed(first)
    return _behind(first, wanted), all(hasattr(type(index), "__index__") and not getattr(index, "ndim", 0) for index in first)


def _noting_epoch(wanted: Iterator[Any], sampler: Any, began: dict[str, Any]) -> Iterator[Any]:
    """Notes the sampler's epoch when the first batch is planned: a framework may set it after the iteration was made."""
    began["sampler_epoch"] = getattr(sampler, "epoch", None)
    yield from _rest(wanted)


def _skipped(wanted: Iterator[Any], count: int) -> Iterator[Any]:
    """Without the first `count`; draws one more, so that random numbers of the sampler's start are drawn now."""
    for _ in range(count):
        if next(wanted, wanted) is wanted:
            return iter(())
    first = next(wanted, wanted)
    return iter(()) if first is wanted else _behind(first, wanted)


def _behind(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from _rest(rest)


def _rest(wanted: Iterator[Any]) -> Iterator[Any]:
    """The rest of an iterator. A loop would call its __iter__, which begins the epoch again in Lightning's batch sampler."""
    while (batch := next(wanted, wanted)) is not wanted:
        yield batch


def loads_one_by_one(dataset: Any) -> bool:
    """Whether a dataset gives samples by [index] alone, not batches of them."""
    if not hasattr(dataset, "__getitems__"):
        return True
    # torch's Subset has it only to pass it on
    return type(dataset).__module__ == "torch.utils.data.dataset" and type(dataset).__name__ == "Subset" and loads_one_by_one(dataset.dataset)


__all__ = ["Extras", "LoaderCore", "_worker", "loads_one_by_one"]
