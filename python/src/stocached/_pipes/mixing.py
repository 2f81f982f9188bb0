"""The permutation of the items of a window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._memory.mapping import keep_some_freed
from .._order.order import Order
from .stage import Item
from .visits import Window


def permutation(n: int, seed: int, window: Window) -> npt.NDArray[np.int64]:
    """`permutation(n, seed, epoch, 2, number of the window)` of docs/spec/order.md: there it is that of the samples of
    this window, if each window has n."""
    first = n * window.number
    order = Order(first + n, "windows", seed, window=n)
    return order.epoch(window.epoch).indices(first, n) - first


def mixed(items: list[Item], seed: int, window: Window) -> Iterator[Any]:
    """seed: of the shuffle."""
    if not items:
        return iter(())
    keep_some_freed()
    return map(items.__getitem__, permutation(len(items), seed, window).tolist())
