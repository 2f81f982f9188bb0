"""The states of the global generators of random numbers, as plain values that JSON takes: for states of loaders and of their workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .generators import known


def take() -> dict[str, Any]:
    return Taken().plain()


class Taken:
    """The states at one moment. Making them plain takes ten times as long as taking them, and most are never asked for."""

    def __init__(self) -> None:
        self._states = [(generator, generator.state()) for generator in known()]

    def plain(self) -> dict[str, Any]:
        return {generator.name: generator.plain(state) for generator, state in self._states}


def put(states: Mapping[str, Any]) -> None:
    """Leaves alone what this program has not imported."""
    for generator in known():
        if generator.name in states:
            generator.restore_plain(states[generator.name])


class Draws:
    """Of a worker process: the generators that were drawn from, or seeded, since this was made. Takes 10 us where none was."""

    def __init__(self) -> None:
        self._before = {generator.name: generator.state() for generator in known()}
        self._states: dict[str, Any] = {}

    def states(self) -> dict[str, Any]:
        """Their states now."""
        for generator in known():
            state = generator.state()
            if state != self._before.get(generator.name):
                self._before[generator.name] = state
                self._states[generator.name] = generator.plain(state)
        return dict(self._states)
