"""What each stage of a pipe gave, and how long it took.

A loader runs copies of the stages, which have the numbers of their lines. `Stage.items` counts and measures what a
stage gives, with the tally of its thread. Nobody counts the single items of a stage with an index: it gave as many as
the stage below, or the loader, which took them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._datasets.stage_stats import StageStats
from .._datasets.tally import BYTES, COLUMNS, ITEMS, NS, SEEN
from .caching import Cache
from .sources import Parts
from .stage import Stage, every


def numbered(stage: Stage, numbers: Iterator[int] | None = None) -> Stage:
    """A copy whose stages are numbered as the lines of `print(pipe)`."""
    numbers = itertools.count() if numbers is None else numbers
    made: Stage = stage.copied()
    if not isinstance(made, Parts):  # the numbers of parts have no line
        made.above = tuple(numbered(above, numbers) for above in stage.above)
    made.number = next(numbers)
    return made


class Chain:
    """The stages of the pipe of a loader, and what their counters mean. It has no functions of the program."""

    def __init__(self, root: Stage, items: Stage, *, top: Stage | None = None, cache: Stage | None = None) -> None:
        """root: all stages, numbered. items: gives the items of batches. top: of a pipe that the loader runs as a dataset:
        the stage whose samples the dataset has, or which they are made of. cache: of that dataset."""
        lines = {stage.number: stage for stage in every(root) if stage.number >= 0}
        stages = sorted(lines.values(), key=lambda stage: stage.number)
        self.lines = [line.strip() for line in root.drawn()]
        self._above = [[above.number for above in stage.above if above.number >= 0] for stage in stages]
        self._takes = [stage.indexed and stage.takes_all for stage in stages]
        self._same = [stage.kind in ("shuffle", "cache") for stage in stages]  # items of the stage above
        self.tallied = any(stage.tallied for stage in stages)
        self.indexed, self._last = items.indexed, items.number
        self._top, self.cache = (None if stage is None else stage.number for stage in (top, cache))
        self.cache_noted = cache.noted() if isinstance(cache, Cache) else ""  # for errors of the loader's own cache
        self.keeper = cache.shared if isinstance(cache, Cache) else None  # loaders of one stage share its cache
        caches = [stage for stage in stages if isinstance(stage, Cache)]
        first = {id(stage.shared): stage.number for stage in reversed(caches)}
        self._first = {stage.number: first[id(stage.shared)] for stage in caches}  # a pipe may be used twice
        lower = [stage for stage in lines.values() if isinstance(stage, Cache) and stage is not cache]
        self._read = {stage.number: stage.kept for stage in lower}  # by stages; a lower one is made first
        self._maps = [stage.number for stage in stages if stage.kind == "map"]
        self.batch = next((stage.number for stage in stages if stage.kind == "batch"), -1)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_read": {}, "keeper": None}

    @property
    def _kept(self) -> dict[int, Any]:
        return {number: read.cache for number, read in self._read.items() if number == self._first[number]}

    @property
    def caches(self) -> list[Any]:
        """Those that stages read."""
        return list(self._kept.values())

    def attach_again(self) -> bool:
        """Has stages read the caches that were made in place of theirs. Returns whether there are some."""
        again = [read.attach_again() for read in self._read.values()]  # all of them
        return any(again)

    def cache_counts(self) -> dict[int, tuple[int, int]]:
        """Hits and misses of the caches that stages read, since they were made, by the numbers of their lines."""
        stats = {number: cache.stats() for number, cache in self._kept.items() if not cache.closed}
        return {number: (one.hits, one.misses) for number, one in stats.items()}

    def stats(
        self,
        table: Any,
        loader: Any,
        caches: Mapping[int, tuple[int, int]],
        augment_seconds: float,
        hit_seconds: float,
        batch_seconds: float,
    ) -> tuple[StageStats, ...]:
        """table: of `Counters`, summed over its rows; None: nobody counts. loader: the stats of the loader. caches: as of
        `cache_counts`. augment_seconds, hit_seconds: of its load_seconds, those in `augment=`, and those of workers that
        read hits. batch_seconds: in `batch_augment=`."""
        own: list[list[int]] = (np.zeros((len(self.lines), COLUMNS), int) if table is None else table).tolist()
        items = self.items([row[ITEMS] for row in own], loader.samples, loader.misses)
        items[self._last + 1 :] = [loader.batches] * (len(own) - self._last - 1)
        seconds = [row[NS] / 1e9 for row in own]
        if self._top is not None:
            self._share(seconds, loader, augment_seconds, hit_seconds)
        self._divide(batch_seconds, [k for k in self._maps if k > self._last], seconds)
        made = []
        for k, line in enumerate(self.lines):
            hits, misses = (
                (loader.hits, loader.misses) if k == self.cache else caches.get(self._first.get(k, k), (0, 0))
            )
            size = loader.bytes if k == self.batch else round(self._mean(own, k, loader) * items[k])
            made.append(StageStats(line, items[k], seconds[k], size, hits, misses))
        return tuple(made)

    def items(self, counted: list[int], samples: int, misses: int) -> list[int]:
        """Those that each stage gave. samples, misses: of a pipe with an index."""
        items = counted[:]
        items[self._last] += samples if self.indexed else 0
        for k in range(self._last, -1, -1):
            taken = misses if k == self.cache else items[k] if self._takes[k] else 0
            for above in self._above[k]:
                items[above] += taken
        return items

    def _share(self, seconds: list[float], loader: Any, augment_seconds: float, hit_seconds: float) -> None:
        """What the loader knows of a dataset that it runs: loads are of what stands above the cache, or of the source."""
        assert self._top is not None
        hit = self._top if self.cache is None else self.cache
        self._divide(augment_seconds, [k for k in self._maps if hit < k <= self._last], seconds)
        loads, above = max(loader.load_seconds - augment_seconds - hit_seconds, 0.0), sum(seconds[: hit + 1])
        if not seconds[self._top]:  # C makes the samples, or no function is above the cache
            seconds[self._top] = max(loads - above, 0.0)
        elif above > loads:
            seconds[: hit + 1] = [each * loads / above for each in seconds[: hit + 1]]
        seconds[hit] += hit_seconds + loader.gather_seconds

    def _divide(self, all_seconds: float, among: list[int], seconds: list[float]) -> None:
        """Those that C does in one go are in the line of the last."""
        known = sum(seconds[k] for k in among)
        for k in among:
            seconds[k] = all_seconds * (seconds[k] / known if known else k == among[-1])

    def _mean(self, own: list[list[int]], k: int, loader: Any) -> float:
        """The bytes of an item."""
        at = k
        while not own[at][SEEN] and self._same[at]:
            at = self._above[at][0]
        if own[at][SEEN]:
            return own[at][BYTES] / own[at][SEEN]
        while k < self._last and self._same[k + 1]:
            k += 1
        return loader.bytes / loader.samples if k == self._last and loader.samples else 0.0
