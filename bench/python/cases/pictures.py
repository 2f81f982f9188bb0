"""Epochs of pictures, from files or from a cache to batches, beside other loaders. Files are 2,000 JPEGs (500 x 375,
72 KB), or 1,000 PNG (330 KB) or WebP files. They stay in the temporary folder, 560 MB, for the next run.

`make setup-peers` installs SPDL, which needs the libraries of ffmpeg, and DALI. What is missing is left out."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import Process, Run, spread

WIDTH, HEIGHT, BYTES, CLASSES = 500, 375, 72_000, 10
DIFFERENT = (0.5, 1.0, 1.0, 2.0)  # factors of the sides of pictures, in turn


def make_files(folder: Path, n: int, factors: Sequence[float] = (1.0,), kind: str = "jpeg") -> int:
    """Files of smooth random pictures, sharper and less sharp ones, and the mean of their bytes."""
    import cv2
    import numpy as np
    from PIL import Image

    def picture(k: int, factor: float) -> Any:
        random = np.random.default_rng(k)
        detail = (5, 7, 9, 11)[k % 4]
        sides = round(factor * HEIGHT), round(factor * WIDTH)
        pixels = random.integers(0, 256, (*sides, 3), dtype=np.uint8)
        smooth = cv2.GaussianBlur(pixels, (detail, detail), 0)
        return Image.fromarray(cv2.normalize(smooth, np.empty_like(smooth), 0, 255, cv2.NORM_MINMAX))

    def encoded(k: int, quality: int, factor: float = 1.0) -> bytes:
        file = io.BytesIO()
        picture(k, factor).save(file, kind, quality=quality)
        return file.getvalue()

    def quality(k: int) -> int:
        return min(range(40, 100), key=lambda q: abs(len(encoded(k, q)) - BYTES)) if kind == "jpeg" else 80

    wanted = [folder / f"class-{k % CLASSES}" / f"{k:05}.{kind}" for k in range(n)]
    if not all(file.exists() for file in wanted):
        found = [quality(k) for k in range(4)]
        for k, file in enumerate(wanted):
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_bytes(encoded(k, found[k % 4], factors[k // 4 % len(factors)]))
            partial.rename(file)
    return sum(len(file.read_bytes()) for file in wanted) // n  # and brings them into the page cache


def folder(run: Run, factors: Sequence[float] = (1.0,), kind: str = "jpeg") -> str:
    files, what = run.n(2000 if kind == "jpeg" else 1000, 70), kind if len(factors) == 1 else "costs"
    made = Path(tempfile.gettempdir()) / "stocached-pictures" / f"{files}-{what}" / "train"
    mean = make_files(made, files, factors, kind)
    run.say(f"\n{files} {kind} files of {mean:,} bytes.")
    return str(made)


def ours(name: str, **settings: Any) -> Process:
    return Process(name, "pictures.Ours", **settings)


def cold(run: Run) -> None:
    for kind in ("jpeg", "png"):
        at: dict[str, Any] = {"folder": folder(run, kind=kind)}
        run.measure(
            f"First epochs of {kind} files, 2 workers",
            ours("ours, no cache", **at, fresh=True),
            ours("ours, fills a cache of whole pictures", **at, fresh=True, store="whole"),
            ours("ours, fills a cache of 3 x 256 x 256", **at, fresh=True, store="small"),
            Process("torch, ImageFolder, v1", "pictures.TorchPillow", **at),
            Process("torch, torchvision.io, v2", "pictures.TorchImage", **at),
            Process("SPDL, its decoder", "pictures.Spdl", **at),
            Process("SPDL, torchvision.io, v2", "pictures.SpdlTorchvision", **at),
            Process("DALI", "pictures.Dali", **at, fancy=False),
            Process("DALI, upsampling as the others", "pictures.Dali", **at),
        )


def warm(run: Run) -> None:
    at: dict[str, Any] = {"folder": folder(run), "epochs": run.n(5, 1)}
    run.measure(
        "Epochs of cached pictures (3 x 256 x 256), 2 workers",
        ours("ours", **at, store="small"),
        Process("torch, stocaching, v2", "pictures.StocachingV2", **at | {"epochs": 1}),
        Process("the fused pass alone, 2 threads", "pictures.Bare", **at),
    )


def share(run: Run, factors: Sequence[float] = (1.0,), title: str = "A part c of the samples cached") -> None:
    at: dict[str, Any] = {"folder": folder(run, factors), "epochs": run.n(2, 1)}
    none, full = ours("no cache", **at, kept="small"), ours("all cached", **at, store="small")
    parts = {
        policy: [ours(f"c = {c}, {policy}", **at, store="small", share=c, policy=policy) for c in (0.25, 0.5, 0.75)]
        for policy in ("first-come", "cost")
    }
    run.measure(f"{title}, 2 workers", none, full, *parts["first-come"], *parts["cost"])
    run.say("\n| | hits | beside the straight line of its hits |\n|---|--:|--:|")
    for one in (*parts["first-come"], *parts["cost"]):
        times = zip(one.all(), one.all("hits"), none.all(), full.all(), strict=True)
        line = (x / ((1 - hits) * a + hits * b) for x, hits, a, b in times)
        run.say(f"| {one.name} | {one.median('hits'):.3f} | {spread(line, 3)} |")


def costs(run: Run) -> None:
    """Decodes differ in cost, as files have three sizes."""
    share(run, DIFFERENT, "A part c of pictures of different sizes cached")


def scale(run: Run) -> None:
    """Ours and bare threads that do the same work: what two processors give these is the most for ours."""
    at: dict[str, Any] = {"folder": folder(run)}
    for title, one, bare, settings, epochs in (
        ("files", "Ours", "BareFiles", {"store": "none"}, 2),
        ("cached pictures", "Ours", "Bare", {"store": "small"}, 5),
    ):
        for n in (1, 2):
            run.measure(
                f"{title.capitalize()}, {n} thread{'s' * (n > 1)}",
                Process("ours", f"pictures.{one}", **at, **settings, epochs=run.n(epochs, 1), workers=n),
                Process("bare threads", f"pictures.{bare}", **at, epochs=run.n(epochs, 1), workers=n),
            )


def fill(run: Run) -> None:
    """A server decodes and resizes files into its cache, beside threads that do the same into reused memory."""
    for kind in ("jpeg", "png", "webp"):
        at = {"folder": folder(run, kind=kind)}
        server = Process("server", "pictures.Served", **at, at=f"{run.folder}/{kind}")
        run.measure(f"A server's fill from {kind} files", server, Process("bare threads", "pictures.BareFill", **at))


CASES = {"cold": cold, "warm": warm, "share": share, "costs": costs, "scale": scale, "fill": fill}
