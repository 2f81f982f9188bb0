"""Runs subjects, each in its own process, in turn."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from . import tree

_MAIN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Process:
    """A subject in its own process (subject.py): it writes "ready", and answers each line with a
    line."""

    def __init__(self, name: str, kind: str, **settings: Any) -> None:
        self.name = name
        self._command = [sys.executable, _MAIN, "subject", kind, json.dumps(settings)]
        self.value: list[float] = []  # seconds a sample, of each run
        self.cpu: list[float] = []
        self.faults: list[float] = []
        self.samples = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Process:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def ready(self) -> Process:
        if self._answer().get("ready") is not True:
            raise RuntimeError(f"{self.name} did not say that it is ready")
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            print(f"{self.name}: {line}", end="", file=sys.stderr)  # output of the loader itself
        raise RuntimeError(f"{self.name} ended with status {self._process.wait()} without an answer")

    def run(self, keep: bool) -> None:
        cpu, faults = tree.used(self.pid)
        answer = self.ask("run" if keep else "check")
        after_cpu, after_faults = tree.used(self.pid)
        tree.rest(self.pid)
        if not keep:
            return
        n = self.samples = int(answer["samples"])
        self.value.append(answer["seconds"] / n)
        self.cpu.append(max(after_cpu - cpu, 0.0) / n)
        self.faults.append(max(after_faults - faults, 0) / n)

    def end(self) -> None:
        """Also ends processes that it has left."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def as_subject(self) -> dict[str, Any]:
        return {"name": self.name, "samples": self.samples, "value": self.value, "cpu": self.cpu, "faults": self.faults}


@dataclass
class Derived:
    """A subject computed from the runs of others."""

    name: str
    samples: int
    value: list[float]
    unit: str = ""
    cpu: list[float] = field(default_factory=list)

    def as_subject(self) -> dict[str, Any]:
        return (
            {"name": self.name, "samples": self.samples, "value": self.value}
            | ({"unit": self.unit} if self.unit else {})
            | ({"cpu": self.cpu} if self.cpu else {})
        )


def alternate(runs: int, *subjects: Process) -> None:
    """Starts all subjects, and runs each once with a check of its samples. Then runs all in turn,
    every other round backwards, so that a drift of the machine affects all alike."""
    try:
        for subject in subjects:
            subject.start()
        for subject in subjects:
            subject.ready()
        for turn in range(-1, runs):
            for subject in subjects if turn % 2 == 0 else reversed(subjects):
                gc.collect()
                subject.run(keep=turn >= 0)
    finally:
        for subject in subjects:
            subject.end()


def memory(subject: Process) -> int:
    """PSS of the tree of a subject that has run once, while it is idle."""
    try:
        subject.start().ready()
        subject.run(keep=False)
        return tree.share(subject.pid)
    finally:
        subject.end()


def median(values: list[float]) -> float:
    return statistics.median(values)
