"""What a loader tells its recorder."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from . import _trace, _worker
from ._trace import Recorder

_NAMES = ("step", "gather", "fetch", "load", "augment", "wait", "transfer")


class Tracing:
    """Names of spans are those of docs/trace.md."""

    def __init__(self, recorder: Recorder, augments: bool = False) -> None:
        """augments: what workers do with samples out of the cache is their random part, and not a mere copy."""
        self._recorder = recorder
        self._hit = 4 if augments else 1
        self._loop = threading.get_ident()  # what the training loop does itself lies within its waits
        self._tracks = [recorder.track(name) for name in (_trace.LOOP, _trace.GATHER, _trace.SERVER)]
        self._names = [recorder.name(name) for name in _NAMES]
        self._workers = np.empty(0, np.int64)  # their tracks
        self.lap = recorder.lap

    def began(self, epoch: int, start: int, end: int) -> None:
        """The training loop waited for an epoch to begin: workers were started."""
        self._recorder.put(self._tracks[0], self._names[5], start, end, epoch)

    def stepped(self, epoch: int, number: int, start: int, step: int) -> None:
        """The training loop was busy with the batch before `number` for `step` ns until `start`."""
        if step:
            self._recorder.put(self._tracks[0], self._names[0], start - step, start, epoch, number - 1)

    def gathered(self, epoch: int, number: int, start: int, end: int, hits: int, fetched: bool) -> None:
        track = 0 if threading.get_ident() == self._loop else 2 if fetched else 1
        self._recorder.put(self._tracks[track], self._names[2 if fetched else 1], start, end, epoch, number, -1, -1, hits)

    def transferred(self, epoch: int, number: int, start: int, end: int, samples: int, nbytes: int) -> None:
        """The training loop had a batch go into pinned memory."""
        self._recorder.put(self._tracks[0], self._names[6], start, end, epoch, number, -1, samples, -1, -1, nbytes)

    def loaded_here(self, epoch: int, number: int, start: int, end: int, index: int = -1, hit: bool = False) -> None:
        """The training loop loaded by itself, or got it out of the cache."""
        self._recorder.put(self._tracks[0], self._names[self._hit if hit else 3], start, end, epoch, number, index)

    def loaded(self, epoch: int, number: int, answers: Any, indices: Any) -> None:
        """Answers of workers, and the samples they are about (-1: a whole batch)."""
        workers = answers["worker"]
        if workers.size and workers.max() >= self._workers.size:
            self._workers = np.array([self._recorder.track(_trace.worker(k)) for k in range(int(workers.max()) + 1)])
        tracks, starts, ends = self._workers[workers], answers["began_ns"], answers["ended_ns"]
        hits = answers["result"] >= _worker.FROM_CACHE
        if hits.any():
            self._recorder.spans(tracks[hits], _NAMES[self._hit], starts[hits], ends[hits], indices[hits], epoch=epoch, batch=number)
            if hits.all():
                return
            loads = ~hits
            tracks, starts, ends, indices = tracks[loads], starts[loads], ends[loads], indices[loads]
        self._recorder.spans(tracks, "load", starts, ends, indices, epoch=epoch, batch=number)
