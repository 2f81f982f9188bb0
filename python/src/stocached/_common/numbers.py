"""Numbers that users give."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from .errors import InvalidError, SampleIndexError, StateError

_END = 2**64  # end of what the C library takes


def index_of(value: Any) -> int:
    """`operator.index` of a number. TypeError for a truth too: it was meant for another argument."""
    if type(value) is int:
        return value
    if _is_truth(value):
        raise TypeError(f"{value!r} is no number")
    return operator.index(value)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def whole(name: str, value: Any, least: int = 0, most: int = _END - 1) -> int:
    """The number, of any type (NumPy's and tensors too). Raises InvalidError, naming the
    argument, for one that is not whole or not within these."""
    try:
        number = index_of(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise InvalidError(
            f"{name}={value!r} is not a whole number of {least} {'or more' if most >= _END // 2 - 1 else f'to {most}'}"
        )
    return number


def real(name: str, value: Any, wanted: str, least: float = -math.inf, most: float = math.inf) -> float:
    """As `whole`, for a number that need not be whole. wanted: what it must be, for the error."""
    try:
        number = math.nan if isinstance(value, (str, bytes)) or _is_truth(value) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one: of a tensor of several
        number = math.nan
    if not least <= number <= most:
        raise InvalidError(f"{name}={value!r}; it must be {wanted}")
    return number


def seconds(name: str, value: Any, most: float = math.inf) -> float:
    """A time that a program gives."""
    return real(name, value, f"seconds, 0 {'or more' if most == math.inf else f'to {most:g}'}", 0, most)


def number_of(index: Any) -> int:
    """The number of a sample that a sampler or a program names. Raises InvalidError for what is no whole number, such as
    a text or a tuple."""
    try:
        if not getattr(index, "ndim", 0):
            return index_of(index)
    except TypeError:
        pass
    raise InvalidError(
        f"{index!r:.100} names no sample: indices are whole numbers. Only without a cache, a sampler may give other keys, "
        "from its first batch on"
    )


def position_of(index: Any, samples: int) -> int:
    """`number_of`, from 0 on. Negative numbers count from the end. Raises SampleIndexError for one outside."""
    number = number_of(index)
    if -samples <= number < samples:
        return number + samples if number < 0 else number
    raise SampleIndexError(f"index {number} is out of range; the dataset has {samples} samples")


def same(given: Any, wanted: Any) -> bool:
    """Whether a value of a checkpoint is the wanted one. An array, which is never, has no truth."""
    try:
        return bool(given == wanted)
    except Exception:
        return False


def number_in(state: Mapping[str, Any], key: str, most: int = 2**63 - 1) -> int:
    """A number of a checkpoint, 0 or more. Raises StateError, naming the key."""
    if key not in state:
        raise StateError(f"the state lacks {key}")
    try:
        return whole(f"the state's {key}", state[key], 0, most)
    except InvalidError as error:
        raise StateError(str(error)) from None
