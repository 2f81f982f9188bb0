"""Streams of items of files, in contiguous batches, beside torch's DataLoader where it keeps batches contiguous."""

from __future__ import annotations

from typing import Any

from harness import Process, Run

KINDS = {"ours": "streams.Ours", "torch": "streams.Torch", "torch, side by side": "streams.TorchSideBySide"}


def subjects(counts: dict[str, tuple[int, ...]], **settings: Any) -> list[Process]:
    return [
        Process(f"{name}, {w} worker{'s' * (w != 1)}", KINDS[name], workers=w, **settings)
        for name, workers in counts.items()
        for w in workers
    ]


def transport(run: Run) -> None:
    everybody = {"ours": (0, 1, 2), "torch": (0, 1), "torch, side by side": (2,)}
    for size, files, items, shape in (
        ("196,608", run.n(256, 64), run.n(24, 4), (3, 256, 256)),
        ("4,096", run.n(512, 64), run.n(100, 4), (4096,)),
    ):
        run.measure(
            f"Items of {size} bytes that cost nothing to read, batches of 64 rows",
            *subjects(everybody, rows=64, files=files, items=items, shape=shape),
            note="The start of the workers is part of each run",
        )


def workers(run: Run) -> None:
    one, several = ((), (2,)) if run.quick else ((1,), (2, 4))
    run.measure(
        "Items of 1 ms, 8 rows: workers share each batch",
        *subjects(
            {"ours": (*one, *several), "torch": (1,), "torch, side by side": several},
            rows=8, files=32, items=run.n(16, 4), shape=(4096,), sleep=0.001,
        ), note="The start of the workers is part of each run",
    )  # fmt: skip


CASES = {"transport": transport, "workers": workers}
