"""Datasets of this package, some of which have samples read before a program asks for them."""

from __future__ import annotations

from typing import Any


class ReadsAhead:
    """Such a dataset. Its `ahead`, if there is one, is for `ahead_of`."""


def ahead_of(dataset: Any) -> Any:
    """A function that has the samples of these indices read soon. None: there is none. Datasets of users may have another
    attribute of this name."""
    return getattr(dataset, "ahead", None) if isinstance(dataset, ReadsAhead) else None
