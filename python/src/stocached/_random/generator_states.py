"""The states of the global generators of random numbers as values for JSON: for states of loaders
and of their workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .generators import known


def take() -> dict[str, Any]:
    return Taken().plain()


class Taken:
    """The states at one moment. `plain` takes ten times as long as the constructor, and is rarely
    called."""

    def __init__(self) -> None:
        self._states = [(generator, generator.state()) for generator in known()]

    def plain(self) -> dict[str, Any]:
        return {generator.name: generator.plain(state) for generator, state in self._states}


def put(states: Mapping[str, Any]) -> None:
    """Restores states. Ignores generators that this program has not imported."""
    for generator in known():
        if generator.name in states:
            generator.restore_plain(states[generator.name])


class Draws:
    """For a worker process: the generators with a draw or seed since this object was made. Takes 10
    us if none had one."""

    def __init__(self) -> None:
        self._before = {generator.name: generator.state() for generator in known()}
        self._states: dict[str, Any] = {}

    def states(self) -> dict[str, Any]:
        """The current states of these generators."""
        for generator in known():
            state = generator.state()
            if state != self._before.get(generator.name):
                self._before[generator.name] = state
                self._states[generator.name] = generator.plain(state)
        return dict(self._states)
