"""The policies: which samples get a slot, and which go. docs/spec/policies.md has their rules."""

from __future__ import annotations

from typing import Any, Literal, get_args

from .._common.errors import InvalidError

Policy = Literal["first-come", "first-indices", "cost", "random", "clock", "fifo", "lru", "lfu", "planned"]

_NUMBERS: dict[str, int] = {name: number for number, name in enumerate(get_args(Policy))}  # enum stoc_policy
_NAMES = {number: name for name, number in _NUMBERS.items()}


def number_of(policy: Any) -> int:
    """Raises InvalidError for an unknown name."""
    try:
        return _NUMBERS[policy]
    except (KeyError, TypeError):
        raise InvalidError(f'policy: "{policy}" is not one of {", ".join(_NUMBERS)}') from None


def check(policy: Any) -> None:
    """Raises InvalidError for an unknown name. None is a policy: the default."""
    if policy is not None:
        number_of(policy)


def name_of(number: int) -> str:
    return _NAMES[number]


def slot_bytes_for(typical: int) -> int:
    """The slot_bytes of a variable-size cache that evicts, whose typical sample is so long: the largest
    that is not above a sixteenth of it (docs/spec/arena-eviction.md)."""
    return 1 << min(max((typical // 16).bit_length() - 1, 6), 21)


def evicts(policy: str) -> bool:
    """Whether a set into a full cache may give the slot of another sample to its own."""
    return policy not in ("first-come", "first-indices")
