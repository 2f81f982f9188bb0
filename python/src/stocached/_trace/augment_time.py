"""Measures the time that `augment=` takes, for timelines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class _Spent(threading.local):
    ns = 0


_spent = _Spent()


def spent_ns() -> int:
    """The time that this thread has spent in `augment=` so far."""
    return _spent.ns


def augmented(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `augment=`, and adds the time that it takes."""
    start = time.monotonic_ns()
    try:
        return function(*arguments)
    finally:
        _spent.ns += time.monotonic_ns() - start
