"""Items that become one: batches, and rows of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.cached import cached_property
from .._common.numbers import whole
from .._common.one_line import name_of, one_line
from . import packing
from .stage import Item, Stage
from .visits import Visit, Window

_OF_WINDOWS = (
    "how many it makes depends on which items come together in an epoch, so no measure says it; "
    'leave ends="uneven", or end all ranks after as many steps'
)


class Batch(Stage):
    """The loader makes the batches; the stage says how. by: the length of an item, of which a batch has `size`; None: it
    has `size` items."""

    kind = "batch"

    def functions(self) -> list[Any]:
        return [self.by, self.collate]

    def __init__(
        self,
        above: Stage,
        size: int,
        by: Any,
        pad: Any,
        collate: Callable[..., Any] | None,
        drop_last: bool,
        rows: bool = False,
        lengths: Any = None,
    ) -> None:
        super().__init__(above)
        self.contiguous, self._told = rows, lengths
        self.size, self.by, self.pad, self.collate, self.drop_last = whole("n", size, 1), by, pad, collate, drop_last
        if pad is not None and collate is not None:
            raise self.refuse("collate= makes the batch, so pad= has nothing to do; leave one of them out")
        if by is not None and not callable(by):
            raise self.refuse("size= is a function of an item, such as len")
        if by is not None and drop_last:
            raise self.refuse("batches by size= end with their windows, so there is no last one to drop")
        if lengths is not None and not rows:
            raise self.refuse("lengths= is for rows=True; leave it out, or call measure() of the pipe")
        self.refuse_batches()

    @cached_property
    def indexed(self) -> bool:
        return self.by is None and self.above[0].indexed

    @cached_property
    def window(self) -> int | None:
        above = self.above[0].window
        return above if self.by is None else above or 0

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        """With `by`, an item is the list of the items of a batch."""
        return packing.batches(self, list(self.above[0].items(some, window)), window)

    def lengths(self) -> npt.NDArray[np.int64] | None:
        if self._told is not None:
            return self._told  # type: ignore[no-any-return]
        return super().lengths() if self.by is None else None

    def measure(self, workers: int) -> None:
        if self.by is not None:
            raise self.refuse(_OF_WINDOWS)
        super().measure(workers)

    def shown(self) -> str:
        """The states of a loader have it, so it leaves out what does not change which items a batch has."""
        rows = ", rows=True" if self.contiguous else ""
        return f".batch({self.size}{'' if self.by is None else ', size=' + name_of(self.by)}{rows})"

    def drawn(self) -> list[str]:
        *above, own = super().drawn()
        given = "" if self.pad is None else f", pad={one_line(self.pad)}"
        given += "" if self._told is None else ", lengths=..."
        given += "" if self.collate is None else f", collate={name_of(self.collate)}"
        return [*above, f"{own[:-1]}{given}{', drop_last=True' if self.drop_last else ''})"]


class Pack(Stage):
    """Rows of `length` tokens."""

    def __init__(self, above: Stage, length: int) -> None:
        super().__init__(above)
        self.length = whole("length", length, 1)
        self.refuse_batches()
        if any(isinstance(one, Pack) for one in above.chain()):
            raise self.refuse("it stands below .pack(), whose rows are full; leave one of them out")

    indexed = False

    @cached_property
    def window(self) -> int | None:
        return self.above[0].window or 0

    def read(self, some: Iterable[Visit], window: Window) -> Iterator[Item]:
        return packing.rows(self, list(self.above[0].items(some, window)))

    def lengths(self) -> None:
        return None

    def measure(self, workers: int) -> None:
        raise self.refuse(_OF_WINDOWS)

    def shown(self) -> str:
        return f".pack({self.length})"
