"""Several processes that prepare the samples of a dataset, each a part, and give them in order."""

from __future__ import annotations

import contextlib
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from .._checks.randomness import Guard
from .._workers.errors import RemoteTraceback, pickled
from .._workers.parent_watch import Parent
from .._workers.processes import PipedProcess, enter, how_it_ended
from ._errors import PreparerError
from ._preparer import DataPreparer

_PART_BYTES = 4 << 20  # of samples that a process is asked for at once, about: few messages, little memory
_PART_SAMPLES = 256
_FIRST_PART = 8  # samples, before anybody knows how large they are
_AHEAD = 2  # parts a process has at a time, so that it need not wait for the next one
_WINDOW = 4  # parts a process by which the first that is missing may lag behind the last that is asked for
_END = object()  # after the last sample
_ENDING = 1.0  # seconds to wait for a process that has closed its pipe


@dataclass
class _Failure:
    """An exception of a preparer."""

    index: int
    error: bytes | None  # pickled; None: it cannot be
    name: str
    text: str


class _Worker(PipedProcess):
    def __init__(self, context: Any, number: int, preparer: DataPreparer, guard: Guard | None, packer: Any, others: list[_Worker]) -> None:
        super().__init__(
            context, _work, (preparer, guard, packer, Parent()), f"prepare-{number}", others, ("the preparer and the storage", "context")
        )
        self.number = number
        self.parts: deque[tuple[int, int]] = deque()  # that it was asked for and has not given

    def ask(self, first: int, stop: int) -> None:
        self.parts.append((first, stop))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: the wait tells
            self.pipe.send((first, stop))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


class Parts:
    """Iterates over samples first..stop-1 in order, as the packer makes them. Ends its processes when it is closed. For one thread."""

    def __init__(self, preparer: DataPreparer, guard: Guard | None, packer: Any, first: int, stop: int, processes: int, context: Any) -> None:
        self._next, self._stop = first, stop  # the next sample that nobody was asked for
        self._part = min(_FIRST_PART, max(1, (stop - first) // processes))
        self._ready: dict[int, list[Any]] = {}  # by their first sample: parts that came before their turn
        self._workers: list[_Worker] = []
        try:
            for number in range(processes):
                self._workers.append(_Worker(context, number, preparer, guard, packer, self._workers))
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Any]:
        due, stop = self._next, self._stop  # due: the next sample that is given
        while due < stop:
            self._ask(due)
            if due not in self._ready:
                self._receive()
                continue
            part = self._ready.pop(due)
            due += len(part)
            yield from part

    def _ask(self, due: int) -> None:
        """Keeps everybody busy, but not so far ahead of what is due that memory fills with what cannot be given yet."""
        furthest = due + _WINDOW * len(self._workers) * self._part
        for worker in self._workers:
            while len(worker.parts) < _AHEAD and self._next < min(self._stop, furthest):
                stop = min(self._next + self._part, self._stop)
                worker.ask(self._next, stop)
                self._next = stop

    def _receive(self) -> None:
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers if worker.parts}
        for pipe in wait(list(busy)):
            worker = busy[pipe]
            try:
                answer = pickle.loads(worker.pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                raise self._died(worker) from None
            first, stop = worker.parts.popleft()
            if isinstance(answer, _Failure):
                raise _rebuilt(answer, worker)
            samples, size = answer
            self._ready[first] = samples
            self._part = max(1, min(_PART_SAMPLES, _PART_BYTES * (stop - first) // max(1, size)))

    def _died(self, worker: _Worker) -> PreparerError:
        worker.process.join(_ENDING)
        code = worker.process.exitcode
        how = "has closed its pipe" if code is None else how_it_ended(code)
        first, stop = worker.parts[0]
        hint = "; SIGKILL is often the kernel's, short of memory: use fewer processes" if code == -signal.SIGKILL else ""
        return PreparerError(
            f"process {worker.process.pid} (number {worker.number}) {how} while it prepared samples {first} to {stop - 1}{hint}. "
            "What is whole stays: run it again, and it goes on"
        )

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []


def _rebuilt(failure: _Failure, worker: _Worker) -> BaseException:
    """The exception of the preparer, with where it came from as its cause."""
    cause = RemoteTraceback(f"\n\nin process {worker.number}, which prepared sample {failure.index}:\n{failure.text}")
    error: BaseException | None = None
    if failure.error is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(failure.error)
    if not isinstance(error, Exception):
        error = PreparerError(f"sample {failure.index}: {failure.name}")
    error.__cause__ = cause
    return error


# ------------------------------------------------------------------------------------------------ in the process


def _work(pipe: Connection, inherited: list[Connection], preparer: DataPreparer, guard: Guard | None, packer: Any, parent: Parent) -> None:
    """Prepares parts until the parent hangs up, or is gone."""
    enter(inherited)
    parent.end_with()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            first, stop = pipe.recv()
            pipe.send_bytes(pickle.dumps(_prepared(preparer, guard, packer, first, stop), pickle.HIGHEST_PROTOCOL))


def _prepared(preparer: DataPreparer, guard: Guard | None, packer: Any, first: int, stop: int) -> tuple[list[Any], int] | _Failure:
    """The samples of a part and about how many bytes they are, or what went wrong."""
    made: list[Any] = []
    size = 0
    try:
        for sample in checked_samples(preparer, guard, first, stop):
            made.append(sample if packer is None else packer.pack(sample))
            size += len(made[-1].stored) if packer is not None and hasattr(made[-1], "stored") else _PART_BYTES // _FIRST_PART
        return made, size
    except Exception as error:
        return _Failure(first + len(made), pickled(error), f"{type(error).__name__}: {error}", traceback.format_exc())


def checked_samples(preparer: DataPreparer, guard: Guard | None, first: int, stop: int | None) -> Iterator[Any]:
    """What a preparer gives, if it is as many samples as it was asked for, and the guard finds none random. PreparerError, NondeterministicDatasetError."""
    given = _given(preparer, first, stop)
    index = first
    while (sample := _next(preparer, guard, given, index)) is not _END:
        if index == stop:
            raise PreparerError(f"{_name(preparer)}.samples({first}, {stop}) gave more than {stop - first} samples")
        yield sample
        index += 1
    if stop is not None and index < stop:
        raise PreparerError(
            f"{_name(preparer)}.samples({first}, {stop}) gave {index - first} samples, and not {stop - first}; dataset_info() says how many there are in all"
        )


def _given(preparer: DataPreparer, first: int, stop: int | None) -> Iterator[Any]:
    """What `samples` gives, asked for when the first one is: so that what it draws at its start is seen."""
    yield from preparer.samples(first, stop)


def _next(preparer: DataPreparer, guard: Guard | None, given: Iterator[Any], index: int) -> Any:
    """The next sample, or _END. One that draws random numbers is not stored before it is known not to be random."""
    if guard is None:
        return next(given, _END)

    def again() -> Any:
        return next(iter(preparer.samples(index, index + 1)))

    sample, known = guard.load(index, lambda: next(given, _END), again)
    if sample is not _END:
        if not known:
            raise PreparerError(
                f"{_name(preparer)} draws random numbers for sample {index}, and samples({index}, {index + 1}) did not give it once more, which would tell "
                "whether it depends on them; prepare(..., allow_random=True) does without"
            )
        guard.stored(index, sample, again)
    return sample


def _name(preparer: DataPreparer) -> str:
    return type(preparer).__qualname__
