"""The measurements of the loader: one function for each part. It runs its subjects in turn and
emits measurements (bench/report/measurement.go)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import sets
from .process import Derived, Process, alternate, median, memory

BATCH, SMALL_BATCH = 64, 256
Emit = Callable[..., None]  # (case, size, subjects, note="")


@dataclass
class Run:
    """Settings of a run of the program."""

    runs: int
    folder: str  # on a tmpfs
    loops: str  # the library of the C loops
    quick: bool
    emit: Emit

    def n(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def images(self, n: int) -> dict[str, Any]:
        return {"n": n, "shape": sets.IMAGE, "batch": BATCH, "folder": self.folder}

    def small(self, n: int) -> dict[str, Any]:
        return {"n": n, "shape": sets.SMALL, "batch": SMALL_BATCH, "folder": self.folder}


def hits(run: Run) -> None:
    """Everything cached, large samples."""
    for size, n, epochs, limit in (
        ("1,500", run.n(1500, 200), 4, 0),
        ("20,000", run.n(20_000, 400), 1, run.n(3000, 200)),
    ):
        at = run.images(n)
        subjects = [
            Process("stocached", "stocached", **at, workers=0, epochs=epochs),
            Process("stocaching, 0 workers", "torch", **at, workers=0, limit=limit, epochs=1 if limit else epochs),
            Process("stocaching, 2 workers", "torch", **at, workers=2, limit=limit),
            Process("gather", "gather", **at, epochs=epochs),
        ]
        if size == "1,500":  # each holds all samples; the machine cannot hold more than four times 3.9 GB
            subjects += [
                Process("stocached, 2 workers", "stocached", **at, workers=2, epochs=epochs),
                Process("stocaching, 1 worker", "torch", **at, workers=1, limit=limit),
                Process("memcpy loop", "loop", **at, loops=run.loops, epochs=epochs),
            ]
        alternate(run.runs, *subjects)
        run.emit("loader/hits", size, subjects)


def step(run: Run) -> None:
    """With a training step that takes as long as a gather of the batch by one thread."""
    n = run.n(1500, 200)
    at = run.images(n)
    bare = Process("gather", "gather", **at, epochs=2)
    alternate(3, bare)
    seconds = median(bare.value) * BATCH
    epochs = 2
    subjects = [
        Process("stocached", "stocached", **at, workers=0, epochs=epochs, step=seconds, loops=run.loops),
        Process("stocached, 2 workers", "stocached", **at, workers=2, epochs=epochs, step=seconds, loops=run.loops),
        Process(
            "torch, tensor in memory, 0 workers",
            "torch",
            **at,
            dataset="tensor",
            workers=0,
            epochs=epochs,
            step=seconds,
            loops=run.loops,
        ),
        Process(
            "torch, tensor in memory, 2 workers",
            "torch",
            **at,
            dataset="tensor",
            workers=2,
            epochs=1,
            step=seconds,
            loops=run.loops,
        ),
    ]
    alternate(run.runs, *subjects)
    alone = Derived("the step alone", n, [seconds / BATCH] * run.runs)
    run.emit(
        "loader/step", "196,608 bytes", [*subjects, alone], note=f"a step of {seconds * 1e6:.0f} us a batch of {BATCH}"
    )


def small(run: Run) -> None:
    """Everything cached, small samples."""
    n = run.n(50_000, 4000)
    at, limit = run.small(n), run.n(10_000, 1000)
    subjects = [
        Process("stocached, order of ours", "stocached", **at, workers=0, epochs=4),
        Process("stocached, sampler of torch", "stocached", **at, workers=0, order="torch", epochs=2),
        Process("stocached, order of ours, 2 workers", "stocached", **at, workers=2, epochs=4),
        Process("stocaching, 0 workers", "torch", **at, workers=0),
        Process("stocaching, 2 workers", "torch", **at, workers=2, limit=limit),
        Process("gather", "gather", **at, epochs=4),
        Process("memcpy loop", "loop", **at, loops=run.loops, epochs=4),
    ]
    alternate(run.runs, *subjects)
    run.emit("loader/small", "3,072 bytes", subjects)


def augment(run: Run) -> None:
    """Everything cached, a random part of 200 us a sample in 2 workers."""
    n = run.n(1500, 200)
    at = run.images(n)
    subjects = [
        Process("stocached", "stocached", **at, workers=2, epochs=2, augment=200, loops=run.loops),
        Process(
            "stocached, threads", "stocached", **at, workers=2, epochs=2, augment=200, loops=run.loops, worker="thread"
        ),
        Process("stocaching, 2 workers", "torch", **at, workers=2, augment=200, loops=run.loops),
        Process("the work alone, 2 processes", "work", n=2 * n, augment=200, loops=run.loops, processes=2),
        Process(
            "the work and two copies, 2 processes",
            "work",
            n=2 * n,
            augment=200,
            loops=run.loops,
            processes=2,
            shape=at["shape"],
        ),
    ]
    alternate(run.runs, *subjects)
    ideal = Derived("200 us / 2", n, [100e-6] * run.runs)
    run.emit(
        "loader/augment",
        "196,608 bytes",
        [*subjects, ideal],
        note="200 us of processor time a sample, in C; the ideal has the two cores to itself",
    )


def cold(run: Run) -> None:
    """JPEG files, nothing cached, and caches with slots for a share of them."""
    n = run.n(1024, 128)
    jpegs = f"{run.folder}/jpegs"
    sets.Jpegs.make(jpegs, n, sets.IMAGE)
    try:
        _cold(run, n, {**run.images(n), "jpegs": jpegs, "dataset": "jpeg"}, jpegs)
    finally:
        shutil.rmtree(jpegs)


def _cold(run: Run, n: int, at: dict[str, Any], jpegs: str) -> None:
    ours = Process("stocached", "stocached", **at, workers=2, share=None)
    torchs = Process("torch, 2 workers", "torch", **at, workers=2)
    decode = Process("decode alone, 2 processes", "decode", jpegs=jpegs, n=n, processes=2)
    shares = {
        c: Process(f"stocached, c = {c:g}", "stocached", **at, workers=2, share=c) for c in (0.25, 0.5, 0.75, 1.0)
    }
    gather = Process("gather", "gather", **run.images(n))
    alternate(3 * run.runs, ours, torchs, decode, *shares.values(), gather)  # runs with decoding differ by a tenth
    run.emit("loader/cold", "JPEG", [ours, torchs, decode])
    spent = [Derived(subject.name, n, subject.cpu) for subject in (ours, torchs, decode)]
    run.emit(
        "loader/miss",
        "JPEG",
        spent,
        note="processor time of all processes a sample, in place of the time that passes: what a miss costs beyond the decoding",
    )
    for c, subject in shares.items():
        model = Derived("(1 - c) cold + c gather", n, [(1 - c) * a + c * b for a, b in zip(ours.value, gather.value)])
        run.emit("loader/share", f"c = {c:g}", [Derived("stocached", n, subject.value, cpu=subject.cpu), model])


def first(run: Run) -> None:
    """The first batch of slow samples, without the time to start workers."""
    settings = {"workers": 4, "batch": 64, "sleep": 0.01 if not run.quick else 0.001}
    subjects = [Process("stocached", "stocached-first", **settings), Process("torch", "torch-first", **settings)]
    alternate(run.runs, *subjects)
    run.emit(
        "loader/first",
        "64 x 10 ms",
        subjects,
        note="4 workers, from the first sample that one of them begins; a sample's share of it. 160 ms are the least",
    )


def scale(run: Run) -> None:
    """Loads that sleep 1 ms: the gain of more workers."""
    n = run.n(1600, 160)
    at: dict[str, Any] = {"n": n, "shape": (64,), "batch": 16, "dataset": "sleep", "sleep": 0.001, "folder": run.folder}
    ours = {w: Process(f"stocached, {w} workers", "stocached", **at, workers=w, share=None) for w in (1, 2, 4, 8)}
    torchs = {w: Process(f"torch, {w} workers", "torch", **at, workers=w) for w in (1, 8)}
    alternate(3 * run.runs, *ours.values(), *torchs.values())
    for w in (2, 4, 8):
        ideal = Derived("1 worker, divided", n, [value / w for value in ours[1].value])
        both = [Derived("stocached", n, ours[w].value, cpu=ours[w].cpu), ideal]
        if w in torchs:
            both.append(Derived("torch", n, torchs[w].value, cpu=torchs[w].cpu))
        run.emit("loader/scale", f"{w} workers", both)


def trace(run: Run) -> None:
    """The cost of a timeline."""
    n = run.n(1500, 200)
    at = run.images(n)
    small_n = run.n(1600, 160)
    slow: dict[str, Any] = {
        "n": small_n,
        "shape": (64,),
        "batch": 16,
        "dataset": "sleep",
        "sleep": 0.001,
        "folder": run.folder,
        "workers": 4,
        "share": None,
    }
    for size, pair in (("all hit", {**at, "workers": 0, "epochs": 8}), ("1 ms a miss", slow)):
        subjects = [Process("with trace=", "stocached", **pair, trace=True), Process("without", "stocached", **pair)]
        alternate(2 * run.runs, *subjects)
        run.emit("loader/trace", size, subjects)


def parts_of_memory(run: Run) -> None:
    """PSS of the process tree after an epoch, everything cached."""
    n, ring = run.n(1500, 200), 64 << 20
    at = run.images(n)
    payload = n * 196_608
    for w in (0, 2, 4):
        ours = memory(Process("stocached", "stocached", **at, workers=w, pool_bytes=ring, prefetch_bytes=ring // 2))
        bare = memory(Process("bare", "bare", workers=w))
        subjects = [
            Derived("stocached", n, [ours / 1e6], "MB"),
            Derived("its parts", n, [(bare + payload + ring) / 1e6], "MB"),
            Derived("bare processes", n, [bare / 1e6], "MB"),
        ]
        run.emit(
            "loader/memory",
            f"{w} workers",
            subjects,
            note="parts: bare processes that have imported torch, as many as there are workers and one; what is cached; 64 MiB of batches",
        )


PARTS: dict[str, Callable[[Run], None]] = {
    "loader-hits": hits,
    "loader-step": step,
    "loader-small": small,
    "loader-augment": augment,
    "loader-cold": cold,
    "loader-first": first,
    "loader-scale": scale,
    "loader-trace": trace,
    "loader-memory": parts_of_memory,
}
