"""What a loader tells its recorder."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from . import _trace
from ._trace import Recorder


class Tracing:
    """Names of spans are those of docs/trace.md."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._loop = threading.get_ident()  # what the training loop does itself lies within its waits
        self._tracks = [recorder.track(name) for name in (_trace.LOOP, _trace.GATHER, _trace.SERVER)]
        self._names = [recorder.name(name) for name in ("step", "gather", "fetch", "load")]
        self._workers = np.empty(0, np.int64)  # their tracks
        self.lap = recorder.lap

    def stepped(self, epoch: int, number: int, start: int, step: int) -> None:
        """The training loop was busy with the batch before `number` for `step` ns until `start`."""
        if step:
            self._recorder.put(self._tracks[0], self._names[0], start - step, start, epoch, number - 1)

    def gathered(self, epoch: int, number: int, start: int, end: int, hits: int, fetched: bool) -> None:
        track = 0 if threading.get_ident() == self._loop else 2 if fetched else 1
        self._recorder.put(self._tracks[track], self._names[2 if fetched else 1], start, end, epoch, number, -1, -1, hits)

    def loaded_here(self, epoch: int, number: int, start: int, end: int, index: int = -1) -> None:
        """The training loop loaded by itself."""
        self._recorder.put(self._tracks[0], self._names[3], start, end, epoch, number, index)

    def loaded(self, epoch: int, number: int, answers: Any, indices: Any) -> None:
        """Answers of workers, and the samples they are about (-1: a whole batch)."""
        workers = answers["worker"]
        if workers.size and workers.max() >= self._workers.size:
            self._workers = np.array([self._recorder.track(_trace.worker(k)) for k in range(int(workers.max()) + 1)])
        self._recorder.spans(self._workers[workers], "load", answers["began_ns"], answers["ended_ns"], indices, epoch=epoch, batch=number)
