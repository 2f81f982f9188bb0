"""`stocached.advise`: measures a loader, and asks the command `stocached advise` what to try."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._common.errors import InvalidError
from .._common.numbers import real
from .._common.numbers import seconds as time_of
from .._common.program import program as command_of
from .base import BaseLoader
from .measuring import Trial
from .measuring_ours import OurTrial
from .measuring_torch import TorchTrial

_FEWEST = 30  # loads that say something, as in internal/advise


@dataclass(frozen=True)
class Advice:
    """What `stocached advise` says. str() is its text.

    numbers: what the command prints with --json (`stocached advise --help` explains it): sizes in
        bytes, times in seconds."""

    text: str
    numbers: dict[str, Any]

    def __str__(self) -> str:
        return self.text


def advise(
    loader: Any,
    seconds: float = 20.0,
    *,
    step: Callable[[Any], Any] | None = None,
    step_seconds: float | None = None,
    size: int | str | None = None,
) -> Advice:
    """Measures where the time of a loader goes, and says what to try: a number of workers, memory
    for samples. `print(stocached.advise(loader))`.

    loader: torch's DataLoader, or a loader of stocached.
    seconds: about how long to read batches; longer if batches take long. A line on stderr says so before.
    step: a function that is called with each batch, as training would be.
    step_seconds: a step that takes this time and no CPU. Without a step, only loading is measured.
    size: memory for samples that the advice may use, such as "8GiB". None: as much as helps.

    It reads samples in new workers, in the loader's order if it is one of stocached, else shuffled, or in
    sequence without shuffle=True. It reads the cache of a loader as it is, and stores nothing in it. The loader,
    its samplers, generators, epoch and cache stay as they are, and no process is left. The sample that a
    cache would store is the one before `augment=`, or before the dataset's `transform`, which counts as
    random.

    Raises what the dataset raises, InvalidError for a loader that cannot be measured, such as one over an
    iterable dataset, and UnsupportedError if the command `stocached` is not installed."""
    if step is not None and step_seconds is not None:
        raise InvalidError("step= is called, step_seconds= is how long one takes; give one of them")
    step_seconds = None if step_seconds is None else time_of("step_seconds", step_seconds, 3600)
    seconds = real("seconds", seconds, "more than 0, and at most 3600", 1e-9, 3600)
    program, trial = command_of("advise()"), _trial_of(loader)
    if sys.stderr is not None:
        text = f"stocached: advise() reads batches of the {type(loader).__name__} for about {seconds:g} s, longer if they are slow"
        print(text, file=sys.stderr, flush=True)
    more = [] if size is None else ["--size", str(size)]
    with tempfile.TemporaryDirectory(prefix="stocached-advise-") as folder:
        path = os.path.join(folder, type(loader).__name__)
        trial.run(path, seconds, step, step_seconds)
        about = [path]
        if trial.cache is not None and int((trial.cache.costs() > 0).sum()) >= min(_FEWEST, len(trial.cache)):
            about = [
                trial.cache.path or f"/proc/{os.getpid()}/fd/{trial.cache._handle.info().fd}",
                "--run",
                path,
            ]
            if trial.source_share is not None:
                about += ["--source-share", f"{trial.source_share:.6f}"]
        command = [program, "advise", *about, *more]
        text, numbers = _run(command), json.loads(_run([*command, "--json"]))
    notes = [*numbers["notes"], *trial.notes]
    return Advice(text + "".join(f"NOTE: {note}\n" for note in notes), numbers | {"notes": notes})


def _trial_of(loader: Any) -> Trial:
    if isinstance(loader, BaseLoader):
        return OurTrial(loader)
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and isinstance(loader, torch.DataLoader):
        return TorchTrial(loader)
    raise InvalidError(
        f"advise() needs torch's DataLoader or a loader of stocached, and got a {type(loader).__qualname__}"
    )


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InvalidError(done.stderr.strip().removeprefix("stocached: ") or f"{command[0]} failed")
    return done.stdout


Advice.__module__ = advise.__module__ = "stocached"  # where users find them
