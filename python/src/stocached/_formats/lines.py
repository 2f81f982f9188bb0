"""Files of lines: JSON, CSV, and text."""

from __future__ import annotations

import contextlib
import csv
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .._common.errors import BadSampleError, InvalidError
from .._common.local_file import LocalFile
from .._common.one_line import one_line, printable
from .._common.sizes import show_size
from .kept_index import Indexed
from .line_index import Rule, starts_of

_LONGEST = 256 << 20  # bytes of a line
_COUNTED = 64 << 20  # bytes before a line whose number an error says: 50 ms, once
_PIECE = 1 << 18  # bytes that are counted together
_RECODED = "if the file is Latin-1, write iconv -f latin1 -t utf-8 FILE > new-file"
_DELIMITERS = ";\t|"  # delimiters that other programs write


class Lines(Indexed):
    """Each element is a line."""

    what, addresses = "element", True

    def __init__(self, where: Any, rule: Rule) -> None:
        super().__init__(where, starts_of(where, rule))
        self._before = [0]  # lines before each piece, as far as they are counted

    def name(self, k: int) -> str:
        """With the line as editors count, from 1 on."""
        line, name = self._line_of(k), super().name(k)
        return name if line is None else f"line {line:,} ({name.replace(' (', ', ', 1)}"

    def _line_of(self, k: int) -> int | None:
        """None: to count the lines before would take long."""
        begin = int(self._starts[k])
        if begin > _COUNTED or not isinstance(self._file, LocalFile):
            return None
        with contextlib.suppress(Exception):  # the error of the element counts
            piece = begin // _PIECE
            for k in range(len(self._before) - 1, piece):
                self._before.append(self._before[k] + self._ends_in(k * _PIECE, _PIECE))
            return 1 + self._before[piece] + self._ends_in(piece * _PIECE, begin % _PIECE)
        return None

    def _ends_in(self, at: int, size: int) -> int:
        """The ends of lines in a part of the file, which ends before the end of the file."""
        data = self._file.read(at, size + 1)  # a part may end within \r\n
        return data.count(b"\n", 0, size) + data.count(b"\r", 0, size) - data.count(b"\r\n")

    def line(self, k: int) -> bytes:
        begin, size = self._place(k)
        if size > _LONGEST:
            raise BadSampleError(
                f"it has {show_size(size)}, and {show_size(_LONGEST)} are the most; does the file have lines?"
            )
        return self._file.read(begin, size)

    def text(self, k: int) -> str:
        try:
            return self.line(k).decode()
        except UnicodeDecodeError as error:
            raise BadSampleError(f"no UTF-8: {error}; {_RECODED}") from None


class JsonLines(Lines):
    """Each line is a JSON value. Blank ones do not count."""

    def __init__(self, path: Any) -> None:
        super().__init__(path, Rule(blank=False))

    def __getitem__(self, k: int) -> Any:
        line = self.line(k)  # whose errors are others
        try:
            return json.loads(line)
        except UnicodeDecodeError as error:
            raise BadSampleError(f"no UTF-8: {error}; {_RECODED}") from None
        except (ValueError, RecursionError) as error:
            more = "" if k else "; of a file that is one JSON value, jq -c '.[]' FILE makes lines"
            why = (
                f"{error.msg.removesuffix(' at')} at its character {error.pos + 1}"
                if isinstance(error, json.JSONDecodeError)
                else error
            )
            raise BadSampleError(f"no JSON: {why}{more}") from None


class Text(Lines):
    """Each line is a text, without its line break."""

    def __init__(self, path: Any) -> None:
        super().__init__(path, Rule(blank=True))

    def __getitem__(self, k: int) -> str:
        return self.text(k).removesuffix("\n").removesuffix("\r")


class Csv(Lines):
    """Each record is a dict of texts, as csv reads it; its quoted fields may have line breaks. Blank lines do not count.

    delimiter: of fields. columns: those that are wanted. names: of all columns; None: the first record has them."""

    def __init__(
        self, path: Any, delimiter: str = ",", columns: Sequence[str] | None = None, names: Sequence[str] | None = None
    ) -> None:
        if not (
            isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii() and delimiter not in '"\r\n'
        ):
            raise InvalidError(f"delimiter={delimiter!r} is not one ASCII character")
        super().__init__(path, Rule(False, delimiter))
        self._delimiter, self._first = delimiter, 0 if names is not None else 1
        if names is None:
            if not super().__len__():
                raise InvalidError(f"{printable(str(path))} is empty; give names= for files without a header")
            names = self._record(0)
        if isinstance(names, str):
            raise InvalidError(f"names={names!r}: give a list of names")
        self._names = [*names]
        if len(set(self._names)) < len(self._names):
            raise InvalidError(
                f"{printable(str(path))}: two columns have one name: {one_line(self._names)}; give names="
            )
        other = next((letter for letter in _DELIMITERS if letter in self._names[0]), None) if self._names else None
        if other is not None and len(self._names) == 1 and delimiter == ",":
            self.warning = f"{printable(str(path))} has one column, {self._names[0]!r:.200}; delimiter={other!r} makes several of it"
        self._wanted = chosen_columns(path, self._names, columns)
        self.item_columns = [self._names[at] for at in self._wanted]

    def __len__(self) -> int:
        return max(super().__len__() - self._first, 0)

    def spans(self, k: int) -> list[tuple[int, int]]:
        return super().spans(k + self._first)

    def _record(self, line: int) -> list[str]:
        text = self.text(line)
        if len(text) > csv.field_size_limit():
            csv.field_size_limit(_LONGEST)  # the limit of the process, so nothing that was read before fails then
        try:
            # strict: else an open quotation mark takes in the records that follow, in silence.
            return next(csv.reader([text], delimiter=self._delimiter, strict=True), [])
        except csv.Error as error:
            raise BadSampleError(f"no CSV: {error}; correct its quotation marks") from None

    def __getitem__(self, k: int) -> dict[str, str]:
        fields = self._record(k + self._first)
        if len(fields) != len(self._names):
            raise BadSampleError(
                f"it has {len(fields)} fields, and there are {len(self._names)} columns; correct it, or give delimiter="
            )
        return {self._names[at]: fields[at] for at in self._wanted}

    def name(self, k: int) -> str:
        return super().name(k + self._first).replace(f"element {k + self._first}", f"record {k}", 1)


class Tsv(Csv):
    """As Csv, with tabs."""

    def __init__(self, path: Any, columns: Sequence[str] | None = None, names: Sequence[str] | None = None) -> None:
        super().__init__(path, "\t", columns, names)


def chosen_columns(path: Any, names: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """The places of the columns that the program wants. Raises InvalidError."""
    check_columns(columns)
    wanted = names if columns is None else columns
    missing = [name for name in columns or () if name not in names]
    if missing:
        raise InvalidError(f"{printable(str(path))} has no column {missing[0]!r}; it has {one_line([*names], 400)}")
    twice = [*(Counter(names) - Counter(set(names)))]
    double = next((name for name in twice if name in wanted), None)
    if double is not None:
        raise InvalidError(
            f"{printable(str(path))} has several columns {double!r}; name others in columns=, or write it with other names"
        )
    return [*range(len(names))] if columns is None else [names.index(name) for name in columns]


def check_columns(columns: Any) -> None:
    """Raises InvalidError for what is no list of names. All files are asked for them, so a generator would be empty."""
    if columns is not None and (
        isinstance(columns, (str, bytes, Mapping)) or not isinstance(columns, Collection) or not len(columns)
    ):
        raise InvalidError(f"columns={one_line(columns)}: give a list of names")
