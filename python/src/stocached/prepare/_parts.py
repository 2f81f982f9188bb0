"""Several processes that prepare the samples of a dataset, each a part, and give them in order."""

from __future__ import annotations

import contextlib
import pickle
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from .._checks.randomness import Guard
from .._workers.errors import RemoteError
from .._workers.processes import Owner, Start, WorkerProcess, start_context
from ._errors import PreparerError
from ._preparer import DataPreparer

# About how much of samples a process is asked for at once: few messages, and little memory.
_PART_BYTES = 4 << 20
_PART_SAMPLES = 256
_FIRST_PART = 8  # samples, before it is known how large they are
_AHEAD = 2  # parts that a process has at a time, so that it need not wait for the next one
_WINDOW = 4  # the most parts for each process from the first that is missing to the last that is asked for
_END = object()  # after the last sample


class _Worker(WorkerProcess):
    def __init__(self, start: Start, number: int, *arguments: Any) -> None:
        super().__init__(start, number, number, *arguments)
        self.parts: deque[tuple[int, int]] = deque()  # parts asked for and not given yet


class Parts(Owner):
    """Iterates over samples first..stop-1 in order, as the packer makes them. For one thread."""

    _workers: list[_Worker]

    def __init__(self, checked: CheckedPreparer, packer: Any, first: int, stop: int, workers: int, method: Any) -> None:
        self._next, self._stop = first, stop  # the next sample that no process was asked for
        self._part = min(_FIRST_PART, max(1, (stop - first) // workers))
        # By their first sample: parts that came before their turn.
        self._ready: dict[int, list[Any]] = {}
        start = Start(start_context(method), _work, "the preparer and the storage", "context")
        super().__init__()
        self._start_all(_Worker(start, number, checked, packer) for number in range(workers))

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
        """Keeps all workers busy. They stay near the sample that is due, as later ones take memory until their turn."""
        furthest = due + _WINDOW * len(self._workers) * self._part
        for worker in self._workers:
            while len(worker.parts) < _AHEAD and self._next < min(self._stop, furthest):
                part = self._next, min(self._next + self._part, self._stop)
                worker.parts.append(part)
                worker.send(part)
                self._next = part[1]

    def _receive(self) -> None:
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers if worker.parts}
        for pipe in wait(list(busy)):
            worker, answer = busy[pipe], busy[pipe].receive()
            first, stop = worker.parts.popleft()
            if answer is None:
                death = worker.death(f"while it prepared samples {first} to {stop - 1}")
                raise PreparerError(f"{death}. Samples that were written stay: run it again, and it continues")
            if isinstance(answer, RemoteError):
                raise answer.rebuilt(PreparerError)
            samples, size = answer
            self._ready[first] = samples
            self._part = max(1, min(_PART_SAMPLES, _PART_BYTES * (stop - first) // max(1, size)))


# ------------------------------------------------------------------------------------ in the worker


def _work(pipe: Connection, number: int, checked: CheckedPreparer, packer: Any) -> None:
    """Prepares parts until the parent closes the pipe."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            first, stop = pipe.recv()
            answer = _prepared(number, checked, packer, first, stop)
            # `send` would share the memory of tensors.
            pipe.send_bytes(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))


def _prepared(number: int, checked: CheckedPreparer, packer: Any, first: int, stop: int) -> Any:
    """The samples of a part and about how many bytes they are, or a RemoteError."""
    made: list[Any] = []
    size = 0
    try:
        for sample in checked.samples(first, stop):
            made.append(sample if packer is None else packer.pack(sample))
            packed = packer is not None and hasattr(made[-1], "stored")
            size += len(made[-1].stored) if packed else _PART_BYTES // _FIRST_PART
        return made, size
    except Exception as error:
        return RemoteError.of(error, f"in worker {number}, which prepared sample {first + len(made)}")


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
