"""Where the elements of a pipe come from: data of the program, files, and functions of parts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.cached import cached_property
from .._common.errors import (
    InvalidError,
)
from .._common.numbers import whole
from .._common.one_line import name_of, one_line, printable
from .._common.reads_ahead import ahead_of
from .._common.remote_addresses import shown
from .._datasets import mistaken
from .._formats.elements import Elements
from .._memory.texts import Texts
from . import element_datasets, visits
from .functions import FlatMap
from .stage import WINDOW, Stage
from .texts import of_text
from .visits import Visit, Visits

_PACKAGE = __name__.partition(".")[0]  # its datasets make each sample anew
_LONGEST = 400  # characters of a path in an error; other texts may be longer
_WINDOW_BYTES = 64 << 20  # bytes of the groups of a window
_MANY = 100_000  # elements of a list from which on texts go into one buffer: workers copy the pages of a list


def _instead_of(data: Any, iterable: Any) -> str:
    """What a program gives in place of data that source() does not take."""
    if isinstance(data, iterable):
        return "; an IterableDataset or a DataPipe goes to stocached.torch.DataLoader, without a pipe"
    if getattr(data, "shape", ()) and hasattr(data, "__getitem__"):  # an array of Zarr
        return f"; give source(range({data.shape[0]})).map(lambda k: data[k])"
    if hasattr(data, "__iter__"):
        return f"; {mistaken.IN_PLACE_OF_AN_ITERATOR}"
    return ""


class Source(Stage):
    """data: an object with len() and [index], or what `of_text` takes, with its format and options."""

    def __init__(self, data: Any, format: str | None = None, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._kind = type(data).__name__
        if isinstance(data, (str, os.PathLike)):
            self._kind = one_line(shown(os.fsdecode(data)))
            data = of_text(os.fsdecode(data), format, options or {})
        elif format is not None or options:
            given = ", ".join(f"{name}=" for name in [*["format"] * (format is not None), *(options or ())])
            raise InvalidError(
                f"source({one_line(data)}): {given} goes with a text that names files, or an address; leave it out"
            )
        mistaken.refuse("source", data)
        iterable = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
        if isinstance(data, (iterable, dict)) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise InvalidError(
                f"source({one_line(data)}): it takes a list, an array, a dataset with len() and [index], or a text that "
                f"names files{_instead_of(data, iterable)}"
            )
        if len(data) == 0:
            raise InvalidError("source(): there are no elements in it")
        if type(data) is tuple:  # `made_of` has tuples of its own
            data = list(data)
        if type(data) is list and len(data) >= _MANY:
            data = Texts.of_list(data) or data
        self.data = data

    def elements(self) -> int:
        return len(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def visits(self, epoch: int, seed: int) -> Visits:
        return visits.InOrder(len(self.data), epoch)

    @cached_property
    def rows(self) -> Any:
        return self.data

    def visit_of(self, element: int) -> Visit:
        return Visit(element, 0, 0)

    indexed = in_order = True
    window = None

    @cached_property
    def lends(self) -> bool:
        return type(self.data) is not range and not type(self.data).__module__.startswith(f"{_PACKAGE}.")

    @cached_property
    def ahead(self) -> Any:
        return ahead_of(self.data)

    def item(self, visit: Visit, seed: int) -> Any:
        return self.data[visit.element]

    def source_item(self, visit: Visit) -> Any:
        return self.data[visit.element]

    def sources(self) -> list[Any]:
        return [self.data]

    def made_of(self, lists: Any) -> Any:
        lists.datasets.append(element_datasets.Read(self.data))
        return "source"

    def where(self, element: int, ordinal: int | None = None) -> str:
        file = ""
        with contextlib.suppress(
            Exception
        ):  # only lists of paths, and datasets such as Folder, name the file of a sample
            name = os.fspath(self.data[element]) if type(self.data) is list else self.data.name(element)
            file = f", {printable(name)}" if len(name) <= _LONGEST and name.isprintable() else ""
        return f"element {element} of {self.shown()}{file}"

    def shown(self) -> str:
        return f"source({self._kind}, {len(self.data):,} elements)"


class Parts(FlatMap):
    """function(k): an iterable of the items of part k."""

    def __init__(self, function: Callable[[int], Iterable[Any]], parts: int) -> None:
        self._parts = whole("parts", parts, 1)
        if not callable(function):
            raise InvalidError(
                f"source({one_line(function)}, parts={parts}): parts= is for a function of a part's number"
            )
        super().__init__(_Numbers(range(self._parts)), function)

    def sources(self) -> list[Any]:
        return [self.function]

    def where(self, element: int, ordinal: int | None = None) -> str:
        return f"part {element} of {self.shown()}"

    def drawn(self) -> list[str]:
        return [self.shown()]

    def shown(self) -> str:
        return f"source({name_of(self.function)}, parts={self._parts})"


class Rows(Parts):
    """The items of groups, such as rows, whose numbers the files say."""

    def __init__(self, groups: Source) -> None:
        self._groups = groups
        FlatMap.__init__(self, groups, _items_of)

    def learned(self) -> npt.NDArray[np.int64]:
        return self._groups.data.counts  # type: ignore[no-any-return]

    @cached_property
    def usual_window(self) -> int:
        """As many groups as go into some memory, or as have as many items as there are elements in a window of others."""
        groups, items = self._groups.data, int(self.learned().sum())
        most = _WINDOW_BYTES * len(groups) // groups.bytes if groups.bytes else WINDOW * len(groups) // max(1, items)
        return min(max(1, most), WINDOW)

    def sources(self) -> list[Any]:
        return self._groups.sources()

    def where(self, element: int, ordinal: int | None = None) -> str:
        row = "" if ordinal is None else f", {self._groups.data.item_name(element, ordinal)} of the file"
        return self._groups.where(element) + row

    def shown(self) -> str:
        return f"{self._groups.shown()[:-1]}, {int(self.learned().sum()):,} items)"


def _items_of(group: list[Any]) -> list[Any]:
    return group


def of_files(source: Source) -> Stage:
    """The items of what a source names."""
    return Rows(source) if isinstance(source.data, Elements) and source.data.counts is not None else source


class _Numbers(Source):
    def where(self, element: int, ordinal: int | None = None) -> str:
        return f"part {element}"
