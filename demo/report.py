"""The table for users and the numbers for programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from demo.experiment import Result, Run
from demo.loading import SAMPLE_BYTES

MB = 1_000_000

HEADINGS = (
    "cached",
    "policy",
    "hit rate",
    "epoch 1",
    "epochs 2-3",
    "predicted",
    "off by",
    "CPU",
    "off by",
    "samples/s",
    "speed-up",
    "memory",
)
UNITS = ("", "", "", "s", "s", "s", "", "s", "", "", "", "MB (PSS)")
BUSY = 1.25  # an epoch with more seconds than this times its processor time ran on a busy machine


def table(result: Result) -> str:
    """One row for each run. legend() explains the columns."""
    rows = [HEADINGS, UNITS, cells(result, result.without)]
    rows += [cells(result, run) for run in by_fraction(result)]
    lines = aligned(rows)
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], lines[1], rule, lines[2], rule, *lines[3:]])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def cells(result: Result, run: Run) -> Sequence[str]:
    first, warm, cpu = f"{run.seconds[0]:.2f}", f"{run.warm_seconds:.2f}", f"{run.warm_cpu_seconds:.2f}"
    rate, memory = f"{run.samples_a_second:,.0f}", f"{run.pss_bytes / MB:,.0f}"
    if run.slots is None:
        return ("no cache", "", "", first, warm, "", "", cpu, "", rate, "", memory)
    predicted = f"{result.predicted_seconds(run.fraction):.2f}" if run.policy == "first-come" else ""
    offs = ("", "")  # the prediction is made from the last run
    if run.policy == "first-come" and run is not result.cached[-1]:
        offs = (
            off_by(run.warm_seconds, result.predicted_seconds(run.fraction)),
            off_by(run.warm_cpu_seconds, result.predicted_cpu_seconds(run.fraction)),
        )
    speed_up = f"{result.cold_seconds / run.warm_seconds:.1f} x"
    return (
        f"{run.fraction:.0%}",
        run.policy,
        f"{run.warm_hit_rate:.1%}",
        first,
        warm,
        predicted,
        offs[0],
        cpu,
        offs[1],
        rate,
        speed_up,
        memory,
    )


def by_fraction(result: Result) -> list[Run]:
    """All runs with a cache, in the order of their fractions."""
    return sorted([*result.cached, *result.costly], key=lambda run: run.fraction)


def off_by(measured: float, predicted: float) -> str:
    return f"{measured / predicted - 1:+.1%}" if predicted > 0 else ""  # processor time is counted in hundredths


def was_busy(result: Result) -> bool:
    """Whether other programs used the processors: an epoch that decodes files should keep each
    worker on one."""
    workers = min(result.workers, os.cpu_count() or 1)
    return any(
        run.warm_seconds * workers > BUSY * run.warm_cpu_seconds for run in (result.without, *by_fraction(result)[:-1])
    )


def legend(result: Result) -> str:
    full = result.cached[-1]
    cache = full.slots * SAMPLE_BYTES / MB if full.slots else 0
    busy = (
        "Other programs kept the processors busy: trust the CPU columns more than the seconds.\n"
        if was_busy(result)
        else ""
    )
    return busy + (
        "Epoch 1 fills the cache. Epochs 2-3 use it; the table has the smaller value of the two, also for CPU, the processor time of all processes.\n"
        "The first row with a cache has the smallest cache, of one slot. "
        "first-come keeps the samples that came first: a cached fraction c saves a fraction c of the loading. "
        "cost keeps the samples that take longest to load, so it saves more with the same memory.\n"
        f"predicted = (1 - c) x {result.cold_seconds:.2f} s without a cache + c x {result.hit_seconds:.2f} s with everything cached.\n"
        f"memory is that of all {result.workers + 1} processes together. They share one cache, which takes {cache:,.0f} MB when it is full; "
        f"a copy in each of {result.workers} workers would take {cache * result.workers:,.0f} MB.\n"
        "Every epoch of every run read the same bytes (checksums compared)."
    )


def as_json(result: Result) -> dict[str, Any]:
    """Seconds and bytes, unrounded."""
    return {
        "dataset": result.dataset,
        "samples": result.samples,
        "sample_bytes": SAMPLE_BYTES,
        "workers": result.workers,
        "batch": result.batch,
        "loader": result.loader,
        "machine_was_busy": was_busy(result),
        "cold_seconds": result.cold_seconds,
        "hit_seconds": result.hit_seconds,
        "runs": [run_as_json(result, run) for run in (result.without, *by_fraction(result))],
    }


def run_as_json(result: Result, run: Run) -> dict[str, Any]:
    return {
        "cache": run.slots is not None,
        "policy": run.policy if run.slots is not None else None,
        "slots": run.slots or 0,
        "cached_fraction": run.fraction,
        "epoch_seconds": run.seconds,
        "epoch_cpu_seconds": run.cpu_seconds,
        "epoch_hit_rates": run.hit_rates,
        "warm_seconds": run.warm_seconds,
        "samples_per_second": run.samples_a_second,
        "predicted_seconds": result.predicted_seconds(run.fraction),
        "warm_cpu_seconds": run.warm_cpu_seconds,
        "predicted_cpu_seconds": result.predicted_cpu_seconds(run.fraction),
        "pss_bytes": run.pss_bytes,
    }
