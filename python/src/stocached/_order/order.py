"""The order in which samples are read, as a function of a position: docs/spec/order.md."""

from __future__ import annotations

import ctypes
import math
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common import errors
from .._common.errors import InvalidError
from .._common.numbers import whole
from .epoch import Epoch, Shard

__all__ = ["KINDS", "STOPS", "AnyOrder", "Epoch", "MixedOrder", "Order", "Shard", "WeightedOrder"]

KINDS = ("sequential", "shuffled", "windows", "blocks")
STOPS = ("first", "all", "length")


def _plain(number: Any) -> Any:
    """A number of NumPy as one of Python: other numbers are made of it, and states of loaders have its text."""
    return number.item() if isinstance(number, np.generic) else number


@dataclass(frozen=True)
class Order:
    """The order of a dataset's samples in every epoch. It is the same in Go and in C, for any
    number of workers and ranks. Its memory does not grow with the dataset.

    samples: of the dataset.
    kind: "sequential"; "shuffled": any sample anywhere; "windows": from first to last, each window
        of `window` samples shuffled; "blocks": blocks of `block` consecutive samples are shuffled,
        and then the samples inside each window of `window` blocks.
    seed: 0 to 2**64 - 1. window, block: 0 if the kind has none."""

    samples: int
    kind: Literal["sequential", "shuffled", "windows", "blocks"] = "shuffled"
    seed: int = 0
    window: int = 0
    block: int = 0
    _parts_given: ClassVar[tuple[str, ...]] = ()  # for `only_ours`

    def __post_init__(self) -> None:
        for name in ("samples", "seed", "window", "block"):
            object.__setattr__(self, name, _plain(getattr(self, name)))

    def epoch(self, number: int) -> Epoch:
        """The order of one epoch. Raises InvalidError for impossible settings."""
        return Epoch(self, number)

    def _settings(self) -> _native.Order:
        if self.kind not in KINDS:
            raise InvalidError(f"kind={self.kind!r} is none of {', '.join(KINDS)}")
        numbers = [whole(name, getattr(self, name)) for name in ("samples", "seed", "window", "block")]
        return _native.Order(ctypes.sizeof(_native.Order), *numbers, KINDS.index(self.kind), 0)

    def _open(self, number: int) -> _native.Epoch:
        epoch = _native.Epoch()
        errors.called(_native.epoch_open, self._settings(), number, epoch)
        return epoch


class WeightedOrder:
    """Samples drawn with replacement, with a frequency in proportion to their weights. A sample of
    weight 0 never comes. Immutable; equal to another with the same settings. It takes 24 bytes a
    sample: the only order whose memory grows with the dataset. It is made once for all epochs.

    samples: of the dataset. weights: one number for each, finite and not below 0, at least one
        above 0; it keeps a copy. seed: 0 to 2**64 - 1.
    draws: positions of an epoch; None: as many as samples. Their number does not change the draws
        before.

    Raises InvalidError for impossible settings, which names the weight."""

    _parts_given: ClassVar[tuple[str, ...]] = ()  # for `only_ours`

    def __init__(self, samples: int, weights: npt.ArrayLike, seed: int = 0, draws: int | None = None) -> None:
        self.samples, self.seed = whole("samples", samples), whole("seed", seed)
        try:
            self.weights: npt.NDArray[np.float64] = np.array(weights, np.float64)
        except (TypeError, ValueError) as why:
            raise InvalidError(f"weights are numbers, one for each sample: {why}") from None
        if self.weights.shape != (self.samples,):
            raise InvalidError(
                f"weights have the shape {self.weights.shape}, of {self.samples} samples; there is one for each sample"
            )
        self.draws = self.samples if draws is None else whole("draws", draws)
        if draws is not None and draws < 1:
            raise InvalidError(f"draws={draws} is not 1 or more")
        self.weights.flags.writeable = False
        self._table = _native.Weights()
        errors.called(_native.weights_open, self.weights.ctypes.data, self.samples, self._table)
        weakref.finalize(self, _native.weights_close, self._table)

    def epoch(self, number: int) -> Epoch:
        """The draws of one epoch. Raises InvalidError for impossible settings."""
        return Epoch(self, number)

    def _open(self, number: int) -> _native.Epoch:
        epoch = _native.Epoch()
        errors.called(_native.epoch_open_weighted, self._table, self.draws, self.seed, number, epoch)
        return epoch

    def __repr__(self) -> str:
        weights = f"<{zlib.crc32(self.weights.tobytes()):08x}>"  # differs for other weights, in states of loaders too
        return f"WeightedOrder(samples={self.samples}, weights={weights}, seed={self.seed}, draws={self.draws})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeightedOrder):
            return NotImplemented
        return (self.samples, self.seed, self.draws) == (other.samples, other.seed, other.draws) and np.array_equal(
            self.weights, other.weights
        )

    def __hash__(self) -> int:
        return hash((self.samples, self.seed, self.draws))

    def __reduce__(self) -> tuple[Any, ...]:
        return WeightedOrder, (self.samples, self.weights, self.seed, self.draws)


