"""Timelines: `Recorder` keeps spans, `trace_file` writes them (docs/spec/trace.md), `tracks` names
their tracks, and `augment_time` measures the time of `augment=`.

Imports: `_common`."""

from __future__ import annotations

from .recorder import Recorder
from .trace_file import TICK, writable
from .tracks import GATHER, LOOP, SERVER, TRANSFER, gatherer, track_numbers, worker

__all__ = [
    "GATHER",
    "LOOP",
    "SERVER",
    "TICK",
    "TRANSFER",
    "Recorder",
    "gatherer",
    "track_numbers",
    "worker",
    "writable",
]
