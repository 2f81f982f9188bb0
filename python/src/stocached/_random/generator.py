"""The interface of a global random number generator, and the common part of those of NumPy and
torch."""

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
        """Two states are equal if and only if the generators give equal numbers from then on."""

    def restore(self, state: Any) -> None: ...

    def plain(self, state: Any) -> Any:
        """A state as values for JSON, for another process or run. Takes longer than `state`."""

    def restore_plain(self, state: Any) -> None: ...

    def places(self) -> list[memoryview]:
        """A few bytes of memory that differ after a draw or a seed; none if the layout is
        unknown."""

    def watch(self) -> Callable[[], bool] | None:
        """A function that tells whether a draw or seed has come since this call. None: seed this
        generator for each sample."""


def plain(state: Any) -> Any:
    """The state of a generator of NumPy or torch as values for JSON, without arrays and tensors."""
    if isinstance(state, Mapping):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, (np.ndarray, np.generic)):
        return state.tolist()
    return base64.b64encode(state.numpy().tobytes()).decode() if hasattr(state, "numpy") else state


def memory(address: int, size: int) -> memoryview:
    """Bytes of this process; each read gives their current values."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
