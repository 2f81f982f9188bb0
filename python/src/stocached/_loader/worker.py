"""A worker takes tasks from the task queue. It loads a sample into its row or makes a whole batch,
and answers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pickle
import time
from collections.abc import Callable
from typing import Any

from .. import _native
from .._checks import loading
from .._common.errors import SchemaError
from .._common.load_time import QUICK, delay_ns, idle_ns
from .._common.notes import no_end
from .._datasets.cache_backed import CacheBacked
from .._datasets.tally import current
from .._memory.batch_pool import BatchPool
from .._pipes.lists import PipeLists
from .._random.generator_states import Draws
from .._random.generators import Seeding
from .._samples.batch_layout import Layout
from .._trace.augment_time import spent_ns
from .._workers import dataset_states, serialization
from .._workers.task_queue import TaskQueue
from .._workers.tasks import (
    BAD,
    BEGIN,
    ENDED,
    ERROR,
    FROM_CACHE,
    ITEMS,
    MADE,
    NO_BUFFER,
    ROW_AND_OBJECTS,
    SAMPLE,
    TELL,
    WHOLE,
)
from .._workers.worker import MOST, NAP, Worker, answer
from .bad_samples import bad_sample
from .fetcher import Fetcher
from .job import Job
from .lists_reader import Finisher, WorkerReader
from .native_work import NativeWork

_Loaded = list[tuple[_native.Task, Any]]
_UNPROBED = object()  # a sample that is neither probed in the cache nor fetched yet
_TOGETHER = 1_000_000  # ns: the most that tasks which are taken together may take, so that other workers get some


def run_worker(number: int, job: Job, task_queue: TaskQueue, batch_pool: BatchPool) -> None:
    """Runs a worker, a process or a thread, until the task queue is stopped."""
    if job.process:
        job.backend.enter_worker(number, job.workers, job.base_seed, job.user_dataset)
    LoaderWorker(number, job, task_queue, batch_pool).run()


class LoaderWorker(Worker):
    def __init__(self, number: int, job: Job, task_queue: TaskQueue, batch_pool: BatchPool) -> None:
        super().__init__(number, job, task_queue, batch_pool)
        self._layout: Layout | None = None
        self._native: NativeWork | None = None  # does what C can do
        self._rows: dict[int, list[Any]] = {}  # by buffer
        self._fetcher: Fetcher | Finisher | None = None
        self._reader = WorkerReader(number, job, task_queue) if isinstance(job.dataset, PipeLists) else None
        self._seeding = Seeding(job.backend.generators)
        self._pace = float(_TOGETHER)  # ns of recent samples
        self._draws: Draws | None = None
        self._begin_draws: dict[str, Any] = {}  # states of generators when the epoch began
        self._last: bytes | None = None  # the last snapshot that was sent
        # Of a thread it cannot be told whether it waited for the source or for the interpreter's lock. What a server
        # does is no load of ours.
        self._waits = job.process and job.served is None
        self._idle = 0  # ns: when it was last asked for; asking takes longer than a quick load
        self._delay = 0  # ns: delays of this thread before the task
        self._started = False  # the user's init function has succeeded

    def _do(self, tasks: ctypes.Array[_native.Task], count: int) -> None:
        self._delay = delay_ns()
        current().wake()
        self._do_all(tasks[:count])
        self._tell_delay(tasks[count - 1])
        current().flush()
        self._task_queue.done(self._number, tasks, count)

    def _take(self, tasks: ctypes.Array[_native.Task]) -> int | None:
        """Those that Python does."""
        if self._native is not None:
            return self._native.take(self._layout or self._learn_layout(), tasks, self._most, NAP)
        return super()._take(tasks)

    def _tell_delay(self, task: _native.Task) -> None:
        """Of the task that ends now."""
        before, self._delay = self._delay, delay_ns()
        self._task_queue.delayed(task.position, self._delay - before)

    def _survived(self, error: BaseException) -> BaseException:
        """The error to answer with. In a process it raises SystemExit of the user's code, and the
        parent sees the exit. In a thread SystemExit would end the whole program, so it becomes an
        error."""
        if isinstance(error, SystemExit):
            if self._job.process:
                raise error
            return RuntimeError(f"SystemExit({error.code!r})").with_traceback(error.__traceback__)
        return no_end(error, "the dataset" if self._started else "worker_init_fn")

    def _sent(self, error: BaseException) -> Any:
        return self._job.backend.error(self._survived(error), self._job.where(self._number))

    def _start(self) -> None:
        job = self._job
        if job.counters is not None:
            job.counters.enter_worker(self._number)
        if job.pipes is not None:
            job.pipes.seed(job.dataset)
            job.pipes.shard(job.dataset, self._number, job.workers)
        if job.init is not None:
            job.init(self._number)
        if job.snapshots and job.process:  # threads share the generators with the whole program
            self._draws = Draws()
        if self._reader is not None:
            self._fetcher = self._reader.finisher
        elif not job.iterable:
            self._fetcher = job.fetcher()
        self._started = True
        if job.pipeline is not None:
            self._native = NativeWork(self._number, job, self._task_queue, self._batch_pool)

    def _begin(self, task: _native.Task) -> None:
        """Begins an epoch of whole batches. Answers with a snapshot, and with the number of batches
        before the state that the dataset had."""
        job = self._job
        if not self._started:
            return
        self._broken = self._fetcher = self._last = None
        job.base_seed, job.key, pipes, snapshot, finished = self._task_queue.get_object(task.argument, task.index)
        skipped = 0
        try:
            if pipes is not None:
                pipes.seed(job.dataset)
            if snapshot is not None:
                self._fetcher, skipped = job.goes_on(snapshot)
            self._begin_draws = self._drawn()
            if snapshot is None or finished:
                self._fetcher = job.fetcher()
            answer(task, self._task_queue.put_object((self._snapshot(), skipped)))
        except BaseException as error:
            self._broken = self._sent(error)

    def _drawn(self) -> dict[str, Any]:
        return self._draws.states() if self._draws is not None else {}

    def _snapshot(self) -> bytes | None:
        """A pickled snapshot; None: nothing has changed since the last one."""
        if not self._job.snapshots or not isinstance(self._fetcher, Fetcher):
            return None
        snapshot = dataset_states.empty(self._number) | self._fetcher.state()
        # `goes_on` reads an iterable dataset without a state from its start, so it needs the
        # generators of then.
        again = self._job.iterable and not self._fetcher.stateful and not self._fetcher.ended
        snapshot["generators"] = self._begin_draws if again else self._drawn()
        data = pickle.dumps(snapshot, pickle.HIGHEST_PROTOCOL)
        if data == self._last:
            return None
        self._last = data
        return data

    def _answer_error(self, task: _native.Task, error: BaseException) -> None:
        bad = bad_sample(task.index, error) if self._job.skips_bad and task.kind == SAMPLE else None
        sent = self._sent(error) if bad is None else bad
        answer(task, self._task_queue.put_object(sent), ERROR if bad is None else BAD)

    def _do_all(self, tasks: list[_native.Task]) -> None:
        """Does tasks of one kind. A result is ROW, with nothing in the overflow, unless a method
        sets another."""
        if tasks[0].kind != SAMPLE or self._broken is not None:
            for task in tasks:
                self._try(self._do_one, task)
            return
        try:
            self._load_samples(tasks)
        except BaseException as error:  # an error of no single task
            for task in tasks:
                self._answer_error(task, self._survived(error))

    def _try(self, do: Callable[..., None], task: _native.Task, *more: Any) -> None:
        """Does a task, and answers with the error if it fails."""
        try:
            if self._job.process:
                do(task, *more)
            else:
                # `augment=` may draw from the global generators too.
                loading.run(functools.partial(do, task, *more))
        except BaseException as error:
            self._answer_error(task, self._survived(error))

    def _do_one(self, task: _native.Task) -> None:
        if task.kind == BEGIN:
            self._begin(task)
        elif self._broken is None and task.kind == TELL:
            answer(task, self._task_queue.put_object(self._snapshot()))
        elif self._broken is None and task.kind == ITEMS:
            assert self._reader is not None
            answer(
                task, self._reader.read(task.overflow_offset, *self._task_queue.get_object(task.argument, task.index))
            )
        elif self._broken is None:
            self._make_batch(task)
        if self._broken is not None:
            answer(task, self._task_queue.put_object(self._broken), ERROR)

    def _hits(self) -> int:
        """Samples that this worker got from the cache so far."""
        backed = self._job.dataset
        return backed.thread_hits.count if isinstance(backed, CacheBacked) else 0

    # ------------------------------------------------------------ a whole batch

    def _make_batch(self, task: _native.Task) -> None:
        assert self._fetcher is not None
        # The object stays in the overflow for another worker, in case this one is killed.
        wanted, buffer_bytes, tell = self._task_queue.get_object(task.argument, task.index)
        memory = None
        if buffer_bytes:
            self._batch_pool.buffer_bytes = buffer_bytes
            memory = self._batch_pool.buffer(task.buffer)
        before, spent, idle = self._hits(), spent_ns(), idle_ns()
        current().begin()
        try:
            data = self._fetcher.fetch(wanted)
        except StopIteration:
            if not self._job.iterable:
                raise
            answer(task, self._task_queue.put_object(self._snapshot()), ENDED)
            return
        self._task_queue.augmented(task.position, spent_ns() - spent)
        count = self._fetcher.count
        hits = min(self._hits() - before, count)
        current().gave(count, hits)
        if self._waits and hits < count:
            self._task_queue.waited(task.position, idle_ns() - idle)
        batch = data, count, hits, self._fetcher.bad, self._snapshot() if tell else None
        place = serialization.send(self._task_queue, batch, task.overflow_offset, memory)
        answer(task, place, MADE + FROM_CACHE * (hits == count > 0))

    # ------------------------------------------------------------ samples

    def _load_samples(self, tasks: list[_native.Task]) -> None:
        start = time.monotonic_ns()
        current().begin()
        loaded: _Loaded = []
        hits: list[_native.Task] = []
        found = hit = None
        if self._job.cached is not None and len(tasks) > 1:
            with contextlib.suppress(Exception):  # then one by one, so that the error belongs to its sample
                found = self._job.cached.peek_several([task.index for task in tasks], MOST)
        elif self._native is not None and self._job.served is not None and len(tasks) > 1:
            with contextlib.suppress(Exception):  # the same; one request for all misses
                found = self._job.dataset.__getitems__([task.index for task in tasks])
                hit = self._job.served.thread_hits.last
        layout = (self._layout or self._learn_layout()) if tasks[0].buffer != NO_BUFFER else None
        if self._waits:
            self._idle = idle_ns()
        for k, task in enumerate(tasks):
            if k:
                self._tell_delay(tasks[k - 1])
                self._task_queue.begin(task.position, time.monotonic_ns())
            if hit is not None and hit[k]:
                hits.append(task)
            self._try(self._load, task, _UNPROBED if found is None else found[k], loaded, hits)
            # Write large samples at once: they are in the processor's cache, and their memory is
            # reused.
            if layout is None or not layout.small:
                self._write_all(loaded, layout)
        self._write_all(loaded, layout)
        current().gave(len(tasks), len(hits))
        for task in hits:
            if task.result not in (ERROR, BAD):
                task.result += FROM_CACHE
        self._pace += ((time.monotonic_ns() - start) / len(tasks) - self._pace) / 2
        self._most = max(1, min(MOST, int(_TOGETHER / self._pace)))

    def _load(self, task: _native.Task, found: Any, loaded: _Loaded, hits: list[_native.Task]) -> None:
        """Loads a sample. found: the result of a probe of the cache, or a sample that a server gave, or
        _UNPROBED."""
        job, index, seed, spent = self._job, task.index, task.argument, spent_ns()
        before = 0 if job.served is None else job.served.thread_hits.count
        load = again = functools.partial(job.load, index, seed)
        reads = found is _UNPROBED
        if job.cached is not None:
            sample = job.cached.peek(index) if found is _UNPROBED else found
            reads = sample is None
            if not reads:
                hits.append(task)
            load = functools.partial(job.finish, index, seed, sample)
        elif not reads:
            load = functools.partial(job.augmented, index, found, seed)
        start = time.monotonic_ns()
        loaded.append((task, self._seeding.load(seed, load, again) if job.seed_samples else load()))
        if job.served is not None and job.served.thread_hits.count > before:
            hits.append(task)
        if reads and self._waits:
            took, waited = time.monotonic_ns() - start, 0
            if took >= QUICK:
                self._idle, asked = idle_ns(), self._idle
                waited = min(self._idle - asked, took)  # what was quick since then hardly waited
            self._task_queue.waited(task.position, waited)
        if spent_ns() > spent:
            self._task_queue.augmented(task.position, spent_ns() - spent)

    def _write_all(self, loaded: _Loaded, layout: Layout | None) -> None:
        """Writes samples into their rows of one batch, and drops them."""
        if layout is not None and len(loaded) > 1:
            arrays, rows = self._arrays(layout, loaded[0][0].buffer), [task.row for task, _ in loaded]
            objects = layout.write_many(arrays, rows, [sample for _, sample in loaded])
            if objects is not None and (
                not layout.objects or self._send_objects(loaded[0][0], dict(zip(rows, objects)))
            ):
                loaded.clear()
        while loaded:
            self._try(self._write, *loaded.pop(0), layout)

    def _send_objects(self, task: _native.Task, objects: dict[int, list[Any]]) -> bool:
        """Answers a task with the objects of the samples of several, in one piece of the overflow. It is the first of them,
        which is answered first: then a worker that does the others again sends theirs a second time. False: one cannot
        be sent, and `_write` names its sample."""
        try:
            answer(task, serialization.send(self._task_queue, objects, task.overflow_offset), ROW_AND_OBJECTS)
        except (Exception, SystemExit):
            return False
        return True

    def _write(self, task: _native.Task, sample: Any, layout: Layout | None) -> None:
        if layout is not None:
            try:
                objects = layout.write(self._arrays(layout, task.buffer), task.row, sample)
            except SchemaError:
                pass  # another layout: answer with the whole sample
            else:
                if objects:
                    place = serialization.send(self._task_queue, {task.row: objects}, task.overflow_offset)
                    answer(task, place, ROW_AND_OBJECTS)
                return
        answer(task, serialization.send(self._task_queue, sample, task.overflow_offset), WHOLE)

    def _learn_layout(self) -> Layout | None:
        notice = self._task_queue.notice()
        if notice is not None:
            self._layout, self._batch_pool.buffer_bytes = pickle.loads(notice)
        return self._layout

    def _arrays(self, layout: Layout, buffer: int) -> list[Any]:
        arrays = self._rows.get(buffer)
        if arrays is None:
            arrays = self._rows[buffer] = layout.arrays(self._batch_pool.buffer(buffer), layout.rows)
        return arrays
