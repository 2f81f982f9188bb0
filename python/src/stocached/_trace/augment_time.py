"""How long the random part of samples, `augment=`, takes: for timelines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class _Spent(threading.local):
    ns = 0


_spent = _Spent()


def spent_ns() -> int:
    """By this thread, so far."""
    return _spent.ns


def augmented(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the random part of a sample."""
    start = time.monotonic_ns()
    try:
        return function(*arguments)
    finally:
        _spent.ns += time.monotonic_ns() - start
