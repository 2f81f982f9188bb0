"""What a stage of a pipe is: the elements, visits and items that it has, from those of the stages above."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from .._common.errors import InvalidError
from .visits import Visit, Visits

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Stage:
    """A stage with all stages above it. Immutable. What a class does not define is that of the first stage above.

    above: the stages that give their items to this one; several below + and zip."""

    def __init__(self, *above: Stage) -> None:
        self.above = above
        self.line = _line_of_program()

    def elements(self) -> int:
        """How many elements there are; `Visit.element` is below it."""
        return self.above[0].elements()

    def __len__(self) -> int:
        """How many visits an epoch has."""
        return len(self.above[0])

    def visits(self, epoch: int, seed: int) -> Visits:
        """The visits of an epoch. seed: that of the loader."""
        return self.above[0].visits(epoch, seed)

    def item(self, visit: Visit, seed: int) -> Any:
        """The item at a visit."""
        return self.above[0].item(visit, seed)

    @functools.cached_property
    def rows(self) -> Any:
        """A dataset of its items by element, of stages that are not random. Its attributes are what the fingerprint of
        a cache is made of."""
        return self.above[0].rows

    @functools.cached_property
    def in_order(self) -> bool:
        """Whether position p of every epoch is element p."""
        return self.above[0].in_order

    @functools.cached_property
    def random(self) -> int:
        """The number of random stages, this one included."""
        return max((stage.random for stage in self.above), default=0)

    def where(self, element: int) -> str:
        """Names an element in errors."""
        return self.above[0].where(element)

    def shown(self) -> str:
        """The stage as a line of `print(pipe)`."""
        raise NotImplementedError

    def drawn(self) -> list[str]:
        """The lines of `print(pipe)`."""
        if len(self.above) == 1:
            return [*self.above[0].drawn(), self.shown()]
        return [*(f"    {line}" for stage in self.above for line in stage.drawn()), self.shown()]

    def refuse(self, why: str) -> InvalidError:
        return InvalidError(f"{self.shown()}{self.line}: {why}")

    def chain(self) -> list[Stage]:
        """The stages from this one up to the first with no stage above, or several."""
        stages = [self]
        while len(stages[-1].above) == 1:
            stages.append(stages[-1].above[0])
        return stages


def _line_of_program() -> str:
    """Where the program has written a stage: " in train.py, line 12"."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f" in {os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
