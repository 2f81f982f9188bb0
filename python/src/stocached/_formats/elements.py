"""The elements of several files of one format, one file after the other."""

from __future__ import annotations

import functools
import inspect
import os
from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.cached import cached_property
from .._common.errors import BadSampleError, InvalidError
from .._common.local_file import MOST_OPEN, stamp_of
from .._common.notes import no_end, raise_noted
from .._common.numbers import position_of, whole
from .._common.one_line import one_line, printable
from .._common.reads_ahead import ReadsAhead
from .._common.warning import warn_user
from .._memory.texts import Texts
from .registry import Format

_MOST = 2**40  # elements or items of all files
_TOGETHER = 4 << 20  # bytes that are read ahead in order, at least half of them
_THREADS = 16  # threads that open files at addresses


class Elements(ReadsAhead):
    """elements[k] is what one read gives: an item, or the list of the items of a group.

    counts: how many items each element has; None: each is one item. Can be pickled as the files can. Any number of
    threads and forked children."""

    # The paths and the class say all.
    _of_errors = (
        "files",
        "counts",
        "bytes",
        "_stamps",
        "_ends",
        "_last",
        "_read_to",
        "_told_to",
    )

    def __init__(self, format: Format, paths: Any, options: dict[str, Any]) -> None:
        """Opens all files. paths: of files of this machine, or `RemoteFiles`. Raises InvalidError, OSError."""
        self.kind, self.paths, self.options = format.load(), paths, options
        self._check_options(format)
        if isinstance(paths, Texts):
            opened = [self._opened(path, format) for path in paths]
        elif not getattr(self.kind, "addresses", False):
            raise InvalidError(
                f"{printable(str(paths[0]))}: files of {format.name} are read on this machine: copy them here"
            )
        else:
            with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
                opened = [*pool.map(lambda file: self._opened(file, format), paths)]
        # In order: where the elements end that are read soon, those that were told, and how many these are more.
        self._read_to = self._told_to = self._more = 0
        self._last = -1, ""  # a file, and its path: to make the text takes as long as to look at the file
        self._stamps: list[tuple[int, int]] = [stamp for stamp, _ in opened]
        self.files: list[Any] = [file for _, file in opened]
        lengths = [whole(f"len() of {self.kind.__name__}", len(file)) for file in self.files]
        self._ends: list[int] = np.cumsum(lengths, dtype=np.int64).tolist()
        if not self._ends[-1]:
            raise InvalidError(
                f"there are no elements in {printable(str(paths[0]))}{f' and {len(paths) - 1:,} more files' * (len(paths) > 1)}"
            )
        if self._ends[-1] > _MOST:
            raise InvalidError(f"the files have {self._ends[-1]:,} elements, and {_MOST:,} are the most")
        filled = [
            (path, file)
            for path, file, n in zip(self.paths, self.files, lengths)
            if n and hasattr(file, "item_columns") and any(getattr(file, "counts", [1]))
        ]
        self._check_columns(filled)
        self._check_types(filled)
        self.counts = self._counts(lengths)
        warning = next((file.warning for file in self.files if getattr(file, "warning", "")), "")
        if warning:
            warn_user(warning)

    def _opened(self, where: Any, format: Format) -> tuple[tuple[int, int], Any]:
        """The state of a file, and the object that reads it."""
        name, here = printable(str(where)), isinstance(where, str)
        stamp = stamp_of(os.stat(where)) if here else where.stamp
        format.check(where)
        try:
            return stamp, self.kind(where, **self.options)
        except OSError as error:
            if here:
                error.filename = error.filename or where
            raise
        except InvalidError:
            raise
        except Exception as error:
            raise_noted(error, f"stocached: {name} could not be opened as {format.name}")

    def _check_options(self, format: Format) -> None:
        try:
            inspect.signature(self.kind).bind("", **self.options)
        except TypeError as error:
            names = list(inspect.signature(self.kind).parameters)[1:]
            raise InvalidError(
                f"source(): files of {format.name} take {', '.join(f'{name}=' for name in names) or 'no options'}: {error}"
            ) from None

    def _check_columns(self, filled: list[tuple[Any, Any]]) -> None:
        """Raises InvalidError for files of several columns: the first batch of two files would fail, and name none."""
        named = [(printable(str(path)), list(file.item_columns)) for path, file in filled]
        for path, columns in named:
            first, wanted = named[0]
            if set(columns) == set(wanted):
                continue
            lacks, has = (path, first) if set(wanted) - set(columns) else (first, path)
            name = next(name for name in [*wanted, *columns] if (name in columns) != (name in wanted))
            all_have = [name for name in wanted if all(name in each for _, each in named)]
            raise InvalidError(
                f"{lacks} has no column {name!r}, and {has} has it. "
                + (f"All have columns={one_line(all_have, 400)}; or read" if all_have else "Read")
                + " files of other columns by another source, and join them by +"
            )

    def _check_types(self, filled: list[tuple[Any, Any]]) -> None:
        """Warns of a column whose type differs between files: some batches would have one type, others another or lists."""
        first = dict[str, tuple[str, Any]]()
        for path, file in filled:
            for name, kind in getattr(file, "item_types", {}).items():
                known, where = first.setdefault(name, (kind, path))
                if kind != known:
                    warn_user(
                        f"column {name!r} is {known} in {printable(str(where))} and {kind} in {printable(str(path))}, and so "
                        "in batches; make it alike in .map, or leave it out by columns="
                    )
                    return

    def _counts(self, lengths: list[int]) -> npt.NDArray[np.int64] | None:
        given = [getattr(file, "counts", None) for file in self.files]
        if all(counts is None for counts in given):
            return None
        made = []
        for path, counts, length in zip(self.paths, given, lengths):
            try:
                own = np.asarray(counts, np.int64)
            except (TypeError, ValueError, OverflowError):
                own = np.array([-1])
            if own.shape != (length,) or (own < 0).any() or int(own.sum()) > _MOST:
                raise InvalidError(
                    f"{printable(str(path))}: its counts are not one number of items for each of {length:,} elements"
                )
            made.append(own)
        return np.concatenate(made)

    @cached_property
    def bytes(self) -> int | None:
        """Of all items in memory, about; None: the class does not say."""
        sizes = [getattr(file, "item_bytes", None) for file in self.files]
        return None if None in sizes else sum(sizes)  # type: ignore[arg-type]

    @property
    def ahead(self) -> Any:
        """Has elements at an address read soon. None: it cannot."""
        tell = getattr(self.paths, "tell", None)
        return None if tell is None or not hasattr(self.kind, "spans") else functools.partial(self._ahead, tell)

    def _ahead(self, tell: Any, indices: npt.NDArray[np.int64]) -> None:
        if not len(indices):
            return
        begin, end = int(indices[0]), int(indices[-1]) + 1
        in_order = self.counts is None and len(indices) > 1 and (np.diff(indices) == 1).all()
        if in_order and begin == self._read_to:  # with the elements after them, so that small ones are large requests
            self._read_to = end
            if end + self._more // 2 <= self._told_to:
                return
            size = sum(size for _, _, size in self._spans(indices.tolist()))
            self._more = len(indices) * (_TOGETHER // max(size, 1))
            begin, self._told_to = max(begin, self._told_to), min(end + self._more, len(self))
            tell(self._spans(range(begin, self._told_to)))
            return
        if in_order:
            self._read_to = self._told_to = end
            self._more = 0
        tell(self._spans(indices.tolist()))

    def _spans(self, indices: Iterable[int]) -> list[tuple[int, int, int]]:
        """The parts of files that elements take: number of the file, place and bytes."""
        return [(d, *span) for d, local in map(self._place, indices) for span in self.files[d].spans(local)]

    @property
    def picture_fields(self) -> tuple[str, ...] | None:
        """As `FileBytes.picture_fields`."""
        return getattr(self.files[0], "picture_fields", None)

    def picture_files(self) -> Any:
        """Where the files of pictures lie, for C."""
        from .._image.pipeline import Files  # needs the library for pictures

        places = np.concatenate([file.picture_places(d) for d, file in enumerate(self.files)])
        return Files.of_shards([*self.paths], self._stamps, places, bool(self.picture_fields), MOST_OPEN)

    def __len__(self) -> int:
        return self._ends[-1]

    def _place(self, index: int) -> tuple[int, int]:
        """The file of an element, and its number there."""
        d = bisect_right(self._ends, index)
        return d, index - (self._ends[d - 1] if d else 0)

    def __getitem__(self, index: int) -> Any:
        index = position_of(index, len(self))
        d, local = self._place(index)
        try:
            made = self.files[d][local]
            if self.counts is not None:
                made = list(made)
        except BadSampleError as error:
            self._check(d)  # a loader may leave bad samples out, and then it would leave out the whole file
            raise BadSampleError(error.reason, self.name(index)) from error.__cause__
        except Exception as error:
            self._check(d)  # this is the cause then
            raise_noted(no_end(error, self.kind.__name__), f"stocached: in {self.name(index)}")
        self._check(d)  # after the read, so that we use no bytes that another program wrote during it
        if self.counts is not None and len(made) != self.counts[index]:
            raise BadSampleError(
                f"it has {len(made):,} items, and its file says {self.counts[index]:,}", self.name(index)
            )
        return made

    def _check(self, d: int) -> None:
        # A read of an object at an address compares its state itself.
        if not isinstance(self.paths, Texts):
            return
        number, path = self._last
        if number != d:
            _, path = self._last = d, self.paths[d]
        if stamp_of(os.stat(path)) != self._stamps[d]:
            raise InvalidError(f"{printable(self.paths[d])} has changed since it was opened; make the pipe again")

    def name(self, index: int) -> str:
        """The file of an element and its place there, for errors."""
        d, local = self._place(index)
        name = getattr(self.files[d], "name", None)
        return f"{printable(str(self.paths[d]))}, {name(local) if callable(name) else f'element {local}'}"

    def item_name(self, index: int, ordinal: int) -> str:
        """An item of an element by its place in the file, for errors."""
        d, local = self._place(index)
        assert self.counts is not None
        number = int(self.counts[index - local : index].sum()) + ordinal
        return f"{'row' if hasattr(self.files[d], 'item_columns') else 'item'} {number}"

    def __repr__(self) -> str:
        return f"<{len(self):,} elements of {len(self.paths):,} files>"
