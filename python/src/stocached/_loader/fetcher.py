"""How a loader makes whole batches of a dataset's samples."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .._checks.loading import without_stop_iteration
from .._common.notes import no_end, raise_noted
from .._common.one_line import one_line
from .._datasets.cache_backed import CacheBacked
from .._random.sample_seeds import sample_seed
from .._workers.stateful import give_back, is_stateful, state_of
from .bad_samples import BadSample, bad_sample


class ByIndex:
    """The dataset of a job whose samples have random numbers that depend on the index."""

    def __init__(self, job: Any) -> None:
        self._job, self.source = job, job.dataset
        many = getattr(job.dataset, "__getitems__", None)
        if job.augment is None and many:
            self.__getitems__ = functools.partial(self._many, many)

    def __getitem__(self, index: Any) -> Any:
        return self._job.load(index, self._seed(index))

    def _many(self, many: Callable[[Any], Any], indices: Any) -> Any:
        """A batch that the dataset loads in one call; its first sample gives the seed."""
        if len(indices):
            self._seed(indices[0])
        return many(indices)

    def _seed(self, index: Any) -> int:
        seed = sample_seed(self._job.key, 0, index)
        if self._job.seed_samples:
            self._job.backend.seed_sample(seed)
        return seed


def made_by(collate: Callable[[Any], Any], samples: Any) -> Any:
    try:
        return collate(samples)
    except StopIteration as error:
        raise no_end(error, f"collate_fn={one_line(collate)}") from error


def batch_of(collate: Callable[[Any], Any], samples: Any, indices: Any, dataset: Any) -> Any:
    """What the function makes of samples. Its error names one that is None, which it may not have expected, and what makes
    pictures alike."""
    try:
        return made_by(collate, samples)
    except Exception as error:
        # That of a pipe names its stage. A dataset's __getitems__ may give any object.
        if hasattr(collate, "by_default") or not isinstance(samples, (list, tuple)):
            raise
        while isinstance(dataset, CacheBacked) and not dataset.served:
            dataset = dataset.dataset  # type: ignore[attr-defined]
        none = next((k for k, sample in enumerate(samples) if sample is None), None)
        if none is None:
            of_pictures = getattr(sys.modules.get("stocached._image.folder"), "Decoded", ())
            shapes = {getattr(sample[0], "shape", None) for sample in samples if isinstance(sample, tuple) and sample}
            if len(shapes) < 2 or not isinstance(getattr(dataset, "dataset", dataset), of_pictures):  # in a Subset
                raise
            raise_noted(
                error,
                "stocached: the pictures differ in size. Give the loader augment= with a step that makes them alike, such as "
                "that of dataset, augment = image.convert(...)",
            )
        which = f"sample {indices[none]}" if len(samples) == len(indices) else f"one of {len(samples)} samples"
        raise_noted(
            error,
            f"stocached: {which} of {type(dataset).__name__} is None. Is a return missing in its __getitem__? To leave "
            "such samples out, give a collate_fn=",
        )


class Fetcher:
    """Samples of a dataset as batches, as torch's fetcher. snapshot: of `state`, to continue
    from."""

    def __init__(
        self,
        dataset: Any,
        iterable: bool,
        batched: bool,
        collate: Callable[[Any], Any],
        drop_last: bool,
        snapshot: Mapping[str, Any] | None = None,
        skips_bad: bool = False,
    ) -> None:
        self._dataset, self._batched, self._collate, self._drop_last = dataset, batched, collate, drop_last
        self._skips_bad = skips_bad
        self._source = dataset.source if isinstance(dataset, ByIndex) else dataset
        state = (snapshot and snapshot["fetcher_state"]) or {"dataset_iter_state": None, "fetcher_ended": False}
        if snapshot is not None:
            give_back(self._source, snapshot["dataset_state"], "the dataset")
        self._iterator: Iterator[Any] | None = iter(dataset) if iterable else None
        give_back(self._iterator, state["dataset_iter_state"], "the dataset's iterator")
        self.ended = bool(state["fetcher_ended"])  # the iterable dataset has no more samples
        self.count = 0  # samples of the last batch
        self.bad: list[BadSample] = []  # left out of it

    @property
    def stateful(self) -> bool:
        """Whether the dataset or its iterator has a state."""
        return is_stateful(self._source) or is_stateful(self._iterator)

    def state(self) -> dict[str, Any]:
        """The states of the dataset and of its iterator; None without a state. Keys are
        torchdata's."""
        both = self._iterator is self._source  # the dataset is its own iterator
        iterator = (
            None
            if self._iterator is None
            else {"dataset_iter_state": state_of(self._iterator), "fetcher_ended": self.ended}
        )
        return {"dataset_state": None if both else state_of(self._source), "fetcher_state": iterator}

    def skip(self, batches: int, batch_size: int | None) -> int:
        """Makes batches of an iterable dataset and drops them. Returns how many the dataset had."""
        for done in range(batches):
            try:
                self.fetch([None] * (batch_size or 1))
            except StopIteration:
                return done
            except Exception:
                continue  # this batch raised before the state too
        return batches

    def fetch(self, wanted: Any) -> Any:
        """wanted: the indices of a batch, or one index without batches. An iterable dataset gives
        as many samples as `wanted` has entries, and StopIteration at its end. None: all samples are bad."""
        self.count = len(wanted) if self._batched else 1
        if self._iterator is not None:
            samples = self._next(wanted)
            self.count = len(samples) if self._batched else 1
            return (
                batch_of(self._collate, samples, (), self._source) if self._batched else made_by(self._collate, samples)
            )
        if not self._batched:
            return made_by(self._collate, without_stop_iteration(operator.getitem, self._dataset, wanted))
        self.bad = []
        samples = self._load(wanted)
        self.count = len(wanted) - len(self.bad)
        return None if self.bad and not self.count else batch_of(self._collate, samples, wanted, self._source)

    def _load(self, wanted: Any) -> Any:
        """The samples of a batch, without the bad ones if these are left out. If a dataset cannot load
        the batch in one call, it loads each of its samples in one."""
        many, call = getattr(self._dataset, "__getitems__", None), without_stop_iteration
        if not self._skips_bad:
            return call(many, wanted) if many else [call(operator.getitem, self._dataset, index) for index in wanted]
        if many:
            try:
                return call(many, wanted)
            except Exception as error:
                if bad_sample(None, error) is None:
                    raise
        samples = []
        for index in wanted:
            try:
                samples.append(call(many, [index])[0] if many else call(operator.getitem, self._dataset, index))
            except Exception as error:
                bad = bad_sample(index, error)
                if bad is None:
                    raise
                self.bad.append(bad)
        return samples

    def _next(self, wanted: Any) -> Any:
        assert self._iterator is not None
        if self.ended:
            raise StopIteration
        if not self._batched:
            try:
                return next(self._iterator)
            except StopIteration:
                self.ended = True
                raise
        samples = []
        for _ in wanted:
            try:
                samples.append(next(self._iterator))
            except StopIteration:
                self.ended = True
                break
        if not samples or (self._drop_last and len(samples) < len(wanted)):
            raise StopIteration
        return samples
