"""Processes, descriptors, threads and mappings, as the kernel sees them. Tests of the loader count
them."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_TIMEOUT = 60.0  # seconds after which a wait fails, even on a busy machine


def limit(seconds: float) -> float:
    """The time that an action may take: `seconds` on an idle machine, and more if other programs
    are running now or were in the last minute."""
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return seconds * max(1.0, 2 * max(os.getloadavg()[0], running) / len(os.sched_getaffinity(0)))


def rest_of(program: subprocess.Popen[str], timeout: float) -> tuple[str, str]:
    """Waits for the end, and returns what is left of output and errors, at most a pipe of each. communicate() would
    leave out what readline() has read ahead."""
    assert program.stdout is not None
    assert program.stderr is not None
    with program:
        program.wait(timeout)
        return program.stdout.read(), program.stderr.read()


def pause(pid: int) -> None:
    """Stops a process until SIGCONT: it exists and answers nothing."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    until(
        lambda: all(task.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())
    )


def compute(seconds: float) -> None:
    """Uses a processor for so long, however long it waits for it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def _spin() -> None:
    while os.getppid() != 1:
        pass


@contextlib.contextmanager
def busy_machine(each: int = 4) -> Iterator[None]:
    """One processor, for the calling thread and for all threads and processes that it starts. On it, so many
    processes spin. Other tests keep the other processors."""
    before = os.sched_getaffinity(0)
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_spin, daemon=True) for _ in range(each)]
    _keep_to({min(before)})
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()
        _keep_to(before)


def _keep_to(processors: set[int]) -> None:
    """Sets where this thread runs, and this program's processes, of which one forks the workers of loaders."""
    os.sched_setaffinity(0, processors)
    for child in children(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(child, processors)


@contextlib.contextmanager
def raises(kind: type[BaseException], match: str) -> Iterator[None]:
    """pytest.raises for programs that tests start: pytest takes 0.2 processor seconds to import."""
    try:
        yield
    except kind as error:
        said = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
    assert re.search(match, said), said


def lives(pid: int) -> bool:
    """Whether a process still runs. A dead process that its parent has not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """Live processes whose parent is this one."""
    if Path("/proc/self/task", str(os.getpid()), "children").exists():
        found = [child for thread in _threads(pid) for child in _children(pid, thread)]
    else:  # a kernel built without that file: slow
        found = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _parent(int(entry)) == pid]
    return [child for child in found if lives(child)]


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _children(pid: int, thread: str) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def until(condition: Callable[[], Any], what: str = "the condition") -> float:
    """Waits until the condition holds. Returns the seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < _TIMEOUT, f"after {_TIMEOUT:.0f} s this does not hold: {what}"
        time.sleep(0.005)
    return time.monotonic() - start


def is_inside(thread: threading.Thread, package: str) -> bool:
    """Whether a thread is in a function of this package, or in one that it has called."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_globals["__name__"].partition(".")[0] != package:
        frame = frame.f_back
    return frame is not None


def in_threads(count: int, work: Callable[[int], Any]) -> None:
    """Calls the function with each number in a thread of its own, and all begin together. Raises what the first has raised."""
    from concurrent.futures import ThreadPoolExecutor  # programs of tests import this file too

    begin = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        for call in [pool.submit(lambda k=k: (begin.wait(), work(k))) for k in range(count)]:
            call.result()


@contextlib.contextmanager
def meanwhile(*works: Callable[[], Any]) -> Iterator[None]:
    """Threads call these functions again and again: each once before the block begins, until it ends. Raises what the first has
    raised."""
    stop, began, raised = threading.Event(), set(), []

    def run(k: int) -> None:
        try:
            while not stop.is_set():
                works[k]()
                began.add(k)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(works))]
    for thread in threads:
        thread.start()
    try:
        until(lambda: raised or len(began) == len(works), "each has been called")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if raised:
        raise raised[0]


def forked(work: Callable[[], Any]) -> int:
    """Calls a function in a child, which leads a session and ends without cleaning up. Its exit status is 0 if nothing was
    raised."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()  # so that a test can find all its processes
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def in_child(check: Callable[[], Any]) -> None:
    """The function returns the truth in a forked child."""

    def work() -> None:
        if not check():
            os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(forked(work), 0)[1]) == 0


def step_kills(names: Iterable[str], number: int) -> list[int]:
    """This process is killed before the call of that number to one of these functions of `os`. Returns how many calls are left
    until then."""
    left = [number]
    for name in names:
        real = getattr(os, name)

        def step(*arguments: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        setattr(os, name, step)
    return left


def gone(pids: Iterable[int]) -> float:
    """Waits until none of these processes lives. Returns the seconds that it took."""
    mine = list(pids)
    return until(lambda: not any(map(lives, mine)), f"processes {mine} are gone")


def held() -> set[Any]:
    """Descriptors, child processes and threads of this process. An entry that appears later is new.
    Entries of other tests may disappear at any time, such as loader threads in the middle of a
    sample. The library keeps one descriptor for the main thread, which measures loads from its first one on."""
    gc.collect()
    measures = f"/proc/{os.getpid()}/task/{os.getpid()}/schedstat"
    found: set[Any] = {
        *threading.enumerate(),
        *(child for thread in _threads(os.getpid()) for child in _children(os.getpid(), thread)),
    }
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if target != measures:
            found.add((fd, target))
    return found


def nothing_new(before: set[Any]) -> None:
    """Waits until only entries remain that were `held` before."""
    try:
        until(lambda: not held() - before, "all is freed")
    except AssertionError as error:
        raise AssertionError(f"{error}; left: {held() - before}") from None


def descriptors() -> list[str]:
    """The targets of the open descriptors of this process."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return sorted(found)


def mappings() -> list[str]:
    """Our mapped files."""
    return [
        line.split(maxsplit=5)[5]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "stocached" in line and "memfd" in line
    ]


def resident() -> int:
    """Bytes of this process's own memory: without shared memory and files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")
