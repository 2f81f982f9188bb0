"""Samples that cannot be used, and that bad_samples="skip" leaves out of their batches."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._common.errors import BadSampleError, FetchError, UnsupportedError

_KEPT = 256  # bad samples whose reasons a loader keeps
_SHOWN = 3  # the most in a message


@dataclass(frozen=True)
class BadSample:
    """A sample that a loader left out of its batch."""

    index: Any  # in the dataset; of a pipe without an index a text, which names the element
    file: str | None  # None: it is unknown, or the reason names it
    reason: str  # what its load raised

    def __str__(self) -> str:
        what = self.index if isinstance(self.index, str) else f"sample {self.index}"
        return f"{what}: {self.reason if self.file is None or self.file in what else f'{self.file}: {self.reason}'}"


def bad_sample(index: Any, error: BaseException) -> BadSample | None:
    """What an error says about the sample; None: it is another error."""
    if isinstance(error, BadSampleError) and not isinstance(error, UnsupportedError):
        file = getattr(error, "file", None)
        return BadSample(index, None if file == index else file, getattr(error, "reason", str(error)))
    if isinstance(error, FetchError) and error.bad:
        return BadSample(index, None, error.failures[0].message)
    return None


def all_bad(bad: Sequence[BadSample]) -> BadSampleError:
    """The error for a batch that has no other sample."""
    more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return BadSampleError(f"all samples of this batch are bad: {'; '.join(map(str, bad[:_SHOWN]))}{more}")


class BadSamples:
    """The bad samples of a loader. Only the thread that iterates changes it."""

    def __init__(self) -> None:
        self._known: dict[Any, BadSample | None] = {}  # by index
        self.count = 0  # each once an epoch
        self.kept: list[BadSample] = []

    def without(self, wanted: Any) -> tuple[Any, list[BadSample]]:
        """The indices of a batch without those that were bad before, and what these were. If all were
        bad, they are tried again: the error of the batch then has their reasons."""
        if not self._known:
            return wanted, []
        indices = wanted.tolist() if isinstance(wanted, np.ndarray) else wanted
        try:
            left = [index for index in indices if index not in self._known]
            known = [
                self._known[index] or BadSample(index, None, "bad before") for index in indices if index in self._known
            ]
        except TypeError:  # indices of the user that cannot be hashed
            return wanted, []
        if not known or not left:
            return wanted, []
        return np.array(left, wanted.dtype) if isinstance(wanted, np.ndarray) else left, known

    def met(self, bad: Sequence[BadSample], counted: set[Any]) -> None:
        """Notes the bad samples of a batch that the training loop gets. counted: those of this epoch."""
        first = None
        for sample in bad:
            try:
                fresh, counts = sample.index not in self._known, sample.index not in counted
                counted.add(sample.index)
            except TypeError:
                fresh = counts = True
            else:
                if fresh:
                    self._known[sample.index] = sample if len(self.kept) < _KEPT else None
            self.count += counts
            if fresh and len(self.kept) < _KEPT:
                self.kept.append(sample)
            if self.count == 1 and counts:
                first = sample
        if first is not None:
            warnings.warn(
                f"stocached: a bad sample was left out of its batch: {first}. Others are not reported; stats() of "
                "the loader counts and lists them",
                stacklevel=5,
            )
