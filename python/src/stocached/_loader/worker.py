"""What a worker does: it takes tasks from the board, loads a sample into its row, or makes a whole batch, and answers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _native
from .._checks import loading
from .._common.errors import SchemaError
from .._datasets.cached_samples import CachedSamples
from .._memory.ring import Ring
from .._random import generator_states
from .._random.generator_states import Draws
from .._random.generators import Seeding
from .._samples.batch_layout import Layout
from .._trace.augment_time import augmented, spent_ns
from .._workers import dataset_states, serialization
from .._workers.parent_watch import Parent
from .._workers.stateful import give_back, is_stateful, state_of
from .._workers.task_queue import Board
from .numpy_backend import Flavour, sample_seed

# Kinds of tasks
SAMPLE, BATCH, BEGIN, TELL = 0, 1, 2, 3
# Results: the sample is in its row; so it is, and what has no column in the spill; it is whole in the spill; an exception is; a batch is; the worker's part
# of an iterable dataset is at its end
ROW, ROW_AND_OBJECTS, WHOLE, ERROR, MADE, ENDED = 0, 1, 2, 3, 4, 5
FROM_CACHE = 16  # added to it where the sample, or each sample of the batch, was in the cache after all

_SHOWN = 16  # samples of a message at most
_NAP = 0.25  # seconds that a worker without work sleeps at a time
_UNSEEN = object()  # a sample that nobody has looked for in the cache
_MOST = 32  # tasks that are taken at a time,
_TOGETHER = 1_000_000  # if they take no more ns than this together: else the other workers are to have some


class Fetcher:
    """Samples of a dataset as batches: what torch calls a fetcher. snapshot: what `state` gave, to go on from."""

    def __init__(
        self, dataset: Any, iterable: bool, batched: bool, collate: Callable[[Any], Any], drop_last: bool, snapshot: Mapping[str, Any] | None = None
    ) -> None:
        self._dataset, self._batched, self._collate, self._drop_last = dataset, batched, collate, drop_last
        self._source = dataset.source if isinstance(dataset, _ByIndex) else dataset
        state = (snapshot and snapshot["fetcher_state"]) or {"dataset_iter_state": None, "fetcher_ended": False}
        if snapshot is not None:
            give_back(self._source, snapshot["dataset_state"], "the dataset")
        self._iterator: Iterator[Any] | None = iter(dataset) if iterable else None
        give_back(self._iterator, state["dataset_iter_state"], "the dataset's iterator")
        self._ended = bool(state["fetcher_ended"])
        self.count = 0  # samples of the last batch

    @property
    def stateful(self) -> bool:
        """Whether the dataset or its iterator has a state."""
        return is_stateful(self._source) or is_stateful(self._iterator)

    @property
    def ended(self) -> bool:
        return self._ended

    def state(self) -> dict[str, Any]:
        """The states of the dataset and of its iterator, None for what has none. Keys have torchdata's names."""
        both = self._iterator is self._source  # it is its own iterator
        iterator = None if self._iterator is None else {"dataset_iter_state": state_of(self._iterator), "fetcher_ended": self._ended}
        return {"dataset_state": None if both else state_of(self._source), "fetcher_state": iterator}

    def skip(self, batches: int, batch_size: int | None) -> int:
        """Makes batches of an iterable dataset and forgets them. Returns how many there were."""
        for done in range(batches):
            try:
                self.fetch([None] * (batch_size or 1))
            except StopIteration:
                return done
            except Exception:
                continue  # this batch raised before the state as well
        return batches

    def fetch(self, wanted: Any) -> Any:
        """wanted: indices of a batch, or an index where nobody makes batches; of an iterable dataset as many as it has entries. StopIteration at its end."""
        self.count = len(wanted) if self._batched else 1
        if self._iterator is not None:
            samples = self._next(wanted)
            self.count = len(samples) if self._batched else 1
            return self._collate(samples)
        if not self._batched:
            return self._collate(self._dataset[wanted])
        many = getattr(self._dataset, "__getitems__", None)
        return self._collate(many(wanted) if many else [self._dataset[index] for index in wanted])

    def _next(self, wanted: Any) -> Any:
        assert self._iterator is not None
        if self._ended:
            raise StopIteration
        if not self._batched:
            try:
                return next(self._iterator)
            except StopIteration:
                self._ended = True
                raise
        samples = []
        for _ in wanted:
            try:
                samples.append(next(self._iterator))
            except StopIteration:
                self._ended = True
                break
        if not samples or (self._drop_last and len(samples) < len(wanted)):
            raise StopIteration
        return samples


