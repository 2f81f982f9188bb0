"""Digests of lists of plain values, of which there may be millions: numbers, texts, bytes, None, and
lists, tuples and dicts of them."""

from __future__ import annotations

import hashlib
import marshal
import os
from itertools import chain
from typing import Any, NamedTuple

_PLAIN = {type(None), bool, int, float, complex, str, bytes}
_LONG = {str, bytes}
_INNER = {list, tuple, dict}
_DEPTH, _DEEP = 50, 5  # a list that holds itself is deeper than 50
_PIECE = 50_000  # items whose bytes are in memory at a time
_MOST_BYTES = 256 * 1024**2  # limit of all texts and bytes
_TEXTS = 10_000  # texts of one depth that may be paths
# The last format of marshal that depends on values alone. Later ones say which values are one object.
_FORMAT = 2


class Plain(NamedTuple):
    """What `of_plain` tells."""

    digest: bytes
    texts: list[str]  # texts that may be paths; if there are many, some that are spread evenly


def of_plain(items: list[Any]) -> Plain | None:
    """The digest of items in their order; None if a value among them is not plain, or if they are too long."""
    texts: list[str] = []
    level, length = items, 0
    for depth in range(_DEPTH):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN | _INNER:
            return None
        if kinds & _LONG:
            length += sum(map(len, level if kinds <= _LONG else [value for value in level if type(value) in _LONG]))
            texts += [v for v in level[:: len(level) // _TEXTS + 1] if type(v) is str and os.sep in v]
        if length > _MOST_BYTES:
            return None
        if not kinds & _INNER:
            return Plain(_digest(items), texts)
        level = _inside(level, kinds, depth)
    return None


def _inside(level: list[Any], kinds: set[type], depth: int) -> list[Any]:
    """The values in lists, tuples and dicts. Deep down, a value that occurs several times counts once: lists may hold
    each other."""
    if depth >= _DEEP:
        level = list({id(value): value for value in level}.values())
    if not kinds <= {list, tuple}:
        level = [value for value in level if type(value) in _INNER]
        level += [list(value.values()) for value in level if type(value) is dict]
    return list(chain.from_iterable(level))


def _digest(items: list[Any]) -> bytes:
    made = hashlib.blake2b(digest_size=16)
    for first in range(0, len(items), _PIECE):
        made.update(marshal.dumps(items[first : first + _PIECE], _FORMAT))
    return made.digest()
