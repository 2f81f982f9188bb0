"""What a cache of pictures keeps: decoded pictures, or the encoded bytes of their files.

docs/spec/stores.md has the rules of `choose`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .._cache.cache import Cache
from .._common.errors import InvalidError
from .._common.subsets import unwrapped

if TYPE_CHECKING:
    from .._image.folder import Encoded

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
    if not converts(unwrapped(dataset)[0]):
        return ""
    return (
        f"Write dataset, augment = stocached.image.convert(dataset), and {to_give}: that takes the random steps of "
        "torchvision out of the dataset, and is faster."
    )


def form_of(dataset: Any, store: str) -> Encoded:
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


def _form(dataset: Any) -> Encoded | None:
    whole, indices = unwrapped(dataset)
    if not any(base.__module__ == "stocached._image.folder" for base in type(whole).__mro__):
        return None
    form: Encoded = whole.encoded(indices)
    return form


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