@dataclass
class Augment:
    """The random part of a sample, which depends on (seed, epoch, index) alone. With a second parameter, the function is given a NumPy generator of its own."""

    function: Callable[..., Any]
    takes_generator: bool = field(init=False)

    def __post_init__(self) -> None:
        try:
            kinds = [p for p in inspect.signature(self.function).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            self.takes_generator = sum(p.default is p.empty for p in kinds) >= 2
        except (TypeError, ValueError):
            self.takes_generator = False

    def __call__(self, sample: Any, seed: int) -> Any:
        return augmented(self.function, sample, generator(seed)) if self.takes_generator else augmented(self.function, sample)


def generator(seed: int) -> np.random.Generator:
    """A generator for one sample. Setting the state takes a fifth of the time of seeding."""
    made: np.random.Generator | None = getattr(_generators, "made", None)
    if made is None:
        made = _generators.made = np.random.Generator(np.random.PCG64(0))
    made.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": seed * 0xDA942042E4DD58B5 + 1, "inc": seed << 1 | 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    made.integers(2**63)  # the first number of a state that is mostly zeros
    return made


_generators = threading.local()


@dataclass
class Job:
    """All that a worker needs to know; pickled for those that are not forked."""

    dataset: Any
    wrapped: bool  # it is that of the loader, around the user's
    flavour: Flavour
    iterable: bool
    batched: bool
    collate: Callable[[Any], Any]
    drop_last: bool
    augment: Augment | None
    init: Callable[[int], None] | None
    workers: int
    base_seed: int
    key: int  # of whatever is random about the samples of this epoch
    seed_samples: bool  # of the global generators; a thread must not
    process: bool
    batch_size: int | None = None
    snapshots: bool = False  # whether workers that make whole batches send snapshots
    pipes: Any = None  # what torch's DataPipes are told; None: the dataset is none of them
    parent: Parent = field(default_factory=Parent)

    @property
    def random(self) -> bool:
        """Whether samples depend on their seeds."""
        return self.augment is not None or self.seed_samples

    @property
    def users(self) -> Any:
        """The dataset that the user gave."""
        return self.dataset.dataset if self.wrapped else self.dataset

    @functools.cached_property
    def cached(self) -> CachedSamples | None:
        """The dataset, if it is nothing but a cache of another one."""
        plain = isinstance(self.dataset, CachedSamples) and type(self.dataset).__getitem__ is CachedSamples.__getitem__
        return self.dataset if plain else None

    def load(self, index: Any, seed: int) -> Any:
        """A sample of a map-style dataset; its seed is that of `sample_seed`."""
        return self._augmented(self.dataset[index], seed)

    def finish(self, index: int, seed: int, sample: Any) -> Any:
        """`load` of what `cached.peek` gave: a sample, or None."""
        assert self.cached is not None
        return self._augmented(self.cached.finish(index, sample), seed)

    def _augmented(self, sample: Any, seed: int) -> Any:
        return sample if self.augment is None else self.augment(sample, seed)

    def fetcher(self, snapshot: Mapping[str, Any] | None = None) -> Fetcher:
        """For whole batches; each epoch has a new one. snapshot: to go on from."""
        dataset = _ByIndex(self) if self.random and not self.iterable else self.dataset
        return Fetcher(dataset, self.iterable, self.batched, self.collate, self.drop_last, snapshot)

    def goes_on(self, snapshot: Mapping[str, Any]) -> tuple[Fetcher, int]:
        """The fetcher that a snapshot was taken of, and how many batches it has made. Sets the global generators that are in the snapshot."""
        if self.iterable and not dataset_states.is_stateful(snapshot) and not dataset_states.has_ended(snapshot):
            generator_states.put(snapshot["generators"])  # where they stood before the first batch
            fetcher = self.fetcher()
            return fetcher, fetcher.skip(snapshot["batches"], self.batch_size)
        fetcher = self.fetcher(snapshot)
        generator_states.put(snapshot["generators"])
        return fetcher, snapshot["batches"]

    def work(self, worker: int, board: Board, ring: Ring) -> None:
        """What a worker does, be it a process or a thread, until the board is stopped."""
        if self.process:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers,
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and a handler that a forked one inherits is the parent's business
            self.parent.end_with()
            ring.enter_worker()
            self.flavour.seed_worker(self.base_seed, worker)
            self.flavour.enter_worker(worker, self.workers, self.base_seed, self.users)
        Worker(worker, self, board, ring).run()

    def doing(self, board: Board, position: int) -> str:
        """What a worker does that has taken the task at this position: for the message if it dies."""
        task = board.asked(position)
        if task["kind"] == SAMPLE:
            return f"while it loaded sample {task['index']}"
        if task["kind"] == BEGIN:
            return "while it began an epoch"
        if self.iterable:
            return "while it read its part of the dataset"
        if task["kind"] == TELL:
            return "while it said where its dataset is"
        wanted = board.get_object(int(task["argument"]), int(task["index"]))[0]
        if not self.batched:
            return f"while it loaded sample {wanted}"
        shown = ", ".join(map(str, wanted[:_SHOWN])) + (f" and {len(wanted) - _SHOWN} others" if len(wanted) > _SHOWN else "")
        return f"while it made the batch of sample{'s' if len(wanted) > 1 else ''} {shown}"

    def where(self, worker: int) -> str:
        return f"in DataLoader worker {'process' if self.process else 'thread'} {worker}"


class _ByIndex:
    """The dataset of a job, if the random numbers of a sample depend on its index."""

    def __init__(self, job: Job) -> None:
        self._job, self.source = job, job.dataset
        many = getattr(job.dataset, "__getitems__", None)
        if job.augment is None and many:
            self.__getitems__ = functools.partial(self._many, many)

    def __getitem__(self, index: Any) -> Any:
        return self._job.load(index, self._seed(index))

    def _many(self, many: Callable[[Any], Any], indices: Any) -> Any:
        """A batch that the dataset loads at once is seeded by its first sample."""
        if len(indices):
            self._seed(indices[0])
        return many(indices)

    def _seed(self, index: Any) -> int:
        seed = sample_seed(self._job.key, 0, index)
        if self._job.seed_samples:
            self._job.flavour.seed_sample(seed)
        return seed


class Worker:
    def __init__(self, number: int, job: Job, board: Board, ring: Ring) -> None:
        self._number, self._job, self._board, self._ring = number, job, board, ring
        self._layout: Layout | None = None
        self._rows: dict[int, list[Any]] = {}  # by buffer
        self._fetcher: Fetcher | None = None
        self._seeding = Seeding(job.flavour.generators)
        self._pace = float(_TOGETHER)  # ns that a sample takes, of late
        self._most = 1  # tasks to take at a time
        self._draws: Draws | None = None
        self._begin_draws: dict[str, Any] = {}  # states of generators when the epoch began
        self._told: bytes | None = None  # the last snapshot that was sent
        self._started = False  # the user's init function has succeeded
        self._broken: Any = None  # an error of the user's init function or of making the iterator, which every task is answered with

    def run(self) -> None:
        """Until the board is stopped."""
        tasks = (_native.Task * _MOST)()
        self._start()
        while True:
            count = self._board.take(self._number, tasks, self._most, _NAP)
            if count is None:
                return
            if count:
                self._do(tasks[:count])
                self._board.done(self._number, tasks, count)

    def _survived(self, error: BaseException) -> BaseException:
        """Raises what ends this process, as the user's code says; the parent sees that. A thread says it of the whole program, which is not its business."""
        if isinstance(error, SystemExit):
            if self._job.process:
                raise error
            return RuntimeError(f"SystemExit({error.code!r})").with_traceback(error.__traceback__)
        return error

    def _start(self) -> None:
        job = self._job
        try:
            if job.pipes is not None:
                job.pipes.seed(job.dataset)
                job.pipes.shard(job.dataset, self._number, job.workers)
            if job.init is not None:
                job.init(self._number)
            if job.snapshots and job.process:  # threads share the generators with the whole program
                self._draws = Draws()
            if not job.iterable:
                self._fetcher = job.fetcher()
            self._started = True
        except BaseException as error:
            self._broken = job.flavour.error(self._survived(error), job.where(self._number))

    def _begin(self, task: _native.Task) -> None:
        """Begins an epoch of whole batches. Answers with a snapshot, and with how many of the batches before the state the dataset had."""
        job = self._job
        if not self._started:
            return
        self._broken = self._fetcher = self._told = None
        job.base_seed, job.key, pipes, snapshot, finished = self._board.get_object(task.argument, task.index)
        skipped = 0
        try:
            if pipes is not None:
                pipes.seed(job.dataset)
            if snapshot is not None:
                self._fetcher, skipped = job.goes_on(snapshot)
            self._begin_draws = self._drawn()
            if snapshot is None or finished:
                self._fetcher = job.fetcher()
            task.spill_offset, task.spill_bytes = self._board.put_object((self._snapshot(), skipped))
        except BaseException as error:
            self._broken = job.flavour.error(self._survived(error), job.where(self._number))

    def _drawn(self) -> dict[str, Any]:
        return self._draws.states() if self._draws is not None else {}

    def _snapshot(self) -> bytes | None:
        """Pickled; None: nothing has changed since the last one."""
        if not self._job.snapshots or self._fetcher is None:
            return None
        snapshot = dataset_states.empty(self._number) | self._fetcher.state()
        # `goes_on` reads an iterable dataset without a state from its start, and so needs the generators of that moment.
        again = self._job.iterable and not self._fetcher.stateful and not self._fetcher.ended
        snapshot["generators"] = self._begin_draws if again else self._drawn()
        data = pickle.dumps(snapshot, pickle.HIGHEST_PROTOCOL)
        if data == self._told:
            return None
        self._told = data
        return data

    def _answer_error(self, task: _native.Task, error: BaseException) -> None:
        where = self._job.where(self._number)
        try:
            wrapped = pickle.dumps(self._job.flavour.error(error, where), 5)
            pickle.loads(wrapped)
        except Exception:  # an exception of a class that cannot be pickled
            text = RuntimeError(f"{type(error).__name__}: {error} (an exception that cannot be sent to another process)")
            wrapped = pickle.dumps(self._job.flavour.error(text.with_traceback(error.__traceback__), where), 5)
        task.result = ERROR
        task.spill_offset, task.spill_bytes = self._board.put(wrapped)

    def _do(self, tasks: list[_native.Task]) -> None:
        """All are of one kind. Results are ROW, and nothing in the spill, unless something else is said."""
        if tasks[0].kind != SAMPLE or self._broken is not None:
            for task in tasks:
                self._try(self._do_one, task)
            return
        try:
            self._load_samples(tasks)
        except BaseException as error:  # of none of them by itself
            for task in tasks:
                self._answer_error(task, self._survived(error))

    def _try(self, do: Callable[..., None], task: _native.Task, *more: Any) -> None:
        """Answers with an error what cannot be done."""
        try:
            if self._job.process:
                do(task, *more)
            else:
                loading.run(functools.partial(do, task, *more))  # augment= may draw from the global generators as well
        except BaseException as error:
            self._answer_error(task, self._survived(error))

    def _do_one(self, task: _native.Task) -> None:
        if task.kind == BEGIN:
            self._begin(task)
        elif self._broken is None and task.kind == TELL:
            task.spill_offset, task.spill_bytes = self._board.put_object(self._snapshot())
        elif self._broken is None:
            self._make_batch(task)
        if self._broken is not None:
            task.result = ERROR
            task.spill_offset, task.spill_bytes = self._board.put_object(self._broken)

    # ------------------------------------------------------------------------------------------------ a whole batch

    def _make_batch(self, task: _native.Task) -> None:
        assert self._fetcher is not None
        wanted, room, tell = self._board.get_object(task.argument, task.index)  # it stays there for another worker, should this one be killed
        memory = None
        if room:
            self._ring.buffer_bytes = room
            memory = self._ring.buffer(task.buffer)
        given, spent = getattr(self._job.dataset, "given", 0), spent_ns()
        try:
            data = self._fetcher.fetch(wanted)
        except StopIteration:
            if not self._job.iterable:
                raise
            task.spill_offset, task.spill_bytes = self._board.put_object(self._snapshot())
            task.result = ENDED
            return
        self._board.augmented(task.position, spent_ns() - spent)
        count, hits = self._fetcher.count, getattr(self._job.dataset, "given", 0) - given
        batch = data, count, hits, self._snapshot() if tell else None
        task.spill_offset, task.spill_bytes = serialization.send(self._board, batch, memory)
        task.result = MADE + FROM_CACHE * (hits == count > 0)

    # ------------------------------------------------------------------------------------------------ samples

    def _load_samples(self, tasks: list[_native.Task]) -> None:
        start = time.monotonic_ns()
        loaded: list[tuple[_native.Task, Any]] = []
        hits: list[_native.Task] = []
        found = None
        if self._job.cached is not None and len(tasks) > 1:
            with contextlib.suppress(Exception):  # else one by one, which says whose it is
                found = self._job.cached.peek_several([task.index for task in tasks], _MOST)
        layout = (self._layout or self._learn_layout()) if tasks[0].buffer != NO_BUFFER else None
        for k, task in enumerate(tasks):
            if k:
                self._board.begin(task.position, time.monotonic_ns())
            self._try(self._load, task, _UNSEEN if found is None else found[k], loaded, hits)
            if layout is None or not layout.small:  # while it is in the processor's cache, and so that the next one has its memory
                self._write_all(loaded, layout)
        self._write_all(loaded, layout)
        for task in hits:
            if task.result != ERROR:
                task.result += FROM_CACHE
        self._pace += ((time.monotonic_ns() - start) / len(tasks) - self._pace) / 2
        self._most = max(1, min(_MOST, int(_TOGETHER / self._pace)))

    def _load(self, task: _native.Task, found: Any, loaded: list[tuple[_native.Task, Any]], hits: list[_native.Task]) -> None:
        """found: what the cache has, if anybody has looked."""
        job, index, seed, spent = self._job, task.index, task.argument, spent_ns()
        load = again = functools.partial(job.load, index, seed)
        if job.cached is not None:
            sample = job.cached.peek(index) if found is _UNSEEN else found
            if sample is not None:
                hits.append(task)
            load = functools.partial(job.finish, index, seed, sample)
        loaded.append((task, self._seeding.load(seed, load, again) if job.seed_samples else load()))
        if spent_ns() > spent:
            self._board.augmented(task.position, spent_ns() - spent)

    def _write_all(self, loaded: list[tuple[_native.Task, Any]], layout: Layout | None) -> None:
        """Puts samples into their rows, of one batch, and forgets them."""
        if layout is not None and len(loaded) > 1:
            arrays, rows = self._arrays(layout, loaded[0][0].buffer), [task.row for task, _ in loaded]
            if layout.write_many(arrays, rows, [sample for _, sample in loaded]):
                loaded.clear()
        while loaded:
            self._try(self._write, *loaded.pop(0), layout)

    def _write(self, task: _native.Task, sample: Any, layout: Layout | None) -> None:
        if layout is not None:
            try:
                objects = layout.write(self._arrays(layout, task.buffer), task.row, sample)
            except SchemaError:
                pass  # not like the others: whole, as it is
            else:
                if objects:
                    task.spill_offset, task.spill_bytes = serialization.send(self._board, objects)
                    task.result = ROW_AND_OBJECTS
                return
        task.spill_offset, task.spill_bytes = serialization.send(self._board, sample)
        task.result = WHOLE

    def _learn_layout(self) -> Layout | None:
        notice = self._board.notice()
        if notice is not None:
            self._layout, self._ring.buffer_bytes = pickle.loads(notice)
        return self._layout

    def _arrays(self, layout: Layout, buffer: int) -> list[Any]:
        arrays = self._rows.get(buffer)
        if arrays is None:
            arrays = self._rows[buffer] = layout.arrays(self._ring.buffer(buffer), layout.rows)
        return arrays


NO_BUFFER = 2**32 - 1
