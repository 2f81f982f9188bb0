"""The states of the global generators of random numbers (random, numpy.random, torch's CPU), as plain values that JSON takes."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ._generators import NumpyGenerator, PythonGenerator


class _Kind(Protocol):
    def take(self) -> Any: ...

    def put(self, state: Any) -> None: ...

    def watch(self) -> Callable[[], bool]:
        """A function that says whether the generator was drawn from, or seeded, since this call."""


class _Python:
    def take(self) -> Any:
        version, words, gauss = random.getstate()
        return [version, list(words), gauss]

    def put(self, state: Any) -> None:
        version, words, gauss = state
        random.setstate((version, tuple(words), gauss))

    def watch(self) -> Callable[[], bool]:
        return PythonGenerator().watch() or _always


class _Numpy:
    def take(self) -> Any:
        return plain(np.random.get_state(legacy=False))

    def put(self, state: Any) -> None:
        np.random.set_state(state)

    def watch(self) -> Callable[[], bool]:
        return NumpyGenerator().watch() or _always


class _Torch:
    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def take(self) -> Any:
        return plain(self._torch.get_rng_state())

    def put(self, state: Any) -> None:
        self._torch.set_rng_state(tensor(self._torch, state))

    def watch(self) -> Callable[[], bool]:
        torch = self._torch
        was = torch.get_rng_state()
        return lambda: not torch.equal(torch.get_rng_state(), was)


def _always() -> bool:
    return True


def _kinds() -> dict[str, _Kind]:
    kinds: dict[str, _Kind] = {"python": _Python(), "numpy": _Numpy()}
    torch = sys.modules.get("torch")
    if torch is not None:
        kinds["torch"] = _Torch(torch)
    return kinds


def plain(state: Any) -> Any:
    """The state of a generator of NumPy or torch, without arrays and tensors."""
    if isinstance(state, Mapping):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, (np.ndarray, np.generic)):
        return state.tolist()
    return base64.b64encode(state.numpy().tobytes()).decode() if hasattr(state, "numpy") else state


def tensor(torch: Any, state: str) -> Any:
    """The tensor of bytes that `plain` was given."""
    return torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8)


def take() -> dict[str, Any]:
    return {name: kind.take() for name, kind in _kinds().items()}


def put(states: Mapping[str, Any]) -> None:
    """Leaves alone what this program has not imported."""
    kinds = _kinds()
    for name, state in states.items():
        if name in kinds:
            kinds[name].put(state)


class Draws:
    """Of a worker process: the generators that were drawn from, or seeded, since this was made. Takes 10 us where none was."""

    def __init__(self) -> None:
        self._kinds = _kinds()
        self._moved = {name: kind.watch() for name, kind in self._kinds.items()}
        self._states: dict[str, Any] = {}

    def states(self) -> dict[str, Any]:
        """Their states now."""
        for name, moved in self._moved.items():
            if moved():
                self._states[name] = self._kinds[name].take()
                self._moved[name] = self._kinds[name].watch()
        return dict(self._states)
