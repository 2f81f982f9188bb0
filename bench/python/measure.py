"""Runs subjects in turn and prints their times, one measurement a line as JSON: see
bench/report/measurement.go."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Subject:
    """One way to do the work. `setup` and `clean` run before and after each run and are not
    timed."""

    name: str
    samples: int  # in a run
    run: Callable[[], None]
    setup: Callable[[], None] = lambda: None
    clean: Callable[[], None] = lambda: None
    value: list[float] = field(default_factory=list)  # seconds a sample, of each run
    cpu: list[float] = field(default_factory=list)
    faults: list[float] = field(default_factory=list)

    def once(self, keep: bool) -> None:
        self.setup()
        gc.collect()
        before, start = _used(), time.perf_counter()
        self.run()
        end, after = time.perf_counter(), _used()
        self.clean()
        if keep:
            self.value.append((end - start) / self.samples)
            self.cpu.append((after[0] - before[0]) / self.samples)
            self.faults.append((after[1] - before[1]) / self.samples)


def _used() -> tuple[float, float]:
    """Processor seconds and minor page faults of this process and of its workers that have
    ended."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime, own.ru_minflt + ended.ru_minflt


class Bench:
    """Writes measurements to standard output, which no other code may print to."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self._out = sys.stdout
        sys.stdout = sys.stderr  # the caches print a line each

    def alternate(self, case: str, size: str, *subjects: Subject, note: str = "") -> None:
        """A round to warm up, then the runs. Every other round goes backwards, so that a drift of
        the machine affects all alike."""
        gc.disable()  # a collection during a run would hit a subject by chance
        for turn in range(-1, self.runs):
            for subject in subjects if turn % 2 == 0 else reversed(subjects):
                subject.once(keep=turn >= 0)
        gc.enable()
        self._print(case, size, note=note, subjects=[_shown(subject) for subject in subjects])

    def put(self, case: str, size: str, subjects: list[dict[str, Any]], note: str = "") -> None:
        """Emits subjects that were measured elsewhere."""
        self._print(case, size, note=note, subjects=subjects)

    def missing(self, case: str, size: str, why: str) -> None:
        self._print(case, size, missing=why)

    def _print(self, case: str, size: str, **more: Any) -> None:
        print(json.dumps({"case": case, "size": size, **more}), file=self._out, flush=True)


def _shown(subject: Subject) -> dict[str, Any]:
    return {
        "name": subject.name,
        "samples": subject.samples,
        "value": subject.value,
        "cpu": subject.cpu,
        "faults": subject.faults,
    }
