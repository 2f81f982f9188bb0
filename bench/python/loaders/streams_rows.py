"""The measurements of streams, against torch's DataLoader where it keeps batches contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .process import Derived, Process, alternate
from .rows import Run

_KINDS = {"stocached": "streams", "torch": "streams-torch", "torch, side by side": "streams-torch-side-by-side"}


def _subjects(workers: dict[str, tuple[int, ...]], **settings: Any) -> list[Process]:
    return [
        Process(f"{name}, {w} workers" if w != 1 else f"{name}, 1 worker", _KINDS[name], workers=w, **settings)
        for name, counts in workers.items()
        for w in counts
    ]


def transport(run: Run) -> None:
    """Items that cost nothing to read: the time to bring them to the training loop."""
    everybody = {"stocached": (0, 1, 2), "torch": (0, 1), "torch, side by side": (2,)}
    for size, settings in (
        ("196,608 bytes", {"rows": 64, "files": run.n(256, 64), "items": run.n(24, 4), "shape": (3, 256, 256)}),
        ("4,096 bytes", {"rows": 64, "files": run.n(512, 64), "items": run.n(100, 4), "shape": (4096,)}),
    ):
        subjects = _subjects(everybody, **settings)
        alternate(run.runs, *subjects)
        run.emit(
            "streams/transport", size, subjects, note="batches of 64 rows; the start of the workers is part of each run"
        )


def within_a_batch(run: Run) -> None:
    """Items that take a millisecond each: workers share each batch."""
    settings = {"rows": 8, "files": 32, "items": run.n(16, 4), "shape": (4096,), "sleep": 0.001}
    subjects = _subjects({"stocached": (1, 2, 4), "torch": (1,), "torch, side by side": (2, 4)}, **settings)
    alternate(run.runs, *subjects)
    ideal = [Derived(f"1 ms / {w}", subjects[0].samples, [0.001 / w] * run.runs) for w in (1, 2, 4)]
    run.emit(
        "streams/workers",
        "1 ms an item",
        [*subjects, *ideal],
        note="8 rows; the start of the workers is part of each run",
    )


PARTS: dict[str, Callable[[Run], None]] = {"loader-streams": transport, "loader-streams-workers": within_a_batch}
