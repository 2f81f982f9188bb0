"""Objects with `state_dict()` and `load_state_dict(state)`: the protocol that torchdata calls
Stateful."""

from __future__ import annotations

from typing import Any

from .._common.errors import StateError


def is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def state_of(value: Any) -> Any:
    """None for an object without states."""
    return value.state_dict() if is_stateful(value) else None


def give_back(value: Any, state: Any, what: str) -> None:
    """Loads what `state_of` returned, unless that was None. what: names the object in the error."""
    if state is None:
        return
    if not is_stateful(value):
        has = f"{what} of this loader has no load_state_dict(): {type(value).__name__}"
        raise StateError(f"the state holds a state of {what}, and {has}")
    value.load_state_dict(state)
