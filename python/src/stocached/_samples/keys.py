"""The keys of the dicts that a batch is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def any_longer(samples: Sequence[Mapping[Any, Any]]) -> bool:
    """Whether dicts that all have the keys of the first have others too."""
    return len({*map(len, samples if isinstance(samples[0], dict) else [each.keys() for each in samples])}) > 1


def check_keys(samples: Sequence[Mapping[Any, Any]]) -> None:
    """Raises ValueError if the dicts of a batch have not all the same keys: those that the first lacks would be lost."""
    keys = samples[0].keys()
    for number, sample in enumerate(samples):
        if sample.keys() == keys:
            continue
        missing = [key for key in keys if key not in sample.keys()]  # noqa: SIM118 (a TensorDict iterates over rows)
        more = [key for key in sample.keys() if key not in keys]  # noqa: SIM118
        if missing or more:
            unlike = (
                f"no {missing[0]!r}, and its first one has it" if missing else f"{more[0]!r}, and its first one has not"
            )
            raise ValueError(
                f"sample {number} of a batch of {len(samples)} has {unlike}; give all samples the same keys, such as by .map, or a "
                "collate_fn= that handles them"
            )
