"""The table of both pipelines for users, and the numbers for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from demo.experiment import EPOCHS
from demo.jpegs import QUALITY
from demo.pipelines import SHORT_SIDE, Result
from demo.report import MB, aligned


def table(result: Result) -> str:
    speeds = result.shown
    first = speeds[0]
    rows = [("", "samples/s", "speed-up", "CPU ms a sample", "of Pillow's")]
    for speed in speeds:
        speed_up = f"{speed.samples_a_second / first.samples_a_second:.1f} x"
        share = f"{speed.cpu_ms / first.cpu_ms:.0%}" if first.cpu_ms else ""  # counted in hundredths of a second
        rows.append((speed.name, f"{speed.samples_a_second:,.0f}", speed_up, f"{speed.cpu_ms:.2f}", share))
    lines = aligned(rows)
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def legend(result: Result) -> str:
    jpegs, mb = result.jpegs, result.cache_bytes / MB
    if jpegs.copies:
        files = (
            f"This part reads JPEG files. So {jpegs.copies} of the {result.samples} pictures were saved once as JPEG "
            f"(quality {QUALITY}, on white) in {jpegs.folder}.\n"
        )
    else:
        files = "The JPEG files are read where they are.\n"
    if result.ours.worker == "native":
        ours, workers = f"stocached.image does it in C, in {result.workers} threads.", "threads"
    else:
        ours, workers = (
            f"stocached.image does it in {result.workers} worker processes: Pillow decodes the files, because the "
            "library was built without libjpeg-turbo, and C makes the crops.",
            "processes",
        )
    return (
        f"Here each sample is a random part of one of the {result.samples} pictures, as training on images reads it. "
        f"It is resized to 224 x 224, flipped half of the time, and normalised in float32.\n{files}"
        f"Pillow and NumPy do it as torchvision's ImageFolder and transforms do, in {result.workers} worker processes without a cache. "
        f"The table has the fastest of {EPOCHS} epochs.\n"
        f"{ours} Epoch 1 starts the {workers}, takes memory, reads the files and fills a cache: the whole pictures with a short side of "
        f"{SHORT_SIDE} pixels, {mb:,.0f} MB. Epoch {EPOCHS} finds {result.ours.hits[-1] / result.samples:.0%} of the pictures there.\n"
        "CPU is the processor time of all processes."
    )


def as_json(result: Result) -> dict[str, Any]:
    """Seconds and bytes, unrounded."""
    return {
        "samples": result.samples,
        "classes": result.classes,
        "saved_as_jpeg": result.jpegs.copies,
        "workers": result.workers,
        "batch": result.batch,
        "cache_bytes": result.cache_bytes,
        "pillow": asdict(result.pillow),
        "stocached": asdict(result.ours),
        "shown": [asdict(speed) for speed in result.shown],
    }
