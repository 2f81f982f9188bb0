"""What a global random number generator can be asked, and what those of NumPy and torch have in
common."""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np


class Generator(Protocol):
    name: str  # in messages

    def seed(self, seed: int) -> None: ...

    def state(self) -> Any:
        """Equal values mean equal numbers from then on, and the other way round."""

    def restore(self, state: Any) -> None: ...

    def plain(self, state: Any) -> Any:
        """What `state` gave as JSON takes it, for another process or another run. Takes longer than
        `state`."""

    def restore_plain(self, state: Any) -> None: ...

    def places(self) -> list[memoryview]:
        """A few bytes of memory that are others after a draw or a seed; none where the layout is
        unknown."""

    def watch(self) -> Callable[[], bool] | None:
        """A function that says whether somebody has drawn or seeded since this call. None: this
        generator is better seeded each time."""


def plain(state: Any) -> Any:
    """The state of a generator of NumPy or torch as JSON takes it, without arrays and tensors."""
    if isinstance(state, Mapping):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, (np.ndarray, np.generic)):
        return state.tolist()
    return base64.b64encode(state.numpy().tobytes()).decode() if hasattr(state, "numpy") else state


def memory(address: int, size: int) -> memoryview:
    """Bytes of this process, as they are whenever somebody looks."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