@dataclass(frozen=True)
class MixedOrder:
    """Samples of several datasets by ratio. Among the first p positions of an epoch, each dataset
    has its share, to within about a sample. Indices are those of the concatenated datasets, as of Concatenation.

    orders: one for each dataset.
    ratios: one for each dataset, above 0. Whole numbers with a sum below 2**31, such as 7 and 3 for
        70 and 30 percent; or with a float among them, numbers that are rounded to parts of 2**30 of
        their sum.
    seed: with the ratios, it determines which dataset each position gets.
    stop: where an epoch ends. "first": where a dataset would begin again; no sample comes
        twice. "all": when all have ended; a dataset that ends before begins again, in another
        order. "length": after `length` positions; in the next epoch each dataset continues where it
        was.
    length: positions of an epoch with "length", else 0."""

    orders: Sequence[Order]
    ratios: Sequence[float]
    seed: int = 0
    stop: Literal["first", "all", "length"] = "first"
    length: int = 0
    _parts_given: ClassVar[tuple[str, ...]] = ("orders",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", tuple(self.orders))
        object.__setattr__(self, "ratios", tuple(map(_plain, self.ratios)))
        for name in ("seed", "length"):
            object.__setattr__(self, name, _plain(getattr(self, name)))

    @property
    def samples(self) -> int:
        """Of all datasets."""
        return sum(order.samples for order in self.orders)

    def epoch(self, number: int) -> Epoch:
        """The order of one epoch. All epochs have one length. Raises InvalidError for impossible
        settings."""
        return Epoch(self, number)

    def _open(self, number: int) -> _native.Epoch:
        if self.stop not in STOPS:
            raise InvalidError(f"stop={self.stop!r} is none of {', '.join(STOPS)}")
        n = len(self.orders)
        if len(self.ratios) != n or n == 0:
            raise InvalidError(
                f"{n} orders and {len(self.ratios)} ratios; there is a dataset at least, and an order and a ratio for each"
            )
        for d, order in enumerate(self.orders):
            if not isinstance(order, Order):
                raise InvalidError(f"dataset {d}: {order!r} is no Order, as those of a mix are")
        orders = (_native.Order * n)(*(order._settings() for order in self.orders))
        ratios = (ctypes.c_uint64 * n)(*_whole_ratios(self.ratios))
        seed, length, size = whole("seed", self.seed), whole("length", self.length), ctypes.sizeof(_native.Mix)
        mix = _native.Mix(size, n, orders, ratios, seed, length, STOPS.index(self.stop), 0)
        epoch = _native.Epoch()
        errors.called(_native.epoch_open_mixed, mix, number, epoch)
        return epoch


def _whole_ratios(ratios: Sequence[float]) -> list[int]:
    if not any(isinstance(ratio, (float, np.floating)) for ratio in ratios):
        return [whole(f"ratios[{d}]", ratio) for d, ratio in enumerate(ratios)]
    for d, ratio in enumerate(ratios):
        if not (ratio > 0 and math.isfinite(ratio)):
            raise InvalidError(f"ratios[{d}]={ratio!r} is not a finite number above 0")
    total = math.fsum(ratios)
    return [max(1, round(ratio / total * 2**30)) for ratio in ratios]


AnyOrder = Order | WeightedOrder | MixedOrder

Order.__module__ = "stocached"  # where users find it
