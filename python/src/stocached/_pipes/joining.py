"""Items of a window that become one: rows of tokens, and batches of items that are alike in length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .stage import Item
from .visits import Window


def batches(stage: Any, items: list[Item], window: Window) -> Iterator[Item]:
    raise NotImplementedError


def rows(stage: Any, items: list[Item]) -> Iterator[Item]:
    raise NotImplementedError
