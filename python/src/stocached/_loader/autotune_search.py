"""Which settings `autotune` tries, and which of them it chooses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from .autotune_bench import Bench, Trial

_ENOUGH = 0.97  # of the best rate: a cheaper setting with this rate is chosen
_BETTER = 1.03  # times the rate: less is noise
# Of the time: a training loop that waits less has all it needs. A better rate is the step's.
_HIDDEN = 0.05


class Search:
    """Tries numbers of workers, then of gather threads and prefetched batches. At last it compares
    the chosen setting with the loader's own."""

    def __init__(self, bench: Bench, candidates: list[int]) -> None:
        self._bench = bench
        self._candidates = candidates
        self.trials: list[Trial] = []

    def run(self) -> tuple[Trial, Trial, str]:
        bench = self._bench
        own = bench.own
        current = self._try(own)
        by_workers = [current]
        without_gain = 0
        for number in self._candidates:
            if number == own.num_workers:
                continue
            best = max(trial.samples_per_second for trial in by_workers)
            trial = self._try(_with_workers(own, number))
            by_workers.append(trial)
            gained = trial.samples_per_second > best * _BETTER
            without_gain = 0 if gained else without_gain + (number > own.num_workers)
            if trial.waiting <= _HIDDEN or without_gain >= 2 or not (number or trial.loads):
                break  # the last reason: workers would have nothing to do
        chosen = self._least(by_workers)
        if chosen.hit_rate > 0.05:
            threads = [
                replace(chosen, gather_threads=2**k) for k in range(10) if 2**k <= bench.cpus and 2**k != bench.threads
            ]
            chosen = self._best(chosen, threads)
        # Without a step the loop always waits for the workers, however far ahead they are.
        if bench.has_step and chosen.num_workers > 0 and chosen.waiting > _HIDDEN:
            factors = [
                replace(chosen, prefetch_factor=factor) for factor in (4, 8) if factor > (chosen.prefetch_factor or 2)
            ]
            chosen = self._best(chosen, factors)
        if chosen.settings == own.settings:
            return chosen, current, f"the settings that it has are the best of these: {_rate(chosen)}"
        return self._confirm(chosen, by_workers)

    def _try(self, setting: Trial) -> Trial:
        trial = self._bench.measure(setting)
        self.trials.append(trial)
        return trial

    def _best(self, chosen: Trial, others: Sequence[Trial]) -> Trial:
        """Tries others too; returns the least of those that are about as good as the best."""
        return self._least([chosen, *(self._try(other) for other in others)])

    def _least(self, trials: Sequence[Trial]) -> Trial:
        """The cheapest of the trials that are about as good as the best."""
        enough = _ENOUGH * max(trial.samples_per_second for trial in trials)
        return min(
            (trial for trial in trials if trial.samples_per_second >= enough or trial.waiting <= _HIDDEN), key=_cost
        )

    def _confirm(self, chosen: Trial, by_workers: Sequence[Trial]) -> tuple[Trial, Trial, str]:
        """Measures the chosen and the loader's own setting twice more, as one trial of each may be
        luck."""
        own = self._bench.own
        again = [self._try(own), self._try(chosen), self._try(own), self._try(chosen)]
        old, new = _mean(again[::2]), _mean(again[1::2])
        ratio = new.samples_per_second / old.samples_per_second if old.samples_per_second else math.inf
        cheaper = _cost(chosen) < _cost(own)
        if ratio < (_ENOUGH if cheaper else _BETTER) and not (cheaper and new.waiting <= _HIDDEN):
            why = f"the settings that it has are as good: {_rate(old)}; {_arguments(new)} gave {new.samples_per_second:,.0f}"
            return old, old, why
        why = f"{_rate(new)}, {ratio:.2f} times the {old.samples_per_second:,.0f} of {_arguments(old)}"
        if ratio <= _BETTER:
            why = f"as fast as {_arguments(old)}, and takes less: {_rate(new)}"
        more = [trial for trial in by_workers if trial.num_workers > chosen.num_workers]
        if more:
            most = max(more, key=lambda trial: trial.samples_per_second)
            why += f"; {most.num_workers} workers gave {most.samples_per_second:,.0f}"
        return new, old, why


def _with_workers(trial: Trial, number: int) -> Trial:
    factor = (trial.prefetch_factor or 2) if number else None
    return replace(trial, num_workers=number, prefetch_factor=factor)


def _cost(trial: Trial) -> tuple[int, int, int]:
    return trial.num_workers, trial.gather_threads or 0, trial.prefetch_factor or 0


def _mean(trials: Sequence[Trial]) -> Trial:
    """One trial of several of the same settings."""
    seconds = sum(trial.seconds for trial in trials)

    def over_time(name: str) -> float:
        return sum(float(getattr(trial, name)) * trial.seconds for trial in trials) / seconds

    return replace(
        trials[0],
        samples_per_second=over_time("samples_per_second"),
        waiting=over_time("waiting"),
        hit_rate=over_time("hit_rate"),
        first_batch_seconds=min(trial.first_batch_seconds for trial in trials),
        batches=sum(trial.batches for trial in trials),
        seconds=seconds,
    )


def _arguments(trial: Trial) -> str:
    return ", ".join(f"{name}={value}" for name, value in trial.settings.items() if value is not None)


def _rate(trial: Trial) -> str:
    return f"{trial.samples_per_second:,.0f} samples/s, waiting {trial.waiting:.0%}"
