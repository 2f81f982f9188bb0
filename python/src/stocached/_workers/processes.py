"""Worker processes: how they start, how they die, and how they end. The loader, streams,
`prepare` and looks at a dataset start all their processes here."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util  # now: what it does at exit comes after `_close_all`
import os
import pickle
import select
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .._common import threads
from .._common.errors import WorkerLostError

_SLOW_START = 30.0  # seconds: a fork server that imports torch takes a few
_GRACE = 0.3  # seconds that a worker has to end by itself: it may be in the middle of a sample
_AFTER_SIGTERM = 0.2
_AFTER_SIGKILL = 2.0  # the kernel needs milliseconds, unless the machine is very busy
_EXIT_CODE = 1.0  # seconds until the exit code of a process that is gone is known
_AFTER_ITS_PIPE = 3.0  # seconds that an interpreter takes to end on a busy machine
_POLL_INTERVAL = 0.25  # seconds between two checks of the parent where the kernel cannot tell us

_HINTS = {
    -signal.SIGKILL: "the kernel may have killed it because memory ran out (dmesg shows it); fewer workers need less",
    -signal.SIGSEGV: "a library that it uses has crashed",
    -signal.SIGBUS: "a file that it has mapped has become shorter, or /dev/shm is full",
}


def start_context(method: Any) -> Any:
    """The context of multiprocessing that a user means by a start method, a context or None."""
    return multiprocessing.get_context(method) if method is None or isinstance(method, str) else method


@dataclass(frozen=True)
class Start:
    """How all workers of one owner start."""

    context: Any  # context of multiprocessing
    # Runs in the worker; it is called with the pipe, if there is one, and the arguments.
    target: Callable[..., None]
    sent: str  # what the arguments are, for the message if they cannot be pickled
    parameter: str = "multiprocessing_context"  # by which users choose the start method
    piped: bool = True
    name: str = ""  # name of its one process; "": workers have numbers
    daemon: bool = True  # multiprocessing lets it start no process


class WorkerProcess:
    """A worker process that has started, and the parent's end of a pipe to it."""

    def __init__(self, start: Start, number: int, *arguments: Any) -> None:
        self.number, self._start, self._method = number, start, start.context.get_start_method()
        self._name = start.name or f"worker {number}"
        self.pipe: Any
        self._pipe_closed = False
        self.pipe, theirs = start.context.Pipe() if start.piped else (None, None)
        arguments = (theirs, *arguments) if start.piped else arguments
        self.process = start.context.Process(
            target=_work,
            args=(os.getpid(), start.target, arguments),
            daemon=start.daemon,
            name=f"stocached {self._name}",
        )
        self._gone = False  # its number may be that of another process now
        # Before the fork, so that the worker closes the parent's end of its pipe.
        _started.add(self)
        try:
            with self._warns_of_a_slow_start():
                self.process.start()
        except BaseException as error:
            self.close_pipe()
            # Since Python 3.14, the fork server imports the program itself, and may end of it.
            if isinstance(error, (EOFError, ConnectionError)):
                raise WorkerLostError(f"{self._name} was not started ({error!r}); {self._guard_hint}") from error
            if self._method == "fork" or not isinstance(error, (pickle.PicklingError, AttributeError, TypeError)):
                raise
            raise type(error)(
                f"{error}: workers that are started by {self._method} are sent {start.sent} pickled, which lambdas "
                f'and functions within functions cannot be; define them in a module, or give {start.parameter}="fork"'
            ) from error
        finally:
            if theirs is not None:
                theirs.close()

    @contextlib.contextmanager
    def _warns_of_a_slow_start(self) -> Iterator[None]:
        """Since Python 3.14, the fork server imports the program before it starts a worker. A program without a guard may wait
        there for ever, such as for the other ranks of torch.distributed."""
        if self._method != "forkserver":
            yield
            return
        text = f"{self._name} has not started after {_SLOW_START:g} s, as its fork server still imports modules"
        timer = threading.Timer(_SLOW_START, warnings.warn, (f"stocached: {text}; {self._guard_hint}", RuntimeWarning))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    @property
    def alive(self) -> bool:
        """False: its exit code is known, or no part of this program can learn it any more."""
        if self._gone or not self.process.is_alive():
            return False
        try:
            os.kill(self.process.pid, 0)
        except ProcessLookupError:
            # With SIGCHLD ignored, or if the program waits for all children, multiprocessing does
            # not hear of the end. A fork server does, and sends the exit code a moment later.
            self.process.join(_EXIT_CODE)
            # Without an exit code, multiprocessing would send SIGTERM to this number when the
            # interpreter ends. Another process may have the number then.
            multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]
            self._gone = True
            return False
        return True

    def send(self, message: Any) -> None:
        """A worker that has died gets no message: `receive` says that it has."""
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def receive(self) -> Any:
        """The next message. None: the worker has closed its pipe, as the kernel does when it
        dies."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def death(self, doing: str, *, begun: bool = True) -> str:
        """Says how a worker has ended that is gone, while it was doing that, and what the reason
        may be. begun: it has done something, so it was able to import the program."""
        self.process.join(_AFTER_ITS_PIPE)
        code = self.process.exitcode
        if code is None:
            unknown = "is gone, and its exit code is unknown: the program has waited for it"
            how = "has closed its pipe" if self.alive else unknown
        elif code >= 0:
            how = f"exited with status {code}"
        else:
            how = f"was killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
        hint = _HINTS.get(code, "")
        if code and code > 0 and not begun and self._method != "fork":
            hint = self._guard_hint
        return f"{self._name} (process {self.process.pid}) {how} {doing}{hint and f'; {hint}'}"

    @property
    def _guard_hint(self) -> str:
        return (
            f"workers that are started by {self._method} import the program again, so what it does belongs "
            'under if __name__ == "__main__":, and what they need of a notebook belongs in a module; '
            f'or give {self._start.parameter}="fork"'
        )

    def close_pipe(self) -> None:
        """Closes it once. If another thread forks then, its child does not close the number again: another file may
        have it by then."""
        closed, self._pipe_closed = self._pipe_closed, True
        if self.pipe is not None and not closed:
            self.pipe.close()


def end(workers: list[Any]) -> None:
    """Waits until the processes among these workers have ended by themselves, which they were told
    to; those that do not get SIGTERM, then SIGKILL. Takes half a second at most, and what the kernel takes to end
    the killed ones, up to 2 s. Empties the list."""
    left = [worker for worker in workers if isinstance(worker, WorkerProcess)]
    workers.clear()
    for worker in left:
        worker.close_pipe()
    for seconds, stronger in ((_GRACE, "terminate"), (_AFTER_SIGTERM, "kill"), (_AFTER_SIGKILL, "")):
        until = time.monotonic() + seconds
        for worker in left:
            worker.process.join(max(0.0, until - time.monotonic()))
        left = [worker for worker in left if worker.alive]
        for worker in left:
            if stronger:
                getattr(worker.process, stronger)()


class Owner:
    """What has worker processes. A finalizer ends them once: when the user or the garbage collector
    closes the owner, or when the interpreter ends. In a forked child it does nothing."""

    def __init__(self, finish: Callable[[list[Any]], None] = end) -> None:
        """finish: ends the workers of this list; called once. The garbage collector cannot close an
        owner that it refers to."""
        self._pid = os.getpid()
        self._workers: list[Any] = []
        # Not __del__: the garbage collector calls weak references before any __del__, so workers end
        # before it closes the files that a worker which is just starting opens.
        self._finalizer = weakref.finalize(self, _finish, self._pid, finish, self._workers)
        # `_close_all` ends them after the program's exit handlers and before multiprocessing kills them.
        self._finalizer.atexit = False
        _owners.add(self)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers if isinstance(worker, WorkerProcess)]

    @property
    def _closed(self) -> bool:
        return not self._finalizer.alive

    def _start_all(self, workers: Iterable[Any]) -> None:
        """Starts workers, each when it is taken out of the iterable. If one cannot start, none is
        left."""
        try:
            for worker in workers:
                self._workers.append(worker)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the workers as `end` does; they do not finish what takes longer. May be called
        again."""
        # weakref's own exit handler may run before the one below. A call does nothing after it.
        if (finalizer := self._finalizer.detach()) is not None:
            finalizer[1](*finalizer[2])


