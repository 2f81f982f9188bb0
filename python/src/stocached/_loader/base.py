"""The common part of the loaders of NumPy and torch batches: how a loader is made and copied, and
how it begins an iteration."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from .._cache import disk, served
from .._cache.stats import changes_of
from .._checks.randomness import Remedy
from .._common import sizes, threads
from .._common.errors import ClosedError, InvalidError, UnsupportedError
from .._common.numbers import whole
from .._common.ours import only_ours
from .._common.ranks import rank_of
from .._common.subsets import is_subset, unwrapped
from .._datasets.cached_samples import CachedSamples
from .._datasets.looks import are_forked
from .._samples.batch_layout import Layout
from .._samples.own_copy import own_copy
from .._trace import Recorder
from .._workers.task_queue import MOST_TASKS
from .affinity import Affinity
from .bad_samples import BadSamples
from .checkpoint import CheckpointedLoader
from .epoch_context import EpochContext, Progress
from .gather_iterator import GatherIterator
from .iterator import BatchIterator
from .job import Augment, Job
from .made_caches import attach_again, free, is_made_here, register, samples_of, successor
from .numpy_backend import NumpyBackend
from .options import LoaderOptions, Worker, gather_threads
from .sampling import numbered, order_within, prefers_some
from .single_process import SingleProcessIterator
from .stats import LoaderStats, Meter
from .tracing import Tracing
from .worker_batches import WorkerBatchIterator
from .worker_choice import APART, OUT_OF_ORDER, WHOLE, pipeline_of, rows_in_c, warn_of_processes
from .worker_runtime import WorkerRuntime

_log = logging.getLogger("stocached")
_AHEAD = 2  # batches, without workers


class BaseLoader(CheckpointedLoader):
    """The common part of both loaders. They have the attributes of torch's loader."""

    _remedy: ClassVar[Remedy]
    _backend: NumpyBackend

    def _prepare(
        self,
        dataset: Any,
        options: LoaderOptions,
        backend: NumpyBackend,
        cached_kind: type[CachedSamples],
        default_collate: bool,
        before: frozenset[str],
    ) -> None:
        """The constructor calls it at its end. dataset: as the user gave it. before: the attributes
        at the start of the constructor."""
        if self._iterable and options.worker not in (None, "process") and self.num_workers > 1:
            raise InvalidError(
                f'num_workers={self.num_workers} with worker="{options.worker}" and an iterable dataset: '
                "each thread would give every sample, as get_worker_info() "
                'only knows workers that are processes; use worker="process", or num_workers=1'
            )
        if options.bad_samples == "skip" and not self._batched():
            raise InvalidError('bad_samples="skip" leaves samples out of batches; give batch_size= or batch_sampler=')
        self.num_workers = whole("num_workers", self.num_workers)
        vars(self).update(vars(options))
        self._backend = backend
        self._meter, self._bad = Meter(), BadSamples()
        self._collate_default = self.collate_fn if default_collate else None
        self._functions = (self.collate_fn, self.augment, self.batch_augment)  # of kept workers and of the next epoch
        self._reset_epochs()
        self._kept: WorkerRuntime | None = None  # of persistent workers
        self._closed = False  # since the last iteration
        self._next: BatchIterator | None = None  # of the next epoch, if it was begun ahead
        self._pid = os.getpid()
        # The first iteration makes it, so that a loader that a framework replaces writes no file.
        self._recorder: Recorder | None = None
        self._order = order_within(self.batch_sampler if self._batched() else self.sampler)
        if self._order is not None:
            self._order.tell(self)
            self._epoch = self._order.epoch
        self._take_cache(dataset, options, cached_kind)
        if options.affinity is not None:
            assert self.batch_size is not None
            self._affinity = Affinity(options.affinity, options.local_world_size, self.batch_size, self.drop_last)
        self._take_worker_kind(options.worker)
        self._own = {name: value for name, value in vars(self).items() if name not in before}
        register(self)

    def _take_cache(self, dataset: Any, options: LoaderOptions, cached_kind: type[CachedSamples]) -> None:
        """Sets the dataset whose samples come from a cache, and the cache, if there is one."""
        forks = are_forked(getattr(self, "multiprocessing_context", None))
        self._cached = samples_of(
            dataset,
            options,
            functools.partial(
                cached_kind,
                allow_random=options.allow_random,
                bad_samples=options.bad_samples,
                store=options.store,
                _remedy=self._remedy,
                _workers=self.num_workers,
                _init=getattr(self, "worker_init_fn", None),
                _forks=forks and options.worker in (None, "process"),
                _augment=options.augment,
                _best="lfu" if prefers_some(self.sampler if self._order is None else self._order) else "cost",
            ),
        )
        if isinstance(self._cached, CachedSamples):
            self._cached.notices.deferred = True  # iterations warn
        self.cache = None if self._cached is None else self._cached.cache
        self._disk_before = self._disk_counts()

    def _take_worker_kind(self, asked: Worker | None) -> None:
        """Sets what workers are. asked: by the user."""
        self.worker, _ = self._worker_kind(asked)
        self._chosen = self.worker if asked is None else None  # by us, for the options as they are
        if self.worker != "process" and self.num_workers > 1 and self._asks_dataset():
            raise InvalidError(
                f'num_workers={self.num_workers} with worker="{self.worker}", and the dataset has a state (state_dict()), which the threads would share; use '
                'worker="process", num_workers=1, or seed= or order=, with which the dataset is not asked for its state'
            )

    def __setattr__(self, name: str, value: Any) -> None:
        # While a hook runs, Lightning records assignments to loaders, and repeats them on the
        # loader that it makes. The place of an iteration must not be copied.
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """The arguments, and attributes that were set later. Workers and the place in an epoch are
        not copied; `state_dict` has the place."""
        own = self._own
        more = {
            name: value
            for name, value in vars(self).items()
            if name not in own or (name[0] != "_" and value is not own[name])
        }
        more.pop("_own")
        settings, cache = self.settings, None
        if is_made_here(self.cache):
            settings = settings | {"cache": None}
            if self.name is None and not self.cache.closed:
                cache = self.cache.__reduce__()[1]
        return {"settings": settings, "cache": cache, "more": more}

    def _again(self, **changes: Any) -> Any:
        """A loader as this one, with other values of these arguments."""
        state = self.__getstate__()
        made: Any = object.__new__(type(self))
        made.__setstate__({**state, "settings": {**state["settings"], **changes}})
        return made

    def _restore(self, make: Callable[..., None], state: dict[str, Any]) -> None:
        settings = dict(state["settings"])
        if state["cache"] is not None:
            cache = attach_again(settings["dataset"], settings, state["cache"])
            settings["cache"] = settings["cache"] if cache is None else cache
        make(self, **settings)
        vars(self).update(state["more"])

    # ------------------------------------------------------------ iterating

    def _new_iteration(self) -> BatchIterator:
        threads.stop_if_program_ends()
        if self._closed and self.cache is not None and self.cache.closed:
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
        epoch, self._epoch_set = self._epoch_set, None
        if epoch is not None and self._has_given_nothing():
            self._epoch = epoch
        current = self._running()
        if current is not None and self.persistent_workers:
            current.end(
                "another iteration over this loader has begun, and with persistent_workers=True there is one at a time"
            )
        self._attach_again()
        functions = (self.collate_fn, self.augment, self.batch_augment)
        others = any(
            now is not before for now, before in zip(functions, self._functions)
        )  # the program has set them since
        self._functions = functions
        if others or (self._kept is not None and not self._kept.usable):
            self._end_kept()
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
        resume = self._resume
        try:
            return self._give(self._make_iteration(), start)
        except BaseException:
            self._resume = resume  # for the next try
            raise

    def _attach_again(self) -> None:
        """Reads the cache that was made in place of its own, after that was removed."""
        if self._cached is None:
            return
        if self._cached.attach_again():
            _log.info("cache %s was removed and made again for the same samples; loaders read the new one", self.cache)
        if self._cached.cache is not self.cache:
            successor(self.cache, self._cached.cache)
            self.settings = {k: self._cached.cache if v is self.cache else v for k, v in self.settings.items()}
            self.cache = self._cached.cache
            self._end_next()
            self._end_kept()  # its workers read the old one

    def _leave_parent(self) -> None:
        """In a forked child: a thread of the parent may have held the meter's lock, and the workers and the file of
        the trace are the parent's."""
        self._pid, self._meter, self._bad = os.getpid(), Meter(), BadSamples()
        self._current = self._next = self._kept = self.trace = None

    def _end_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _end_next(self) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None

    def _give(self, iteration: BatchIterator, start: int) -> BatchIterator:
        """Makes an iteration the current one. start: when the training loop began to wait for
        it."""
        end = time.monotonic_ns()
        self._meter.wait(end - start)
        if iteration.context.trace is not None:
            iteration.context.trace.began(iteration.context.epoch, start, end)
        self._current = weakref.ref(iteration)
        self._begun, self._progress = iteration.context.begun, iteration.context.progress
        self._epoch = iteration.context.epoch + 1
        return iteration

    def _make_iteration(self, *, ahead: bool = False) -> BatchIterator:
        """Begins an epoch: makes its context, starts workers if it has some, and makes the
        iterator, which begins its first batches."""
        pipeline = None
        if self.num_workers and self._kept is None:  # kept workers have theirs
            if self.worker == self._chosen:  # options may be set later
                self.worker, pipeline = self._worker_kind(None)
                self._chosen = self.worker
            elif self.worker == "native":
                with contextlib.suppress(UnsupportedError):  # the dataset has changed: the threads do all in Python
                    pipeline = self._pipeline()
        context = self._new_context(self._by_rows(), pipeline, ahead)
        restored = context.begun.restored
        if restored is not None and not context.by_rows:
            self._end_kept()  # its workers have another place than the state
        needs_runtime = self.num_workers > 0 or (context.by_rows and context.layout is not None)
        iteration = self._with_runtime(context) if needs_runtime else SingleProcessIterator(context)
        if restored is not None:
            context.begun.restored = None  # the iterator has it, and it may be large
            try:
                iteration.throw_away(restored.before - restored.given)
            except BaseException as error:
                iteration.end(f"it could not continue from its state: {type(error).__name__}", harshly=True)
                raise
        return iteration

    def _with_runtime(self, context: EpochContext) -> BatchIterator:
        """An iterator with workers, or with shared memory for batches."""
        owned = self.num_workers > 0 and not self.persistent_workers
        runtime = self._kept
        if runtime is None:
            tasks = min(4 * (context.ahead + 1) * max(context.batch_size or 1, 256), MOST_TASKS)
            method = getattr(self, "multiprocessing_context", None)
            runtime = WorkerRuntime(context, method, tasks, restart=self.restart_workers)
            if not owned:
                self._kept = runtime
        try:
            return (GatherIterator if context.by_rows else WorkerBatchIterator)(context, runtime, owned)
        except Exception:
            raise
        except BaseException:  # Ctrl-C at any step: workers may have tasks that are not noted
            runtime.close()
            raise

    def _begin_next(self) -> None:
        """Begins the first batches of the next epoch, while the training loop has the last batches
        of this one. No function of the program runs for them: it may tell them the epoch in between."""
        if self._next is None and self._resume is None:
            self._next = self._make_iteration(ahead=True)

    def _asks_for(self, ahead: BatchIterator) -> bool:
        """Whether the program now asks for what was begun ahead."""
        context = ahead.context
        return self._resume is None and context.epoch == self._epoch and context.changes == self._changes()

    def _changes(self) -> tuple[int, ...]:
        """Numbers that stay as they are while batches from the cache are right. Of datasets that run only our code,
        samples are stored ahead too, and are the same each time."""
        if self._cached is None or self._cached.cache.closed:
            return ()
        clears, stored = changes_of(self._cached.cache)
        return (clears,) if self._runs_only_ours() else (clears, stored)

    def _runs_only_ours(self) -> bool:
        """Whether the samples of an epoch are made without a function of the program."""
        dataset = self.dataset if self._cached is None else self._cached
        if self.worker == "native":  # C has its own copy of the indices of a Subset
            dataset, _ = unwrapped(dataset)
        return all(map(only_ours, (dataset, self.augment, self._order and self._order.order)))

    @property
    def _default_collate(self) -> bool:
        """Whether batches are made as by default. The program may set collate_fn later."""
        return self._collate_default is not None and self.collate_fn is self._collate_default

    def _of_own_batches(self, batch_augment: Any) -> Any:
        """The function for batches that are no dataset's: not one sample as it is, nor what collate_fn= makes of them."""
        fresh = self._batched() and self._default_collate
        if (
            batch_augment is None
            or fresh
            or self._cached is not None
            or (self.num_workers and self.worker == "process")
        ):
            return batch_augment
        return lambda batch: batch_augment(own_copy(batch))

    def _by_rows(self) -> bool:
        """Whether batches are filled row by row. If not, workers or the training loop make whole
        batches."""
        if self._iterable or not self._default_collate or not self._batched():
            return False
        if self._cached is not None:
            if self._augments():
                return self.num_workers > 0
            return self.num_workers > 0 or self._layout_of_cache(1) is not None
        return self.num_workers > 0 and loads_one_by_one(self.dataset) and not self._deals_as_torch()

    def _deals_as_torch(self) -> bool:
        """Whether workers make whole batches although any worker could load each sample.

        There are three reasons. Each worker's dataset may have its own state or shard. worker_init_fn=
        may set up each worker differently, such as its seeds. With in_order=False, programs rely on
        which worker makes a batch. With seed= or order=, none of them counts: a sample and the random
        numbers of augment= depend only on the index."""
        if self._order is not None:
            return False
        return (
            self._asks_dataset()
            or self._is_pipe()
            or (self.augment is None and (self.worker_init_fn is not None or not self.in_order))
        )

    def _augments(self) -> bool:
        return self.augment is not None or (self._cached is not None and self._cached.augment is not None)

    def _largest_batch(self) -> int | None:
        """Samples of the largest batch. batch_size= may be much more, to have all samples in one batch."""
        if self.batch_size is None or self._iterable:
            return self.batch_size
        try:
            samples = len(self.dataset if self._cached is None else self._cached)
            if self.batch_size <= samples:
                return self.batch_size
            # A sampler may give samples several times.
            return min(self.batch_size, max(samples, len(self.sampler), 1))
        except (TypeError, NotImplementedError):  # a dataset or a sampler without a length
            return self.batch_size

    def _layout_of_cache(self, rows: int) -> Layout | None:
        """The layout of a cache whose samples can be gathered into columns; else None."""
        if self._cached is None or self._cached.cache.variable:
            return None
        tree, cache = self._cached.gathered_tree(), self._cached.cache
        if tree is None or not tree.by_columns:
            return None
        if any(leaf.kind in self._backend.no_columns or leaf.kind in ("str", "bytes") for leaf in tree.leaves):
            return None
        return Layout(tree, [(field.shape, field.dtype) for field in cache.fields], rows)

    # ------------------------------------------------------------ work in C

    def _worker_kind(self, asked: Worker | None) -> tuple[Worker, Any]:
        """What workers are, and what native ones do in C. asked: by the user; None: the loader chooses."""
        if asked in ("process", "thread"):
            return asked, None
        try:
            pipeline = self._pipeline()
        except UnsupportedError as error:
            if asked is not None:
                raise InvalidError(f'worker="native": {error}; worker="thread" and "process" take it') from error
            why = str(error)  # the error itself would keep this frame, and so the loader, until a garbage collection
        else:
            apart = self.worker_init_fn is not None or getattr(self, "multiprocessing_context", None) is not None
            if asked is not None or not apart:
                return "native", pipeline
            why = APART
        if self.num_workers:
            warn_of_processes(self.dataset, self.augment, why)
        return "process", None

    def _pipeline(self) -> Any:
        """What worker threads do in C. Raises UnsupportedError, which says why they cannot."""
        return pipeline_of(self.dataset, self._cached, self.augment, self._why_whole())

    def _why_whole(self) -> str | None:
        """Why workers make whole batches; None: they do not."""
        if self._by_rows() or not self.num_workers:
            return None
        one_by_one = loads_one_by_one(self.dataset) and not (self._asks_dataset() or self._is_pipe())
        if self._batched() and self._default_collate and one_by_one:  # so it is as in torch
            return APART if self.worker_init_fn is not None else OUT_OF_ORDER
        return WHOLE

    # ------------------------------------------------------------ an epoch

    def _new_context(self, rows: bool, pipeline: Any, ahead: bool) -> EpochContext:
        """rows: batches are filled row by row. pipeline: of native workers that start. ahead: the program has not
        asked for the epoch yet."""
        state = self._resume
        wanted, begun = self._begin_epoch(ahead)
        ordered = begun.shard is not None
        if rows and not ordered and self._cached is None:
            wanted, rows = numbered(wanted)
        augment = None if self.augment is None else Augment(self.augment)
        largest = self._largest_batch()
        job = Job(
            dataset=self._cached if self._cached is not None else self.dataset,
            wrapped=self._cached is not None and self._cached is not self.dataset,
            backend=self._backend,
            iterable=self._iterable,
            batched=self._batched(),
            collate=self.collate_fn,
            default_collate=self._default_collate,
            drop_last=self.drop_last,
            augment=augment,
            init=self.worker_init_fn,
            workers=self.num_workers,
            base_seed=begun.base_seed,
            key=begun.key,
            seed_samples=self._seeds_samples(rows or self._order is not None, augment),
            process=self.worker == "process",
            batch_size=largest,
            snapshots=not rows and self._order is None,
            pipes=begun.pipes,
            skips_bad=self.bad_samples == "skip",
            pipeline=pipeline if rows else None,
        )
        every = (self.snapshot_every_n_steps or 0) if self.in_order else 1
        layout = (
            self._layout_of_cache(largest or 1) if rows and self._cached is not None and not self._augments() else None
        )
        ours = self._runs_only_ours()
        follows = rows and ordered and (self.persistent_workers or not self.num_workers)
        return EpochContext(
            job=job,
            begun=begun,
            wanted=wanted,
            batch_size=largest,
            ahead=int(self.prefetch_factor or _AHEAD) * max(self.num_workers, 1) if self.prefetch_factor != 0 else 1,
            ahead_bytes=max(sizes.parse_size(self.prefetch_bytes), 1),
            pool_bytes=max(sizes.parse_size(self.pool_bytes), 1),
            timeout=self.timeout,
            in_order=self.in_order or self.num_workers == 0,
            batch_augment=self._of_own_batches(self.batch_augment),
            threads=gather_threads(self.gather_threads),
            cached=self._cached,
            meter=self._meter,
            bad=self._bad if job.skips_bad else None,
            trace=None if self._recorder is None else Tracing(self._recorder),
            progress=Progress(),
            by_rows=rows,
            sampler=self.batch_sampler if self._batched() else self.sampler,
            reported=getattr(self, "_IterableDataset_len_called", None) if self._iterable else None,
            snapshot_every=every if job.snapshots else None,
            overtaken=frozenset(number - begun.skipped for number in (state or {}).get("_overtaken", ())),
            layout=layout,
            row_layout=rows_in_c(job, self._backend.no_columns),
            follow=_weakly(self._begin_next) if follows and (ours or layout is not None) else None,
            changes=self._changes() if ahead else (),
            ours=ours,
            only_hits=ahead and not ours and self.num_workers > 0,
            renew=_weakly(self._renewed),
            notices=None if self._cached is None else self._cached.notices,
        )

    def _seeds_samples(self, by_index: bool, augment: Augment | None) -> bool:
        """Whether the global generators are seeded for each sample.

        Not with threads, which share them. Not if no draw can come: what a cache gives is not random, except for a
        transform= of a SourceDataset, and augment may have its own generator. by_index: random numbers of the dataset
        depend on the index, not on the worker."""
        if self.num_workers and self.worker != "process":
            return False
        draws = self._cached is None or self._cached.transform is not None
        if augment is None:
            return by_index and self.num_workers > 0 and draws
        return draws or not augment.takes_generator

    # ------------------------------------------------------------ epochs and states

    def _renewed(self, iteration: BatchIterator) -> BatchIterator | None:
        """An iteration to read instead of one that has given no batch yet, if the program has set
        another epoch of a sampler since; else None."""
        context = iteration.context
        if iteration.ended or context.progress is not self._progress:
            return None
        epoch, self._epoch_set = self._epoch_set, None
        sampler = next(iter(self._samplers_with_epochs()), None)
        planned_for = context.begun.sampler_epoch
        if epoch in (None, context.epoch) and planned_for in (None, getattr(sampler, "epoch", None)):
            return None
        iteration.close()
        self._epoch = context.epoch if epoch is None else epoch
        return self._give(self._make_iteration(), time.monotonic_ns())

    # ------------------------------------------------------------ stats, the end

    def stats(self) -> LoaderStats:
        """Its counters since it was made."""
        store = self._cached.store if isinstance(self._cached, CachedSamples) else ""
        bad, disk_counts = self._bad, zip(disk.COUNTS, self._disk_counts(), self._disk_before)
        since = {name: now - before for name, now, before in disk_counts}
        return dataclasses.replace(
            self._meter.stats(), store=store, bad_samples=bad.count, bad=tuple(bad.kept), **since
        )

    def _disk_counts(self) -> tuple[int, ...]:
        """As `Disk.counts`; empty without a disk cache, or after the cache was closed."""
        behind = None if self.cache is None else self.cache._disk
        return () if behind is None else behind.counts()

    def _stored_bytes(self) -> dict[str, int]:
        """For a timeline: the size of a sample as the cache has it, if all have the same."""
        cache = self.cache
        if cache is None or cache.variable or getattr(self._cached, "store", "") == "encoded":
            return {}
        return {"sample_bytes": cache.sample_bytes}

    def __repr__(self) -> str:
        kind, dataset = type(self), type(self.dataset).__name__
        samples = self._samples()
        of = "" if samples is None else f" of {samples:,} samples"
        batches = f"batch_size={self.batch_size}" if self.batch_size or not self._batched() else "batches of a sampler"
        workers = f"{self.num_workers} workers ({self.worker})" if self.num_workers else "no workers"
        cache = "no cache" if self.cache is None else repr(self.cache)
        return f"<{kind.__module__}.{kind.__name__}: {dataset}{of}, {batches}, {workers}, {cache}>"

    def close(self) -> None:
        """Ends kept workers, writes the trace, and frees the cache that a loader made without a name, unless another
        loader of the program uses it. Then a later iteration raises ClosedError; else it starts new workers."""
        self._closed = True
        current = self._running()
        if current is not None:
            current.end("the loader was closed")
        self._end_next()
        self._end_kept()
        if self._recorder is not None:
            self._recorder.close()
        if self._cached is not None and self._cached.served:
            served.withdraw(self._cached.cache)
        free(self.cache)


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a loader that does not keep the loader alive. It returns None when the loader is
    gone."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        bound = reference()
        return None if bound is None else bound(*arguments)

    return call


def loads_one_by_one(dataset: Any) -> bool:
    """Whether a dataset gives only samples by [index], and no batches."""
    if not hasattr(dataset, "__getitems__"):
        return True
    return is_subset(dataset) and loads_one_by_one(dataset.dataset)  # a Subset only passes the call on
