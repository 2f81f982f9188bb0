"""Runs Python programs in child processes. Their parent has imported the packages already.

An import of torch takes seconds. A fork takes milliseconds.

    with Warm(".venv/bin/python", ["torch"]) as warm:
        done = warm.run("example.py", folder, environment, timeout=60)

The program runs as in a new interpreter: it is `__main__`, has its own folder, environment and output, and
ends as an interpreter ends. Needs only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

Done = subprocess.CompletedProcess[str]
MESSAGE = 1 << 17  # bytes of a request, most of them for the environment


class Warm:
    def __init__(
        self, python: str | Path, packages: Sequence[str], environment: Mapping[str, str] = os.environ
    ) -> None:
        self._forked: list[Warm] = []
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [python, __file__, str(theirs.fileno()), *packages]
            process = subprocess.Popen(
                command, env={**environment}, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._process: subprocess.Popen[bytes] | None = process

    def more(self, packages: Sequence[str]) -> Warm:
        """Forks another process from this one, which imports further packages."""
        other = Warm.__new__(Warm)
        other._process, other._forked = None, []
        self._forked.append(other)
        other._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._send({"packages": packages}, theirs.fileno())
        return other

    def run(
        self,
        program: Path,
        folder: Path,
        environment: Mapping[str, str],
        timeout: float,
        arguments: Sequence[object] = (),
    ) -> Done:
        """Works like subprocess.run. It captures the output as text. It waits until the program and its children have
        closed their output."""
        (output, out), (error, err) = os.pipe(), os.pipe()
        told = self._begin(program, folder, environment, arguments, out, err)
        os.close(out)
        os.close(err)
        texts = {told.fileno(): b"", output: b"", error: b""}
        end = time.monotonic() + timeout
        try:
            with selectors.DefaultSelector() as open_:
                for fd in texts:
                    open_.register(fd, selectors.EVENT_READ)
                while open_.get_map():
                    for key, _ in open_.select(max(0.0, end - time.monotonic())):
                        data = os.read(key.fd, 1 << 16)
                        texts[key.fd] += data
                        if not data:
                            open_.unregister(key.fd)
                    if time.monotonic() > end:
                        if texts[told.fileno()]:
                            os.kill(int(texts[told.fileno()].split()[0]), signal.SIGKILL)
                        raise subprocess.TimeoutExpired(str(program), timeout)
            said = texts[told.fileno()].split()
            assert len(said) == 2, f"{program} could not be started: is a package missing?"
            return Done(str(program), int(said[1]), texts[output].decode(), texts[error].decode())
        finally:
            told.close()
            os.close(output)
            os.close(error)

    def start(
        self, program: Path, folder: Path, environment: Mapping[str, str], arguments: Sequence[object], log: Path
    ) -> Started:
        """Works like subprocess.Popen with a pipe for the output. log: gets what the program writes to standard error."""
        output, out = os.pipe()
        with open(log, "ab") as errors:
            told = self._begin(program, folder, environment, arguments, out, errors.fileno())
        os.close(out)
        return Started(told, open(output))

    def close(self) -> None:
        """Ends the process and those forked from it, after their programs have ended."""
        if self._control.fileno() < 0:
            return  # it is closed already
        for other in self._forked:
            other.close()
        self._control.shutdown(socket.SHUT_RDWR)  # processes that were forked from this one may have it open too
        self._control.close()
        if self._process is not None:
            self._process.wait()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin(
        self,
        program: Path,
        folder: Path,
        environment: Mapping[str, str],
        arguments: Sequence[object],
        out: int,
        err: int,
    ) -> socket.socket:
        """Starts a program. The socket gets its pid and then, when it ends, its status."""
        told, theirs = socket.socketpair()
        with theirs:
            command = [str(program), *map(str, arguments)]
            request = {"command": command, "folder": str(folder), "environment": {**environment}}
            self._send(request, theirs.fileno(), out, err)
        return told

    def _send(self, request: Mapping[str, object], *fds: int) -> None:
        socket.send_fds(self._control, [json.dumps(request).encode()], fds)


class Started:
    """A program that runs, with the members of subprocess.Popen that its users need."""

    def __init__(self, told: socket.socket, stdout: IO[str]) -> None:
        self.stdout = stdout
        self.returncode: int | None = None
        self._told, self._text = told, b""
        while b" " not in self._text:
            if not (data := told.recv(64)):
                raise RuntimeError("the process that starts programs has ended: is a package missing?")
            self._text += data
        self.pid = int(self._text.split()[0])

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._told], [], [], left)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            if data := self._told.recv(64):
                self._text += data
            else:
                self._told.close()
                self.returncode = int(self._text.split()[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def serve(control: socket.socket, packages: Sequence[str]) -> tuple[list[str], str, dict[str, str]]:
    """Forks for each request. Returns only in the child that becomes the program."""
    prepare(packages)
    while True:
        message, fds, _, _ = socket.recv_fds(control, MESSAGE, 3)
        reap(0 if not message else os.WNOHANG)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if fork() == 0:
            control.close()
            if "packages" in request:
                control = socket.socket(fileno=fds[0])
                prepare(request["packages"])
                continue
            told, out, err = fds
            pid = fork()
            if pid == 0:
                for fd, to in ((out, 1), (err, 2)):
                    os.dup2(fd, to)
                for fd in fds:
                    os.close(fd)
                return request["command"], request["folder"], request["environment"]
            os.close(out)
            os.close(err)
            os.write(told, f"{pid} ".encode())
            os.write(told, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
            os._exit(0)
        for fd in fds:
            os.close(fd)


def reap(how: int) -> None:
    """Waits for children, so that their processor seconds count as ours."""
    try:
        while os.waitpid(-1, how)[0]:
            pass
    except ChildProcessError:  # no children are left
        pass


def fork() -> int:
    with warnings.catch_warnings():
        # NumPy has threads for matrix products. Python 3.12 and later warn of threads at a fork.
        warnings.simplefilter("ignore")
        return os.fork()


def cheapen_forks() -> None:
    """A fork copies an entry for each page of the process, and the garbage collector of a child copies the pages that it
    looks at. With torch, a fork takes 36 ms of processor time, and the collector 130; after this, 18 and none."""
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # only glibc has it
        libc.malloc_trim(0)
    huge, collapse = 2 << 20, 25  # MADV_COLLAPSE, of Linux 6.1; older kernels refuse it
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, protection, *_, name = [*line.split(maxsplit=5), ""][:6]
        if protection == "rw-p" and name in ("", "[heap]"):
            begin, end = (int(number, 16) for number in span.split("-"))
            for address in range(-(-begin // huge) * huge, end - huge + 1, huge):
                libc.madvise(address, huge, collapse)


def prepare(packages: Sequence[str]) -> None:
    gc.disable()  # an import of torch or Lightning takes a seventh less
    # Lightning imports these if they are installed: 4 of its 9 seconds.
    unused: Any = {"transformers", "torchvision", "scipy"} - sys.modules.keys() if "lightning" in str(packages) else ()
    known = metadata.distribution
    metadata.distribution = lambda distribution_name: known(
        "none" if distribution_name in unused else distribution_name
    )
    sys.modules.update(dict.fromkeys(unused))
    for package in packages:
        importlib.import_module(package)
    metadata.distribution = known
    for name in unused:
        del sys.modules[name]
    gc.enable()
    cheapen_forks()


def main() -> None:
    command, folder, environment = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    program = command[0]
    sys.argv[:] = command
    sys.path[0] = str(Path(program).parent)
    sys.modules["warm"] = sys.modules["__main__"]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = program
    # runpy would restore __main__ before the interpreter ends. The program must stay __main__ until then.
    exec(compile(Path(program).read_bytes(), program, "exec"), module.__dict__)


if __name__ == "__main__":
    main()
