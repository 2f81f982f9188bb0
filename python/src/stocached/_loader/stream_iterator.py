"""The batches of the rows of a pipe, which the workers of a stream read (docs/spec/stream-rows.md)."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np

from .._datasets.tally import bytes_of, current
from .._streams.batch import StreamBatch
from .._streams.iterator import Progress, StreamIterator, batch_pool_of
from .._streams.open_files import Failure
from .._streams.order import StreamWalk
from .._streams.scheduler import State, Step
from .._streams.settings import StreamSettings
from .._streams.workers import start_pool
from .._workers.pool import Pool
from .bad_samples import BadSample
from .epoch_context import EpochContext
from .iterator import BatchIterator, Clocks, Delivered


class _Reached(Progress):
    """What an iteration of a stream tells."""

    def __init__(self, settings: StreamSettings, at: State, context: EpochContext) -> None:
        self._files, self.at, self._context = settings.files, at, context
        self.bad: list[BadSample] = []

    def _given(self, step: Step) -> None:
        self.at = step.state

    def _failed(self, failure: Failure) -> None:
        number, why = failure.assignment.number, failure.error.summary.replace("\n", "; ")
        self.bad.append(BadSample(number, repr(self._files[number]), f"left out from item {failure.item} on: {why}"))

    def _read(self, step: int, answers: Any) -> None:
        self._context.meter.add(load=int((answers["ended_ns"] - answers["began_ns"]).sum()))
        if self._context.trace is not None:
            self._context.trace.loaded(self._context.epoch, step, answers, np.full(len(answers), -1))


class StreamBatches(BatchIterator):
    def __init__(self, context: EpochContext, pool: Pool | None) -> None:
        """pool: workers that the loader has kept."""
        super().__init__(context)
        walk = context.begun.walk
        assert isinstance(walk, StreamWalk)
        self._walk, self._settings = walk, _settings(context, walk.settings)
        self._reached = _Reached(walk.settings, walk.at, context)
        keep = context.setup.persistent_workers
        if pool is None and context.job.workers:
            pool = start_pool(self._settings, batch_pool_of(self._settings))
        self.kept = pool if keep else None
        self._runtime, self._workers = pool, [] if pool is None else pool.processes
        scheduler = self._settings.scheduler(walk.at)
        self._batches = StreamIterator(self._settings, scheduler, self._reached, pool, keep=keep)

    def _next(self) -> Delivered:
        job = self._context.job
        try:
            batch = next(self._batches, None) if job.workers else self._read_here()
        except Exception:
            self.close()  # the state stays at this batch
            raise
        if self._reached.bad:
            assert self._context.bad is not None
            self._context.bad.met(self._reached.bad, self._bad)
            self._reached.bad.clear()
        if batch is None:
            raise StopIteration
        samples = int(np.count_nonzero(batch.mask))
        self._number += 1
        self._planned += samples
        return Delivered(job.backend.over(batch), self._number - 1, samples, bytes=bytes_of(batch.items))

    def _read_here(self) -> StreamBatch | None:
        context, start = self._context, time.monotonic_ns()
        clocks = None if context.trace is None else Clocks()
        with context.job.counting():
            batch = next(self._batches, None)
            if clocks is not None:
                current().flush()
        if clocks is None:
            context.meter.add(load=time.monotonic_ns() - start)
        elif batch is not None:
            self._loaded_here(clocks, self._given, hit=False)
        return batch

    def _note(self, batch: Delivered, position: int) -> int:
        self._walk.at = self._reached.at
        return position

    def _stop(self, harshly: bool) -> None:
        batches: StreamIterator | None = vars(self).get("_batches")
        if batches is not None:
            batches.close(harshly=harshly)
            self._walk.settings.keep(self._settings)


def _settings(context: EpochContext, common: StreamSettings) -> StreamSettings:
    """Those of one iteration. common: of all iterations of this rank."""
    made, setup = copy.copy(common), context.setup
    common.batch_pool = None
    made.reader = made.reader.counting(context.job.counters)
    made.num_workers, made.prefetch_batches = setup.num_workers, setup.ahead
    made.pool_bytes, made.timeout = setup.pool_bytes, setup.timeout
    made.snapshot_every_n_steps = setup.snapshot_every
    made.worker_init_fn, made.multiprocessing_context = setup.worker_init_fn, setup.multiprocessing_context
    made.check()
    return made
