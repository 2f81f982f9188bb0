"""One pass over an epoch: the iterator that a loader gives. What it does without workers, and with workers that make whole batches; batches put together
row by row are in gather.py."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._common.errors import ClosedError, NondeterministicDatasetError, StateError, WorkerLostError
from .._datasets.notices import Notices
from .._memory.batch_reserve import hold_of
from .._memory.ring import Lease, Ring
from .._random import generator_states
from .._trace.augment_time import spent_ns
from .._workers import serialization, task_queue
from .._workers.dataset_states import Here, Restored, Snapshots, Told
from .._workers.pool import Pool
from .._workers.task_queue import Board
from . import worker as _worker
from .sampling import Sampled, listed
from .worker import Fetcher

_SLICE = 0.05  # seconds of waiting between two looks whether the workers live, and for signals
_LOOK = 0.25  # seconds between two such looks where there is nothing to wait for


@dataclass
class Progress:
    """What the training loop has got of an epoch."""

    samples: int = 0
    batches: int = 0
    begun: bool = False
    overtaken: list[int] = field(default_factory=list)  # numbers of batches that came before an earlier one
    complete: bool = False
    snapshots: Snapshots | Here | None = None  # states of workers, or of the dataset in this process


@dataclass
class Plan:
    """What an iteration needs to know of its loader."""

    job: _worker.Job
    wanted: Iterator[Any]  # indices of the next batch, again and again
    batch_size: int | None
    ahead: int  # batches
    ahead_bytes: int
    ring_bytes: int
    timeout: float
    in_order: bool
    batch_augment: Any
    threads: int
    cached: Any  # CachedSamples or None
    meter: Any
    trace: Any
    epoch: int
    began: dict[str, Any]  # what a state of the epoch needs
    progress: Progress
    ordered: bool  # in an order of ours, which may be asked ahead
    by_rows: bool  # batches are put together row by row, else made whole
    sampler: Any  # that says how many batches there are, if it does
    reported: int | None  # samples that an iterable dataset has said it has, if it was asked
    sampled: Sampled | None = None  # holds the sampler's states
    snapshot_every: int | None = None  # batches from one snapshot of workers to the next; None: states hold none
    restored: Restored | None = None  # what the epoch takes out of a state
    overtaken: frozenset[int] = frozenset()  # numbers of batches that the training loop got before the state
    layout: Any = None
    follow: Callable[[], None] | None = None  # to be called when all batches are on their way
    notices: Notices | None = None  # of a dataset that is cached
    renew: Callable[[Iteration], Iteration | None] | None = None  # called before the first batch: an iteration to read instead


# The words of torch's warning: programs look for them in logs.
_REPLICAS = (
    "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset replica at each worker. Please see "
    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
)


@dataclass
class Delivered:
    """A batch that is ready, and what is to be said of it."""

    data: Any
    number: int
    samples: int
    hits: int = 0
    bytes: int = 0
    told: Told | None = None  # what the worker said that made it


def array_bytes(data: Any) -> int:
    """Of the arrays and tensors in a batch; what else there is in it has none, nor has what cannot be asked, such as sparse tensors."""
    if isinstance(data, dict):
        return sum(map(array_bytes, data.values()))
    if isinstance(data, list) and data and isinstance(data[0], (str, bytes, int, float)):
        return 0  # and so are the others, most likely: thousands of them, as tokens are
    if isinstance(data, (list, tuple)):
        return sum(map(array_bytes, data))
    try:
        nbytes = data.nbytes
    except Exception:
        return 0
    return nbytes if isinstance(nbytes, int) else 0


class Iteration:
    """Gives the batches of one epoch. One thread at a time; not usable in a forked child, and cannot be pickled.

    The loader, the garbage collector, the end of the interpreter and whatever is no Exception (Ctrl-C) close it; so does its own end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pid = os.getpid()
        self._turn = threading.RLock()  # threads that share an iteration get its batches one after the other
        self._returned = 0  # when the training loop got its last batch, ns
        self._step = 0  # how long it was busy with the last one, ns
        self._number = 0  # of the batch that is planned next
        self._planned = 0  # samples of those before
        self._given = 0  # batches
        self._instead: Iteration | None = None
        self._overtaken = set(plan.overtaken)  # numbers of batches that came before an earlier one
        self._why: str | None = None  # there are no more batches, where it was not the caller who closed it
        self.ended = False
        _all.add(self)

    @property
    def plan(self) -> Plan:
        return self._plan

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        """Batches of the whole epoch; TypeError if the sampler has no length."""
        return len(self._plan.sampler)

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iteration cannot be pickled; pickle the loader, and its state_dict()")

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise ClosedError("this iteration belongs to the process that began it; iterate over the loader anew in this one")
        with self._turn:
            if not self._plan.progress.begun and self._instead is None and self._plan.renew is not None:
                self._instead = self._plan.renew(self)
            return self._in_turn() if self._instead is None else next(self._instead)

    def _in_turn(self) -> Any:
        plan, start = self._plan, time.monotonic_ns()
        self._step = step = start - self._returned if self._returned else 0
        if self.ended:
            if self._why is not None:
                raise ClosedError(self._why)
            raise StopIteration
        try:
            if plan.notices is not None:
                plan.notices.error.check()
            batch = self._next()
            data = batch.data if plan.batch_augment is None else self._augmented(batch)
        except StopIteration:
            plan.progress.complete = True
            plan.meter.wait(time.monotonic_ns() - start)
            plan.meter.step(step)
            if plan.trace is not None:
                plan.trace.stepped(plan.epoch, self._given, start, step)
            self.close()
            raise
        except Exception as error:
            self._returned = time.monotonic_ns()
            if isinstance(error, NondeterministicDatasetError):
                error.args = (f"{str(error).rstrip()} The loader gave {plan.meter.stats().batches} batches before.",)
            raise
        except BaseException as error:  # at any step: a batch may be lost, or its workers still write
            self.end(f"this iteration was interrupted by {type(error).__name__}; iterate over the loader anew", harshly=True)
            raise
        self._count(batch)
        plan.progress.begun = True
        self._returned = now = time.monotonic_ns()
        plan.meter.batch(batch.samples, batch.hits, batch.samples - batch.hits, batch.bytes, now - start, step)
        if plan.trace is not None:
            plan.trace.lap(start - step, start, now, plan.epoch, self._given - 1, batch.samples, batch.hits, batch.bytes)
        fetched = self._given + plan.began.get("skipped", 0)
        if plan.reported is not None and fetched > plan.reported:
            warnings.warn(
                f"Length of IterableDataset {plan.job.dataset} was reported to be {plan.reported}(when accessing len(dataloader)), but "
                f"{fetched} samples have been fetched. {_REPLICAS if plan.job.workers else ''}",
                stacklevel=3,
            )
        return data

    def _count(self, batch: Delivered) -> None:
        """Counts a batch that the training loop gets, for states."""
        progress = self._plan.progress
        progress.samples, progress.batches = self._behind()
        self._given += 1
        if self._plan.job.iterable and self._plan.job.workers:  # of those that were asked for, some are none: the worker's part had ended
            progress.batches = self._given
        elif not self._plan.in_order:
            self._overtaken = {number for number in (*self._overtaken, batch.number) if number >= progress.batches}
            progress.overtaken = sorted(self._overtaken)
        position = self._note(batch, self._plan.began.get("skipped", 0) + progress.batches)
        if self._plan.sampled is not None:
            self._plan.sampled.forget(position)

    def _note(self, batch: Delivered, position: int) -> int:
        """The training loop gets the batch; position: after it, as a state counts. From where a state goes on, which may be earlier."""
        return position

    def throw_away(self, batches: int) -> None:
        """Makes the first batches and forgets them: the training loop got them before the state."""
        while self._plan.progress.batches < batches:
            before = self._behind()
            try:
                self._count(self._next())
            except StopIteration:
                return
            except Exception:
                if self._behind() == before:
                    raise
                # else this batch raised before the state as well

    def _drawn(self) -> Any:
        """What the sampler gives for the next batch. Leaves out the batches that had overtaken others when the state was taken."""
        while self._number in self._plan.overtaken:
            next(self._plan.wanted)
            self._number += 1
        return next(self._plan.wanted)

    def _next(self) -> Delivered:
        raise NotImplementedError

    def _pinned(self, data: Any, number: int, samples: int, nbytes: int) -> Any:
        plan = self._plan
        if not plan.job.flavour.pins:
            return data
        start = time.monotonic_ns()
        data = plan.job.flavour.pin(data)
        end = time.monotonic_ns()
        plan.meter.transfer(end - start)
        if plan.trace is not None:
            plan.trace.transferred(plan.epoch, number, start, end, samples, nbytes)
        return data

    def _augmented(self, batch: Delivered) -> Any:
        plan, start = self._plan, time.monotonic_ns()
        try:
            return plan.batch_augment(batch.data)
        except BaseException as error:
            self._fail(batch)
            if isinstance(error, StopIteration):  # would end the epoch, as if there were no more batches
                raise RuntimeError("batch_augment raised StopIteration") from error
            raise
        finally:
            if plan.trace is not None:
                plan.trace.batch_augmented(plan.epoch, self._given, start, time.monotonic_ns())

    def _fail(self, batch: Delivered) -> None:
        """The training loop does not get the batch."""

    def _behind(self) -> tuple[int, int]:
        """Samples and batches that nobody waits for any more: those before the first batch that is on its way."""
        return self._planned, self._number

    def end(self, why: str, *, harshly: bool = False) -> None:
        """Closes it, for a reason that whoever asks for more is told. harshly: with workers that others would go on with."""
        if not self.ended:
            self._why = why
        self._close(harshly)

    def close(self) -> None:
        """Ends what goes on in the background; there are no more batches. May be called again."""
        self._close(False)

    def _close(self, harshly: bool) -> None:
        if os.getpid() == getattr(self, "_pid", -1):
            first, self.ended = not self.ended, True
            self._stop(harshly)
            if first and self._plan.notices is not None:
                self._plan.notices.warn()

    def _stop(self, harshly: bool) -> None:
        """May be called again, and where the constructor has raised."""

    def __del__(self) -> None:
        self.close()


