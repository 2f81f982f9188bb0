"""Batches that are filled row by row: it gathers hits directly from the cache, and free workers
load the other rows (docs/spec/workers.md)."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common import threads
from .._common.errors import ClosedError, SchemaError
from .._common.numbers import number_of, position_of
from .._datasets.tally import bytes_of, current
from .._random.sample_seeds import epoch_seed
from .._samples.batch_layout import Layout, closed_up
from .._workers import serialization
from .._workers.task_queue import place_of
from .._workers.tasks import BAD, ERROR, FROM_CACHE, NO_BUFFER, ROW, SAMPLE, WHOLE
from .bad_samples import BadSample, bad_sample
from .epoch_context import EpochContext
from .fetcher import batch_of
from .gather import Batch, Gatherer, Indices
from .iterator import BatchIterator, Clocks, Delivered
from .sampling import listed
from .worker_runtime import WorkerRuntime

_MIN_OVERLAP_NS = 100_000  # a shorter training step hides no gather
_HORIZON = 16  # batches that a server gets in advance


@functools.lru_cache(maxsize=4)
def _all_rows(n: int) -> npt.NDArray[np.int64]:
    """The rows of a batch. No caller changes them."""
    return np.arange(n)


def _missing(batch: Batch) -> list[int]:
    """The rows that are not filled."""
    there = np.zeros(len(batch.wanted), np.bool_) if batch.hit is None else batch.hit.copy()
    if batch.loaded:
        there[slice(None) if batch.rows is None else batch.rows] = True
    missing: list[int] = np.flatnonzero(~there).tolist()
    return missing


class GatherIterator(BatchIterator):
    def __init__(self, context: EpochContext, runtime: WorkerRuntime, owned: bool) -> None:
        super().__init__(context)
        self._runtime, self._owned, self._workers = runtime, owned, runtime.processes
        self._pending: deque[Batch] = deque()
        self._more = True
        self._only_hits = context.only_hits
        self._most = 0  # the most batches that may be begun; 0: their size is not known yet
        self._layout: Layout | None = context.layout or runtime.announced or context.row_layout
        self._gatherer: Gatherer | None = None
        # Whether the last batch was all hits. Then the next one is assumed to be, and its misses
        # load here.
        self._all_hit = False
        self._announced: deque[Indices] = deque()  # the next batches, which a server knows already
        if self._layout is not None:
            self._layout = runtime.announce(
                self._layout if context.batch_size is not None else self._widened(self._layout)
            )
        if context.gathers:
            self._gatherer = Gatherer(context)
        self._fill()

    def asked_for(self) -> None:
        self._only_hits = False
        self._fill()

    # ------------------------------------------------------------ the next batches

    def _widened(self, layout: Layout) -> Layout:
        """The layout for batches of a user's sampler that are as large as the first one. Larger
        batches come in ordinary memory."""
        first = self._wanted()
        if first is None:
            return layout
        self._announced.appendleft(first)
        return layout.resized(max(len(first), layout.rows))

    def _fill(self) -> None:
        """Plans and begins batches, as far ahead as allowed."""
        if not self._most and self._runtime.batch_pool.buffer_bytes:
            self._most = self._runtime.ahead(self._context)
        most = self._most or self._context.ahead
        while self._more and len(self._pending) < most:
            if self._pending and self._pending[-1].left is not None:
                return  # the task queue is full
            wanted = self._wanted()
            if wanted is None:
                self._more = False
                return
            batch = None
            try:
                batch = self._begin(wanted)
            finally:
                if batch is None:
                    self._announced.appendleft(wanted)
            if batch is None:
                return
            self._pending.append(batch)
            self._number += 1
            self._planned += len(wanted)
            if batch.hit is not None and batch.arrays and self._gatherer is not None:
                batch.filled = threads.Latch()
                self._runtime.background.put(functools.partial(self._gatherer.fill, batch))

    @property
    def _fetches(self) -> bool:
        """Whether a server fills the cache."""
        return self._gatherer is not None and self._gatherer.fetches

    def _hides(self) -> bool:
        """Whether a gather in the background saves time: the training loop computes during it, or
        its step is not known yet."""
        return not self._returned or self._step > _MIN_OVERLAP_NS

    def _wanted(self) -> Indices | None:
        """The indices of the next batch. A server gets the batches after it too, if the order can
        be read ahead without a change."""
        ahead = self._announced
        horizon = _HORIZON if self._fetches and self._context.ordered else 0
        while len(ahead) <= horizon:
            try:
                wanted = self._drawn()
            except StopIteration:
                break
            indices = wanted if isinstance(wanted, np.ndarray) and self._context.ordered else self._indices(wanted)
            ahead.append(indices)
            if horizon and self._gatherer is not None:
                self._runtime.background.put(functools.partial(self._gatherer.prefetch, indices))
        return ahead.popleft() if ahead else None

    def _indices(self, wanted: Any) -> Indices:
        """The indices of another sampler as an array. Negative ones count from the end, as for the
        dataset."""
        wanted = listed(wanted)
        if not set(map(type, wanted)) <= {int}:
            wanted = [number_of(index) for index in wanted]
        samples = 0 if self._context.cached is None else len(self._context.cached)
        if samples and len(wanted) and not 0 <= min(wanted) <= max(wanted) < samples:
            wanted = [position_of(index, samples) for index in wanted]
        return np.array(wanted, np.int64)

    def _begin(self, wanted: Indices) -> Batch | None:
        """None: it is not time yet for a batch that needs loads."""
        context, gatherer = self._context, self._gatherer
        known: list[BadSample] = []
        # A server remembers bad samples, and counts what a job asks for to know how far it is.
        if context.bad is not None and not self._fetches:
            wanted, known = context.bad.without(wanted)
        batch = Batch(self._number, self._planned, wanted)
        batch.known = known
        if self._fetches:
            batch.hit = np.ones(len(wanted), np.bool_)
        elif gatherer is not None:
            hit, there = self._probe(gatherer, wanted)
            if self._only_hits and there < len(wanted):
                return None
            if there:
                batch.hit = hit
            if there == len(wanted) and not self._hides():
                return batch  # it takes its memory in `_next`, which then is in the processor's cache
            batch.rows = None if there == len(wanted) else np.flatnonzero(~hit)
        self._take_memory(batch)
        if batch.hit is not None and batch.rows is None:
            return batch
        if context.job.workers and len(wanted):  # a batch sampler may give an empty batch
            batch.left = _all_rows(len(wanted)) if batch.rows is None else batch.rows
            self._post(batch)
        return batch

    def _probe(self, gatherer: Gatherer, wanted: Indices) -> tuple[npt.NDArray[np.bool_], int]:
        """Which samples are in the cache, and how many. After a batch of hits without workers, it
        assumes all. Not with workers: misses would load here, and workers that are forked later
        would share the files that the dataset opens for them."""
        if not self._all_hit or self._context.job.workers:
            with contextlib.suppress(ClosedError):  # the cache is closed: `next` raises it for each batch
                return gatherer.probe(wanted)
        return np.ones(len(wanted), np.bool_), len(wanted)

    def _take_memory(self, batch: Batch) -> None:
        """Takes memory for the columns of a batch, if the layout is known."""
        layout, n = self._layout, len(batch.wanted)
        if layout is None:
            return
        fits = n <= layout.rows
        batch.shared = batch.hit is None or batch.rows is not None
        batch_pool = self._runtime.batch_pool if batch.shared else self._runtime.own
        batch.lease = batch_pool.take() if fits else None
        if batch.lease is not None:
            batch.arrays = layout.arrays(batch.lease.array(), n)
        elif self._gatherer is not None:
            rows = layout if fits else layout.resized(n)
            batch.arrays = rows.arrays(np.empty(max(rows.bytes, 1), np.uint8), n)

    def _post(self, batch: Batch) -> None:
        """Posts tasks for the rows that are left, as many as the task queue takes at once. Posts
        none if it is full."""
        left, most = batch.left, self._runtime.task_queue.most
        assert left is not None
        rows, job = left[:most], self._context.job
        buffer = batch.lease.number if batch.lease is not None and batch.shared else NO_BUFFER
        seed = epoch_seed(job.key, 0) if job.random else None
        push, lent = self._runtime.task_queue.push_samples, self._runtime.task_queue.lend()
        first = self._runtime.push(push, batch.wanted, rows, buffer, SAMPLE, seed, lent)
        if first is None:
            self._runtime.task_queue.unlend(lent)
        else:
            batch.lent = lent
            batch.first, batch.tasks, batch.posted = first, len(rows), rows
            batch.left = left[most:] if len(left) > most else None

    # ------------------------------------------------------------ batches that are ready

    def _next(self) -> Delivered:
        self._fill()
        if not self._more:
            self._follow()
        if not self._pending:
            raise StopIteration
        self._runtime.check_workers()
        at = 0 if self._context.in_order else self._any_ready()
        batch = self._pending[at]
        if batch.hit is not None and not batch.arrays:
            self._take_memory(batch)
        self._complete(batch)
        del self._pending[at]
        try:
            self._fill()
            if not self._more:
                self._follow()
        except Exception:
            self._pending.insert(at, batch)  # keep it: the sampler's error must not lose it
            raise
        return self._deliver(batch)

    def _complete(self, batch: Batch) -> None:
        """Waits until the cache and the workers have filled the batch. Posts the tasks that are left."""
        if self._gatherer is not None:
            self._gatherer.fill(batch)
        while batch.left is not None:
            if batch.tasks:
                self._wait(batch)
                self._read_answers(batch)
            if batch.left is not None:
                self._post(batch)  # the task queue has space: earlier tasks are read, and no later batch is begun
        if batch.tasks:
            self._wait(batch)
        if batch.filled is not None:
            batch.filled.wait()
        if self._post_lost(batch):
            self._wait(batch)

    def _wait(self, batch: Batch) -> None:
        self._runtime.wait([(batch.first, batch.tasks)], self._context.timeout, self._check_ended)

    def _post_lost(self, batch: Batch) -> bool:
        """Posts tasks for the hits that the cache has given up since the probe. Returns whether it
        posted some. The training loop loads what the task queue does not take."""
        if batch.hit is None or not self._context.job.workers or batch.error is not None:
            return False
        loads = np.zeros(0, np.int64) if batch.rows is None else batch.rows
        if batch.found + len(loads) == len(batch.wanted):
            return False
        if batch.tasks:
            self._read_answers(batch)
        if batch.failed is not None:
            return False
        batch.left = np.setdiff1d(np.flatnonzero(~batch.hit), loads)
        self._post(batch)
        batch.left = None
        if batch.tasks:
            assert batch.posted is not None
            batch.rows = np.concatenate((loads, batch.posted))
        return batch.tasks > 0

    def _follow(self) -> None:
        """Begins the next epoch, once. Not before the training loop takes batches of this one,
        which may itself be begun ahead."""
        follow, pending, runtime = self._context.follow, self._pending, self._runtime
        if follow is None or (
            pending
            and (
                pending[-1].left is not None
                or len(pending) + runtime.ahead(self._context) > runtime.batch_pool.max_buffers - 2
            )
        ):
            return  # this epoch's batches need the task queue, or the batch pool
        if pending and self._all_hit and not self._hides():
            return  # its gathers would only compete with this epoch's
        if not self._context.ours and not self._all_hit:
            return  # only hits are begun ahead, and loads of this epoch still change the cache
        self._context.follow = None
        follow()

    def _any_ready(self) -> int:
        waiting = []
        for k, batch in enumerate(self._pending):
            if batch.left is not None and k:
                break  # the last batch: it needs the task queue, which earlier batches have
            if not batch.tasks:
                return k
            waiting.append((batch.first, batch.tasks))
        return self._runtime.wait(waiting, self._context.timeout, self._check_ended)

    def _done(self) -> tuple[int, int]:
        return (self._pending[0].before, self._pending[0].number) if self._pending else super()._done()

    def _deliver(self, batch: Batch) -> Delivered:
        n = len(batch.wanted)
        if batch.tasks:
            self._read_answers(batch)
        if batch.failed is not None:
            batch.failed.reraise()
        if batch.error is not None:
            raise batch.error
        hits = batch.again + batch.found - batch.fetched
        self._all_hit = batch.found == n
        if batch.found + batch.loaded < n:  # no workers, or the task queue was full
            hits += sum(self._load(batch, row) for row in _missing(batch))
        layout, bad = self._layout, batch.known
        if batch.bad:
            bad = [*(batch.bad[row] for row in sorted(batch.bad)), *bad]
        left = n - len(batch.bad)
        by_columns = layout is not None and batch.arrays and not batch.whole and left > 0
        if bad and not left:
            data = None
        elif by_columns:
            arrays = closed_up(batch.arrays, sorted(batch.bad)) if batch.bad else batch.arrays
            data = self._from_columns(arrays, batch.objects)
        else:
            data = self._from_samples(batch)
        batch.drop()
        nbytes = left * layout.sample_bytes if by_columns and layout is not None else bytes_of(data)
        return Delivered(data, batch.number, left, hits, nbytes, bad=bad)

    def _read_answers(self, batch: Batch) -> None:
        """Reads the answers of its tasks, which all have come."""
        try:
            self._read(batch)
        finally:
            self._runtime.task_queue.unlend(batch.lent)

    def _read(self, batch: Batch) -> None:
        task_queue, context, rows = self._runtime.task_queue, self._context, batch.posted
        assert rows is not None
        first, tasks, batch.tasks = batch.first, batch.tasks, 0
        batch.loaded += tasks
        if context.trace is not None:
            answers = task_queue.answers(first, tasks)
            context.trace.loaded(context.epoch, batch.number, answers, batch.wanted[rows])
        others, sums = task_queue.collect(first, tasks, ROW + FROM_CACHE)
        context.meter.add(
            load=sums.load_ns,
            waited=sums.waited_ns,
            measured=sums.measured_ns,
            augment=sums.augment_ns,
            hit=sums.hit_ns,
        )
        if not others:
            batch.again += sums.hits
            return
        answers = task_queue.answers(first, tasks).copy()
        task_queue.release(first, tasks)
        cached = answers["result"] >= FROM_CACHE
        answers["result"][cached] -= FROM_CACHE
        batch.again += int(cached.sum())
        told = np.flatnonzero(answers["result"])  # rows with another result than ROW
        for row, answer in zip(rows[told].tolist(), answers[told]):
            result, place = int(answer["result"]), place_of(answer)
            if result == ERROR:
                wrapped = task_queue.take_object(*place)
                batch.failed = batch.failed or wrapped  # the error of the first row, as if rows were loaded in sequence
                batch.left = None
            elif result == BAD:
                batch.bad[row] = task_queue.take_object(*place)
            else:
                value, _ = serialization.receive(task_queue, *place)
                if result == WHOLE:
                    batch.whole[row] = value
                else:
                    batch.objects |= value

    def _load(self, batch: Batch, row: int) -> int:
        """Loads a row in the training loop's thread. Returns 1 if the sample came from the cache
        after all."""
        clocks, hits = Clocks(), self._hits()
        index = int(batch.wanted[row])
        try:
            cached = self._context.job.cached
            # Its row or the default collate function copies it.
            with self._context.job.counting():
                current().begin()
                sample = (
                    self._context.job.dataset[index]
                    if cached is None
                    else cached.finish(index, cached.peek(index), lent=True)
                )
                current().gave(1, self._hits() - hits)
        except Exception as error:
            bad = None if self._context.bad is None else bad_sample(index, error)
            if bad is None:
                raise
            batch.bad[row] = bad
            return 0
        hit = self._hits() != hits
        self._loaded_here(clocks, batch.number, index, hit=hit)
        try:
            if self._layout is None or not batch.arrays:
                batch.whole[row] = sample
            else:
                batch.objects[row] = self._layout.write(batch.arrays, row, sample)
        except SchemaError:
            batch.whole[row] = sample
        return int(hit)

    def _from_columns(self, arrays: list[Any], objects: dict[int, list[Any]]) -> Any:
        layout, backend = self._layout, self._context.job.backend
        assert layout is not None
        leaves = layout.tree.leaves
        collated: list[Any] = [None] * len(leaves)
        for column, array in zip(layout.columns, arrays):
            collated[column.leaf] = backend.column(leaves[column.leaf], array)
        for at, k in enumerate(layout.objects):
            values = [objects[row][at] for row in sorted(objects)]
            collated[k] = backend.collate(tuple(values) if k in layout.tree.in_sequences else values)
        return layout.tree.give_batch(collated, backend.tuples)

    def _from_samples(self, batch: Batch) -> Any:
        """The batch made of single samples: for the first batches, whose layout is not known yet,
        and for samples that differ from the layout."""
        samples, job = [], self._context.job
        rows = [row for row in range(len(batch.wanted)) if row not in batch.bad]
        for row in rows:
            if row in batch.whole:
                samples.append(batch.whole[row])
            else:
                assert self._layout is not None
                samples.append(self._layout.read(batch.arrays, row, batch.objects.get(row, [])))
        # first, so that users get its error for bad samples
        data = batch_of(job.collate, samples, [batch.wanted[row] for row in rows], job.user_dataset)
        if self._layout is None:
            with contextlib.suppress(SchemaError):  # samples that fit no layout
                self._learn(samples)
        return data

    def _learn(self, samples: list[Any]) -> None:
        layout = Layout.of(
            samples[0], max(len(samples), self._context.batch_size or 1), self._context.job.backend.no_columns
        )
        self._layout = self._runtime.announce(layout)

    # ------------------------------------------------------------ the end

    def _stop(self, harshly: bool) -> None:
        if not hasattr(self, "_gatherer"):
            return
        self._more = False
        pending, self._pending = list(self._pending), deque()
        if self._gatherer is not None:
            self._gatherer.ended = True
            filling = [batch.filled for batch in pending if not batch.claim() and batch.filled is not None]
            self._runtime.leave(filling)
        if self._owned or harshly:
            self._runtime.close()
        else:
            for batch in pending:
                if batch.tasks:
                    self._runtime.abandon(batch.first, batch.tasks, batch.lease)
