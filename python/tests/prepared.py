"""Preparers for the tests of stocached.prepare, and functions that read the files they make."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stocached.prepare import DataPreparer, DatasetInfo, fingerprint

PROGRAM = Path(__file__).resolve().parents[2] / "bin" / "stocached"

FIELDS: dict[str, tuple[Any, Any]] = {
    "image": ((3, 5, 5), "uint8"),
    "label": ((), "int64"),
    "weights": ((2,), "float16"),
}
VARIABLE: dict[str, tuple[Any, Any]] = {
    "text": ((None,), "bytes"),
    "points": ((None, 2), "float32"),
    "label": ((), "int32"),
}
BARE: dict[str, tuple[Any, Any]] = {"tokens": ((None,), "uint16")}


def sample(fields: dict[str, tuple[Any, Any]], index: int) -> Any:
    """Sample i of a dataset with these fields: random, and equal each time."""
    random = np.random.default_rng(index)
    made = {}
    for name, (shape, dtype) in fields.items():
        dims = tuple(int(random.integers(0, 40)) if dim is None else dim for dim in shape)
        if dtype == "bytes":
            made[name] = random.bytes(dims[0])
        elif name == "label":
            made[name] = np.array(index % 7, dtype)
        else:
            made[name] = random.integers(0, 200, dims).astype(dtype)
    return made if len(made) > 1 else made[next(iter(fields))]


def same(a: Any, b: Any) -> bool:
    """Whether two samples have equal values of equal types."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return type(a) is type(b) and (a == b if isinstance(a, bytes) else a.dtype == b.dtype and np.array_equal(a, b))


class Made(DataPreparer):
    """Returns `sample` for each index. calls: a file that gets a line for each requested part.
    seconds: time that a sample takes."""

    def __init__(
        self,
        n: int = 500,
        fields: dict[str, tuple[Any, Any]] = FIELDS,
        *,
        calls: Any = None,
        seconds: float = 0.0,
        known: bool = True,
    ) -> None:
        self.n, self.fields, self.calls, self.seconds, self.known = n, fields, calls, seconds, known

    @property
    def variable(self) -> bool:
        return any(None in shape for shape, _ in self.fields.values())

    def dataset_info(self) -> DatasetInfo:
        name = fingerprint(1, self.n, {name: (list(shape), dtype) for name, (shape, dtype) in self.fields.items()})
        return DatasetInfo(
            self.fields, self.n if self.known else None, name, self.variable, {"classes": "cat, <dog> & \u2028é\t"}
        )

    def samples(self, first: int, stop: int | None) -> Iterator[Any]:
        if self.calls is not None:
            with open(self.calls, "a") as file:
                file.write(f"{os.getpid()} {first} {stop}\n")
        for index in range(first, self.n if stop is None else stop):
            if self.seconds:
                time.sleep(self.seconds)
            yield sample(self.fields, index)


def parts(calls: Any) -> list[tuple[int, int, int]]:
    """Process, first and stop of each requested part, from the file of a `Made`. Leaves out samples
    that a process requests again to compare them."""
    found: list[tuple[int, int, int]] = []
    for line in Path(calls).read_text().splitlines():
        pid, first, stop = (None if word == "None" else int(word) for word in line.split())
        if stop != first + 1 or not any(
            other == pid and begin <= first and (end is None or first < end) for other, begin, end in found
        ):
            found.append((pid, first, stop))
    return found


def tree(folder: Any) -> dict[str, bytes]:
    """All files of a folder by name."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def stocached(*arguments: Any, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Runs the program stocached."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, timeout=240, check=False)
    assert not check or done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done
