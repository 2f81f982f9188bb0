"""What a stage of a pipe is: the elements, visits and items that it has, from those of the stages above."""

from __future__ import annotations

import copy
import itertools
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.cached import cached_property
from .._common.errors import InvalidError
from .._datasets.tally import current
from .visits import Visit, Visits, Window

Item = tuple[Visit, int, Any]
"""An item with its visit and its ordinal, which tells the items of a visit apart."""
WINDOW = 1024  # visits of a window, if a stage mixes or joins their items
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


_MADE = ("rows", "kept", "noter", "ahead", "measured", "together")  # attributes that are made of stages
_MADE_AGAIN = ("rows", "noter", "ahead", "measured")  # those of an unpickled stage are made anew


class Stage:
    """A stage with all stages above it. Immutable. What a class does not define is that of the first stage above.

    above: the stages that give their items to this one; several below + and zip. number: of its line, in a loader."""

    kind = ""  # what it does to items, for those who do not know its class: "map", "cache", "shuffle", "batch"
    tallied = True  # workers count what it gives
    number = -1
    takes_all = True  # an item takes one of each stage above, if they are indexed; else the stage counts those it takes

    def __init__(self, *above: Stage) -> None:
        self.above = above
        self.line = _line_of_program()

    def copied(self) -> Any:
        """A copy, without what is made of stages."""
        made = copy.copy(self)
        for name in _MADE:
            vars(made).pop(name, None)
        return made

    def __copy__(self) -> Any:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _MADE_AGAIN}

    def functions(self) -> list[Any]:
        """Those of the program."""
        return []

    def elements(self) -> int:
        """How many elements there are; `Visit.element` is below it."""
        return self.above[0].elements()

    def __len__(self) -> int:
        """How many visits an epoch has."""
        return len(self.above[0])

    def visits(self, epoch: int, seed: int) -> Visits:
        """The visits of an epoch. seed: that of the loader."""
        return self.above[0].visits(epoch, seed)

    def visit_of(self, element: int) -> Visit:
        """The first visit of an element, as if the epoch had its elements in order."""
        return self.above[0].visit_of(element)

    @cached_property
    def indexed(self) -> bool:
        """Whether each visit has exactly one item, by construction."""
        return all(stage.indexed for stage in self.above)

    def item(self, visit: Visit, seed: int) -> Any:
        """The item at a visit, if the pipe is indexed."""
        return self.above[0].item(visit, seed)

    @cached_property
    def noter(self) -> Any:
        """Its `note(visit)` counts an item that was taken from an indexed pipe, for stages above whose numbers those below
        do not tell. None: there are none."""
        return self.above[0].noter if self.above else None

    def items(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        """The items of some visits of a window. They are counted, and some of them measured."""
        read = self._one_by_one if self.indexed else self.read
        return current().reading.given(self.number, read, some, window)

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        """As `items`, of a stage without an index; `items` calls it."""
        return self.above[0].items(some, window)

    def _one_by_one(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        stage, noter = self.measured if current().reading.on else self, self.noter
        for visit in some:
            window.begin(visit)
            try:
                item = stage.item(visit, window.seed)
            except Exception as error:
                window.left_out(self.where(visit.element), error)
                continue
            if noter is not None:
                noter.note(visit)
            yield visit, 0, item

    @cached_property
    def ahead(self) -> Any:
        """Of its data: it has elements read soon, before `item` is called. None: it cannot."""
        return self.above[0].ahead if len(self.above) == 1 else None

    @cached_property
    def measured(self) -> Stage:
        """A copy of an indexed stage, with a `Measured` in place of each one above. So `item` of this one takes no time
        to ask whether it is measured."""
        made = copy.copy(self)
        made.above = tuple(map(Measured, self.above))
        return made

    @cached_property
    def window(self) -> int | None:
        """How many visits a window has, whose items a stage mixes or joins; 0: the default; None: no stage does."""
        return max((stage.window for stage in self.above if stage.window is not None), default=None)

    @cached_property
    def usual_window(self) -> int:
        """How many visits a window has by default."""
        return min((stage.usual_window for stage in self.above), default=WINDOW)

    def lengths(self) -> npt.NDArray[np.int64] | None:
        """How many items each element has; None: that is not known of all."""
        return np.ones(self.elements(), np.int64) if self.indexed else self.above[0].lengths()

    def measure(self, workers: int) -> None:
        """Reads all elements once, so that `lengths` is known. Raises InvalidError if it differs between epochs."""
        if not self.indexed:
            self.above[0].measure(workers)

    def make_caches(self) -> None:
        """Makes the caches of this stage and of those above in this process, for children and workers that read it."""
        for stage in self.above:
            stage.make_caches()

    def source_item(self, visit: Visit) -> Any:
        """What the source has at a visit."""
        return self.above[0].source_item(visit)

    @cached_property
    def rows(self) -> Any:
        """A dataset of its items by element, of stages that are not random. Its attributes are what the fingerprint of
        a cache is made of. Of a pipe without an index, the list of an element is bytes."""
        return self.above[0].rows

    def sources(self) -> list[Any]:
        """What it reads: data, and functions of parts."""
        return [data for stage in self.above for data in stage.sources()]

    def made_of(self, lists: Any) -> Any:
        """Adds what the items are made of to a `Listed`. Returns how it is put together."""
        return self.above[0].made_of(lists)

    @cached_property
    def in_order(self) -> bool:
        """Whether position p of every epoch is element p."""
        return self.above[0].in_order

    @property
    def order_key(self) -> Any:
        """A value that is equal for stages whose visits have their elements in one order; None: none has it."""
        if self.in_order:
            return "in order"
        return self.above[0].order_key if len(self.above) == 1 else None

    def shape(self, seed: int) -> str:
        """What determines the visits of an epoch. seed: that of the loader."""
        return f"{self._own_shape(seed)}({', '.join(above.shape(seed) for above in self.above)})"

    def _own_shape(self, seed: int) -> str:
        return f"{type(self).__name__} {len(self)}" if self.indexed else f"{self.shown()} {self.window}"

    @cached_property
    def fixed(self) -> bool:
        """Whether an element is the same one in all epochs."""
        return all(stage.fixed for stage in self.above)

    @cached_property
    def lends(self) -> bool:
        """Whether its items are objects that the data of the program keeps, so a function below must get copies."""
        return any(stage.lends for stage in self.above)

    @cached_property
    def random(self) -> int:
        """The number of random stages, this one included."""
        return max((stage.random for stage in self.above), default=0)

    def where(self, element: int, ordinal: int | None = None) -> str:
        """Names an element in errors. ordinal: of its item; None: not known."""
        return self.above[0].where(element, ordinal)

    def shown(self) -> str:
        """The stage as a line of `print(pipe)`."""
        raise NotImplementedError

    def drawn(self) -> list[str]:
        """The lines of `print(pipe)`."""
        if len(self.above) == 1:
            return [*self.above[0].drawn(), self.shown()]
        return [*(f"    {line}" for stage in self.above for line in stage.drawn()), self.shown()]

    def refuse_batches(self) -> None:
        """Raises InvalidError below .batch()."""
        for each in self.above:
            batch = next((one for one in each.chain() if one.kind == "batch"), None)
            if batch is not None:
                raise self.refuse(
                    f"it stands below {batch.shown()}{batch.line}, and takes items; write it above .batch()"
                )

    def refuse(self, why: str) -> InvalidError:
        return InvalidError(f"{self.shown()}{self.line}: {why}")

    def chain(self) -> list[Stage]:
        """The stages from this one up to the first with no stage above, or several."""
        stages = [self]
        while len(stages[-1].above) == 1:
            stages.append(stages[-1].above[0])
        return stages


class Measured(Stage):
    """An indexed stage whose items are measured."""

    def __init__(self, stage: Stage) -> None:
        self.above, self.line, self.number = (stage.measured,), stage.line, stage.number

    def item(self, visit: Visit, seed: int) -> Any:
        return current().reading.call(self.number, self.above[0].item, visit, seed)


def every(stage: Stage) -> list[Stage]:
    """A stage and all above it."""
    return [stage, *itertools.chain.from_iterable(map(every, stage.above))]


def visits_digest(stage: Stage, seed: int) -> str:
    """Names the visits of all epochs: which element is read at which position. seed: of the loader."""
    return f"{zlib.crc32(stage.shape(seed).encode()):08x}"


def _line_of_program() -> str:
    """Where the program has written a stage: " in train.py, line 12"."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f" in {os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
