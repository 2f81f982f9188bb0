"""The state of a stream as a dict of numbers and strings, and the parts of it from which another
run can continue (docs/spec/stream-rows.md, State)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._common.errors import InvalidError
from .._common.numbers import index_of, same
from .assignment import NONE, Places
from .scheduler import State
from .settings import StreamSettings
from .snapshots import Snapshot

VERSION = 1
_MOST = 2**63 - 1  # largest number
_KEYS = ("epoch", "step", "first_row", "place", "item", "next")


def _settings(s: StreamSettings) -> dict[str, Any]:
    return {
        "files": len(s.files),
        "rows": s.rows,
        "groups": s.groups,
        "seed": s.seed,
        "shuffle": s.shuffle,
        "ends": s.ends,
        "lengths_known": s.lengths is not None,
    }


def to_dict(s: StreamSettings, state: State) -> dict[str, Any]:
    found = {"version": VERSION, **_settings(s), **{key: getattr(state, key) for key in _KEYS}}
    if state.snapshots:
        first = s.rank * s.batch_size
        found["snapshots"] = [_told(first, one) for _, one in sorted(state.snapshots.items())]
    return found


def _told(first: int, one: Snapshot) -> dict[str, Any]:
    values, items = pickle.loads(one.data)
    return {"row": first + one.row, "item": one.item, "iterable": values, "iterator": items}


def from_dicts(s: StreamSettings, given: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> State:
    """The state of the rows that this rank assigns. InvalidError."""
    parts = list(given) if isinstance(given, (list, tuple)) else [given]
    if not parts:
        raise InvalidError("a list of no states")
    states = sorted((_checked(s, part) for part in parts), key=lambda state: state.first_row)
    epochs = sorted({(state.epoch, state.step) for state in states})
    if len(epochs) > 1:
        want = "they must have been taken after the same batch on all ranks"
        raise InvalidError(f"the states are of different steps, (epoch, step) = {epochs}: {want}")
    return _cut(s, states)


def _cut(s: StreamSettings, states: list[State]) -> State:
    """The rows of this rank, out of states that lie side by side."""
    size = s.rows // s.groups
    first, count = (0, s.rows) if s.lengths is not None else (s.rank * s.batch_size, s.batch_size)
    rows = {state.first_row + k: (place, state.item[k]) for state in states for k, place in enumerate(state.place)}
    following = {state.first_row // size + k: place for state in states for k, place in enumerate(state.next)}
    missing = [row for row in range(first, first + count) if row not in rows]
    if missing:
        raise InvalidError(
            f"the state has rows {min(rows)}..{max(rows)} of {s.rows}, and rank {s.rank} of {s.world_size} reads "
            f"{first}..{first + count - 1}: give the states of all ranks, load_state_dict([...])"
        )
    place, item = zip(*(rows[row] for row in range(first, first + count)))
    following_places = [following[group] for group in range(first // size, (first + count) // size)]
    begin = s.rank * s.batch_size
    # Of rows that other ranks read we keep none.
    snapshots = {
        row - begin: replace(one, row=row - begin)
        for state in states
        for row, one in state.snapshots.items()
        if 0 <= row - begin < s.batch_size
    }
    return State(states[0].epoch, states[0].step, first, list(place), list(item), following_places, snapshots)


def _checked(s: StreamSettings, given: Any) -> State:
    if not isinstance(given, Mapping) or not same(given.get("version"), VERSION):
        version = given.get("version") if isinstance(given, Mapping) else None
        it = f"of version {version!r}" if version is not None else repr(given)[:80]
        raise InvalidError(f"this is no state of streams of version {VERSION}, but {it}")
    for key, mine in _settings(s).items():
        if not same(given.get(key), mine):
            hint = f" (batch_size={s.batch_size} x world_size={s.world_size})" if key == "rows" else ""
            made = f"the state was made with {key}={given.get(key)!r}"
            raise InvalidError(f"{made}, and here it is {mine!r}{hint}: both must be the same to continue")
    try:
        state = State(*(_whole(key, given[key]) for key in _KEYS))
    except KeyError as error:
        raise InvalidError(f"the state has no {error}") from None
    size = s.rows // s.groups
    rows = len(state.place)
    if (
        len(state.item) != rows
        or not rows
        or rows % size
        or state.first_row % size
        or len(state.next) != rows // size
        or state.first_row + rows > s.rows
    ):
        raise InvalidError(
            f"the state has {rows} places, {len(state.item)} items and {len(state.next)} groups from row "
            f"{state.first_row} on, which do not fit together"
        )
    if min(state.place) < NONE or min(*state.item, *state.next, state.epoch, state.step, state.first_row) < 0:
        raise InvalidError("the state has numbers below 0")
    if s.ends != "cycle" and max(state.place) >= len(s.files):
        raise InvalidError(f"the state has place {max(state.place)} of {len(s.files)} files")
    endless = s.ends == "cycle"
    if not endless and max(state.next) >= len(s.files) + s.groups:
        raise InvalidError(f"the state's next is {repr(state.next)[:80]}, and there are {len(s.files)} files")
    if s.lengths is not None and not endless:
        files = Places(len(s.files), s.seed, s.shuffle, state.epoch, endless)
        for place, item in zip(state.place, state.item):
            if place != NONE and item > (length := int(s.lengths[files.file(place)])):
                raise InvalidError(f"the state is after item {item} of file {files.file(place)}, which has {length}")
    state.snapshots = {
        one.row: one for one in _snapshots(state, () if given.get("snapshots") is None else given["snapshots"])
    }
    return state


def _snapshots(state: State, given: Any) -> Iterator[Snapshot]:
    """With rows that count over all ranks."""
    if not isinstance(given, (list, tuple)):
        raise InvalidError(f"the state's snapshots are {repr(given)[:80]}")
    for one in given:
        try:
            row, item = index_of(one["row"]), index_of(one["item"])
            states = one["iterable"], one["iterator"]
        except (TypeError, ValueError, LookupError):
            raise InvalidError(f"a snapshot of the state is {repr(one)[:80]}") from None
        k = row - state.first_row
        if not (0 <= k < len(state.place) and state.place[k] != NONE and 0 <= item <= state.item[k]):
            raise InvalidError(f"the state has a snapshot of row {row} before item {item}, where that row is not")
        # A copy, as of the reader's: the caller may change the state.
        yield Snapshot(row, state.place[k], item, state.step - 1, pickle.dumps(states, pickle.HIGHEST_PROTOCOL))


def _whole(key: str, value: Any) -> Any:
    """A whole number, or a list of them. Numbers of other kinds (numpy's, tensors) may come out of
    a checkpoint."""
    try:
        many = key in ("place", "item", "next")
        if isinstance(value, (str, bytes)):
            raise TypeError
        numbers = [index_of(number) for number in (value if many else [value])]
    except TypeError:
        numbers = [_MOST + 1]
    if any(abs(number) > _MOST for number in numbers):
        raise InvalidError(f"the state's {key} is {repr(value)[:80]}")
    return numbers if many else numbers[0]
