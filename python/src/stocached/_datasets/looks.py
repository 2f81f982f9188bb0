"""Looks at samples outside the training loop: on trial before a cache is made, and later to compare
them with a cache.

A look runs code of the user, which may open a file or start a thread. Workers that are forked
afterwards would share the position of that file, and wait for a thread that they do not have. So a
look happens in a forked child, before this process loads a sample. The child is set up as a worker
is. It answers with plain data."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .._common.errors import WorkerLostError
from .._common.ours import only_ours
from .._common.subsets import unwrapped
from .._random import generators
from .._workers import forked_values
from .._workers.processes import Owner, Start, WorkerProcess
from .attributes import left_as_it_was

_SLICE = 0.05  # seconds of a wait between two checks of the child, which may be killed
_SILENT = 30.0  # seconds without another sample after which a warning comes
PENDING = object()  # instead of an answer that has not come yet

# A worker's number, the number of workers, their seed, the dataset.
Enter = Callable[[int, int, int, Any], None]
Init = Callable[[int], Any]  # worker_init_fn of a loader


def begin(
    root: Any, dataset: Any, enter: Enter, *, forks: bool | None, workers: int | None, init: Init | None = None
) -> LookHere | LookInChild:
    """A look at samples of this dataset. The caller has loaded none.

    root: the first argument of the functions that it is asked. enter: sets up a worker. forks: whether workers will be
    forked; None: if that is what the platform does. workers: how many there will be; None: not known. init: what workers
    call first."""
    if not in_child(dataset, forks):
        return LookHere(root, dataset)
    return LookInChild(root, dataset, enter, init, workers)


def in_child(dataset: Any, forks: bool | None) -> bool:
    """Whether a look at samples of this dataset happens in a child. forks: as for `begin`."""
    forks = are_forked(None) if forks is None else forks
    # A daemon, such as a worker, cannot have workers that multiprocessing starts.
    daemon = multiprocessing.current_process().daemon
    return forks and not daemon and not _is_ours(dataset) and not _uses_cuda()


def start_method(method: Any) -> str:
    """The name of a start method or context of multiprocessing; None: the program's default, which stays open to
    change."""
    if method is None:
        method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return str(method if isinstance(method, str) else method.get_start_method())


def are_forked(method: Any) -> bool:
    """method: as of `start_method`."""
    return start_method(method) == "fork"


def _is_ours(dataset: Any) -> bool:
    """Whether a dataset runs no code of the user and of other libraries: one of this package without functions, or a
    plain sequence."""
    dataset, _ = unwrapped(dataset)
    return type(dataset) in (list, tuple, range, np.ndarray) or only_ours(dataset)


def _uses_cuda() -> bool:
    """Whether a fork would copy a context of CUDA, with which the child cannot do anything."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


class LookHere:
    """Looks in this process. Restores the global generators and what loads change in the dataset. Used in a `with`
    statement. A function that it is asked gets the root, and loads samples."""

    def __init__(self, root: Any, dataset: Any) -> None:
        self._root, self._dataset, self._restored = root, dataset, contextlib.ExitStack()

    def __enter__(self) -> LookHere:
        self._restored.enter_context(generators.kept())
        self._restored.enter_context(left_as_it_was(self._dataset))
        return self

    def __exit__(self, *error: Any) -> None:
        self._restored.close()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """function(root, *arguments)."""
        return function(self._root, *arguments)

    def finish(self) -> None:
        """There are no more questions."""


