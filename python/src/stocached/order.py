"""In which order samples are read, as a function of a position: docs/order.md."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _errors, _native
from ._errors import InvalidError, SampleIndexError

KINDS = ("sequential", "shuffled", "windows", "blocks")


@dataclass(frozen=True)
class Order:
    """The order of the samples of a dataset in every epoch. The same in Go and in C, for any number of workers and ranks; it takes no memory that grows
    with the dataset.

    samples: of the dataset. kind: "sequential"; "shuffled": any sample anywhere; "windows": from first to last, `window` samples at a time, each such
    window shuffled; "blocks": blocks of `block` samples that lie side by side are shuffled, and then the samples within `window` blocks at a time.
    seed: 0 to 2**64 - 1. window, block: 0 where the kind has none."""

    samples: int
    kind: Literal["sequential", "shuffled", "windows", "blocks"] = "shuffled"
    seed: int = 0
    window: int = 0
    block: int = 0

    def epoch(self, number: int) -> Epoch:
        """The order of one epoch. Raises InvalidError for settings that cannot be."""
        return Epoch(self, number)


class Epoch:
    """The order of one epoch. Immutable: any number of threads may ask it, and forked children."""

    def __init__(self, order: Order, number: int) -> None:
        if order.kind not in KINDS:
            raise InvalidError(f"kind={order.kind!r} is none of {', '.join(KINDS)}")
        for name, value in (("samples", order.samples), ("seed", order.seed), ("window", order.window), ("block", order.block), ("epoch", number)):
            if not isinstance(value, int) or not 0 <= value < 2**64:
                raise InvalidError(f"{name}={value!r} is not a whole number of 0 to 2**64 - 1")
        settings = _native.Order(ctypes.sizeof(_native.Order), order.samples, order.seed, order.window, order.block, KINDS.index(order.kind), 0)
        error = _native.Error()
        self._epoch = _native.Epoch()
        if _native.epoch_open(ctypes.byref(settings), number, ctypes.byref(self._epoch), ctypes.byref(error)) != 0:
            raise _errors.from_struct(error)
        weakref.finalize(self, _native.epoch_close, self._epoch)
        self.order = order
        self.number = number

    def __len__(self) -> int:
        return self.order.samples

    def __repr__(self) -> str:
        return f"<stocached.Epoch {self.number} of {self.order}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Epoch, (self.order, self.number)

    def at(self, position: int) -> int:
        """The sample at a position. Raises SampleIndexError."""
        return self._checked(_native.epoch_at(self._epoch, self._within(position, "position")))

    def position(self, index: int) -> int:
        """Where a sample stands: the inverse of `at`. Raises SampleIndexError."""
        return self._checked(_native.epoch_position(self._epoch, self._within(index, "index")))

    def indices(self, first: int = 0, count: int | None = None, step: int = 1) -> npt.NDArray[np.int64]:
        """The samples at positions first, first + step, ..., at most `count` of them and as many as there are: of rank r of R, first=r, step=R."""
        if first < 0 or step < 1 or (count is not None and count < 0):
            raise InvalidError(f"first={first}, count={count}, step={step}: first and count are 0 or more, step 1 or more")
        there = max(0, (self.order.samples - first + step - 1) // step)
        rows = np.empty(there if count is None else min(count, there), np.int64)
        if rows.size:
            self._checked(_native.epoch_fill(self._epoch, rows.ctypes.data, rows.size, first, step))
        return rows

    def _within(self, value: int, what: str) -> int:
        if not 0 <= value < self.order.samples:
            raise SampleIndexError(f"{what} {value} is not in 0..{self.order.samples - 1}")
        return value

    def _checked(self, result: int) -> int:
        if result < 0:
            raise _errors.make(result, f"{self!r} cannot be asked", 0)
        return int(result)
