"""Braces in the pattern of shards, as the server's source tar expands them: source/tar/testdata/braces.json has cases of
both."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from itertools import pairwise

from .._common.errors import InvalidError

_MOST = 1 << 20  # paths: a mistake such as {0..999999999} must not use up the memory
_NUMBERS = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.-?([0-9]+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?([0-9]+))?")
_ESCAPE = re.compile(r"\\(?:([^*?[])|(.))", re.DOTALL)
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase  # the order of letters in a range


def expanded(pattern: str) -> list[str]:
    """The paths of a pattern, like a shell and webdataset: {a,b}, {000..012} (with equal width if a number begins with
    0), {0..10..2}, {a..f}, nested ones. A backslash makes the next character literal: a wildcard becomes [*], [?], [[]."""
    try:
        return [_ESCAPE.sub(lambda escape: escape[1] or f"[{escape[2]}]", path) for path in _expand(pattern)]
    except ValueError as error:
        raise InvalidError(f"{pattern!r}: {error}") from None


def _expand(pattern: str) -> list[str]:
    """As `expanded`, but keeps the backslashes."""
    paths, end, depth, marks = [""], 0, 0, list[int]()  # marks: the outer brace and the commas that split its inside
    for mark in re.finditer(r"\\.|[{},]", pattern, re.DOTALL):
        depth += (mark[0] == "{") - (mark[0] == "}")
        if depth < 0:
            raise ValueError("a } without its {; write \\} for the character itself")
        if mark[0] == "{" and depth == 1:
            marks = [mark.start()]
        elif mark[0] == "," and depth == 1:
            marks.append(mark.start())
        elif mark[0] == "}" and depth == 0:
            choices = _choices([pattern[a + 1 : b] for a, b in pairwise([*marks, mark.start()])])
            _check(len(paths) * len(choices))
            paths = [path + pattern[end : marks[0]] + choice for path in paths for choice in choices]
            end = mark.end()
    if depth:
        raise ValueError("a { without its }; write \\{ for the character itself")
    return [path + pattern[end:] for path in paths]


def _choices(parts: list[str]) -> list[str]:
    """Of the inside of a pair of braces, which commas split."""
    if len(parts) == 1:
        if found := _NUMBERS.fullmatch(parts[0]):
            ends = found[1], found[2]
            wide = any(re.match("-?0.", one) for one in ends)
            width = max(map(len, ends)) if wide else 0
            return _steps(int(ends[0]), int(ends[1]), found[3], lambda k: f"{k:0{width}}")
        if found := _LETTERS.fullmatch(parts[0]):
            return _steps(_ALPHABET.index(found[1]), _ALPHABET.index(found[2]), found[3], _ALPHABET.__getitem__)
        return [f"{{{one}}}" for one in _expand(parts[0])]  # {x} is no choice: it stays
    choices = []
    for part in parts:
        choices += _expand(part)
        _check(len(choices))
    return choices


def _steps(first: int, last: int, step: str | None, text: Callable[[int], str]) -> list[str]:
    """Upwards or downwards, both ends included."""
    way = 1 if first <= last else -1
    numbers = range(first, last + way, way * max(int(step or 1), 1))
    _check((last - first) * way // abs(numbers.step) + 1)
    return [text(k) for k in numbers]


def _check(paths: int) -> None:
    if paths > _MOST:
        raise ValueError(f"the pattern has more than {_MOST} paths")