class LookInChild(Owner):
    """The same in one forked child, which keeps between two questions what it has opened and built. The functions are of a
    module or class, arguments and results can be pickled."""

    def __init__(self, root: Any, dataset: Any, enter: Enter, init: Init | None, workers: int | None) -> None:
        """workers: of a loader; with 0 this process looks itself if the child is silent, as it loads the samples of
        the training loop too."""
        super().__init__()
        self._root, self._dataset = root, dataset
        self._here: LookHere | None = LookHere(root, dataset) if workers == 0 else None  # until it is needed
        self.instead = False  # whether this process looks itself
        self._asked = False  # a question without an answer
        self._said = False
        self._progress = _Progress()
        # Without workers, a dataset may have processes of its own.
        name, daemon = "the process that loads samples on trial", bool(workers)
        start = Start(multiprocessing.get_context("fork"), _serve, "", name=name, daemon=daemon)
        arguments = self._progress, root, dataset, enter, init, workers
        with warnings.catch_warnings():
            # Python 3.12 warns of threads at each fork; workers get that warning too.
            warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
            self._start_all(WorkerProcess(start, number, *arguments) for number in range(1))
        self._child: WorkerProcess = self._workers[0]

    def __enter__(self) -> LookInChild:
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if self.instead:
            assert self._here is not None
            self._here.__exit__()
        if kind is not None or not self._asked:  # else the caller waits for the answer later
            self.close()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if not self.instead:
            self.put(function, *arguments)
            answer = self.answer()
            if answer is not PENDING:
                return answer
            assert self._here is not None
            self.close()
            self._asked, self.instead = False, True
            self._here.__enter__()
        assert self._here is not None
        return self._here.ask(function, *arguments)

    def finish(self) -> None:
        """The child ends while this process does something else."""
        self._child.close_pipe()

    def put(self, function: Callable[..., Any], *arguments: Any) -> None:
        """As `ask`; `answer` gives the result."""
        self._asked = True
        self._child.send((function, arguments))

    def answer(self, stop: Callable[[], bool] = lambda: False) -> Any:
        """The result, once it has come. PENDING: stop() is true, or this process shall look itself."""
        seen, since = self._progress.count, time.monotonic()
        while not self._child.pipe.poll(_SLICE):
            if stop():
                return PENDING
            if not self._child.alive and not self._child.pipe.poll():
                raise self._lost()
            if self._progress.count != seen:
                seen, since = self._progress.count, time.monotonic()
            elif time.monotonic() - since > _SILENT and not self._said:
                self._say_silent()
                if self._here is not None:
                    return PENDING
        try:
            answer = self._child.pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._lost() from None
        self._asked = False
        return forked_values.value_of(answer)

    def end_now(self) -> None:
        """Ends the child in the middle of a sample."""
        if not self._closed:
            self._child.process.terminate()
            self.close()

    def _lost(self) -> WorkerLostError:
        return WorkerLostError(
            f"{self._child.death(f'while it loaded {self._progress.sample}')}. A worker would end too"
        )

    def _say_silent(self) -> None:
        self._said = True
        here = "This process loads it itself now" if self._here is not None else "This process waits for it"
        warnings.warn(
            f"stocached: process {self._child.process.pid}, which loads samples on trial, has been silent for {_SILENT:g} s while it "
            f"loaded {self._progress.sample}. {here}. If the load waits for a thread that the program has started, such as of "
            "an executor, an event loop or polars: a forked process does not have it. Start the thread in the first load, or call "
            'multiprocessing.set_start_method("forkserver")',
            stacklevel=2,
        )


class _Progress:
    """Which sample the child loads. The child writes it, its parent reads it."""

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")  # shared with the child
        self._numbers[1] = -1

    def note(self, index: int) -> None:
        self._numbers[1] = index
        self._numbers[0] += 1

    @property
    def count(self) -> int:
        return self._numbers[0]

    @property
    def sample(self) -> str:
        index = self._numbers[1]
        return f"sample {index}" if index >= 0 else "its first sample"


_progress: _Progress | None = None  # progress of this process, if it is such a child


def note(index: int) -> None:
    """This process begins to load a sample for a look."""
    if _progress is not None:
        _progress.note(index)


def _serve(
    pipe: Any, progress: _Progress, root: Any, dataset: Any, enter: Enter, init: Init | None, workers: int | None
) -> None:
    """Answers questions in the child until the parent closes its end of the pipe."""
    global _progress
    _progress = progress
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # a forked process has none of the threads of its parent
    entered = workers == 0
    with contextlib.suppress(EOFError, OSError):
        while True:
            function, arguments = pipe.recv()
            try:
                if not entered:
                    enter(0, workers or 1, int.from_bytes(os.urandom(7), "little"), dataset)
                    if init is not None:
                        init(0)
                    entered = True
                answer = forked_values.sent(function(root, *arguments))
            except BaseException as error:
                answer = forked_values.raised(error, f"in process {os.getpid()}, which loads samples on trial")
            pipe.send_bytes(answer)
    for child in multiprocessing.active_children():  # the dataset's own children
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)  # exit handlers and finalizers are the parent's
