"""Whole batches, which the training loop's own thread makes."""

from __future__ import annotations

from .._datasets.tally import bytes_of, current
from .._random import generator_states
from .._workers.dataset_states import Here, Restored
from .epoch_context import EpochContext
from .fetcher import Fetcher
from .iterator import BatchIterator, Clocks, Delivered, as_request, check_found


class SingleProcessIterator(BatchIterator):
    """Without workers: the training loop's thread makes each batch in `next`, as in torch."""

    def __init__(self, context: EpochContext) -> None:
        super().__init__(context)
        job = context.job
        self._fetcher: Fetcher | None = None
        if job.pipes is not None:
            job.pipes.seed(job.dataset)
            job.pipes.shard(job.dataset, 0, 1)
        self._fetcher = self._first_fetcher(context.begun.restored)
        if context.snapshot_every is not None and self._fetcher.stateful:
            context.progress.snapshots = Here(self._fetcher)

    def _first_fetcher(self, restored: Restored | None) -> Fetcher:
        job = self._context.job
        if restored is None or restored.here is None or restored.finished:
            return job.fetcher()
        kept = generator_states.take() if restored.here["generators"] else {}
        try:
            fetcher, found = job.goes_on(restored.here)
        finally:
            generator_states.put(kept)
        check_found(restored, found)
        return fetcher

    def _next(self) -> Delivered:
        assert self._fetcher is not None
        wanted, job = self._drawn(), self._context.job
        clocks = Clocks()
        self._number += 1
        indices, samples = as_request(wanted, job.batched)
        self._planned += samples
        indices, known = (indices, []) if self._context.bad is None else self._context.bad.without(indices)
        before = self._hits()
        kept = job.backend.random_state() if job.augment is not None else None
        try:
            with job.counting():
                current().begin()
                data = self._fetcher.fetch(indices)
                current().gave(self._fetcher.count, self._hits() - before)
        finally:
            if kept is not None:
                job.backend.set_random_state(kept)  # augment= must not change the program's random numbers
        count = self._fetcher.count
        hits = min(self._hits() - before, count)
        self._loaded_here(clocks, self._given, hit=hits == count > 0)
        nbytes = bytes_of(data)
        return Delivered(data, self._number - 1, count, hits, nbytes, bad=[*self._fetcher.bad, *known])
