"""Measures the time that `augment=` takes, without delays, for timelines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from .._common.load_time import delay_ns


class _Spent(threading.local):
    ns = 0


_spent = _Spent()


def spent_ns() -> int:
    """The time that this thread has spent in `augment=` so far."""
    return _spent.ns


def augmented(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `augment=`, and adds the time that it takes."""
    start, delay = time.monotonic_ns(), delay_ns()
    try:
        return function(*arguments)
    finally:
        delay = delay_ns() - delay  # before the clock: what comes between must not be subtracted
        _spent.ns += max(time.monotonic_ns() - start - delay, 1)
