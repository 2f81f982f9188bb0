"""Hosts on one machine: namespaces of network, mounts, IPC and processes, each with its own /dev/shm. They need root.
Without it, Loopback has the same hosts as addresses and folders of one host."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from warm import Started, Warm

from demo import processes

Program = subprocess.Popen[str] | Started
NETWORK = "10.77.0"  # exists inside the namespaces alone
TOOLS = ("ip", "unshare", "nsenter")


class Host:
    """A host with an address, and the folder of its segments. `run` starts a program on it; `kill` ends all of
    them, and empties its memory."""

    def __init__(self, hosts: Hosts, name: str, address: str, shm: str) -> None:
        self.name, self.address, self._hosts, self._shm = name, address, hosts, shm
        self.memory = Path(f"/dev/shm/stocached-{os.getuid()}")
        self.programs: list[Program] = []
        self._holder: subprocess.Popen[bytes] | None = None
        self.boot()

    def boot(self) -> None:
        """Starts the process that holds the host's namespaces."""
        mount = f"mount -t tmpfs -o size={self._shm} tmpfs /dev/shm && echo up && exec sleep infinity"
        command = [
            "ip",
            "netns",
            "exec",
            self._hosts.namespace(self.name),
            "unshare",
            "--mount",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            mount,
        ]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"up\n":
            raise RuntimeError(f"the host {self.name} does not start")

    def run(
        self,
        command: Sequence[Any],
        environment: Mapping[str, str],
        output: int | IO[Any] | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen[str]:
        """log: gets what the program writes to standard error, and to standard output if that has no output."""
        with open(log or os.devnull, "ab") as errors:
            program = subprocess.Popen(
                [*self._enter(), *map(str, command)],
                stdout=errors if output is None else output,
                stderr=errors,
                env=os.environ | dict(environment),
                text=True,
            )
        self.programs.append(program)
        return program

    def _enter(self) -> list[str]:
        """The command that runs a program on the host."""
        assert self._holder is not None
        holder = str(self._holder.pid)
        pids = f"--pid=/proc/{holder}/ns/pid_for_children"
        return ["nsenter", "-t", holder, "--mount", "--ipc", "--net", pids, f"--wd={os.getcwd()}", "--"]

    def kill(self) -> None:
        """The host loses power: its processes end at once, and what its memory had is gone."""
        # With the first process of the namespace all others end, those that programs have started too.
        for program in [self._holder, *self.programs]:
            if program is not None:
                program.send_signal(signal.SIGKILL)
                program.wait()
        self.programs, self._holder = [], None


class Hosts:
    """Three hosts and a storage on one network. The link of the storage has `rate` (as tc writes it), the others have
    no limit. shaped: tc does that; else a proxy must. Use it as a context: its end removes everything."""

    interface = "eth0"

    def __init__(self, count: int, shm: str, rate: str, use_tc: bool = True) -> None:
        self._prefix, self._shm, self._rate, self._count = f"stoc{os.getpid()}", shm, rate, count
        self.shaped = use_tc
        self.hosts: list[Host] = []
        self._made: list[str] = []

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def __enter__(self) -> Hosts:
        try:
            self._add("net")
            self._ip("net", "link add bridge type bridge")
            self._ip("net", "link set bridge up")
            self.storage = self._host("storage", f"{NETWORK}.100")
            self.shaped = self.shaped and self._shape()
            self.hosts = [self._host(f"host{k}", f"{NETWORK}.{11 + k}") for k in range(self._count)]
        except BaseException:
            self.__exit__()
            raise
        return self

    def _shape(self) -> bool:
        """Shapes the link of the storage. False: there is no tc, or the kernel lacks what it needs."""
        shape = f"qdisc add dev eth0 root tbf rate {self._rate} burst 256kb latency 50ms"
        command = ["tc", "-n", self.namespace("storage"), *shape.split()]
        return shutil.which("tc") is not None and subprocess.run(command, check=False).returncode == 0

    def __exit__(self, *_: object) -> None:
        for host in [*self.hosts, *([self.storage] if hasattr(self, "storage") else [])]:
            host.kill()
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", self.namespace(name)], check=False)
        self._made = []

    def sent(self) -> int:
        """Bytes that the storage has sent so far."""
        where = "/sys/class/net/eth0/statistics/tx_bytes"
        command = ["ip", "netns", "exec", self.namespace("storage"), "cat", where]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def _host(self, name: str, address: str) -> Host:
        self._add(name)
        peer = f"v{name}"
        self._ip("net", f"link add {peer} type veth peer name eth0 netns {self.namespace(name)}")
        self._ip("net", f"link set {peer} master bridge up")
        self._ip(name, f"addr add {address}/24 dev eth0")
        self._ip(name, "link set eth0 up")
        self._ip(name, "link set lo up")
        return Host(self, name, address, self._shm)

    def _add(self, name: str) -> None:
        subprocess.run(["ip", "netns", "add", self.namespace(name)], check=True)
        self._made.append(name)

    def _ip(self, name: str, command: str) -> None:
        subprocess.run(["ip", "-n", self.namespace(name), *command.split()], check=True)


class LoopbackHost(Host):
    """An address of the loopback device, and a folder in /dev/shm."""

    def __init__(self, name: str, address: str, warm: Warm) -> None:
        self.name, self.address, self.programs, self._warm = name, address, [], warm
        self.memory = Path(f"/dev/shm/stoc{os.getpid()}-{name}")
        self.boot()

    def boot(self) -> None:
        self.memory.mkdir(mode=0o700)

    def start(self, program: Path, arguments: Sequence[object], environment: Mapping[str, str], log: Path) -> Started:
        """Starts a program in Python that imports torch. Its output is a pipe."""
        started = self._warm.start(program, Path.cwd(), os.environ | dict(environment), arguments, log)
        self.programs.append(started)
        return started

    def _enter(self) -> list[str]:
        return []

    def kill(self) -> None:
        # Programs start others, which no namespace ends.
        for program in self.programs:
            if program.poll() is None:
                for pid in processes.tree(program.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            program.wait()
        self.programs = []
        shutil.rmtree(self.memory, ignore_errors=True)


class Loopback:
    """The hosts and the storage of Hosts on one host, without root and tc. Use it as a context."""

    interface = "lo"
    shaped = False

    def __init__(self, count: int) -> None:
        # Each run has a network of its own on the loopback device.
        self._network = f"127.{1 + os.getpid() % 254}.{os.getpid() // 254 % 256}"
        self._count = count

    def __enter__(self) -> Loopback:
        self._warm = Warm(sys.executable, ["stocached.torch"], os.environ | {"OMP_NUM_THREADS": "1"})
        self.storage = self._host("storage", 100)
        self.hosts: list[Host] = [self._host(f"host{k}", 11 + k) for k in range(self._count)]
        return self

    def _host(self, name: str, number: int) -> LoopbackHost:
        return LoopbackHost(name, f"{self._network}.{number}", self._warm)

    def __exit__(self, *_: object) -> None:
        for host in [*self.hosts, self.storage]:
            host.kill()
        self._warm.close()
