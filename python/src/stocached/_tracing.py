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
        self._workers: dict[int, str] = {}
        self._loop = threading.get_ident()  # what the training loop does itself lies within its waits

    def waited(self, epoch: int, number: int, start: int, now: int, step: int, batch: Any) -> None:
        """The training loop was busy for `step` ns until `start`, and waited until `now` for a batch."""
        recorder = self._recorder
        self.stepped(epoch, number, start, step)
        recorder.span(
            _trace.LOOP,
            "wait",
            start,
            now,
            epoch=epoch,
            batch=number,
            samples=batch.samples,
            hits=batch.hits,
            misses=batch.samples - batch.hits,
            bytes=batch.bytes,
        )

    def stepped(self, epoch: int, number: int, start: int, step: int) -> None:
        """The training loop was busy with the batch before `number` for `step` ns until `start`."""
        if step:
            self._recorder.span(_trace.LOOP, "step", start - step, start, epoch=epoch, batch=number - 1)

    def gathered(self, epoch: int, number: int, start: int, end: int, hits: int, fetched: bool) -> None:
        track, name = (_trace.SERVER, "fetch") if fetched else (_trace.GATHER, "gather")
        if threading.get_ident() == self._loop:
            track = _trace.LOOP
        self._recorder.span(track, name, start, end, epoch=epoch, batch=number, hits=hits)

    def loaded_here(self, epoch: int, number: int, start: int, end: int, index: int = -1) -> None:
        """The training loop loaded by itself."""
        self._recorder.span(_trace.LOOP, "load", start, end, epoch=epoch, batch=number, index=index)

    def loaded(self, epoch: int, number: int, answers: Any, indices: Any) -> None:
        """Answers of workers, and the samples they are about (-1: a whole batch)."""
        for worker in np.unique(answers["worker"]).tolist():
            mine = answers["worker"] == worker
            track = self._workers.get(worker)
            if track is None:
                track = self._workers[worker] = _trace.worker(worker)
            self._recorder.spans(track, "load", answers["began_ns"][mine], answers["ended_ns"][mine], indices[mine], epoch=epoch, batch=number)
