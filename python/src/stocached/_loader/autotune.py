"""Finds how many workers, gather threads and prefetched batches a loader needs, by trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .._common.errors import InvalidError
from .._common.processors import processors
from .._datasets import looks
from .autotune_bench import Bench, Trial, forks, is_iterable
from .autotune_search import Search

_TRIALS = 12  # that the time is divided by


@dataclass(frozen=True)
class Autotuned:
    """What `autotune` chose, and why. `str()` of it is a table.

    Use: DataLoader(**(loader.settings | tuned.settings))."""

    chosen: Trial  # the best
    current: Trial  # with the settings of the loader
    trials: tuple[Trial, ...]  # all, in the order of time
    why: str  # it was chosen
    notes: tuple[str, ...]  # how the trials differ from the loader
    seconds: float  # that all trials took together
    cpus: int  # that this process may use

    @property
    def settings(self) -> dict[str, Any]:
        """num_workers, prefetch_factor and gather_threads, for the constructor of a loader. Without
        workers also the arguments that a loader then refuses, as None or False."""
        return self.chosen.settings

    def __str__(self) -> str:
        head = ("", "workers", "prefetch", "threads", "samples/s", "waiting", "hits", "first batch")
        rows = [head]
        for trial in self.trials:
            rows.append(
                (
                    "->" if trial.settings == self.chosen.settings else "",
                    str(trial.num_workers),
                    _shown(trial.prefetch_factor),
                    _shown(trial.gather_threads),
                    f"{trial.samples_per_second:,.0f}",
                    f"{trial.waiting:.0%}",
                    f"{trial.hit_rate:.0%}",
                    f"{trial.first_batch_seconds * 1000:,.0f} ms",
                )
            )
        widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        arguments = ", ".join(f"{name}={value}" for name, value in self.settings.items() if value is not None)
        return "\n".join(
            [
                f"{len(self.trials)} trials in {self.seconds:.1f} s, {self.cpus} CPUs",
                *table,
                f"chosen: {arguments}",
                self.why,
                *self.notes,
            ]
        )


def autotune(
    loader: Any,
    *,
    step: Callable[[Any], Any] | None = None,
    step_seconds: float | None = None,
    seconds: float = 10.0,
    workers: Iterable[int] | None = None,
) -> Autotuned:
    """Tries a loader's dataset with other numbers of workers, prefetched batches and gather
    threads. Chooses the smallest numbers that give about the best rate.

    loader: a stocached.Loader or stocached.torch.DataLoader. Its own settings are tried too, and
        kept unless others are better by 3 %.
    step: a function that is called with each batch, as training would be.
    step_seconds: a step that takes this time and no CPU. Without a step, only loading is measured.
    seconds: about how long to take; longer if a batch takes long.
    workers: the numbers to try. None: 0, 1, 2, 4, ... up to 4 times the CPUs, as long as more
        workers help.
        Without 0 for an iterable dataset that has workers.

    Each trial reads new samples: in the loader's order if it is one of stocached, else shuffled, or
    in sequence without shuffle=True. Trials read the cache as it is now and store nothing in it. So
    call this after the first epoch to see the rates of later epochs.

    The loader, its samplers, generators, epoch and cache stay as they are, and no process is left.
    The dataset runs in new workers, and for 0 workers in a forked child as for other looks at samples
    (docs/guides/loader.md). A step= cannot run there, so 0 workers are not tried with one; nor with a
    worker_init_fn=, which only workers call, unless workers= has 0. Raises what the dataset raises,
    and InvalidError for a loader that cannot be tried."""
    if step is not None and step_seconds is not None:
        raise InvalidError("step= is called, step_seconds= is how long one takes; give one of them")
    if step_seconds is not None and not 0 <= step_seconds < 3600:
        raise InvalidError(f"step_seconds={step_seconds}; it must be between 0 and 3600")
    if not 0 < seconds <= 3600:
        raise InvalidError(f"seconds={seconds}; it must be more than 0, at most 3600")
    if not isinstance(getattr(loader, "settings", None), dict) or not callable(getattr(loader, "stats", None)):
        raise InvalidError(
            f"autotune() needs a stocached.Loader or stocached.torch.DataLoader, and got a {type(loader).__qualname__}"
        )
    begin = time.monotonic()
    bench = Bench(loader, _step(step, step_seconds), step is not None or bool(step_seconds), seconds / _TRIALS)
    try:
        if step is not None and loader.num_workers and looks.in_child(loader.dataset, forks(loader)):
            workers = _with_workers(loader, workers)
            bench.notes.append("0 workers are not tried: the step would run in a forked child; step_seconds= can")
        elif workers is None and loader.num_workers and loader.settings.get("worker_init_fn") is not None:
            workers = _with_workers(loader, workers)
            bench.notes.append(
                "0 workers are not tried: nothing would call worker_init_fn=, which the dataset may need; workers= can have 0"
            )
        search = Search(bench, _candidates(loader, workers))
        chosen, current, why = search.run()
    finally:
        bench.close()
    return Autotuned(
        chosen, current, tuple(search.trials), why, tuple(bench.notes), time.monotonic() - begin, bench.cpus
    )


def _step(step: Callable[[Any], Any] | None, step_seconds: float | None) -> Callable[[Any], Any]:
    if step is not None:
        return step
    if step_seconds:
        return lambda _: time.sleep(step_seconds)
    return lambda _: None


def _candidates(loader: Any, workers: Iterable[int] | None) -> list[int]:
    """Numbers of workers to try, in order."""
    if workers is not None:
        wanted = sorted({int(number) for number in workers})
        if not wanted or wanted[0] < 0:
            raise InvalidError(f"workers={wanted}; give numbers of 0 or more, one at least")
        if wanted[0] == 0 and is_iterable(loader) and loader.num_workers:
            raise InvalidError(
                "workers= has 0: an iterable dataset would be read in this process, which changes its position; leave 0 out"
            )
        return wanted
    most = max(4 * processors(), loader.num_workers)
    least = [] if is_iterable(loader) else [0]
    return sorted({*least, loader.num_workers, processors(), *(2**k for k in range(20) if 2**k <= most)})


def _with_workers(loader: Any, workers: Iterable[int] | None) -> list[int]:
    """`_candidates` without 0."""
    wanted = _candidates(loader, workers)
    if workers is not None and 0 in wanted:
        raise InvalidError(
            "workers= has 0: the dataset would run in a forked child, where the step cannot; leave 0 out, or give step_seconds= "
            "instead of step="
        )
    return [number for number in wanted if number]


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)


Trial.__module__ = __name__  # where users find it
