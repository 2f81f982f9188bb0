"""What a loader is: it has options (options.py), a dataset, maybe in a cache (made_caches.py), a
place in its epochs (checkpoint.py), and a way of making batches (executor.py). This class is the
same for NumPy and torch batches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._cache import disk, served
from .._cache.cache import Cache
from .._checks.randomness import Remedy
from .._common import threads
from .._common.errors import ClosedError, InvalidError
from .._common.notes import noted
from .._common.numbers import whole
from .._common.ranks import rank_of
from .._common.warning import warn_user
from .._datasets.cached_samples import CachedSamples
from .._datasets.lists import WithoutIndex
from .._datasets.looks import are_forked
from .._datasets.tally import Counters
from .._pipes.counting import Chain
from .._pipes.loader_chain import of_arguments
from .._trace import Recorder
from . import short_memory
from .affinity import Affinity
from .bad_samples import BadSamples
from .checkpoint import Checkpoint
from .epoch_context import EpochContext
from .executor import Executor
from .iterator import BatchIterator
from .job import Job
from .made_caches import attach_again, free, is_made_here, keep_again, register, samples_of, successor
from .numpy_backend import NumpyBackend
from .sampling import numbered, order_within, prefers_some, with_epochs
from .setup import Setup
from .stats import LoaderStats, Meter
from .tracing import Tracing
from .worker_choice import rows_in_c

_log = logging.getLogger("stocached")
_set = object.__setattr__

_WAS_CLOSED = "the loader was closed"


class BaseLoader:
    """Each argument of the constructor is an attribute. Programs may set them: the next epoch uses
    what they are then."""

    # Attributes of torch's loader, which declares some of them with less.
    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Any
    generator: Any
    prefetch_factor: int | None
    worker: Any
    cache: Any
    settings: dict[str, Any]
    """The arguments of its constructor."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Arguments."""

    _remedy: Remedy
    _iterable: bool
    _backend: NumpyBackend

    def _prepare(
        self,
        dataset: Any,
        backend: NumpyBackend,
        cached_kind: type[CachedSamples],
        default_collate: bool,
        before: frozenset[str],
        data_pipes: Any = None,
    ) -> None:
        """The constructor calls it at its end. dataset: as the user gave it. before: the attributes
        at the start of the constructor."""
        if self._iterable and self.worker not in (None, "process") and self.num_workers > 1:
            raise InvalidError(
                f'num_workers={self.num_workers} with worker="{self.worker}" and an iterable dataset: '
                "each thread would give every sample, as get_worker_info() "
                'only knows workers that are processes; use worker="process", or num_workers=1'
            )
        one_by_one = self.batch_sampler is None and (not isinstance(dataset, WithoutIndex) or dataset.finishes)
        if self.bad_samples == "skip" and one_by_one:
            raise InvalidError('bad_samples="skip" leaves samples out of batches; give batch_size= or batch_sampler=')
        self._backend, self._data_pipes = backend, data_pipes
        self._meter, self._bad = Meter(), BadSamples()
        self._collate_default = self.collate_fn if default_collate else None
        # Of kept workers and of the next epoch.
        self._functions = (self.collate_fn, self.augment, self.batch_augment)
        self._executor = Executor()
        self._current: weakref.ref[BatchIterator] | None = None
        self._next: BatchIterator | None = None  # iterator of the next epoch, if it was begun ahead
        self._closed = False  # since the last iteration
        self._length: int | None = None  # the dataset's length at the last iteration
        self._misses_before, self._said_short = 0, set[str]()
        self._at_end: tuple[tuple[int, ...], dict[int, tuple[int, int]]] = (), {}  # counts of caches
        self._pid = os.getpid()
        # The first iteration makes it, so that a loader that a framework replaces writes no file.
        self._recorder: Recorder | None = None
        self._order = order_within(self.sampler if self.batch_sampler is None else self.batch_sampler)
        if self._order is not None:
            self._order.tell(self)
        self._count_stages(None if self._order is None else getattr(self._order.order, "chain", None))
        self._checkpoint = Checkpoint(0 if self._order is None else self._order.epoch)
        self._take_cache(dataset, cached_kind)
        self._affinity: Affinity | None = None
        if self.affinity is not None:
            assert self.batch_size is not None
            self._affinity = Affinity(self.affinity, self.local_world_size, self.batch_size, self.drop_last)
        self._take_worker_kind()
        self._own = {name: value for name, value in vars(self).items() if name not in before}
        register(self)

    def _setup(self) -> Setup:
        """The loader as it is now."""
        return Setup(self)

    def _take_cache(self, dataset: Any, cached_kind: type[CachedSamples]) -> None:
        """Sets the dataset whose samples come from a cache, and the cache, if there is one."""
        forks = are_forked(getattr(self, "multiprocessing_context", None))
        with noted("" if self._chain is None else self._chain.cache_noted):
            self._cached = samples_of(
                dataset,
                self,
                None if self._chain is None else self._chain.keeper,
                functools.partial(
                    cached_kind,
                    allow_random=self.allow_random,
                    bad_samples=self.bad_samples,
                    store=self.store,
                    _remedy=self._remedy,
                    _workers=self.num_workers,
                    _init=getattr(self, "worker_init_fn", None),
                    _forks=forks and self.worker in (None, "process"),
                    _augment=self.augment,
                    _best="lfu" if prefers_some(self.sampler if self._order is None else self._order) else "cost",
                ),
            )
        if isinstance(self._cached, CachedSamples):
            self._cached.notices.deferred = True  # iterations warn
        self.cache = None if self._cached is None else self._cached.cache
        self._disk_before = self._disk_counts()
        self._caches_before = self._cache_counts()

    def _take_worker_kind(self) -> None:
        """Sets what workers are."""
        setup, asked = self._setup(), self.worker
        self.worker, _ = setup.worker_kind(asked)
        self._chosen = self.worker if asked is None else None  # by us, for the options as they are
        if self.worker != "process" and self.num_workers > 1 and setup.asks_dataset():
            raise InvalidError(
                f'num_workers={self.num_workers} with worker="{self.worker}", and the dataset has a state (state_dict()), which the threads would share; use '
                'worker="process", num_workers=1, or seed= or order=, with which the dataset is not asked for its state'
            )

    def __setattr__(self, name: str, value: Any) -> None:
        # While a hook runs, Lightning records assignments to loaders, and repeats them on the
        # loader that it makes. The place of an iteration must not be copied.
        if name[0] == "_":
            _set(self, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """The arguments, and attributes that were set later. Workers and the place in an epoch are
        not copied; `state_dict` has the place. A loader of a pipe is made of the pipe again."""
        state, given = self._state(), vars(self).get("_given")
        if given is not None:
            assert self._chain is not None
            state["settings"], state["keeper"] = given, self._chain.keeper
            state["more"].pop("settings", None)
        return state

    def _state(self) -> dict[str, Any]:
        own = self._own
        more = {
            name: value
            for name, value in vars(self).items()
            if name not in own or (name[0] != "_" and value is not own[name])
        }
        more.pop("_own")
        more.pop("_given", None)
        settings, cache = self.settings, None
        if is_made_here(self.cache):
            settings = settings | {"cache": None}
            if self.name is None:
                with contextlib.suppress(ClosedError):
                    cache = self.cache.__reduce__()[1]
        return {"settings": settings, "cache": cache, "keeper": None, "more": more}

    def _again(self, **changes: Any) -> Any:
        """A loader as this one, with other values of these arguments."""
        state = self._state()
        made: Any = object.__new__(type(self))
        made.__setstate__({**state, "settings": {**state["settings"], **changes}})
        return made

    def _restore(self, make: Callable[..., None], state: dict[str, Any]) -> None:
        settings = dict(state["settings"])
        if state["cache"] is not None:
            if state["keeper"] is not None:
                keep_again(state["keeper"], state["cache"])
            else:
                cache = attach_again(settings["dataset"], settings, state["cache"])
                settings["cache"] = settings["cache"] if cache is None else cache
        make(self, **settings)
        vars(self).update(state["more"])

    # ------------------------------------------------------------ iterating

    def _new_iteration(self) -> BatchIterator:
        threads.stop_if_program_ends()
        if self._closed and any(cache.closed for cache in self._caches()):
            raise ClosedError(
                f"{self!r} was closed, and its cache with it, as that has no name; make another loader, close this one "
                "later, or give it name="
            )
        self._closed = False
        if self._pid != os.getpid():
            self._leave_parent()
        if self.trace is not None and self._recorder is None:
            rank, world_size = rank_of(self.rank, self.world_size)
            self._recorder = Recorder(
                self.trace, settings=self.settings, rank=rank, world_size=world_size, about=self._stored_bytes()
            )
        start = time.monotonic_ns()
        place = self._checkpoint
        epoch, place.epoch_set = place.epoch_set, None
        if epoch is not None and place.untouched:
            place.epoch = epoch
        current = self._running()
        if current is not None and self.persistent_workers:
            current.end(
                "another iteration over this loader has begun, and with persistent_workers=True there is one at a time"
            )
        self._say_if_short()
        self._say_if_resized()
        self._attach_again()
        functions = (self.collate_fn, self.augment, self.batch_augment)
        set_since = any(now is not before for now, before in zip(functions, self._functions))
        self._functions = functions
        kept = self._executor.kept
        if set_since or (kept is not None and not kept.usable):
            self._executor.end()
            self._end_next()
        ahead, self._next = self._next, None
        if ahead is not None:
            if self._asks_for(ahead):
                try:
                    if self._affinity is not None:
                        self._affinity.asked_for()
                except BaseException:
                    ahead.close()
                    raise
                ahead.asked_for()
                return self._give(ahead, start)
            ahead.close()
        resume = place.resume
        try:
            return self._give(self._make_iteration(), start)
        except BaseException:
            place.resume = resume  # for the next try
            raise

    def _say_if_short(self) -> None:
        """Warns once of each reason, after an epoch with misses."""
        misses = self.stats().misses
        if misses == self._misses_before or (self._cached is not None and self._cached.served):
            return
        self._misses_before = misses
        for cache in self._caches():
            with contextlib.suppress(ClosedError):  # another thread may close it meanwhile
                short_memory.warn([cache], self._said_short)

    def _say_if_resized(self) -> None:
        """Warns of a dataset with another length than at the epoch before, as the order stays as it was."""
        if self._order is None or isinstance(self.dataset, WithoutIndex):
            return
        before = self._length
        with contextlib.suppress(Exception):  # a len() of the program
            self._length = len(self.dataset)
        if before not in (None, self._length):
            warn_user(
                f"the dataset has {self._length} samples now and had {before}, and this loader goes on with its order of "
                f"{self._order.order.samples}; make another loader"
            )

    def _attach_again(self) -> None:
        """Reads the cache that was made in place of its own, after that was removed."""
        if self._chain is not None:
            before, was = self._caches_before, self._cache_counts()
            if self._chain.attach_again():
                for k, (hits, misses) in self._cache_counts().items():
                    self._caches_before[k] = (hits - was[k][0] + before[k][0], misses - was[k][1] + before[k][1])
                self._end_next()
                self._executor.end()
        if self._cached is None:
            return
        if self._cached.attach_again():
            _log.info("cache %s was removed and made again for the same samples; loaders read the new one", self.cache)
        if self._cached.cache is not self.cache:
            successor(self.cache, self._cached.cache)
            self.settings = {k: self._cached.cache if v is self.cache else v for k, v in self.settings.items()}
            self.cache = self._cached.cache
            self._end_next()
            self._executor.end()  # its workers read the old one

    def _leave_parent(self) -> None:
        """In a forked child: a thread of the parent may have held the meter's lock, and the workers and the file of
        the trace are the parent's."""
        self._pid, self._meter, self._bad = os.getpid(), Meter(), BadSamples()
        self._count_stages(self._chain)
        self._current = self._next = self.trace = None
        self._executor = Executor()

    def _end_next(self) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None

    def _give(self, iteration: BatchIterator, start: int) -> BatchIterator:
        """Makes an iteration the current one. start: when the training loop began to wait for
        it."""
        end = time.monotonic_ns()
        self._meter.add(wait=end - start)
        if iteration.context.trace is not None:
            iteration.context.trace.began(iteration.context.epoch, start, end)
        self._current = weakref.ref(iteration)
        self._checkpoint.give(iteration.context)
        if self._closed:  # by another thread, which did not find this iteration
            iteration.end(_WAS_CLOSED)
            self._executor.end()
        return iteration

    def _make_iteration(self, *, ahead: bool = False) -> BatchIterator:
        """Begins an epoch. ahead: the program has not asked for it yet."""
        setup, pipeline = self._setup(), None
        if setup.num_workers and not setup.kept and self.worker == self._chosen:  # options may have been set since
            self.worker, pipeline = setup.worker_kind(None)
            self._chosen = self.worker
            setup = self._setup()
        else:
            pipeline = self._executor.pipeline(setup)
        return self._executor.begin(self._new_context(setup, pipeline, ahead))

    def _new_context(self, setup: Setup, pipeline: Any, ahead: bool) -> EpochContext:
        """pipeline: of native workers that start."""
        rows = setup.by_rows()
        wanted, begun = self._checkpoint.begin(setup, self._affinity, ahead)
        ordered = begun.shard is not None
        if rows and not ordered and setup.cached is None:
            wanted, rows = numbered(wanted)
        job = Job(setup, begun, rows, pipeline, self._counters)
        gathers, ours = rows and setup.cached is not None and not setup.augments, setup.runs_only_ours()
        layout = setup.layout_of_cache(job.batch_size or 1) if gathers else None
        follows = rows and ordered and (setup.persistent_workers or not setup.num_workers)
        return EpochContext(
            setup=setup,
            job=job,
            begun=begun,
            wanted=wanted,
            meter=self._meter,
            bad=self._bad if job.skips_bad else None,
            trace=self._tracing(),
            by_rows=rows,
            layout=layout,
            row_layout=rows_in_c(job, setup.backend.no_columns),
            ours=ours,
            changes=setup.changes() if ahead else None,
            follow=_weakly(self._begin_next) if follows and (ours or layout is not None) else None,
            renew=_weakly(self._renewed),
        )

    def _tracing(self) -> Tracing | None:
        if self._recorder is None:
            return None
        counters = self._counters
        return Tracing(self._recorder, None if counters is None or counters.chain.indexed else counters)

    def _begin_next(self) -> None:
        """Begins the first batches of the next epoch, while the training loop has the last batches
        of this one. No function of the program runs for them: it may tell them the epoch in between."""
        if self._next is None and self._checkpoint.resume is None:
            self._next = self._make_iteration(ahead=True)
            if self._closed:  # by another thread
                self._end_next()

    def _asks_for(self, ahead: BatchIterator) -> bool:
        """Whether the program now asks for what was begun ahead."""
        context, place = ahead.context, self._checkpoint
        return place.resume is None and context.epoch == place.epoch and context.changes == context.setup.changes()

    def _renewed(self, iteration: BatchIterator) -> BatchIterator | None:
        """An iteration to read instead of one that has given no batch yet, if the program has set
        another epoch of a sampler since; else None."""
        context, place = iteration.context, self._checkpoint
        if iteration.ended or context.progress is not place.progress:
            return None
        epoch, place.epoch_set = place.epoch_set, None
        sampler = next(iter(self._foreign_samplers()), None)
        planned_for = context.begun.sampler_epoch
        if epoch in (None, context.epoch) and planned_for in (None, getattr(sampler, "epoch", None)):
            return None
        iteration.close()
        place.epoch = context.epoch if epoch is None else epoch
        return self._give(self._make_iteration(), time.monotonic_ns())

    def _running(self) -> BatchIterator | None:
        """The last iteration, if it has not ended."""
        current = self._current() if self._current is not None else None
        return current if current is not None and not current.ended else None

    # ------------------------------------------------------------ epochs and states

    def state_dict(self) -> dict[str, Any]:
        """The place of the training loop: the batches that it has got, not those prefetched, also
        if it has left the epoch in the middle. Plain values, for any checkpoint.

        With seed= or order=: the epoch, and the position that all ranks have reached. It is the
        same on all ranks that have got the same number of batches. Any number of ranks and workers
        can continue from it.
        Otherwise: the states of the global generators at the start of the epoch and now, and how
        many batches to skip. Also the states of a dataset, iterator, sampler or batch sampler that
        has state_dict(); for the dataset, a state of each worker."""
        place = self._checkpoint
        if place.resume is not None:
            return dict(place.resume)
        if self._order is not None and self._order is self.sampler:
            return place.ordered_state(self._order)
        return place.sampled_state(self._setup())

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """The next iteration continues from the state; of rows of a pipe also from a list of the
        states of all ranks. Without seed= and order=, the global generators of random, numpy.random
        and torch get their states of then, unless the state is of another rank.

        Raises StateError (ValueError) if the order, dataset, batch_size or version differs, or if
        the state holds a state of each worker's dataset and num_workers= differs."""
        self._checkpoint.load(state, self._setup())

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration; later iterations count up from it. seed=, order=
        and `augment` depend on it. The iteration begins at the epoch's start, except for the epoch
        of a loaded state, which continues from the state. Calls `set_epoch` of the sampler too, if
        it has one."""
        epoch = whole("epoch", epoch)
        self._checkpoint.begin_at(epoch, running=self._running() is not None)
        for sampler in self._foreign_samplers():
            sampler.set_epoch(epoch)

    def _foreign_samplers(self) -> list[Any]:
        """Samplers with set_epoch, without an order of stocached."""
        return [] if self._order is not None else with_epochs(self.sampler, self.batch_sampler)

    def _sampler_set_epoch(self, epoch: int) -> None:
        """The program has called `set_epoch` of our sampler. Lightning does so after it has made
        the first iteration, which must be of that epoch."""
        if self._checkpoint.untouched:
            self._checkpoint.epoch_set = epoch
        elif self._checkpoint.resume is None:  # a loaded state has an epoch, which wins
            self.set_epoch(epoch)

    # ------------------------------------------------------------ stats, the end

    def stats(self) -> LoaderStats:
        """Its counters since it was made."""
        store = self._cached.store if isinstance(self._cached, CachedSamples) else ""
        bad, disk_counts = self._bad, zip(disk.COUNTS, self._disk_counts(), self._disk_before)
        since: dict[str, Any] = {name: now - before for name, now, before in disk_counts}
        caches, before = self._cache_counts(), self._caches_before
        counts = {k: (now[0] - before[k][0], now[1] - before[k][1]) for k, now in caches.items() if k in before}
        if counts and self._chain is not None and self._chain.cache is None:  # those that stages read
            since |= {"hits": sum(hits for hits, _ in counts.values()), "misses": sum(m for _, m in counts.values())}
        stats = dataclasses.replace(
            self._meter.stats(), store=store, bad_samples=bad.count, bad=tuple(bad.kept), **since
        )
        table = None if self._counters is None else self._counters.total()
        return dataclasses.replace(stats, stages=self._stages().stats(table, stats, counts, *self._meter.part_seconds))

    def _stages(self) -> Chain:
        """Those of its pipe, or those that its attributes say."""
        return of_arguments(self._setup()) if self._chain is None else self._chain

    def _count_stages(self, chain: Chain | None) -> None:
        """chain: of a pipe; None: the dataset is none."""
        self._chain = chain
        self._counters = None if chain is None or not chain.tallied else Counters(chain, self.num_workers)

    def _disk_counts(self) -> tuple[int, ...]:
        """As `Disk.counts`; empty without a disk cache. Those at the end, after the loader has closed the cache."""
        behind = None if self.cache is None else self.cache._disk
        return self._at_end[0] if behind is None else behind.counts()

    def _cache_counts(self) -> dict[int, tuple[int, int]]:
        return self._at_end[1] | ({} if self._chain is None else self._chain.cache_counts())

    def _caches(self) -> list[Cache]:
        """Those that it reads, also in stages of its pipe."""
        inner = [] if self._chain is None else self._chain.caches
        return inner if self.cache is None else [self.cache, *inner]

    def _stored_bytes(self) -> dict[str, int]:
        """For a timeline: the size of a sample as the cache has it, if all have the same."""
        cache = self.cache
        if cache is None or cache.variable or getattr(self._cached, "store", "") == "encoded":
            return {}
        return {"sample_bytes": cache.sample_bytes}

    def __repr__(self) -> str:
        kind = type(self)
        dataset = type(self.dataset).__name__ if self._chain is None else f"pipe {' '.join(self._chain.lines)}"
        samples = self._setup().samples()
        of = "" if samples is None else f" of {samples:,} samples"
        batches = (
            f"batch_size={self.batch_size}" if self.batch_size or self.batch_sampler is None else "batches of a sampler"
        )
        workers = f"{self.num_workers} workers ({self.worker})" if self.num_workers else "no workers"
        cache = ", ".join(map(repr, self._caches())) or "no cache"
        return f"<{kind.__module__}.{kind.__name__}: {dataset}{of}, {batches}, {workers}, {cache}>"

    def close(self) -> None:
        """Ends kept workers, writes the trace, and frees caches without a name that a loader or its pipe made, unless
        another loader of the program uses them. Then a later iteration raises ClosedError; else it starts new workers."""
        self._closed = True
        with contextlib.ExitStack() as steps:  # from the last to the first, and all though one raises, as a warning may
            steps.callback(self._free)
            if self._cached is not None and self._cached.served:
                steps.callback(served.withdraw, self._cached.cache)
            if self._recorder is not None:
                steps.callback(self._recorder.close)
            steps.callback(self._executor.end)
            steps.callback(self._end_next)
            steps.callback(self._say_if_short)
            current = self._running()
            if current is not None:
                current.end(_WAS_CLOSED)

    def _free(self) -> None:
        self._at_end = self._disk_counts(), self._cache_counts()
        of_pipe = self._chain is not None and self._chain.cache is not None
        free([one for one in self._caches() if one is not self.cache or of_pipe or is_made_here(one)])


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a loader that does not keep the loader alive. It returns None when the loader is
    gone."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        bound = reference()
        return None if bound is None else bound(*arguments)

    return call
