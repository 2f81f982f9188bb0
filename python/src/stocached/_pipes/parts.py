"""The samples of a preparer, checked, and their parts, which processes prepare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._checks.randomness import Guard
from .._common.errors import WorkerLostError
from .._common.notes import raise_noted
from .._files.errors import PreparerError
from .._files.info import DatasetInfo, sample_bytes
from .._workers import calls
from .preparer import DataPreparer

_PART_BYTES = 4 << 20  # of samples of one size in a part: few tasks, and little memory
_MOST, _VARIABLE = 256, 16  # samples of a part; of samples that differ in size
_END = object()  # after the last sample


def prepared(
    checked: CheckedPreparer, packer: Any, info: DatasetInfo, first: int, workers: int, context: Any
) -> Iterator[Any]:
    """Samples from `first` on in order, as the packer makes them, each part by one of several processes. Raises
    PreparerError if one dies."""
    assert info.samples is not None
    most = _VARIABLE if info.variable else max(1, min(_MOST, _PART_BYTES // max(1, sample_bytes(info.schema()))))
    size = max(1, min(most, (info.samples - first) // (4 * workers)))
    parts = -(-(info.samples - first) // size)
    try:
        for part in calls.results(_Parts(checked, packer, first, info.samples, size), parts, workers, context=context):
            yield from part
    except WorkerLostError as error:
        raise PreparerError(
            f"a process that prepared parts of {size} samples died: {error}. Samples that were written stay: run it "
            "again, and it continues"
        ) from None


@dataclass
class _Parts:
    checked: CheckedPreparer
    packer: Any
    first: int
    stop: int
    size: int

    def __call__(self, k: int) -> list[Any]:
        """The samples of part k."""
        first, made = self.first + k * self.size, list[Any]()
        try:
            for sample in self.checked.samples(first, min(first + self.size, self.stop)):
                made.append(sample if self.packer is None else self.packer.pack(sample))
        except Exception as error:
            raise_noted(error, f"stocached: while it prepared sample {first + len(made)}")
        return made


class CheckedPreparer:
    """A preparer whose samples are counted, and compared if they draw random numbers. guard: finds
    random samples; None: they are allowed."""

    def __init__(self, preparer: DataPreparer, guard: Guard | None) -> None:
        self._preparer, self._guard = preparer, guard

    def samples(self, first: int, stop: int | None) -> Iterator[Any]:
        """What the preparer gives, if it is as many samples as it was asked for, and none is
        random. PreparerError, NondeterministicDatasetError."""
        if first == stop:
            return
        asked = f"{type(self._preparer).__qualname__}.samples({first}, {stop})"
        given = self._given(first, stop)
        index = first
        while (sample := self._next(given, index)) is not _END:
            if stop is not None and index == stop:
                raise PreparerError(f"{asked} gave more than {stop - first} samples")
            yield sample
            index += 1
        if stop is not None and index < stop:
            wanted = f"{stop - first}; dataset_info() says how many there are in all"
            raise PreparerError(f"{asked} gave {index - first} samples, and not {wanted}")

    def _given(self, first: int, stop: int | None) -> Iterator[Any]:
        """Calls the preparer only when the first sample is asked for, so that the guard sees what
        the call draws."""
        yield from self._preparer.samples(first, stop)

    def _next(self, given: Iterator[Any], index: int) -> Any:
        """The next sample, or _END. One that draws random numbers is not stored before it is known
        not to be random."""
        if self._guard is None:
            return next(given, _END)

        def again() -> Any:
            return next(iter(self._preparer.samples(index, index + 1)))

        sample, known = self._guard.load(index, lambda: next(given, _END), again)
        if sample is not _END:
            if not known:
                raise PreparerError(
                    f"{type(self._preparer).__qualname__} draws random numbers for sample {index}, and "
                    f"samples({index}, {index + 1}) did not give it once more, which would tell whether it depends "
                    "on them; prepare(..., allow_random=True) does without"
                )
            self._guard.stored(index, sample, again)
        return sample
