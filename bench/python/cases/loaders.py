"""The loader beside torch's: everything cached, nothing, and a part; how it scales; its memory."""

from __future__ import annotations

import shutil
from typing import Any

import sets
from harness import Derived, Process, Run

IMAGE: dict[str, Any] = {"shape": sets.IMAGE, "batch": 64}
SMALL: dict[str, Any] = {"shape": sets.SMALL, "batch": 256}


def hits(run: Run) -> None:
    for name, kind, n, epochs in (("196,608", IMAGE, run.n(1500, 200), 4), ("3,072", SMALL, run.n(50_000, 4000), 4)):
        at = kind | {"n": n, "folder": run.folder}
        limit = run.n(10_000, 1000) if kind is SMALL else 0
        run.measure(
            f"Everything cached, samples of {name} bytes",
            Process("ours", "ours.Ours", **at, workers=0, epochs=epochs),
            Process("ours, 2 workers", "ours.Ours", **at, workers=2, epochs=epochs),
            Process("ours, sampler of torch", "ours.Ours", **at, workers=0, order="torch", epochs=2),
            Process("torch + stocaching, 0 workers", "torches.Torch", **at, workers=0),
            Process("torch + stocaching, 2 workers", "torches.Torch", **at, workers=2, limit=limit),
            Process("Cache.gather", "ours.Gather", **at, epochs=epochs),
            Process("memcpy loop, 1 thread", "ours.Loop", **at, loops=run.loops, epochs=epochs),
            Process("memcpy loop, 2 threads", "ours.Loop", **at, loops=run.loops, epochs=epochs, threads=2),
        )


def augment(run: Run) -> None:
    at = IMAGE | {"n": run.n(1500, 200), "folder": run.folder, "augment": 200, "loops": run.loops, "workers": 2}
    run.measure(
        "Everything cached, a random part of 200 µs a sample, 2 workers",
        Process("ours", "ours.Ours", **at, epochs=2),
        Process("ours, threads", "ours.Ours", **at, epochs=2, worker="thread"),
        Process("torch + stocaching", "torches.Torch", **at),
        note="The work is done in C without the GIL; two cores need at least 100 µs a sample",
    )


def cold(run: Run) -> None:
    n, jpegs = run.n(1024, 128), f"{run.folder}/jpegs"
    sets.Jpegs.make(jpegs, n, sets.IMAGE)
    at = IMAGE | {"n": n, "folder": run.folder, "jpegs": jpegs, "dataset": "jpeg", "workers": 2}
    try:
        ours = Process("ours", "ours.Ours", **at, share=None)
        shares = {c: Process(f"ours, c = {c:g}", "ours.Ours", **at, share=c) for c in (0.25, 0.5, 0.75)}
        warm = Process("ours, c = 1", "ours.Ours", **at, share=1.0)
        torch = Process("torch", "torches.Torch", **at)
        decode = Process("decode alone, 2 processes", "torches.Decode", jpegs=jpegs, n=n, processes=2)
        run.measure(
            "JPEG files by Pillow, nothing or a part c cached, 2 workers", ours, torch, decode, *shares.values(), warm
        )
        for c, one in shares.items():
            line = Derived(f"the line at c = {c:g}", [(1 - c) * a + c * b for a, b in zip(ours.all(), warm.all())])
            run.table(f"c = {c:g} beside (1 - c) cold + c warm", [one, line])
    finally:
        shutil.rmtree(jpegs)


def first(run: Run) -> None:
    settings: dict[str, Any] = {"workers": 4, "batch": 64, "sleep": 0.001 if run.quick else 0.01}
    run.measure(
        "The first batch: 64 samples of 10 ms, 4 workers",
        Process("ours", "ours.First", **settings),
        Process("torch", "torches.First", **settings),
        note="From the first sample that a worker begins; a sample's share of it. 160 ms a batch are the least",
    )


def slow(run: Run) -> dict[str, Any]:
    return {
        "n": run.n(1600, 160),
        "shape": (64,),
        "batch": 16,
        "dataset": "sleep",
        "sleep": 0.001,
        "folder": run.folder,
    }


def scale(run: Run) -> None:
    ours = {w: Process(f"ours, {w} workers", "ours.Ours", **slow(run), workers=w, share=None) for w in (1, 2, 4, 8)}
    torch = Process("torch, 8 workers", "torches.Torch", **slow(run), workers=8)
    run.measure("Loads that sleep for 1 ms", *ours.values(), torch)


def trace(run: Run) -> None:
    at = IMAGE | {"n": run.n(1500, 200), "folder": run.folder, "workers": 0, "epochs": 8}
    for title, settings in (("all hit", at), ("1 ms a miss, 4 workers", slow(run) | {"workers": 4, "share": None})):
        run.measure(
            f"A timeline: {title}",
            Process("with trace=", "ours.Ours", **settings, trace=True),
            Process("without", "ours.Ours", **settings),
        )


def memory(run: Run) -> None:
    at = IMAGE | {"n": run.n(1500, 200), "folder": run.folder}
    run.say(f"\n### Memory of all processes after an epoch of {at['n'] * 196_608 / 1e6:.0f} MB\n")
    run.say("| workers | ours, MB | torch + stocaching, MB |\n|--:|--:|--:|")
    for w in (0, 2, 4):
        ours = Process("ours", "ours.Ours", **at, workers=w).memory()
        theirs = Process("torch", "torches.Torch", **at, workers=w).memory()
        run.say(f"| {w} | {ours:.0f} | {theirs:.0f} |")


CASES = {
    "hits": hits,
    "augment": augment,
    "cold": cold,
    "first": first,
    "scale": scale,
    "trace": trace,
    "memory": memory,
}
