"""What a worker does: it takes tasks from the board, loads a sample into its row, or makes a whole batch, and answers."""

from __future__ import annotations

import inspect
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _native, _transport
from ._board import Board
from ._errors import SchemaError
from ._flavour import Flavour, sample_seed
from ._layout import Layout
from ._parent import Parent
from ._ring import Ring

# Kinds of tasks
SAMPLE, BATCH, BEGIN = 0, 1, 2
# Results: the sample is in its row; so it is, and what has no column in the spill; it is whole in the spill; an exception is; a batch is; the worker's part
# of an iterable dataset is at its end
ROW, ROW_AND_OBJECTS, WHOLE, ERROR, MADE, ENDED = 0, 1, 2, 3, 4, 5
FROM_CACHE = 16  # added to it where the sample was in the cache after all

_NAP = 0.25  # seconds that a worker without work sleeps at a time


class Fetcher:
    """Samples of a dataset as batches: what torch calls a fetcher."""

    def __init__(self, dataset: Any, iterable: bool, batched: bool, collate: Callable[[Any], Any], drop_last: bool) -> None:
        self._dataset, self._batched, self._collate, self._drop_last = dataset, batched, collate, drop_last
        self._iterator: Iterator[Any] | None = iter(dataset) if iterable else None
        self._ended = False
        self.count = 0  # samples of the last batch

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
            return next(self._iterator)
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
        return self.function(sample, generator(seed)) if self.takes_generator else self.function(sample)


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
    parent: Parent = field(default_factory=Parent)

    def load(self, index: Any, key: int) -> Any:
        """A sample of a map-style dataset."""
        if self.augment is None and not self.seed_samples:
            return self.dataset[index]
        seed = sample_seed(key, 0, index)
        if self.seed_samples:
            self.flavour.seed_sample(seed)
        sample = self.dataset[index]
        return sample if self.augment is None else self.augment(sample, seed)

    def fetcher(self) -> Fetcher:
        """For whole batches; made anew for each epoch."""
        dataset = _Augmented(self) if self.augment is not None and not self.iterable else self.dataset
        return Fetcher(dataset, self.iterable, self.batched, self.collate, self.drop_last)

    def where(self, worker: int) -> str:
        return f"in DataLoader worker {'process' if self.process else 'thread'} {worker}"


class _Augmented:
    """The dataset of a job, sample by sample."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __getitem__(self, index: Any) -> Any:
        return self._job.load(index, self._job.key)


def main(worker: int, job: Job, board: Board, ring: Ring) -> None:
    """Of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers,
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and a handler that a forked one inherits is the parent's business
    job.parent.end_with()
    job.flavour.seed_worker(job.base_seed, worker)
    job.flavour.enter_worker(worker, job.workers, job.base_seed, job.dataset)
    Worker(worker, job, board, ring).run()


class Worker:
    def __init__(self, number: int, job: Job, board: Board, ring: Ring) -> None:
        self._number, self._job, self._board, self._ring = number, job, board, ring
        self._layout: Layout | None = None
        self._rows: dict[int, list[Any]] = {}  # by buffer
        self._fetcher: Fetcher | None = None
        self._broken: Any = None  # an error of the user's init function or of making the iterator, which every task is answered with

    def run(self) -> None:
        """Until the board is stopped."""
        task = _native.Task()
        self._begin(self._job.init)
        while True:
            got = self._board.take(self._number, task, _NAP)
            if got is None:
                return
            if got:
                task.result, task.spill_bytes = ROW, 0
                try:
                    self._do(task)
                except BaseException as error:
                    self._answer_error(task, self._survived(error))
                self._board.done(self._number, task)

    def _survived(self, error: BaseException) -> BaseException:
        """Raises what ends this process, as the user's code says; the parent sees that. A thread says it of the whole program, which is not its business."""
        if isinstance(error, SystemExit):
            if self._job.process:
                raise error
            return RuntimeError(f"SystemExit({error.code!r})").with_traceback(error.__traceback__)
        return error

    def _begin(self, init: Callable[[int], None] | None) -> None:
        """A new epoch."""
        job = self._job
        self._broken = self._fetcher = None
        try:
            if init is not None:
                init(self._number)
            self._fetcher = job.fetcher()
        except BaseException as error:
            self._broken = job.flavour.error(self._survived(error), job.where(self._number))

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

    def _do(self, task: _native.Task) -> None:
        if task.kind == BEGIN:
            self._job.base_seed, self._job.key = self._board.get_object(task.argument, task.index)
            return self._begin(None)
        if self._broken is not None:
            task.result = ERROR
            task.spill_offset, task.spill_bytes = self._board.put_object(self._broken)
        elif task.kind == BATCH:
            self._make_batch(task)
        else:
            self._load_sample(task)
        return None

    # ------------------------------------------------------------------------------------------------ a whole batch

    def _make_batch(self, task: _native.Task) -> None:
        assert self._fetcher is not None
        wanted, room = self._board.get_object(task.argument, task.index)  # it stays there for another worker, should this one be killed
        memory = None
        if room:
            self._ring.buffer_bytes = room
            memory = self._ring.buffer(task.buffer)
        try:
            data = self._fetcher.fetch(wanted)
        except StopIteration:
            if not self._job.iterable:
                raise
            task.result = ENDED
            return
        task.spill_offset, task.spill_bytes = _transport.send(self._board, (data, self._fetcher.count), memory)
        task.result = MADE

    # ------------------------------------------------------------------------------------------------ one sample

    def _load_sample(self, task: _native.Task) -> None:
        dataset = self._job.dataset
        given = getattr(dataset, "given", 0)
        sample = self._job.load(task.index, task.argument)
        self._write_sample(task, sample)
        if getattr(dataset, "given", 0) != given and self._job.process:
            task.result += FROM_CACHE

    def _write_sample(self, task: _native.Task, sample: Any) -> None:
        layout = (self._layout or self._learn_layout()) if task.buffer != NO_BUFFER else None
        if layout is not None:
            try:
                objects = layout.write(self._arrays(layout, task.buffer), task.row, sample)
            except SchemaError:
                pass  # not like the others: whole, as it is
            else:
                if objects:
                    task.spill_offset, task.spill_bytes = _transport.send(self._board, objects)
                    task.result = ROW_AND_OBJECTS
                return
        task.spill_offset, task.spill_bytes = _transport.send(self._board, sample)
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
