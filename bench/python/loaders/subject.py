"""The process of a subject: makes one loader, and runs it on request. `python bench/python subject
KIND SETTINGS`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, Protocol


class Subject(Protocol):
    samples: int  # in a run

    def epoch(self) -> Iterable[Any]:
        """The batches of a run."""
        ...

    def check(self) -> None:
        """A run that checks the batches. Raises if they are wrong."""
        ...


class Whole:
    """Base of subjects whose run is `epochs` whole epochs of samples that hold their index."""

    samples: int
    n: int
    epochs = 1

    def epoch(self) -> Iterable[Any]:
        raise NotImplementedError

    def numbers(self, batch: Any) -> list[int]:
        from . import sets

        return sets.numbers(batch)

    def check(self) -> None:
        found: list[int] = []
        for batch in self.epoch():
            found += self.numbers(batch)
        if len(found) != self.samples:
            raise RuntimeError(f"{len(found)} samples instead of {self.samples}")
        each = sorted(found)
        if self.samples == self.epochs * self.n and each != sorted(list(range(self.n)) * self.epochs):
            raise RuntimeError("not each sample once an epoch")
        if self.samples < self.n and len(set(found)) != len(found):
            raise RuntimeError("a sample came twice")


def main(kind: str, settings: dict[str, Any]) -> None:
    from . import kinds

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # all that loaders print

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    made = kinds.make(kind, settings)
    answer(ready=True)
    for line in sys.stdin:
        if line.strip() == "check":
            made.check()
            answer(samples=made.samples)
        elif hasattr(made, "seconds"):  # measures by itself
            answer(samples=made.samples, seconds=made.seconds())
        else:
            start, n = time.perf_counter(), 0
            for _ in made.epoch():
                n += 1
            answer(samples=made.samples, seconds=time.perf_counter() - start, batches=n)
