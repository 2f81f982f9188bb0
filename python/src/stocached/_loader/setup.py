"""A loader as it is at one moment, and what follows for its batches: who makes them, from what, and
whether the dataset has a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from .._cache.stats import changes_of
from .._common import sizes
from .._common.errors import InvalidError, UnsupportedError
from .._common.ours import only_ours
from .._common.subsets import is_subset, unwrapped
from .._datasets.lists import WithoutIndex
from .._samples.batch_layout import Layout
from .._samples.own_copy import own_copy
from .._workers.stateful import is_stateful
from .job import Augment
from .numpy_backend import NumpyBackend
from .options import Arguments, Worker
from .sampling import OrderSampler
from .worker_choice import APART, OUT_OF_ORDER, WHOLE, pipeline_of, warn_of_processes

_AHEAD = 2  # batches, without workers
_ATTRIBUTES = [field.name for field in fields(Arguments) if field.name != "shuffle"]


class Setup(Arguments):
    """The attributes of a loader. A program may set them between two epochs, so each epoch has its
    own setup."""

    sampler: Any  # these have other types with torch
    batch_sampler: Any
    collate_fn: Any
    generator: Any

    def __init__(self, loader: Any) -> None:
        vars(self).update({name: getattr(loader, name, None) for name in _ATTRIBUTES})
        self.iterable: bool = loader._iterable
        self.backend: NumpyBackend = loader._backend
        self.default_collate = loader._collate_default is not None and self.collate_fn is loader._collate_default
        self.cached = loader._cached  # the dataset whose samples come from a cache, or None
        self.ordered: OrderSampler | None = loader._order
        self.drawn: bool = vars(loader).get("_drawn", False)  # nobody has given the seed of its order
        self.data_pipes = loader._data_pipes  # torch's DataPipe; None: the dataset is none
        self.kept = loader._executor.kept is not None  # workers of the epoch before are there
        # length of an iterable dataset, if the program has read it
        self.length_read = getattr(loader, "_IterableDataset_len_called", None) if self.iterable else None

    # ------------------------------------------------------------ the order of samples

    @property
    def batched(self) -> bool:
        return self.batch_sampler is not None

    @property
    def index(self) -> Any:
        """Gives the indices of one batch after the other; without batches, of one sample."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def in_our_order(self) -> bool:
        """Whether batches are `batch_size` consecutive samples of an order of stocached. If a
        framework has put the order into its own batch sampler, they are not."""
        return self.ordered is not None and self.ordered is self.sampler

    def samples(self) -> int | None:
        """The length of the dataset; None if it has none."""
        try:
            return None if self.iterable else len(self.dataset)
        except (TypeError, NotImplementedError):
            return None

    def largest_batch(self) -> int | None:
        """Samples of the largest batch. batch_size= may be much more, to have all samples in one batch."""
        if self.batch_size is None or self.iterable:
            return self.batch_size
        try:
            samples = len(self.source)
            if self.batch_size <= samples:
                return self.batch_size
            # A sampler may give samples several times.
            return min(self.batch_size, max(samples, len(self.sampler), 1))
        except (TypeError, NotImplementedError):  # a dataset or a sampler without a length
            return self.batch_size

    # ------------------------------------------------------------ the dataset

    @property
    def source(self) -> Any:
        """The dataset that samples are read from."""
        return self.dataset if self.cached is None else self.cached

    @property
    def augments(self) -> bool:
        return self.augment is not None or (self.cached is not None and self.cached.augment is not None)

    def asks_dataset(self) -> bool:
        """Whether a state holds the dataset's state. With a cache, seed= or order=, a sample depends
        only on its index."""
        return self.cached is None and self.ordered is None and is_stateful(self.dataset)

    def keeps_dataset(self) -> bool:
        """Whether the next epoch reads the same dataset object as this one, and not a new copy of
        the program's."""
        return not self.num_workers or self.kept or self.worker != "process"

    def runs_only_ours(self) -> bool:
        """Whether the samples of an epoch are made without a function of the program."""
        dataset = self.source
        if self.worker == "native":  # C has its own copy of the indices of a Subset
            dataset, _ = unwrapped(dataset)
        return all(map(only_ours, (dataset, self.augment, None if self.ordered is None else self.ordered.order)))

    def changes(self) -> tuple[int, ...]:
        """Numbers that stay as they are while batches from the cache are right. Of datasets that run only our code,
        samples are stored ahead too, and are the same each time."""
        if self.cached is None or self.cached.cache.closed:
            return ()
        clears, stored = changes_of(self.cached.cache)
        return (clears,) if self.runs_only_ours() else (clears, stored)

    def pipes(self) -> Any:
        """The settings of DataPipes for an epoch; None for other datasets."""
        return None if self.data_pipes is None or self.cached is not None else self.data_pipes.epoch(self.generator)

    # ------------------------------------------------------------ who makes batches

    def by_rows(self) -> bool:
        """Whether batches are filled row by row. If not, workers or the training loop make whole
        batches."""
        if self.iterable or not self.default_collate or not self.batched or isinstance(self.dataset, WithoutIndex):
            return False
        if self.cached is not None:
            if self.augments:
                return self.num_workers > 0
            return self.num_workers > 0 or self.layout_of_cache(1) is not None
        return self.num_workers > 0 and loads_one_by_one(self.dataset) and not self._deals_as_torch()

    def _deals_as_torch(self) -> bool:
        """Whether workers make whole batches although any worker could load each sample.

        There are three reasons. Each worker's dataset may have its own state or shard. worker_init_fn=
        may set up each worker differently, such as its seeds. With in_order=False, programs rely on
        which worker makes a batch. With seed= or order=, none of them counts: a sample and the random
        numbers of augment= depend only on the index."""
        if self.ordered is not None:
            return False
        return (
            self.asks_dataset()
            or self.data_pipes is not None
            or (self.augment is None and (self.worker_init_fn is not None or not self.in_order))
        )

    def layout_of_cache(self, rows: int) -> Layout | None:
        """The layout of a cache whose samples can be gathered into columns; else None."""
        if self.cached is None or self.cached.cache.variable:
            return None
        tree, cache = self.cached.gathered_tree(), self.cached.cache
        if tree is None or not tree.by_columns:
            return None
        if any(leaf.kind in self.backend.no_columns or leaf.kind in ("str", "bytes") for leaf in tree.leaves):
            return None
        return Layout(tree, [(field.shape, field.dtype) for field in cache.fields], rows)

    def worker_kind(self, asked: Worker | None) -> tuple[Worker, Any]:
        """What workers are, and what native ones do in C. asked: by the user; None: the loader chooses."""
        if asked in ("process", "thread"):
            return asked, None
        try:
            pipeline = self.pipeline()
        except UnsupportedError as error:
            if asked is not None:
                raise InvalidError(f'worker="native": {error}; worker="thread" and "process" take it') from error
            why = str(error)  # the error itself would keep this frame until a garbage collection
        else:
            apart = self.worker_init_fn is not None or self.multiprocessing_context is not None
            if asked is not None or not apart:
                return "native", pipeline
            why = APART
        if self.num_workers:
            warn_of_processes(self.dataset, self.augment, why)
        return "process", None

    def pipeline(self) -> Any:
        """What worker threads do in C. Raises UnsupportedError, which says why they cannot."""
        return pipeline_of(self.dataset, self.cached, self.augment, self._why_whole())

    def _why_whole(self) -> str | None:
        """Why workers make whole batches; None: they do not."""
        if self.by_rows() or not self.num_workers:
            return None
        one_by_one = loads_one_by_one(self.dataset) and not (self.asks_dataset() or self.data_pipes is not None)
        if self.batched and self.default_collate and one_by_one:  # so it is as in torch
            return APART if self.worker_init_fn is not None else OUT_OF_ORDER
        return WHOLE

    def seeds_samples(self, by_index: bool, augment: Augment | None) -> bool:
        """Whether the global generators are seeded for each sample.

        Not with threads, which share them. Not if no draw can come: what a cache gives is not random, except for a
        transform= of a SourceDataset, and augment may have its own generator. by_index: random numbers of the dataset
        depend on the index, not on the worker."""
        if self.num_workers and self.worker != "process":
            return False
        draws = self.cached is None or self.cached.transform is not None
        if augment is None:
            return by_index and self.num_workers > 0 and draws
        return draws or not augment.takes_generator

    # ------------------------------------------------------------ how many batches, and what happens to them

    @property
    def ahead(self) -> int:
        """The most batches that are begun."""
        return 1 if self.prefetch_factor == 0 else int(self.prefetch_factor or _AHEAD) * max(self.num_workers, 1)

    @property
    def snapshot_every(self) -> int:
        """Batches between two snapshots of workers."""
        return (self.snapshot_every_n_steps or 0) if self.in_order else 1

    def bytes_of(self, name: str) -> int:
        return max(sizes.parse_size(getattr(self, name)), 1)

    def batch_function(self) -> Callable[[Any], Any] | None:
        """batch_augment=, for batches that are no dataset's: not one sample as it is, nor what collate_fn= makes of them."""
        function = self.batch_augment
        fresh = self.batched and self.default_collate
        apart = self.num_workers > 0 and self.worker == "process"
        if function is None or fresh or self.cached is not None or apart:
            return function
        return lambda batch: function(own_copy(batch))


def loads_one_by_one(dataset: Any) -> bool:
    """Whether a dataset gives only samples by [index], and no batches."""
    if not hasattr(dataset, "__getitems__"):
        return True
    return is_subset(dataset) and loads_one_by_one(dataset.dataset)  # a Subset only passes the call on
