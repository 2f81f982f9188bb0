"""The spans that a loader records."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from .._datasets.tally import NS, Counters
from .._trace import GATHER, LOOP, SERVER, TICK, Recorder, worker
from .._workers.tasks import FROM_CACHE

_NAMES = ("step", "gather", "fetch", "load", "augment", "wait", "transfer", "batch_augment", "source", "delay")
_STEP, _GATHER, _FETCH, _LOAD, _AUGMENT, _WAIT, _TRANSFER, _BATCH_AUGMENT, _SOURCE, _DELAY = range(len(_NAMES))

_DELAYED = 100  # a delay below 1/100 of a sample's time is not recorded. Work before a delay takes a tick at least


class Tracing:
    """Names of spans are those of docs/spec/trace.md."""

    def __init__(self, recorder: Recorder, counters: Counters | None = None) -> None:
        """counters: of a pipe without an index, whose stages get spans."""
        self._recorder, self._counters = recorder, counters
        self._loop = threading.get_ident()  # a gather of this thread lies within a wait of the training loop
        self._tracks = [recorder.track(name) for name in (LOOP, GATHER, SERVER)]
        self._names = [recorder.name(name) for name in _NAMES]
        self._workers = np.empty(0, np.int64)  # their tracks
        self.lap = recorder.lap

    def _here(self, name: int, start: int, end: int, epoch: int, *more: int) -> None:
        """Records a span on the track of the training loop."""
        self._recorder.put(self._tracks[0], self._names[name], start, end, epoch, *more)

    def began(self, epoch: int, start: int, end: int) -> None:
        """The training loop waited for an epoch to begin: workers were started."""
        self._here(_WAIT, start, end, epoch)

    def stepped(self, epoch: int, number: int, start: int, step: int) -> None:
        """The training loop was busy with the batch before `number` for `step` ns until `start`."""
        if step:
            self._here(_STEP, start - step, start, epoch, number - 1)

    def failed(self, epoch: int, number: int, start: int, end: int, step: int) -> None:
        """The training loop waited for a batch, and got an error. step: as of `stepped`."""
        self.stepped(epoch, number, start, step)
        self._here(_WAIT, start, end, epoch, number)

    def gathered(self, epoch: int, number: int, start: int, end: int, hits: int, fetched: bool) -> None:
        track = 0 if threading.get_ident() == self._loop else 2 if fetched else 1
        self._recorder.put(
            self._tracks[track], self._names[_FETCH if fetched else _GATHER], start, end, epoch, number, -1, -1, hits
        )

    def transferred(self, epoch: int, number: int, start: int, end: int, samples: int, nbytes: int) -> None:
        """The training loop copied a batch into pinned memory."""
        self._here(_TRANSFER, start, end, epoch, number, -1, samples, -1, -1, nbytes)

    def batch_augmented(self, epoch: int, number: int, start: int, end: int) -> None:
        """The training loop called `batch_augment`."""
        self._here(_BATCH_AUGMENT, start, end, epoch, number)

    def loaded_here(
        self,
        epoch: int,
        number: int,
        start: int,
        end: int,
        index: int = -1,
        *,
        hit: bool,
        augment_ns: int = 0,
        waited_ns: int = 0,
        delayed_ns: int = 0,
    ) -> None:
        """The training loop loaded a sample or got it from the cache, and then augmented it for
        augment_ns. waited_ns: of a load, for its source; 0: unknown. delayed_ns: of all that, for a processor."""
        augment_start = end - augment_ns
        work_end = augment_start
        if delayed_ns > (end - start) // _DELAYED:
            work_end = max(augment_start - delayed_ns, min(start + TICK, augment_start))
            self._here(_DELAY, work_end, augment_start, epoch, number, index)
        self._here(_GATHER if hit else _LOAD, start, work_end, epoch, number, index)
        if self._counters is not None:
            self._stages(0, self._tracks[0], epoch, number, start, work_end)
        elif waited_ns:
            self._here(_SOURCE, start, min(start + waited_ns, work_end), epoch, number, index)
        if augment_ns:
            self._here(_AUGMENT, augment_start, end, epoch, number, index)

    def loaded(self, epoch: int, number: int, answers: Any, indices: Any) -> None:
        """Workers answered; indices: the samples of the answers (-1: a whole batch)."""
        workers = answers["worker"]
        if workers.size and workers.max() >= self._workers.size:
            self._workers = np.array([self._recorder.track(worker(k)) for k in range(int(workers.max()) + 1)])
        tracks, starts, ends = self._workers[workers], answers["began_ns"], answers["ended_ns"]
        augment_starts = ends - np.minimum(answers["augment_ns"], ends - starts)
        hits = answers["result"] >= FROM_CACHE
        delays = np.minimum(answers["delayed_ns"], np.maximum(augment_starts - starts, TICK) - TICK)
        delayed = delays > (ends - starts) // _DELAYED
        work_ends = augment_starts - delays * delayed
        source_ends = np.minimum(starts + answers["waited_ns"], work_ends)
        for of, name, start, end in (
            (hits, _GATHER, starts, work_ends),
            (~hits, _LOAD, starts, work_ends),
            (~hits & (answers["waited_ns"] > 0) & (self._counters is None), _SOURCE, starts, source_ends),
            (delayed, _DELAY, work_ends, augment_starts),
            (augment_starts < ends, _AUGMENT, augment_starts, ends),
        ):
            if of.all():
                self._recorder.spans(tracks, _NAMES[name], start, end, indices, epoch=epoch, batch=number)
            elif of.any():
                self._recorder.spans(
                    tracks[of], _NAMES[name], start[of], end[of], indices[of], epoch=epoch, batch=number
                )
        if self._counters is not None:
            for k, number_of in enumerate(workers.tolist()):
                row = self._counters.row_of(number_of)
                self._stages(row, int(tracks[k]), epoch, number, int(starts[k]), int(work_ends[k]))

    def _stages(self, row: int, track: int, epoch: int, number: int, start: int, end: int) -> None:
        """Spans of the stages within a load, one after the other: as long as they worked since the last one, in all. row:
        of the counters."""
        assert self._counters is not None
        shown = self._counters.shown.setdefault(row, [0] * self._counters.stages)
        now = self._counters.table[row, :, NS].tolist()
        left = [max(ns - before, 0) for ns, before in zip(now, shown)]
        part = min((end - start) / (sum(left) or 1), 1)
        for k, line in enumerate(self._counters.chain.lines):
            ns = int(left[k] * part)
            if ns >= TICK:
                self._recorder.put(track, self._recorder.name(line), start, start + ns, epoch, number)
                shown[k] += ns
                start += ns