def _finish(pid: int, finish: Callable[[list[Any]], None], workers: list[Any]) -> None:
    if os.getpid() == pid:
        finish(workers)


_started: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()
_owners: weakref.WeakSet[Owner] = weakref.WeakSet()
threads.at_exit(threads.for_each(_owners, Owner.close))


def _disown() -> None:
    """In a forked child, which may be a worker. multiprocessing would end its parent's workers when
    it exits, as if they were its own. An open pipe would hide that the parent has closed it."""
    for worker in list(_started):
        getattr(multiprocessing.process, "_children", set()).discard(worker.process)
        worker.close_pipe()


os.register_at_fork(after_in_child=_disown)


# ------------------------------------------------------------------------------------ in the worker


def _work(parent: int, target: Callable[..., None], arguments: Sequence[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent acts on Ctrl-C, and ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler that a fork inherits is the parent's
    # PR_SET_PDEATHSIG would take the end of the thread that started the worker for that of the
    # parent, and would watch the process that forkserver starts.
    watched = parent, os.getppid() == parent
    threading.Thread(target=_end_with, args=watched, daemon=True, name="stocached parent").start()
    target(*arguments)


def _end_with(parent: int, direct: bool) -> None:
    """Ends this process when its parent ends, also in the middle of a sample."""

    def lives() -> bool:
        if direct:
            return os.getppid() == parent
        # Of forkserver; forked siblings would keep it alive for each other.
        process = multiprocessing.parent_process()
        return process is not None and process.is_alive()

    with contextlib.suppress(OSError, AttributeError):  # Linux before 5.3, a sandbox, or it is gone
        gone = select.poll()
        gone.register(os.pidfd_open(parent))
        if lives():  # else its number may be that of another process by now
            gone.poll()
            os._exit(1)
    while lives():
        time.sleep(_POLL_INTERVAL)
    os._exit(1)
