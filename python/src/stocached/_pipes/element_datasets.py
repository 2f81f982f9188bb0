"""Datasets of the items of a pipe by element, for a cache: what does not depend on the epoch. Their attributes are what
the fingerprint of a cache is made of."""

from __future__ import annotations

import contextlib
import copy
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .._checks.identity import Identity, NoDigestError
from .._common.cached import cached_property
from .._common.numbers import position_of
from .._common.reads_ahead import ReadsAhead, ahead_of
from .._datasets.lists import PackedLists
from .._datasets.tally import current
from .._order.concatenation import Concatenation
from .._samples.own_copy import own_copy
from .._workers import serialization
from .visits import Window


def mapped(dataset: Any, function: Callable[[Any], Any], stage: Any) -> Any:
    """The dataset of function(sample). Steps of stocached.image become a transform of a dataset of pictures, which
    threads decode in C. stage: as of `Mapped`."""
    folder, steps = sys.modules.get("stocached._image.folder"), sys.modules.get("stocached._image.steps")
    if steps is not None and getattr(dataset, "picture_fields", None) is not None:
        from .._image.file_bytes import DecodedFiles, takes_files  # few programs need it

        if takes_files(dataset, function):
            return DecodedFiles(dataset, function)
    if (
        folder is None
        or steps is None
        or not (isinstance(dataset, folder.Decoded) and isinstance(function, steps.Step))
    ):
        return Mapped(dataset, function, stage)
    if not (dataset.transform is None or isinstance(dataset.transform, steps.Step)):
        return Mapped(dataset, function, stage)
    made = copy.copy(dataset)
    made.transform = function if dataset.transform is None else steps.Compose([dataset.transform, function])
    return made


class Mapped(ReadsAhead):
    """function(sample) for each sample of a dataset. stage: calls it, with a note in errors."""

    _of_errors = ("stage",)

    def __init__(self, dataset: Any, function: Callable[[Any], Any], stage: Any) -> None:
        self.dataset, self.function, self.stage = dataset, function, stage

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def ahead(self) -> Any:
        """Of the dataset: it has samples read soon. None: it cannot."""
        return ahead_of(self.dataset)

    def __getitem__(self, index: int) -> Any:
        reading: Any = current().reading
        if not reading.on:
            return self._made(self.dataset[index], index)
        return reading.call(self.stage.number, self._measured, reading, index)

    def _measured(self, reading: Any, index: int) -> Any:
        """As `__getitem__`. The sample of the dataset is measured too: here, if it does not do so itself."""
        if isinstance(self.dataset, Mapped):
            return self._made(self.dataset[index], index)
        return self._made(reading.call(self.stage.above[0].number, operator.getitem, self.dataset, index), index)

    def _made(self, sample: Any, index: int) -> Any:
        return self.stage.call(own_copy(sample) if self.stage.owns else sample, index, 0)


class Joined:
    """The samples of one dataset after those of another. stage: counts those of its sides."""

    _of_errors = ("stage",)

    def __init__(self, datasets: list[Any], stage: Any) -> None:
        self.datasets, self.stage = datasets, stage

    @cached_property
    def _counts(self) -> Concatenation:
        return Concatenation(map(len, self.datasets))

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, index: int) -> Any:
        d, local = self._counts.locate(position_of(index, len(self)))
        sample = self.datasets[d][local]
        current().took(self.stage.above[d].number)
        return sample


class Zipped:
    """Tuples of the samples of several datasets with one index."""

    def __init__(self, datasets: list[Any]) -> None:
        self.datasets = datasets

    def __len__(self) -> int:
        return min(map(len, self.datasets))

    def __getitem__(self, index: int) -> Any:
        return tuple(dataset[index] for dataset in self.datasets)


class Asked:
    """The items of a stage with an index. dataset: they are made of it, which only a fingerprint looks at."""

    _of_errors = ("stage",)

    def __init__(self, dataset: Any, stage: Any) -> None:
        self.dataset, self.stage = dataset, stage

    def __len__(self) -> int:
        return int(self.stage.elements())

    def __getitem__(self, index: int) -> Any:
        visit = self.stage.visit_of(position_of(index, len(self)))
        item = self.stage.item(visit, 0)
        if self.stage.noter is not None:
            self.stage.noter.note(visit)
        return item


class Flat(Asked):
    """The items of lists whose lengths are known."""

    def __init__(self, dataset: Any, function: Callable[[Any], Any], counts: Concatenation, stage: Any) -> None:
        super().__init__(dataset, stage)
        self.function, self.counts = function, np.array(counts.samples)


class Read:
    """What a source reads. The fingerprint of a cache looks at it as at any dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


class Listed(PackedLists, ReadsAhead):
    """The lists of the elements of a pipe without an index, each as an array of bytes. stage: makes them. datasets,
    functions, joined: what they are made of."""

    _of_errors = ("stage",)

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self.datasets: list[Read] = []
        self.functions: list[Callable[..., Any]] = []
        self.joined = stage.made_of(self)

    @property
    def ahead(self) -> Any:
        return self.stage.ahead

    def __len__(self) -> int:
        return int(self.stage.elements())

    def __getitem__(self, index: int) -> Any:
        visit = self.stage.visit_of(position_of(index, len(self)))
        made = [(ordinal, item) for _, ordinal, item in self.stage.items([visit], Window())]
        return np.frombuffer(bytearray().join(serialization.packed(made)), np.uint8)

    @property
    def caches(self) -> list[Any]:
        """Those that stand above."""
        stages, found = [self.stage], list[Any]()
        for each in stages:
            stages += each.above
            found += [vars(each)["kept"]] if "kept" in vars(each) else []
        return found

    def encoded(self, packed: Any) -> list[tuple[str, Any]]:
        items, _ = serialization.unpacked(memoryview(packed))
        with contextlib.suppress(NoDigestError):
            packed = np.frombuffer(Identity().of(items), np.uint8)
        first = items[0][1] if items else None
        keys = f" with {', '.join(map(str, first))[:200]}" if isinstance(first, dict) else ""
        return [(f"its list of items{keys}", packed)]