_all: weakref.WeakSet[Iteration] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """While threads still run: they write into memory that goes with the interpreter."""
    for iteration in list(_all):
        iteration.close()


def _check_found(restored: Restored, found: int) -> None:
    """Raises StateError if the dataset had fewer batches than came before the snapshots."""
    if found < sum(int(snapshot["batches"]) for snapshot in restored.parts):
        raise StateError(f"the state was taken after batch {restored.before} of an epoch, and the dataset has given {found}; is it another one?")


def _request(wanted: Any, batched: bool) -> tuple[Any, int]:
    """What a fetcher is asked for when a sampler gives this, and how many samples that are."""
    indices = wanted.tolist() if isinstance(wanted, np.ndarray) else listed(wanted) if batched else wanted
    return indices, len(indices) if batched else 1


class PlainIteration(Iteration):
    """Without workers: the training loop's thread does it all, when it asks, as torch does."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        job = plan.job
        self._fetcher: Fetcher | None = None
        if job.pipes is not None:
            job.pipes.seed(job.dataset)
            job.pipes.shard(job.dataset, 0, 1)
        self._fetcher = self._first_fetcher(plan.restored)
        if plan.snapshot_every is not None and self._fetcher.stateful:
            plan.progress.snapshots = Here(self._fetcher)

    def _first_fetcher(self, restored: Restored | None) -> Fetcher:
        job = self._plan.job
        if restored is None or restored.here is None or restored.finished:
            return job.fetcher()
        kept = generator_states.take() if restored.here["generators"] else {}
        try:
            fetcher, found = job.goes_on(restored.here)
        finally:
            generator_states.put(kept)
        _check_found(restored, found)
        return fetcher

    def _next(self) -> Delivered:
        assert self._fetcher is not None
        wanted, job = self._drawn(), self._plan.job
        start = time.monotonic_ns()
        self._number += 1
        indices, samples = _request(wanted, job.batched)
        self._planned += samples
        before, spent = self._hits(), spent_ns()
        kept = job.flavour.random_state() if job.augment is not None else None
        try:
            data = self._fetcher.fetch(indices)
        finally:
            if kept is not None:
                job.flavour.set_random_state(kept)  # what is random about samples leaves the program's own numbers alone
        end = time.monotonic_ns()
        self._plan.meter.load(end - start)
        count, hits = self._fetcher.count, self._hits() - before
        if self._plan.trace is not None:
            self._plan.trace.loaded_here(self._plan.epoch, self._given, start, end, hit=hits == count > 0, augment_ns=spent_ns() - spent)
        nbytes = array_bytes(data)
        data = self._pinned(data, self._number - 1, samples, nbytes)
        return Delivered(data, self._number - 1, count, hits, nbytes)

    def _hits(self) -> int:
        return getattr(self._plan.cached, "given", 0)


@dataclass
class _Made:
    """A batch that a worker makes."""

    number: int
    before: int  # samples
    worker: int
    first: int
    lease: Lease | None
    request: tuple[int, int]  # in the spill
    tells: bool  # it asks for a snapshot


@dataclass
class _Asked:
    """A task that is no batch."""

    position: int
    request: tuple[int, int]  # in the spill


@dataclass
class _Given:
    """Tasks that nobody wants the answers of, and the buffer that they write into."""

    first: int
    tasks: int
    lease: Lease | None


class Transport:
    """Workers and the memory they share with us. Belongs to a loader that keeps its workers, or to one iteration."""

    def __init__(self, plan: Plan, context: Any, tasks: int, *, restart: bool) -> None:
        device, shared = plan.job.flavour.device(), plan.job.workers > 0 and plan.job.process
        # What a device reads is no private memory, which is copied behind its back when the program forks.
        self.ring = self.own = Ring(plan.ring_bytes, shared=shared or device is not None, device=device)
        if shared and device is None:
            self.own = Ring(plan.ring_bytes, shared=False)  # for batches that no worker has a part in
            self.ring.share_limit(self.own)
        self.ring.hold = self.own.hold = hold_of(plan)
        self.board = Board(tasks)
        self._job = plan.job
        self.pool = Pool(plan.job, context, self.board, self.ring, restart=restart) if plan.job.workers else None
        self.room = 0  # bytes of a batch, when some have been seen
        self.announced: Any = None  # the layout that workers know
        self.epochs = 0  # that workers which make whole batches have begun
        self.closed = False
        self.pid = os.getpid()
        self._abandoned: list[_Given] = []
        self._looked = time.monotonic()

    @property
    def usable(self) -> bool:
        """Not closed, not inherited by a forked child, and no worker of it was lost."""
        return not self.closed and self.pid == os.getpid() and (self.pool is None or self.pool.lost is None)

    @property
    def processes(self) -> list[Any]:
        """The workers, also after their end. Tools look for them in the attribute `_workers` of an iterator, where torch has them."""
        return self.pool.processes if self.pool is not None else []

    def close(self) -> None:
        self.closed = True
        self._abandoned.clear()
        if self.pool is not None:
            self.pool.close()
        for ring in (self.ring, self.own):  # a batch that the training loop still has keeps all of its ring otherwise
            ring.rest()

    def begin(self, plan: Plan) -> list[_Asked]:
        """Has workers that make whole batches begin an epoch. `heard` gives their answers."""
        assert self.pool is not None
        job, restored = plan.job, plan.restored
        self._job.base_seed, self._job.key = job.base_seed, job.key  # workers that are started later have them as well
        begun = []
        for worker in range(job.workers):
            snapshot = restored.workers[worker] if restored is not None and restored.workers else None
            # New workers know the pipes from their job.
            what = job.base_seed, job.key, job.pipes if self.epochs else None, snapshot, restored is not None and restored.finished
            begun.append(self._ask(worker, _worker.BEGIN, what))
        self.epochs += 1
        return begun

    def tell(self) -> list[Any]:
        """Asks each worker for a snapshot; None: nothing has changed."""
        asked = [self._ask(worker, _worker.TELL, None) for worker in range(self._job.workers)]
        return [self.heard(one) for one in asked]

    def _ask(self, worker: int, kind: int, what: Any) -> _Asked:
        task = np.zeros(1, task_queue.TASK)
        request = self.board.put_object(what)
        task["kind"], task["only"], task["argument"], task["index"] = kind, worker + 1, *request
        return _Asked(self.push_one(task), request)

    def heard(self, asked: _Asked) -> Any:
        """Waits for a worker's answer. Raises the exception that it answers with."""
        self.wait([(asked.position, 1)], 0)
        answer = self.board.answers(asked.position, 1)[0].copy()
        self.board.release(asked.position, 1)
        self.board.drop(*asked.request)
        value = self.board.take_object(int(answer["spill_offset"]), int(answer["spill_bytes"]))
        if answer["result"] == _worker.ERROR:
            value.reraise()
        return value

    def ahead(self, plan: Plan) -> int:
        """How many batches may be on their way: the ring needs room for that which the training loop has and that which it gets, too."""
        if not self.ring.buffer_bytes:
            return plan.ahead
        return min(plan.ahead, max(plan.ahead_bytes // self.ring.buffer_bytes, 1), max(self.ring.most - 2, 1))

    def push(self, tasks: Any) -> int | None:
        """Posts the tasks of a batch. None: no room before those of others are released that are on their way."""
        if self._abandoned:
            self._reap()
        first = self.board.push(tasks)
        while first is None and self._abandoned:
            given = self._abandoned[0]
            taken = np.flatnonzero(self.board.states(given.first, given.tasks) == task_queue.TAKEN)
            if taken.size:
                self.wait([(given.first + int(taken[0]), 1)], 0)
            self._reap()
            first = self.board.push(tasks)
        return first

    def push_one(self, task: Any) -> int:
        first = self.push(task)
        assert first is not None, "the board has room for a task of each batch ahead, and one of each worker"
        return first

    def wait(self, batches: list[tuple[int, int]], timeout: float) -> int:
        """Which of some batches has all its answers. Raises WorkerLostError, and RuntimeError after `timeout` seconds, 0: none."""
        assert self.pool is not None
        end = time.monotonic() + timeout if timeout else None
        found = self.board.wait(batches, 0)
        while found is None:
            found = self.board.wait(batches, _SLICE)
            if found is None:
                self.pool.check()
                self._looked = time.monotonic()
                if end is not None and time.monotonic() > end:
                    raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
        self.pool.worked()
        return found

    def look(self) -> None:
        """Raises WorkerLostError also where there is nothing to wait for."""
        if self.pool is not None and time.monotonic() - self._looked > _LOOK:
            self.pool.check()
            self._looked = time.monotonic()

    def abandon(self, first: int, tasks: int, lease: Lease | None) -> None:
        """Takes back what is not begun. What is goes on, into a buffer that nobody gets before; what it says is thrown away when there is time."""
        self.board.cancel(first, tasks)
        self._abandoned.append(_Given(first, tasks, lease))

    def _reap(self) -> None:
        self._abandoned = [given for given in self._abandoned if not self._reaped(given)]

    def _reaped(self, given: _Given) -> bool:
        board = self.board
        states = board.states(given.first, given.tasks)
        for position in (given.first + np.flatnonzero(states == task_queue.DONE)).tolist():
            asked, answer = board.asked(position), board.answers(position, 1)[0]
            if asked["kind"] != _worker.SAMPLE:
                board.drop(int(asked["argument"]), int(asked["index"]))
            if answer["result"] != task_queue.CANCELLED and answer["spill_bytes"]:
                board.drop(int(answer["spill_offset"]), int(answer["spill_bytes"]))
            board.release(position, 1)
        return not (states == task_queue.TAKEN).any()


class MadeIteration(Iteration):
    """Workers make whole batches, each its own, in turn: what an own collate_fn, `__getitems__` and iterable datasets need. With in_order=False, a worker is
    passed over while it has its share of the batches on their way, as in torch's loader."""

    def __init__(self, plan: Plan, transport: Transport, owned: bool) -> None:
        super().__init__(plan)
        workers = plan.job.workers
        self._snapshots: Snapshots | None = None
        self._begun: dict[int, _Asked] = {}
        self._transport, self._owned, self._workers = transport, owned, transport.processes
        self._pending: deque[_Made] = deque()
        self._alive = set(range(workers))
        self._more = True
        self._ready: Delivered | None = None  # a batch that was taken before the sampler failed
        restored = plan.restored if plan.restored is not None and not plan.restored.finished else None
        if plan.snapshot_every is not None:
            self._snapshots = plan.progress.snapshots = Snapshots(workers, plan.snapshot_every, restored, strict=plan.in_order)
            self._snapshots.settle = weakref.WeakMethod(self._settle)  # the loader has the snapshots, and must not keep the iteration
        self._next_turn = self._snapshots.next_worker if self._snapshots is not None else 0
        self._begun = dict(enumerate(transport.begin(plan)))
        if plan.restored is not None or transport.epochs > 1:
            found = self._settle(raises=True)
            if restored is not None:
                _check_found(restored, found)
        self._fill()

    def _settle(self, *, raises: bool = False) -> int:
        """Waits until all workers have begun. How many of the batches before the state they found in the dataset."""
        found = 0
        for worker in list(self._begun):
            found += self._hear(worker, raises)
        return found

    def _hear(self, worker: int, raises: bool = False) -> int:
        asked = self._begun.pop(worker, None)
        if asked is None:
            return 0
        try:
            snapshot, found = self._transport.heard(asked)
        except WorkerLostError:
            raise
        except Exception:
            if raises:
                raise
            return 0  # each of its batches raises the same
        if self._snapshots is not None:
            self._snapshots.begun(worker, snapshot)
        return int(found)

    def _behind(self) -> tuple[int, int]:
        return (self._pending[0].before, self._pending[0].number) if self._pending else super()._behind()

    def _next_worker(self, most: int) -> int | None:
        """The worker that is to make the next batch; None: all have their share."""
        workers = self._plan.job.workers
        share = most if self._plan.in_order else max(most // len(self._alive), 1)
        for worker in itertools.chain(range(self._next_turn, workers), range(self._next_turn)):
            if worker in self._alive and sum(made.worker == worker for made in self._pending) < share:
                return worker
        return None

    def _fill(self) -> None:
        plan, board = self._plan, self._transport.board
        most = self._transport.ahead(plan)
        while self._more and self._alive and len(self._pending) < most:
            worker = self._next_worker(most)
            if worker is None:
                return
            try:
                wanted = self._drawn()
            except StopIteration:
                self._more = False
                return
            indices, samples = _request(wanted, plan.job.batched)
            self._next_turn = (worker + 1) % plan.job.workers
            lease = self._transport.ring.take() if self._transport.room else None
            tell = self._snapshots is not None and self._snapshots.wanted(len(self._pending))
            request = board.put_object((indices, self._transport.ring.buffer_bytes if lease else 0, tell))
            task = np.zeros(1, task_queue.TASK)
            task["kind"], task["only"], task["argument"], task["index"] = _worker.BATCH, worker + 1, request[0], request[1]
            task["buffer"] = lease.number if lease else _worker.NO_BUFFER
            self._pending.append(_Made(self._number, self._planned, worker, self._transport.push_one(task), lease, request, tell))
            self._number += 1
            self._planned += samples

    def _next(self) -> Delivered:
        ready, self._ready = self._ready, None
        if ready is not None:
            return ready
        while True:
            self._fill()
            if not self._pending:
                self._finish()
                raise StopIteration
            self._transport.look()
            at = 0
            if self._plan.in_order:
                self._transport.wait([(self._pending[0].first, 1)], self._plan.timeout)
            else:
                at = self._transport.wait([(made.first, 1) for made in self._pending], self._plan.timeout)
            made = self._pending[at]
            del self._pending[at]
            batch = self._take(made)
            if batch is not None:
                try:
                    self._fill()
                except Exception:
                    self._ready = batch  # a sampler's error is no reason to lose it
                    raise
                return batch

    def _note(self, batch: Delivered, position: int) -> int:
        if self._snapshots is None or batch.told is None:
            return position
        self._snapshots.given(batch.told, position)
        return self._snapshots.position

    def _fail(self, batch: Delivered) -> None:
        if self._snapshots is not None and batch.told is not None:
            self._snapshots.failed(batch.told)

    def _finish(self) -> None:
        """The epoch is over. Workers that go on with the next one are asked for what has changed since their last snapshot."""
        if self._snapshots is not None and not (self._owned and self._plan.job.process):
            self._snapshots.finish(None if self._snapshots.complete else self._transport.tell())

    def _take(self, made: _Made) -> Delivered | None:
        """None: the worker's part of an iterable dataset is at its end."""
        transport, board, snapshots = self._transport, self._transport.board, self._snapshots
        self._hear(made.worker)
        answer = board.answers(made.first, 1)[0].copy()
        board.release(made.first, 1)
        board.drop(*made.request)
        offset, length = int(answer["spill_offset"]), int(answer["spill_bytes"])
        busy = int(answer["ended_ns"]) - int(answer["began_ns"])
        self._plan.meter.load(max(busy, 0))
        if self._plan.trace is not None:
            self._plan.trace.loaded(self._plan.epoch, made.number, np.array([answer]), np.array([-1]))
        if answer["result"] == _worker.ENDED:
            self._alive.discard(made.worker)
            snapshot = board.take_object(offset, length)
            if snapshots is not None:
                snapshots.ended(made.worker, snapshot)
            return None
        if answer["result"] == _worker.ERROR:
            if snapshots is not None:
                snapshots.failed(Told(made.worker, None, False))
            board.take_object(offset, length).reraise()
        (data, samples, hits, snapshot), nbytes = serialization.receive(board, offset, length, made.lease)
        if not transport.room and nbytes:
            transport.ring.resize(nbytes + nbytes // 4 + 4096)
            transport.room = transport.ring.buffer_bytes
        data = self._pinned(data, made.number, samples, nbytes)
        return Delivered(data, made.number, samples, hits, nbytes, Told(made.worker, snapshot, made.tells))

    def _stop(self, harshly: bool) -> None:
        pending, self._pending = list(getattr(self, "_pending", ())), deque()
        self._more, self._ready = False, None
        if not hasattr(self, "_transport"):
            return
        if self._snapshots is not None:
            self._snapshots.settle = None
        if self._owned or harshly:
            self._transport.close()
        else:
            for asked in self._begun.values():
                self._transport.abandon(asked.position, 1, None)
            for made in pending:
                self._transport.abandon(made.first, 1, made.lease)
        self._begun.clear()


__all__ = ["Delivered", "Iteration", "MadeIteration", "PlainIteration", "Plan", "Transport"]
