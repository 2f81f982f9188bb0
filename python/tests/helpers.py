"""Functions for several test files."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


def pattern(index: int, size: int = 1000, salt: int = 0) -> np.ndarray:
    """Bytes that all depend on the index, so that a mixed or swapped sample shows."""
    return np.random.default_rng((index, salt)).integers(0, 256, size, np.uint8)


class Of:
    """A dataset with the values of a function."""

    def __init__(self, function: Callable[[int], Any], n: int) -> None:
        self.function, self.n = function, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


def outcomes(batches: Iterator[Any], kind: Any = Exception) -> Iterator[Any]:
    """Batches, and errors in their places, up to the end."""
    while True:
        try:
            yield next(batches)
        except StopIteration:
            return
        except kind as error:
            yield error


def stopped(
    loader: Any, stop: int | None, epoch: int = 0, plain: Callable[[Any], Any] = lambda batch: batch.tolist()
) -> tuple[list[Any], Any]:
    """Reads so many batches of that epoch, and closes the loader. None: the epoch does not begin. Returns the batches, and the
    state as another program reads it."""
    for _ in range(epoch):
        list(loader)
    batches = iter(loader if stop is not None else ())
    got = [plain(next(batches)) for _ in range(stop or 0)]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    return got, state


def python(
    code: str, *arguments: Any, timeout: float = 240, check: bool = True, options: tuple[str, ...] = ("-W", "error")
) -> subprocess.CompletedProcess[str]:
    """Runs a program in its own interpreter, with every warning an error. A failure message has its
    output."""
    command = [sys.executable, *options, "-c", textwrap.dedent(code), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if check:
        assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert result.stderr == "", result.stderr
    return result


def without(package: str, call: str, *arguments: Any) -> str:
    """What stocached says to a program that lacks the package."""
    code = f"import sys; sys.modules[{package!r}] = None\nimport stocached\ntry: {call}\n"
    return python(f"{code}except stocached.UnsupportedError as error: print(error)", *arguments).stdout


def checks_of(file: str) -> list[str]:
    """The functions check_... of a file next to this one, without importing that file."""
    lines = Path(__file__).with_name(file).read_text().splitlines()
    return [line.removeprefix("def ").partition("(")[0] for line in lines if line.startswith("def check_")]


class Later:
    """A module that its first use imports. Each process that runs tests imports all their files, and each of its forks copies
    what it has imported. Without the package, the tests of the file are skipped."""

    def __init__(self, name: str) -> None:
        self._name = name
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            import pytest  # programs of tests import this file too

            pytest.skip(f"{name} is missing", allow_module_level=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # pytest asks each global of a file for `_mock_name`
        return getattr(importlib.import_module(self._name), name)
