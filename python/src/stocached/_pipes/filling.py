"""Samples that are made once, by this process or by several, checked, and saved in order: what `prepare` and `.write()`
do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from .._checks.fills import Fills
from .._checks.randomness import Guard, Remedy
from .._common.errors import InvalidError, NondeterministicDatasetError, SchemaError, WorkerLostError
from .._common.notes import noted, raise_noted
from .._prepared.errors import PreparerError
from .._prepared.info import DatasetInfo, sample_bytes, values_of
from .._prepared.storage import DataStorage
from .._workers import calls

_PART_BYTES = 4 << 20  # a part has so many bytes of samples of one size: few tasks, and little memory
_MOST, _VARIABLE = 256, 16  # samples of a part; of samples that differ in size
_STAYS = "Files that are whole stay: run it again, and it continues after them"
_END = object()  # after the last sample


@contextlib.contextmanager
def _says_what_stays() -> Iterator[None]:
    try:
        yield
    except WorkerLostError as error:
        raise PreparerError(f"{error}. {_STAYS}") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise_noted(error, f"stocached: the disk is full. Make room. {_STAYS}")


@_says_what_stays()
def fill(
    given: Any,
    storage: DataStorage,
    remedy: Remedy,
    *,
    processes: int = 0,
    context: str | None = None,
    wait: float | None = None,
    restart: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
    allow_random: bool = False,
) -> bool:
    """As `prepare`. given: has the methods of a DataPreparer."""
    info = given.dataset_info()
    if info is None:
        raise PreparerError(f"{type(given).__qualname__}.dataset_info() returned None. Is a return missing?")
    info = info.checked()
    if processes and info.samples is None:
        advice = "give samples= in dataset_info(), or leave out processes="
        raise InvalidError(f"processes={processes} need to know how many samples there are; {advice}")
    if storage.is_prepared(info):
        return False
    first = storage.start_preparation(info, wait=wait, restart=restart)
    if first is None:
        return False
    try:
        if progress is not None:
            progress(first, info.samples)
        packer = storage.packer() if processes else None
        save: Any = storage.save_sample if packer is None else storage.save_packed
        encoded = values_of(info.schema(), info.variable).encoded
        checked = _Checked(given, None if allow_random else Guard(Fills(), remedy, encoded, _nothing_stays))
        samples: Any = checked.samples(first, info.samples)
        if processes and info.samples is not None and first < info.samples:
            samples = _by_processes(checked, packer, info, first, min(processes, info.samples - first), context)
        with closing(samples):
            for index, sample in enumerate(samples, first):
                with noted(f"stocached: it is sample {index}", SchemaError):
                    save(index, sample)
                if progress is not None:
                    progress(index + 1, info.samples)
        storage.finish_preparation()
    except NondeterministicDatasetError:
        storage.discard_preparation()
        raise
    finally:
        storage.stop_preparation()
    return True


def _nothing_stays(fills: Fills) -> str:
    return "The preparation is discarded."


def _by_processes(
    checked: _Checked, packer: Any, info: DatasetInfo, first: int, workers: int, context: Any
) -> Iterator[Any]:
    """Samples from `first` on in order, as the packer makes them, each part by one of several processes."""
    assert info.samples is not None
    most = _VARIABLE if info.variable else max(1, min(_MOST, _PART_BYTES // max(1, sample_bytes(info.schema()))))
    size = max(1, min(most, (info.samples - first) // (4 * workers)))
    parts = _Parts(checked, packer, range(first, info.samples), size)
    for some in calls.samples(parts, workers, 1, order="sequential", multiprocessing_context=context):
        yield from some


@dataclass
class _Parts:
    """A dataset whose items are lists of samples."""

    checked: _Checked
    packer: Any
    wanted: range
    size: int

    def __len__(self) -> int:
        return -(-len(self.wanted) // self.size)

    def doing(self, wanted: list[int]) -> str:
        """What a worker does, for the message if it dies."""
        part = self.wanted[wanted[0] * self.size : (wanted[-1] + 1) * self.size]
        return f"while it prepared samples {part[0]} to {part[-1]}"

    def __getitem__(self, k: int) -> list[Any]:
        part, made = self.wanted[k * self.size : (k + 1) * self.size], list[Any]()
        try:
            for sample in self.checked.samples(part.start, part.stop):
                made.append(sample if self.packer is None else self.packer.pack(sample))
        except Exception as error:
            raise_noted(error, f"stocached: while it prepared sample {part.start + len(made)}")
        return made


class _Checked:
    """Samples that are counted, and compared if they draw random numbers. guard: finds random samples; None: they are
    allowed."""

    def __init__(self, given: Any, guard: Guard | None) -> None:
        self._given, self._guard = given, guard

    def samples(self, first: int, stop: int | None) -> Iterator[Any]:
        """Those that are given, if they are as many as it asked for, and none is random. PreparerError,
        NondeterministicDatasetError."""
        if first == stop:
            return
        asked = f"{type(self._given).__qualname__}.samples({first}, {stop})"
        given = self._called(first, stop)
        index = first
        while (sample := self._next(given, index)) is not _END:
            if stop is not None and index == stop:
                raise PreparerError(f"{asked} gave more than {stop - first} samples")
            yield sample
            index += 1
        if stop is not None and index < stop:
            wanted = f"{stop - first}; dataset_info() says how many there are in all"
            raise PreparerError(f"{asked} gave {index - first} samples, and not {wanted}")

    def _called(self, first: int, stop: int | None) -> Iterator[Any]:
        """Begins only when the first sample is asked for, so that the guard sees what the call draws."""
        given = self._given.samples(first, stop)
        if given is None:
            raise PreparerError(f"{type(self._given).__qualname__}.samples() returned None. Is a yield missing?")
        yield from given

    def _next(self, given: Iterator[Any], index: int) -> Any:
        """The next sample, or _END. One that draws random numbers is not stored before it is known
        not to be random."""
        if self._guard is None:
            return next(given, _END)

        def again() -> Any:
            return next(iter(self._given.samples(index, index + 1)))

        sample, known = self._guard.load(index, lambda: next(given, _END), again)
        if sample is not _END:
            if not known:
                raise PreparerError(
                    f"{type(self._given).__qualname__} draws random numbers for sample {index}, and "
                    f"samples({index}, {index + 1}) did not give it once more, which would tell whether it depends "
                    "on them; prepare(..., allow_random=True) does without"
                )
            self._guard.stored(index, sample, again)
        return sample
