"""Items of a window that become one: batches of items that are alike in length, and rows of tokens."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import InvalidError
from .._common.notes import raise_noted
from .._common.numbers import whole
from .._random.sample_seeds import chain
from .mixing import permutation
from .stage import Item
from .visits import Visit, Window

_USE = 3  # tells the seed of this permutation from that of .shuffle
_SHARE = 16  # a further batch is worth n / 16 of padding, or less
_OWN = ("segments", "positions")  # what a row has beside the tokens


def batches(stage: Any, items: list[Item], window: Window) -> Iterator[Item]:
    """stage: a Batch."""
    kept: list[Item] = []
    lengths: list[int] = []
    for item in items:
        try:
            length = _length(stage, item)
        except Exception as error:
            window.left_out(_where(stage, item), error)
            continue
        if length > stage.size:
            raise stage.refuse(f"{_where(stage, item)} has the length {length:,}, and n is {stage.size:,}")
        kept.append(item)
        lengths.append(length)
    if not kept:
        return
    sizes = np.array(lengths, np.int64)
    order = np.argsort(-sizes, kind="stable")
    ends = _ends(sizes[order], stage.size)
    places = order.tolist()
    for b in permutation(len(ends), chain(window.seed, _USE), window).tolist():
        made = [kept[k] for k in places[ends[b - 1] if b else 0 : ends[b]]]
        yield made[0][0], made[0][1], [item for *_, item in made]


def _length(stage: Any, item: Item) -> int:
    try:
        return whole("the length", stage.by(item[2]))
    except Exception as error:
        raise_noted(error, f"stocached: in {stage.shown()}{stage.line}, with {_where(stage, item)}")


def _where(stage: Any, item: Item) -> str:
    return str(stage.above[0].where(item[0].element, item[1]))


def _ends(lengths: npt.NDArray[np.int64], n: int) -> list[int]:
    """Where batches end (docs/spec/pipes.md). lengths: the longest first."""
    total, share = int(lengths.sum()), _SHARE
    while True:
        ends = _cut(lengths, n, share)
        firsts = np.array([0, *ends[:-1]])
        space = int((lengths[firsts] * (ends - firsts)).sum())
        if 75 * n > total or 40 * (space - total) <= space:
            return ends
        share *= 2


def _cut(lengths: npt.NDArray[np.int64], n: int, share: int) -> list[int]:
    """Where batches end, so that longest * count + n / share of all together is the least."""
    count, longest = len(lengths), max(int(lengths[0]), 1)
    n = min(n, share * longest * count)  # from there on all are one batch
    costs = share * lengths
    most = np.minimum(n // np.maximum(lengths, 1), count)  # items of a batch that begins with this one
    least = np.full(count + 1, np.iinfo(np.int64).max)  # the least cost of the first k items
    least[0], numbers = 0, np.arange(1, count + 1)
    for first, (cost, items) in enumerate(zip(costs.tolist(), most.tolist())):
        part = least[first + 1 : first + 1 + items]
        np.minimum(part, numbers[: len(part)] * cost + (int(least[first]) + n), out=part)
    ends, end = [], count
    while end:
        ends.append(end)
        low = max(0, end - int(most[end - 1]))
        counts = np.arange(end - low, 0, -1)
        made = least[low:end] + costs[low:end] * counts + n
        end = low + int(np.argmax((made == least[end]) & (counts <= most[low:end])))
    return ends[::-1]


def rows(stage: Any, items: list[Item]) -> Iterator[Item]:
    """stage: a Pack."""
    kept: list[tuple[Visit, int, dict[str, Any]]] = []
    lengths: list[int] = []
    for visit, ordinal, item in items:
        try:
            columns = _columns(item)
            length = _tokens(columns, stage.length)
            if length and kept:
                _check_alike(columns, kept[0][2])
        except InvalidError as error:
            raise stage.refuse(f"{_where(stage, (visit, ordinal, item))} {error}") from None
        if length:
            kept.append((visit, ordinal, columns))
            lengths.append(length)
    for row in _fitted(lengths, stage.length):
        visit, ordinal, first = kept[row[0]]
        sizes = np.array([lengths[k] for k in row])
        made = {key: _joined([kept[k][2][key] for k in row], stage.length) for key in first}
        own = _numbered(sizes, stage.length)
        if not isinstance(next(iter(first.values())), np.ndarray):
            own = [sys.modules["torch"].from_numpy(numbers) for numbers in own]
        yield visit, ordinal, made | dict(zip(_OWN, own))


def _columns(item: Any) -> dict[str, Any]:
    """The arrays of an item. Raises InvalidError, without its subject, as those below."""
    columns = dict(item) if isinstance(item, Mapping) else {"tokens": item}
    tensor = getattr(sys.modules.get("torch"), "Tensor", np.ndarray)
    for key, array in columns.items():
        if not isinstance(array, (np.ndarray, tensor)):
            what = f"is of the type {type(array).__name__}"
        elif array.ndim != 1 or (isinstance(array, np.ndarray) and array.dtype.kind not in "biufc"):
            what = f"has the shape {tuple(array.shape)} and the type {array.dtype}"
        else:
            continue
        raise InvalidError(
            f"cannot be packed: {key!r} {what}; .pack takes arrays of tokens with one dimension, or dicts of such "
            "arrays; write .map above it that makes them, or leaves other keys out"
        )
    own = [key for key in _OWN if key in columns]
    if own or not columns:
        raise InvalidError(f"cannot be packed: {f'.pack makes {own[0]!r} itself' if own else 'it is an empty dict'}")
    return columns


def _tokens(columns: dict[str, Any], most: int) -> int:
    lengths = {key: len(array) for key, array in columns.items()}
    length = next(iter(lengths.values()))
    if any(other != length for other in lengths.values()):
        raise InvalidError(f"cannot be packed: the lengths of its arrays are {lengths}; give equal ones")
    if length > most:
        raise InvalidError(f"has {length:,} tokens, and a row has {most:,}; cut it with .map or .flat_map above")
    return length


def _check_alike(columns: dict[str, Any], first: dict[str, Any]) -> None:
    if columns.keys() == first.keys() and all(
        array.dtype == first[key].dtype
        for key, array in columns.items()  # those of torch differ from NumPy's
    ):
        return
    one, other = (
        {key: f"{type(array).__name__} of {array.dtype}" for key, array in each.items()} for each in (columns, first)
    )
    raise InvalidError(f"cannot be packed: it has {one}, and an item before it {other}; make all items alike")


def _fitted(lengths: list[int], length: int) -> list[list[int]]:
    """Items, by number, of rows of this length: the longest item first, each in the row where it leaves the least
    space."""
    rows: list[list[int]] = []
    spaces: list[int] = []  # the space of rows that have some, with the row in the lower 32 bits; sorted
    least = min(lengths, default=0)
    for k in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        size = lengths[k]
        at = bisect.bisect_left(spaces, size << 32)
        if at < len(spaces):
            space, row = divmod(spaces.pop(at), 2**32)
            rows[row].append(k)
        else:
            space, row = length, len(rows)
            rows.append([k])
        if space - size >= least:
            bisect.insort(spaces, (space - size) << 32 | row)
    return sorted(map(sorted, rows))


def _joined(arrays: list[Any], length: int) -> Any:
    """Arrays one after the other, and zeros after them. A new array."""
    first = arrays[0]
    if isinstance(first, np.ndarray):
        made = np.zeros(length, first.dtype)
        np.concatenate(arrays, out=made[: sum(map(len, arrays))])
        return made
    joined = sys.modules["torch"].cat(arrays).detach()
    made = joined.new_zeros(length)
    made[: len(joined)] = joined
    return made


def _numbered(sizes: npt.NDArray[np.int64], length: int) -> list[Any]:
    """The segments and the positions of a row of items of these sizes."""
    total = int(sizes.sum())
    segments, positions = np.zeros(length, np.int32), np.zeros(length, np.int32)
    segments[:total] = np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int32), sizes)
    positions[:total] = np.arange(total, dtype=np.int32) - np.repeat(np.cumsum(sizes) - sizes, sizes).astype(np.int32)
    return [segments, positions]
