"""Runs the subjects of a case in turn, every other round backwards, so that a drift of the machine affects all
alike. A table has medians, of time and of processor time a sample. A ratio is the median of the ratios within a
round, with an interval that contains the median with 95 % probability."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tree

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/bench"
PEERS = ROOT / ".venv-peers/bin/python"  # `make setup-peers` makes it: other projects' loaders, and ours
Figures = dict[str, float]  # the figures of a run: seconds and cpu, a sample, and others


def interval(count: int) -> int:
    """The rank k such that the k-th least and the k-th greatest of so many values enclose the median with 95 %
    probability: the binomial distribution with p = 1/2. 1 with few values, which enclose it less often."""
    below, k = 0.0, 0
    while below + math.comb(count, k) / 2**count <= 0.025:
        below += math.comb(count, k) / 2**count
        k += 1
    return max(1, k)


def spread(values: Iterable[float], digits: int = 2) -> str:
    ranked = sorted(values)
    k = interval(len(ranked))
    return f"{statistics.median(ranked):.{digits}f} ({ranked[k - 1]:.{digits}f} to {ranked[-k]:.{digits}f})"


class Subject:
    """One way to do the work."""

    name: str

    def __init__(self) -> None:
        self.runs: list[Figures] = []
        self.missing = ""  # why it cannot run

    def all(self, what: str = "seconds") -> list[float]:
        return [run[what] for run in self.runs]

    def median(self, what: str = "seconds") -> float:
        return statistics.median(self.all(what))

    def start(self) -> None:
        """Begins to get ready, while others do so too."""

    def check(self) -> None:
        """Waits until it is ready, and runs once to warm up."""

    def run(self) -> Figures:
        raise NotImplementedError

    def end(self) -> None:
        """Ends its processes."""


class Here(Subject):
    """A function in this process. `setup` and `clean` run before and after each run, without a clock."""

    def __init__(
        self,
        name: str,
        samples: int,
        work: Callable[[], Any],
        setup: Callable[[], Any] = lambda: None,
        clean: Callable[[], Any] = lambda: None,
    ) -> None:
        super().__init__()
        self.name, self._samples, self._work, self._setup, self._clean = name, samples, work, setup, clean

    def check(self) -> None:
        self.run()

    def run(self) -> Figures:
        self._setup()
        gc.collect()
        gc.disable()  # a collection during a run would hit a subject by chance
        before, start = _cpu(), time.perf_counter()
        self._work()
        seconds, cpu = time.perf_counter() - start, _cpu() - before
        gc.enable()
        self._clean()
        return {"seconds": seconds / self._samples, "cpu": cpu / self._samples}


def _cpu() -> float:
    """Processor seconds of this process and of its workers that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


