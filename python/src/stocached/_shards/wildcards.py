"""Wildcards in the patterns of files, and the one listing of folders. In the pattern of shards they are those of the
server's source tar: source/tar/testdata/wildcards.json has cases of both."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError

WILD = re.compile(r"[*?[]")
_ANY = "**"  # folders, or none
# A [ with its ]: characters or ranges, after ! or ^ all others.
_CHOICE = r"\[[!^]?(?:[^]\-](?:-[^]\-])?)+\]"
_LITERAL = re.compile(r"\[([*?[])\]")
INDEX = b".stocached-index"
_PIECE = 1 << 17  # names that are Python's objects at a time

Run = tuple[bytes, npt.NDArray[Any]]
"""A folder, "" or with its slash, and names of files in it."""


def matches(pattern: str) -> list[str]:
    """The shards that match, in byte order."""
    return [os.fsdecode(folder + name) for folder, names in found(*split(pattern)) for name in names.tolist()]


def plain(pattern: str) -> str | None:
    """The one name that a pattern stands for; None: it has wildcards. It is one of `expanded`."""
    return None if WILD.search(_LITERAL.sub("", pattern)) else _LITERAL.sub(r"\1", pattern)


def literal(name: str) -> str:
    """The pattern of one name, for `expanded`."""
    return re.sub(r"[\\{},*?[]", r"\\\g<0>", name)


def split(pattern: str) -> tuple[str, list[str]]:
    """The folder before the first wildcard, "" or with its slash, and the parts after it. Raises InvalidError."""
    if "[" in re.sub(_CHOICE, "", pattern):
        raise InvalidError(f"{pattern!r} is no pattern: [ needs a ] with characters or ranges before it")
    wild = WILD.search(pattern)
    end = pattern.rfind("/", 0, wild.start() if wild else len(pattern)) + 1
    parts = [part for part in pattern[end:].split("/") if part]
    for part in parts:
        if _ANY in part and part != _ANY:
            raise InvalidError(
                f"{pattern!r} is no pattern: ** stands for folders, so it is a whole part, as in a/**/*.tar"
            )
    return pattern[:end], parts


def found(folder: str, parts: list[str]) -> Iterator[Run]:
    """The files whose paths below a folder match, in byte order, without index files. Links count as what they lead to.

    * and ? and [ ] match within a name, ** any folders. A hidden name needs a part with its dot."""
    parts = [part for part, before in zip(parts, [None, *parts]) if part != _ANY or before != _ANY]
    if parts[-1] == _ANY:
        parts = [*parts, "*"]
    yield from _found(os.fsencode(folder), [_Part(part) for part in parts], frozenset([0]), frozenset())


class _Part:
    """A part of a pattern, between slashes."""

    def __init__(self, text: str) -> None:
        self.any, self._all, self._hidden = text == _ANY, text in (_ANY, "*"), text.startswith(".")
        self._decoded = "?" in text or "[" in text  # it must know where characters end
        shell = fnmatch.translate(text.replace("[^", "[!"))
        self._match: Any = re.compile(shell if self._decoded else os.fsencode(shell)).match

    def seen(self, names: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Which names it sees."""
        shown: npt.NDArray[Any] = names.view(np.uint8)[:: names.itemsize] != ord(".")
        if self._all:
            return shown
        match, some = self._match, names.tolist()
        fits = [match(name) is not None for name in (map(os.fsdecode, some) if self._decoded else some)]
        return np.array(fits, bool) if self._hidden else shown & np.array(fits, bool)


def _found(folder: bytes, parts: list[_Part], places: frozenset[int], above: frozenset[Any]) -> Iterator[Run]:
    """places: the parts that names in this folder may match. above: folders that this one lies in."""
    if not os.path.isdir(folder or b"."):
        return
    places |= {place + 1 for place in places if parts[place].any}
    if any(parts[place].any for place in places):
        status = os.stat(folder or b".")
        if (status.st_dev, status.st_ino) in above:  # a link back, which would never end
            return
        above |= {(status.st_dev, status.st_ino)}
    names, folders = _listed(folder)
    fit = parts[-1].seen(names) & (np.char.find(names, INDEX) < 0) if len(parts) - 1 in places else slice(0)
    names = names[fit]
    seen = {place: parts[place].seen(folders) for place in places}
    first = 0
    for k, name in enumerate(folders.tolist()):
        below = {place if parts[place].any else place + 1 for place in places if seen[place][k]} - {len(parts)}
        if below:
            end = int(np.searchsorted(names, name + b"/"))
            if end > first:
                yield folder, names[first:end]
            first = end
            yield from _found(folder + name + b"/", parts, frozenset(below), above)
    if len(names) > first:
        yield folder, names[first:]


def _listed(folder: bytes) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The names of files and of folders, each in the byte order of paths."""
    others: list[os.DirEntry[bytes]] = []
    pieces = [np.empty(0, "S1")]
    with os.scandir(folder or b".") as entries:
        while some := list(islice(entries, _PIECE)):
            # append returns None, which is false.
            names = [entry.name for entry in some if entry.is_file() or others.append(entry)]  # type: ignore[func-returns-value]
            if names:
                pieces.append(np.array(names))
    folders = [entry.name for entry in others if entry.is_dir()]
    # A file behind a broken link stays: who reads it gets the error.
    broken = [entry.name for entry in others if entry.is_symlink() and not os.path.exists(entry.path)]
    if broken:
        pieces.append(np.array(broken))
    files = np.concatenate(pieces)
    files.sort()
    return files, np.array(sorted(folders, key=lambda name: name + b"/"), None if folders else "S1")
