"""Timelines: `Recorder` writes trace files (docs/spec/trace.md); `augment_time` measures the time that `augment=` takes.

Imports: `_common`."""

from __future__ import annotations

from .recorder import GATHER, LOOP, SERVER, TRANSFER, Recorder, gatherer, track_numbers, worker, writable

__all__ = ["GATHER", "LOOP", "SERVER", "TRANSFER", "Recorder", "gatherer", "track_numbers", "worker", "writable"]
