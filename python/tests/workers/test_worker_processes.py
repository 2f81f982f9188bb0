"""Worker processes: how they start, what is said of one that died, and how they end."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import types

import pytest
from helpers import python
from processes import gone, held, limit, lives, nothing_new, until
from programs import Program
from worker_team import Team, close_the_pipe, die, echo, end_at_once, refuse_to_end, sleep

from stocached._workers import processes
from stocached._workers.pool import Pool
from stocached._workers.processes import Owner, Start, WorkerProcess, start_context

TESTS = os.path.dirname(os.path.dirname(__file__))
METHODS = ["fork", "forkserver", "spawn"]


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_is_not_alive_has_an_exit_code(method):
    """A fork server waits for its child, and sends the exit code afterwards. In between, the child
    has ended and has no exit code."""
    team = Team(end_at_once, 3, number=10 if method == "forkserver" else 2, method=method, piped=False)
    for worker in team.workers:
        while worker.alive:
            pass
        assert worker.process.exitcode == 3
    team.close()


@pytest.mark.parametrize("method", METHODS)
def test_messages(method):
    before = held()
    team = Team(echo, number=3, method=method)
    assert len(team.pids) == 3
    for k, worker in enumerate(team.workers):
        worker.send(("to", k))
    assert [worker.receive() for worker in team.workers] == [("to", 0), ("to", 1), ("to", 2)]
    pids = team.pids
    start = time.monotonic()
    team.close()
    assert time.monotonic() - start < limit(5)
    assert not any(map(lives, pids))
    assert team.pids == []
    team.close()
    if method == "fork":  # other methods keep processes of their own
        del team, worker
        nothing_new(before)


DEATHS = {
    signal.SIGKILL: "was killed by SIGKILL while it slept; the kernel may have killed it because memory ran out",
    signal.SIGSEGV: "was killed by SIGSEGV while it slept; a library that it uses has crashed",
    signal.SIGBUS: "was killed by SIGBUS while it slept; a file that it has mapped has become shorter, or /dev/shm is full",
    signal.SIGTERM: "was killed by SIGTERM while it slept",
    signal.SIGRTMIN + 1: f"was killed by signal {signal.SIGRTMIN + 1} while it slept",
}


@pytest.mark.parametrize(
    ("number", "method"),
    [*((number, "fork") for number in DEATHS), (signal.SIGKILL, "forkserver"), (signal.SIGBUS, "spawn")],
)
def test_death_by_a_signal(number, method):
    team = Team(die, number, method=method)
    worker = team.workers[0]
    assert worker.receive() is None
    death = worker.death("while it slept")
    assert death.startswith(f"worker 0 (process {team.pids[0]}) {DEATHS[number]}")
    assert (";" in death) == (";" in DEATHS[number])
    worker.send("to a dead worker")
    team.close()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("begun", [False, True])
def test_death_by_an_exit(method, begun):
    """A worker that is not forked, and ends before it has done anything, may be unable to import the program."""
    team = Team(end_at_once, 7, method=method, piped=False)
    until(lambda: not team.workers[0].alive, "it has ended")
    death = team.workers[0].death("before its first task", begun=begun)
    assert f"(process {team.pids[0]}) exited with status 7 before its first task" in death
    assert (f"started by {method} import the program again" in death) == (not begun and method != "fork")
    assert ('or give the_method="fork"' in death) == (not begun and method != "fork")
    team.close()


def test_a_worker_that_has_closed_its_pipe(monkeypatch):
    monkeypatch.setattr(processes, "_EXIT_CODE", 0.01)
    team = Team(close_the_pipe)
    assert team.workers[0].receive() is None
    assert "has closed its pipe while it slept" in team.workers[0].death("while it slept")
    pids = team.pids
    team.close()
    gone(pids)


def test_a_worker_that_another_part_of_the_program_has_waited_for():
    team = Team(end_at_once, 7, piped=False)
    os.waitpid(team.pids[0], 0)
    assert not team.workers[0].alive
    assert "is gone, and its exit code is unknown" in team.workers[0].death("")
    team.close()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_arguments_that_cannot_be_pickled(method):
    text = rf"workers that are started by {method} are sent a number and a function pickled.*the_method=\"fork\""
    for _ in range(2):
        before = held()  # the second time, the processes of multiprocessing are there
        with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match=text):
            Team(echo, lambda: 0, number=2, method=method)
    nothing_new(before)


def test_a_start_that_fails_in_the_middle_leaves_no_worker(monkeypatch):
    started = []

    def start(team):
        for k in range(3):
            if k == 2:
                raise MemoryError
            started.append(WorkerProcess(how, k))
            yield started[-1]

    how = Start(start_context("fork"), sleep, "nothing")
    team = Owner()
    with pytest.raises(MemoryError):
        team._start_all(start(team))
    assert len(started) == 2
    assert not any(worker.alive for worker in started)


def test_a_worker_that_refuses_to_end_is_killed():
    team = Team(refuse_to_end)
    worker = team.workers[0]
    assert worker.receive() == "ready"
    start = time.monotonic()
    team.close()
    assert processes._GRACE + processes._AFTER_SIGTERM <= time.monotonic() - start < limit(2)
    assert worker.process.exitcode == -signal.SIGKILL


def test_the_garbage_collector_ends_a_pool_s_workers_before_it_closes_the_files():
    """A worker that is just starting opens the files of task queue and batch pool."""
    lived, pids = [], []

    class File:
        def stop(self):
            pass

        def __del__(self):
            lived.extend(map(lives, pids))

    job = types.SimpleNamespace(workers=2, process=True, iterable=False)
    pool = Pool(File(), File())
    pool.start(job, lambda *_: time.sleep(100), "fork", restart=False)
    pids += pool.pids
    pool.itself = pool
    del pool
    gc.collect()
    assert lived == [False] * 4


@pytest.mark.parametrize("ending", [os._exit, sys.exit], ids=["os._exit", "sys.exit"])
def test_a_forked_child_leaves_workers_alone(ending):
    """multiprocessing would end them in `sys.exit`, as if they were the child's own."""
    python(
        f"""
        import gc, os, sys, time
        sys.path.insert(0, {TESTS!r})
        from worker_team import Team, echo
        team = Team(echo, number=2)
        child = os.fork()
        if child == 0:
            team.close()
            del team
            gc.collect()
            {ending.__module__.replace("posix", "os")}.{ending.__name__}(0)
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(0.2)
        for worker in team.workers:
            assert worker.alive
            worker.send(worker.number)
            assert worker.receive() == worker.number
        """
    )


