"""What a cache of pictures keeps: decoded pictures, or the encoded bytes of their files.

docs/spec/stores.md has the rules of `choose`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .._cache.cache import Cache
from .._common.errors import InvalidError
from .._common.subsets import is_subset

Store = Literal["decoded", "encoded", "auto"]
STORES = ("decoded", "encoded", "auto")
_CONTROL = 4_300_000  # bytes of a segment besides its samples, about
_CLOSE = 0.02  # share of the time of an epoch: smaller differences are none


class OtherStoreError(InvalidError):
    """A named cache exists with the other store."""


def check(store: Any) -> None:
    """Raises InvalidError for an unknown name."""
    if store not in STORES:
        raise InvalidError(f"store={store!r}; it must be one of {', '.join(STORES)}")


def converts(dataset: Any) -> bool:
    """Whether `stocached.image.convert` makes steps of a dataset's transforms of torchvision."""
    if "torchvision" not in sys.modules or getattr(dataset, "transform", None) is None:
        return False
    try:
        from .._image.conversion import convertible  # needs the library for pictures
    except ImportError:
        return False
    return convertible(dataset)


def advice_to_convert(dataset: Any, to_give: str) -> str:
    """How random steps of torchvision get out of a dataset of pictures; "" if they cannot. to_give: how the caller takes
    them."""
    while is_subset(dataset):
        dataset = dataset.dataset
    if not converts(dataset):
        return ""
    return (
        f"Write dataset, augment = stocached.image.convert(dataset), and {to_give}: that takes the random steps of "
        "torchvision out of the dataset, and is faster."
    )


@dataclass
class Form:
    """The encoded form of a dataset."""

    dataset: Any  # its samples have the bytes of files in place of pictures
    decoding: Any  # the step that makes the picture out of the bytes
    name: Callable[[int], Any]  # the file of a sample, for errors

    def decoded(self, index: int, sample: Any) -> Any:
        """The sample of the dataset itself."""
        if isinstance(sample, tuple):
            return (self.decoding.picture(bytes(sample[0]), self.name(index)), *sample[1:])
        if isinstance(sample, dict):
            (file,) = (name for name, value in sample.items() if np.ndim(value))  # a label has no dimension
            return {**sample, file: self.decoding.picture(bytes(sample[file]), self.name(index))}
        return self.decoding.picture(bytes(sample), self.name(index))


@dataclass
class _Within:
    """The file of a sample of a Subset."""

    indices: Any
    name: Callable[[int], Any]

    def __call__(self, index: int) -> Any:
        return self.name(self.indices[index])


def form_of(dataset: Any, store: str) -> Form:
    """The encoded form of a dataset. Raises InvalidError, which says what has one."""
    why = f"{type(dataset).__name__} is none of them"
    try:
        form = _form(dataset)
    except InvalidError as error:
        form, why = None, str(error)
    if form is None:
        raise InvalidError(
            f"store={store!r} needs a dataset that is read as files and decoded by steps: stocached.image.Folder or Shards, "
            f"without transform= or with steps of stocached.image, or torch's Subset of one; {why}. "
            'Move other transforms to augment=, or use store="decoded"'
        )
    return form


def _form(dataset: Any) -> Form | None:
    if is_subset(dataset):
        inner = _form(dataset.dataset)
        if inner is None:
            return None
        subset = copy.copy(dataset)
        subset.dataset = inner.dataset
        return Form(subset, inner.decoding, _Within(dataset.indices, inner.name))
    if not any(base.__module__ == "stocached._image.folder" for base in type(dataset).__mro__):
        return None
    encoded = dataset.encoded
    return Form(encoded, dataset.decoding, encoded.name)


def has_form(dataset: Any) -> bool:
    """Whether a dataset has an encoded form."""
    try:
        return _form(dataset) is not None
    except InvalidError:
        return False


def store_of(cache: Cache) -> str:
    """What a cache of pictures keeps: the first field of encoded ones has one dimension."""
    return "encoded" if len(cache.fields[0].shape) == 1 else "decoded"


# ------------------------------------------------------------ the choice


@dataclass(frozen=True)
class Measured:
    """What store="auto" measures. Seconds and bytes are means of a sample."""

    samples: int  # samples of the dataset
    encoded_bytes: float
    decoded_bytes: float
    read: float  # seconds of a read, alone
    reads: float  # a second, while all workers read; infinite if they do not wait for the source
    decode: float  # seconds of a processor
    augment: float = 0.0  # the same, of the steps after the cache
    costs: tuple[float, ...] = ()  # read and decode of some files, by their mean, in rising order

    def rest(self, part: float) -> float:
        """The mean cost of the samples that are not cached, if the costliest are."""
        rest = self.costs[: max(round(len(self.costs) * (1 - part)), 1)]
        return sum(rest) / len(rest) if rest else 1.0


class Epochs(NamedTuple):
    """Seconds of an epoch, and the parts of the samples that are cached."""

    decoded: float
    encoded: float
    decoded_part: float
    encoded_part: float


def epochs(measured: Measured, size: int, workers: int, processors: int, costliest: bool = False) -> Epochs:
    """What an epoch takes with either store, in a cache of `size` bytes that is full.

    costliest: that of decoded samples keeps those that take longest to load."""
    m, room, workers = measured, max(size - _CONTROL, 0), max(workers, 1)
    decoded, encoded = (min(room / (m.samples * each), 1.0) for each in (m.decoded_bytes, m.encoded_bytes))

    def seconds(reads: float, decodes: float) -> float:
        """The busiest sets the pace: the source, the processors, or the workers."""
        work = decodes * m.decode + m.samples * m.augment
        return max(reads / m.reads, work / min(workers, processors), (reads * m.read + work) / workers)

    missed = m.samples * (1 - decoded) * (m.rest(decoded) if costliest else 1.0)
    return Epochs(seconds(missed, missed), seconds(m.samples * (1 - encoded), m.samples), decoded, encoded)


def choose(measured: Measured, size: int, workers: int, processors: int, costliest: bool = False) -> tuple[str, str]:
    """The store whose epoch is shorter, and why. Of equal ones "decoded": it leaves processors to the training.
    Arguments are those of `epochs`."""
    found = epochs(measured, size, workers, processors, costliest)
    store = "encoded" if found.encoded < found.decoded * (1 - _CLOSE) else "decoded"
    return store, (
        f"an epoch takes about {found.encoded:.3g} s with encoded files ({found.encoded_part:.0%} of them cached), "
        f"{found.decoded:.3g} s with decoded pictures ({found.decoded_part:.0%}): a read takes {measured.read * 1e3:.2g} ms, "
        f"a decode {measured.decode * 1e3:.2g} ms; {max(workers, 1)} worker{'s' if workers > 1 else ''}"
    )