class Process(Subject):
    """A subject in a process of its own, so that its threads and memory are not there when another one runs.
    kind: MODULE.CLASS in subjects/. The process answers each line with a line (serve)."""

    def __init__(self, name: str, kind: str, **settings: Any) -> None:
        super().__init__()
        self.name = name
        python = PEERS if PEERS.exists() else sys.executable
        self._command = [python, ROOT / "bench/python", "--subject", kind, json.dumps(settings)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def check(self) -> None:
        self.missing = self._answer().get("missing", "")
        if not self.missing:
            self.missing = self._ask("check").get("missing", "")
            tree.rest(self._pid)

    def run(self) -> Figures:
        cpu = tree.used(self._pid)
        found = self._ask("run")
        cpu = tree.used(self._pid) - cpu
        tree.rest(self._pid)
        samples = found.pop("samples")
        found["seconds"] /= samples
        return {"cpu": max(cpu, 0.0) / samples} | found

    def memory(self) -> float:
        """MB of its processes after a run, while they are idle. A shared page counts once (PSS)."""
        try:
            self.start()
            self.check()
            return math.nan if self.missing else tree.pss_bytes(self._pid) / 1e6
        finally:
            self.end()

    def end(self) -> None:
        """Also ends processes that it has left."""
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _ask(self, what: str) -> dict[str, Any]:
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
        raise RuntimeError(f"{self.name} ended with status {self._process.wait()} without an answer")


class Derived(Subject):
    """A subject computed from the runs of others."""

    def __init__(self, name: str, seconds: Iterable[float]) -> None:
        super().__init__()
        self.name, self.runs = name, [{"seconds": value} for value in seconds]


class Whole:
    """Base of the classes in subjects/: a run is `epochs` whole epochs of samples that hold their index."""

    samples: int
    n: int
    epochs = 1

    def epoch(self) -> Iterable[Any]:
        """The batches of a run."""
        raise NotImplementedError

    def check(self) -> None:
        """A run that checks the batches."""
        import sets

        found = [number for batch in self.epoch() for number in sets.numbers(batch)]
        if len(found) != self.samples:
            raise RuntimeError(f"{len(found)} samples instead of {self.samples}")
        if self.samples == self.epochs * self.n and sorted(found) != sorted(list(range(self.n)) * self.epochs):
            raise RuntimeError("not each sample once an epoch")

    def run(self) -> dict[str, float]:
        """The figures of a run: its samples, the seconds of all of them, and others."""
        start = time.perf_counter()
        for _ in self.epoch():
            pass
        return {"samples": self.samples, "seconds": time.perf_counter() - start}


def serve(kind: str, settings: dict[str, Any]) -> None:
    """The process of a subject."""
    import importlib

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # all that loaders print

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    warnings.filterwarnings("ignore", message="This DataLoader will create")  # as few processors as workers
    module, name = kind.split(".")
    try:
        made = getattr(importlib.import_module(f"subjects.{module}"), name)(**settings)
        answer({"ready": True})
        for line in sys.stdin:
            answer(made.run() if line.strip() == "run" else made.check() or {})
        gc.freeze()  # with torch, the end of the interpreter takes half a second less
    except ImportError as error:
        answer({"missing": str(error).splitlines()[0]})


@dataclass
class Run:
    """Settings of a run of the program, and the text that it prints."""

    rounds: int
    folder: str  # on a tmpfs, of this run alone
    quick: bool = False
    text: list[str] = field(default_factory=list)

    def n(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @cached_property
    def loops(self) -> str:
        """The library of bare C loops."""
        made = BUILT / "loops.so"
        BUILT.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", made, ROOT / "bench/c/loops.c"]
        subprocess.run(command, check=True)
        return str(made)

    def say(self, line: str) -> None:
        self.text.append(line)
        print(line, flush=True)

    def alternate(self, *subjects: Subject) -> None:
        try:
            for subject in subjects:
                subject.start()
            for subject in subjects:
                subject.check()
            for round_ in range(self.rounds):
                for subject in subjects if round_ % 2 == 0 else reversed(subjects):
                    if not subject.missing:
                        subject.runs.append(subject.run())
        finally:
            for subject in subjects:
                subject.end()

    def measure(self, title: str, *subjects: Subject, note: str = "") -> None:
        """Runs the subjects and makes their table. The first one is ours, and each other one has a ratio to it."""
        self.alternate(*subjects)
        self.table(title, subjects, note)

    def table(self, title: str, subjects: Sequence[Subject], note: str = "") -> None:
        self.say(f"\n### {title}\n")
        if note:
            self.say(f"{note}.\n")
        ours = subjects[0]
        self.say(f"| | µs a sample | µs of processors | samples/s | beside {ours.name} | in processors |")
        self.say("|---|--:|--:|--:|--:|--:|")
        for one in subjects:
            if one.missing or not one.runs:
                self.say(f"| {one.name} | left out: {one.missing} | | | | |")
                continue
            us = 1e6 * one.median()
            cpu = f"{1e6 * one.median('cpu'):,.2f}" if "cpu" in one.runs[0] else ""
            self.say(
                f"| {one.name} | {us:,.2f} | {cpu} | {1e6 / us:,.0f} | {beside(one, ours, 'seconds')} | "
                f"{beside(one, ours, 'cpu')} |"
            )


def beside(one: Subject, ours: Subject, what: str) -> str:
    """How many times as much it takes. Clocks of processes that have ended count in hundredths of a second."""
    if one is ours or what not in one.runs[0] or not all(ours.all(what)):
        return ""
    return spread(a / b for a, b in zip(one.all(what), ours.all(what), strict=True))