def test_a_forked_child_does_not_hold_pipes_open():
    """Neither a worker that starts later, nor any other child: a worker sees at once that its parent has closed the pipe."""
    team = Team(echo)
    child = multiprocessing.get_context("fork").Process(target=functools.partial(time.sleep, 100))
    child.start()
    other = Team(sleep)
    team.workers[0].pipe.close()
    until(lambda: not team.workers[0].alive, "it has seen the end of its pipe")
    assert team.workers[0].process.exitcode == 0
    other.close()
    team.close()
    child.kill()
    child.join()


FIRST = "weakref.finalize(weakref, int)"


@pytest.mark.parametrize(("method", "first"), [("fork", ""), ("fork", FIRST), ("forkserver", FIRST), ("spawn", "")])
def test_the_interpreter_ends_workers_as_a_call_of_close_does(tmp_path, method, first):
    """After the program's exit handlers, and before multiprocessing kills workers. first: the program makes a finalizer
    before ours, so weakref's exit handler runs late."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import atexit, sys, weakref; {first}\n"
        f"sys.path.insert(0, {TESTS!r})\n"
        "from worker_team import Team, touch_at_the_end\n"
        "if __name__ == '__main__':\n"
        "    atexit.register(lambda: print(*[worker.alive for worker in team.workers]))\n"
        f"    team = Team(touch_at_the_end, {str(tmp_path)!r}, number=2, method={method!r})\n"
        "    for worker in team.workers: worker.receive()\n"
    )
    done = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert done.stdout == "True True\n"
    assert len([path for path in tmp_path.iterdir() if path != program]) == 2


ORPHANS = """
import os, signal, sys
sys.path.insert(0, {path!r})
from worker_team import Team, sleep
if __name__ == "__main__":
    team = Team(sleep, number=2, method={method!r})
    print(*team.pids, flush=True)
    {end}
"""


@pytest.mark.parametrize(
    ("method", "end"),
    [
        *((method, "os.kill(os.getpid(), signal.SIGKILL)") for method in METHODS),
        ("fork", "sys.exit(0)"),
        ("forkserver", "sys.exit(0)"),
        ("spawn", "os._exit(0)"),
    ],
)
def test_workers_end_with_their_parent(tmp_path, method, end):
    program = tmp_path / "program.py"
    program.write_text(ORPHANS.format(path=TESTS, method=method, end=end))
    process = Program(program)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    process.communicate()
    assert gone(pids) < limit(5)
