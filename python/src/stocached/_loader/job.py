"""The settings that workers of a loader get when they start, and how they load samples."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from .._checks import loading
from .._common.cached import cached_property
from .._common.subsets import is_subset
from .._datasets import augment_error
from .._datasets.augment_function import takes_generator
from .._datasets.cache_backed import CacheBacked
from .._datasets.cached_samples import CachedSamples
from .._datasets.tally import Counters
from .._pipes.lists import PipeLists
from .._random import generator_states
from .._random.sample_generator import generator
from .._samples.own_copy import own_copy
from .._trace.augment_time import augmented
from .._workers import dataset_states
from .._workers.task_queue import TaskQueue
from .._workers.tasks import BEGIN, ITEMS, SAMPLE, TELL
from .fetcher import ByIndex, Fetcher

_SHOWN = 16  # the most samples in a message


@dataclass
class Augment:
    """The random part of a sample, which depends only on (seed, epoch, index). A function with a
    second parameter `generator` gets a NumPy generator for the sample, as does a step of stocached.image."""

    function: Callable[..., Any]
    takes_generator: bool = field(init=False)

    def __post_init__(self) -> None:
        self.takes_generator = takes_generator(self.function)
        self._seeded = getattr(self.function, "seeded", None)  # stages of a pipe have it

    def __call__(self, sample: Any, seed: int) -> Any:
        if self._seeded is not None:
            return augmented(self._seeded, sample, seed)
        return (
            augmented(self.function, sample, generator(seed))
            if self.takes_generator
            else augmented(self.function, sample)
        )


class Job:
    """The settings of a worker; pickled for workers that are not forked."""

    def __init__(self, setup: Any, begun: Any, rows: bool, pipeline: Any, counters: Counters | None) -> None:
        """setup: of the loader. begun: the epoch. rows: batches are filled row by row. pipeline: steps of a dataset of
        stocached.image, for worker threads that start, and do samples in C. counters: of the stages of a pipe."""
        self.dataset, self.iterable, self.batched = setup.source, setup.iterable, setup.batched
        self.wrapped = setup.cached is not None and setup.cached is not setup.dataset  # it is around the user's
        self.backend, self.collate, self.drop_last = setup.backend, setup.collate_fn, setup.drop_last
        self.augment = None if setup.augment is None else Augment(setup.augment)
        self.init, self.workers, self.process = setup.worker_init_fn, setup.num_workers, setup.worker == "process"
        self.base_seed: int = begun.base_seed
        self.key: int = begun.key  # key of all random numbers of this epoch's samples
        self.pipes = begun.pipes  # settings of torch's DataPipes; None: the dataset is no DataPipe
        # Seeds the global generators for each sample; a thread must not.
        self.seed_samples: bool = setup.seeds_samples(rows or setup.ordered is not None, self.augment)
        self.batch_size: int | None = setup.largest_batch()
        self.default_collate: bool = setup.default_collate  # batches are made as by default
        self.snapshots = not rows and setup.ordered is None  # workers that make whole batches send snapshots
        self.pipeline: Any = pipeline if rows else None
        self.skips_bad = setup.bad_samples == "skip"  # leaves bad samples out of their batches
        self.counters = counters

    def counting(self) -> AbstractContextManager[Any]:
        """This thread, which is no worker, reads items or makes a batch."""
        return nullcontext() if self.counters is None else self.counters.here()

    @property
    def random(self) -> bool:
        """Whether samples depend on their seeds."""
        return self.augment is not None or self.seed_samples

    @property
    def user_dataset(self) -> Any:
        return self.dataset.dataset if self.wrapped else self.dataset

    @cached_property
    def cached(self) -> CachedSamples | None:
        """The dataset, if it only caches another one."""
        plain = isinstance(self.dataset, CachedSamples) and type(self.dataset).__getitem__ is CachedSamples.__getitem__
        return self.dataset if plain else None

    @cached_property
    def served(self) -> CacheBacked | None:
        """The dataset, if a server fills its cache."""
        return self.dataset if isinstance(self.dataset, CacheBacked) and self.dataset.served else None

    def load(self, index: Any, seed: int) -> Any:
        """A sample of a map-style dataset. seed: of `sample_seed`."""
        sample = loading.without_stop_iteration(operator.getitem, self.dataset, index)
        return self.augmented(index, own_copy(sample) if self._lends else sample, seed)

    def finish(self, index: int, seed: int, sample: Any) -> Any:
        """As `load` into a row, with the result of `cached.peek`: a sample, or None."""
        assert self.cached is not None
        return self.augmented(index, self.cached.finish(index, sample, lent=self.augment is None), seed)

    @cached_property
    def _lends(self) -> bool:
        """Whether `augment` would get samples that the dataset may keep. Those of a cache are its own."""
        inside = self.dataset
        while is_subset(inside):
            inside = inside.dataset
        return self.augment is not None and not isinstance(inside, CacheBacked)

    def augmented(self, index: Any, sample: Any, seed: int) -> Any:
        if self.augment is None:
            return sample
        function = self.augment.function
        try:
            made = self.augment(sample, seed)
        except Exception as error:
            augment_error.raise_of_sample(error, function, sample, self.dataset, index)
        if made is None and sample is not None and self.default_collate:
            raise augment_error.without_result(function, sample, index)
        return made

    def fetcher(self, snapshot: Mapping[str, Any] | None = None) -> Fetcher:
        """A fetcher of whole batches for one epoch. snapshot: to continue from."""
        dataset = ByIndex(self) if self.random and not self.iterable else self.dataset
        return Fetcher(dataset, self.iterable, self.batched, self.collate, self.drop_last, snapshot, self.skips_bad)

    def goes_on(self, snapshot: Mapping[str, Any]) -> tuple[Fetcher, int]:
        """The fetcher of a snapshot, and how many batches it has made. Sets the global generators
        to the snapshot's states."""
        if self.iterable and not dataset_states.is_stateful(snapshot) and not dataset_states.has_ended(snapshot):
            generator_states.put(snapshot["generators"])  # their states before the first batch
            fetcher = self.fetcher()
            return fetcher, fetcher.skip(snapshot["batches"], self.batch_size)
        fetcher = self.fetcher(snapshot)
        generator_states.put(snapshot["generators"])
        return fetcher, snapshot["batches"]

    def doing(self, task_queue: TaskQueue, position: int) -> str:
        """What the worker of the task at this position does, for the message if it dies."""
        task = task_queue.asked(position)
        if task["kind"] == SAMPLE:
            return f"while it loaded sample {task['index']}"
        if task["kind"] == BEGIN:
            return "while it began an epoch"
        if self.iterable:
            return "while it read its part of the dataset"
        if task["kind"] == TELL:
            return "while it said where its dataset is"
        if task["kind"] == ITEMS:
            return "while it read items of a pipe"
        if isinstance(self.dataset, PipeLists):
            return "while it made a batch of a pipe"
        wanted = task_queue.get_object(int(task["argument"]), int(task["index"]))[0]
        if not self.batched:
            return f"while it loaded sample {wanted}"
        if hasattr(self.dataset, "doing"):
            return str(self.dataset.doing(wanted))
        shown = ", ".join(map(str, wanted[:_SHOWN])) + (
            f" and {len(wanted) - _SHOWN} others" if len(wanted) > _SHOWN else ""
        )
        return f"while it made the batch of sample{'s' if len(wanted) > 1 else ''} {shown}"

    def where(self, worker: int) -> str:
        return f"in DataLoader worker {'process' if self.process else 'thread'} {worker}"
