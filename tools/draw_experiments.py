"""Measures two experiments with our loaders and torch's, and draws them: docs/images/workers.png and
docs/images/streams-workers.png.

python tools/draw_experiments.py [--out FOLDER] [--quick]

Loads are sleeps. The dataset records the process, start and end of each load, so all loaders are
measured in the same way.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")  # no display needed
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from palette import COLOURS, FAINT, GREY, INK, PALE
from PIL import Image
from stocached.streams import Streams
from stocached.torch import DataLoader

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
BLUE, WAIT, PALER = COLOURS["Blue"], COLOURS["Vermilion"], COLOURS["LightGrey"]
# Five: with four workers, each worker of torch makes several of them.
BATCHES = [COLOURS[name] for name in ("Blue", "SkyBlue", "Green", "Orange", "Purple")]
BATCH, LOAD, STEP = 64, 0.0005, 0.1  # samples; seconds a sample and a step
ROWS, ITEM = 8, 0.001  # rows of a batch of streams; seconds an item
SHOWN, SHOWN_STREAMS = (0, 1, 4), (1, 2, 4)  # numbers of workers that have a timeline


# ------------------------------------------------------------ measurements


class Loads:
    """The loads: for each sample the process, start and end (time.monotonic_ns), in memory that
    forked workers share."""

    def __init__(self, samples: int) -> None:
        self._rows = np.frombuffer(mmap.mmap(-1, samples * 24), np.int64).reshape(samples, 3)

    def load(self, sample: int, seconds: float) -> None:
        start = time.monotonic_ns()
        time.sleep(seconds)
        self._rows[sample] = os.getpid(), start, time.monotonic_ns()

    def take(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns all loads so far and forgets them. Samples without a load are zeros."""
        taken = self._rows.copy()
        self._rows[:] = 0
        return taken


class Pictures(torch.utils.data.Dataset[Any]):
    """Samples that take LOAD to load: a picture, and the sample's number."""

    def __init__(self, samples: int) -> None:
        self.loads = Loads(samples)
        self._picture = torch.zeros(3, 32, 32)

    def __len__(self) -> int:
        return len(self.loads._rows)

    def __getitem__(self, index: int) -> Any:
        self.loads.load(index, LOAD)
        return self._picture, index


class Files:
    """Files of items that take ITEM each: an array, and the item's number over all files."""

    def __init__(self, files: int, items: int) -> None:
        self.files, self.items, self.loads = files, items, Loads(files * items)

    def read(self, file: int) -> Iterator[Any]:
        for number in range(file * self.items, (file + 1) * self.items):
            self.loads.load(number, ITEM)
            yield np.zeros(64, np.float32), np.int64(number)


class Load(NamedTuple):
    process: int
    start: float  # seconds, since the epoch began
    end: float
    batch: int
    row: int


@dataclass
class Epoch:
    """The times of an epoch, in seconds since iter() was called."""

    arrivals: list[float]  # of batches
    ends: list[float]  # of steps
    loads: list[Load]
    numbers: list[list[int]]  # of samples, for each batch

    @property
    def first(self) -> float:
        return self.arrivals[0]

    @property
    def seconds(self) -> float:
        return self.ends[-1]

    @property
    def rate(self) -> float:
        """Samples a second after the first batch."""
        return sum(map(len, self.numbers[1:])) / (self.arrivals[-1] - self.arrivals[0])

    def contiguous(self, items: int) -> float:
        """The fraction of rows that continue, from one batch to the next, with the next item of
        their file or the first item of another file."""
        pairs = [
            (a, b) for before, after in itertools.pairwise(self.numbers) for a, b in zip(before, after, strict=True)
        ]
        return statistics.fmean(b == a + 1 or (b % items == 0 and a % items == items - 1) for a, b in pairs)

    def workers(self) -> list[int]:
        """The processes of the loads, in the order of their start."""
        return sorted({load.process for load in self.loads} - {os.getpid()})


Runs = dict[tuple[str, int], Epoch]  # by kind of loader and number of workers
Measured = Callable[[str, int, int], Epoch]  # of kind, workers and size


def run(loader: Iterable[Any], loads: Loads, step: float) -> Epoch:
    """One epoch. Batches are pairs, the second of them the samples' numbers."""
    loads.take()
    arrivals, ends, numbers = [], [], []
    began = time.monotonic_ns()
    for _, indices in loader:
        arrivals.append(time.monotonic_ns())
        numbers.append(indices.tolist())
        if step:
            time.sleep(step)
        ends.append(time.monotonic_ns())
    rows = loads.take()
    seconds = [(time_ns - began) / 1e9 for time_ns in (*arrivals, *ends)]
    found = []
    for batch, samples in enumerate(numbers):
        for row, sample in enumerate(samples):
            process, start, end = rows[sample].tolist()
            if process:
                found.append(Load(process, (start - began) / 1e9, (end - began) / 1e9, batch, row))
    return Epoch(seconds[: len(numbers)], seconds[len(numbers) :], found, numbers)


# ------------------------------------------------------------ how many workers

TORCH, OURS, CACHED = "torch", "stocached", "stocached, cached"


def warm_epoch(kind: str, workers: int, batches: int) -> Epoch:
    """The second epoch: its workers run already, and a cache holds all samples."""
    pictures = Pictures(batches * BATCH)
    settings: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "persistent_workers": workers > 0}
    if workers:
        settings["multiprocessing_context"] = "fork"
    if kind == TORCH:
        loader: Any = torch.utils.data.DataLoader(pictures, **settings)
    else:
        loader = DataLoader(pictures, **settings, size="64MiB" if kind == CACHED else None)
    run(loader, pictures.loads, 0)
    epoch = run(loader, pictures.loads, STEP)
    if kind != TORCH:
        loader.close()
    check(epoch, f"{kind}, {workers} workers", len(pictures), 0 if kind == CACHED else len(pictures))
    return epoch


def check(epoch: Epoch, what: str, samples: int, loads: int) -> None:
    came = [sample for numbers in epoch.numbers for sample in numbers]
    if sorted(came) != list(range(samples)) or len(epoch.loads) != loads:
        raise RuntimeError(
            f"{what}: {len(came)} samples came, {len(set(came))} different ones, of {samples}, by {len(epoch.loads)} loads, of {loads}"
        )


# ------------------------------------------------------------ streams


class Rows(torch.utils.data.IterableDataset[Any]):
    """A dataset that users write for torch's DataLoader: each row takes the next file when its own
    ends. Each worker has every W-th file."""

    def __init__(self, numbers: list[int], rows: int, files: Files) -> None:
        self.numbers, self.rows, self.files = numbers, rows, files

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        waiting = iter(self.numbers if worker is None else self.numbers[worker.id :: worker.num_workers])
        rows = [self.files.read(next(waiting)) for _ in range(self.rows)]
        while True:
            for row in range(self.rows):
                item = next(rows[row], None)
                if item is None:
                    file = next(waiting, None)
                    if file is None:
                        return
                    rows[row] = self.files.read(file)
                    item = next(rows[row])
                yield item


class SideBySide:
    """The known recipe: several DataLoaders with one worker each, for a part of the rows; their
    batches are joined."""

    def __init__(self, files: Files, workers: int) -> None:
        share = ROWS // workers
        self.loaders = [
            torch_loader(Rows(list(range(worker, files.files, workers)), share, files), share, 1)
            for worker in range(workers)
        ]

    def __iter__(self) -> Iterator[Any]:
        loaders = [iter(loader) for loader in self.loaders]
        return ([torch.cat(column) for column in zip(*parts, strict=True)] for parts in zip(*loaders, strict=True))


def torch_loader(rows: Rows, batch: int, workers: int) -> Any:
    return torch.utils.data.DataLoader(rows, batch_size=batch, num_workers=workers, multiprocessing_context="fork")


class Ours:
    """stocached.streams, as tensors."""

    def __init__(self, files: Files, workers: int) -> None:
        self.streams = Streams(
            range(files.files), ROWS, files.read, num_workers=workers, multiprocessing_context="fork", seed=0
        )

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.streams.dataset())  # starts the workers, as iter() of a DataLoader does
        return (batch.items for batch in batches)


STREAMS: dict[str, Callable[[Files, int], Iterable[Any]]] = {
    "torch, one DataLoader": lambda files, workers: torch_loader(
        Rows(list(range(files.files)), ROWS, files), ROWS, workers
    ),
    "torch, a DataLoader a share of the rows": SideBySide,
    "stocached.streams": Ours,
}


def stream(kind: str, workers: int, items: int) -> Epoch:
    """An epoch over enough files that each of 4 workers has one for each of its rows."""
    files = Files(4 * ROWS, items)
    epoch = run(STREAMS[kind](files, workers), files.loads, 0)
    check(epoch, f"{kind}, {workers} workers", files.files * items, files.files * items)
    return epoch


# ------------------------------------------------------------ drawing


def chart(title: str, subtitle: str, height: float) -> Figure:
    figure = plt.figure(figsize=(10, height))
    figure.text(0.035, 1 - 0.30 / height, title, fontsize=15, fontweight="bold", va="center")
    figure.text(0.035, 1 - 0.62 / height, subtitle, fontsize=9.5, color=GREY, va="center")
    return figure


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the left and from the top."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((left / wide, 1 - (top + height) / high, width / wide, height / high))


def legend(figure: Figure, top: float, entries: Mapping[str, Sequence[str]]) -> None:
    """A line of coloured fields, each with its meaning after it."""
    axes = place(figure, 0.35, top, 9.5, 0.2)
    axes.set_xlim(0, 9.5)
    axes.set_ylim(0, 1)
    axes.axis("off")
    left = 0.0
    for text, colours in entries.items():
        for colour in colours:
            axes.add_patch(Rectangle((left, 0.12), 0.17, 0.76, color=colour, linewidth=0))
            left += 0.19
        label = axes.text(left + 0.05, 0.5, text, fontsize=9.5, va="center")
        left += label.get_window_extent().width / figure.dpi + 0.35


def tracks(axes: Axes, names: list[str], until: float, labelled: bool) -> None:
    """Empty rows of a timeline, the first name at the top."""
    axes.set_xlim(0, until)
    axes.set_ylim(len(names) - 0.5, -0.5)
    for k in range(len(names)):
        axes.axhspan(k - 0.42, k + 0.42, color=FAINT, linewidth=0)
    axes.set_yticks(range(len(names)), names if labelled else [""] * len(names), fontsize=9)
    axes.tick_params(length=0, labelcolor=GREY, labelsize=9)
    for side in axes.spines.values():
        side.set_visible(False)


def bar(
    axes: Axes,
    track: int,
    spans: list[tuple[float, float]],
    colours: list[str] | str,
    height: float = 0.84,
    edge: float = 0,
) -> None:
    """Spans from start to end, in seconds."""
    bars = [(1e3 * start, 1e3 * (end - start)) for start, end in spans]
    axes.broken_barh(bars, (track - height / 2, height), facecolors=colours, edgecolors="white", linewidth=edge)


def colour(batch: int) -> str:
    return BATCHES[batch % len(BATCHES)]


def loop(axes: Axes, epoch: Epoch) -> None:
    """The training loop: waits and steps, numbered."""
    bar(axes, 0, list(zip([0.0, *epoch.ends[:-1]], epoch.arrivals, strict=True)), WAIT)
    bar(
        axes, 0, list(zip(epoch.arrivals, epoch.ends, strict=True)), [colour(batch) for batch in range(len(epoch.ends))]
    )
    until = axes.get_xlim()[1]
    for batch, (start, end) in enumerate(zip(epoch.arrivals, epoch.ends, strict=True)):
        if 1e3 * start < until:
            axes.text(
                (1e3 * start + min(1e3 * end, until)) / 2,
                0.04,
                str(batch),
                color="white",
                fontsize=8,
                ha="center",
                va="center",
                fontweight="bold",
            )


def loads(axes: Axes, epoch: Epoch, edge: float = 0) -> None:
    """A row for each worker. Loads of the training process itself are drawn over its waits."""
    track = {process: 1 + k for k, process in enumerate(epoch.workers())} | {os.getpid(): 0}
    for process, number in track.items():
        own = [load for load in epoch.loads if load.process == process]
        if own:
            bar(
                axes,
                number,
                [(load.start, load.end) for load in own],
                [colour(load.batch) for load in own],
                0.84 if number else 0.4,
                edge,
            )


def names(workers: int) -> list[str]:
    return ["training loop", *(f"worker {k}" for k in range(workers))]


def lines(
    axes: Axes,
    title: str,
    workers: list[int],
    curves: list[tuple[str, str, str, list[float]]],
    limits: tuple[float, float],
) -> None:
    """A small panel: a curve is a label, a colour, a format and its values."""
    for label, tint, form, values in curves:
        axes.plot(workers, values, form, color=tint, label=label, linewidth=1.8, markersize=5)
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    axes.set_xlabel("workers", fontsize=9.5, color=GREY)
    axes.set_xticks(workers)
    axes.set_ylim(*limits)
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=GREY, labelsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.legend(frameon=False, fontsize=8.8, labelcolor=INK, borderaxespad=0.2, loc="upper right")


def save(figure: Figure, path: Path) -> None:
    """Saves with a palette, which is enough for flat colours."""
    figure.savefig(path, dpi=160, facecolor="white", metadata={"Software": None})
    plt.close(figure)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def draw_workers(runs: Runs, workers: list[int], path: Path) -> None:
    batches = len(runs[TORCH, 0].arrivals)
    left, width, gap, line, high = 1.25, 4.15, 0.25, 0.205, 9.45
    sections = [(f"{count} worker{'s' * (count != 1)}", count, OURS) for count in SHOWN] + [
        ("0 workers, stocached with size= in its second epoch", 0, CACHED)
    ]
    figure = chart(
        "How many workers?",
        f"{batches} batches of {BATCH} samples, {1e3 * LOAD:g} ms to load each; a training step of {1e3 * STEP:g} ms. "
        f"Loads and steps sleep. Workers are running already. {os.cpu_count()} cores.",
        high,
    )
    legend(
        figure,
        0.84,
        {
            "load of a sample, and training step, in the colour of the batch": BATCHES,
            "the training loop waits": (WAIT,),
        },
    )
    for column, name in enumerate(("torch.utils.data.DataLoader", "stocached.torch.DataLoader")):
        figure.text(
            (left + column * (width + gap)) / 10,
            1 - 1.3 / high,
            name,
            fontsize=11.5,
            fontweight="bold",
            color=BLUE if column else INK,
            va="center",
        )
    until = 1020 * max(runs[kind, count].seconds for _, count, ours in sections for kind in (TORCH, ours))
    top = 1.5
    for title, count, kind in sections:
        figure.text(0.035, 1 - (top + 0.1) / high, title, fontsize=9.8, fontweight="bold", va="center")
        top += 0.24
        for column, name in enumerate((TORCH, kind)):
            epoch = runs[name, count]
            axes = place(figure, left + column * (width + gap), top, width, line * (1 + count))
            tracks(axes, names(count), until, column == 0)
            loop(axes, epoch)
            loads(axes, epoch)
            axes.text(until, -0.5, f"{epoch.seconds:.2f} s", fontsize=9, ha="right", va="bottom", fontweight="bold")
            if kind == CACHED:
                axes.set_xlabel("milliseconds", fontsize=9, color=GREY)
            else:
                axes.set_xticks([])
        top += line * (1 + count) + 0.1
    top += 0.55
    count, until = SHOWN[-1], 80.0
    figure.text(
        0.035,
        1 - top / high,
        f"{count} workers, the first {until:g} ms: each bar is a sample",
        fontsize=9.8,
        fontweight="bold",
        va="center",
    )
    top += 0.17
    for column, kind in enumerate((TORCH, OURS)):
        axes = place(figure, left + column * (width + gap), top, width, line * (1 + count))
        tracks(axes, names(count), until, column == 0)
        loop(axes, runs[kind, count])
        loads(axes, runs[kind, count], edge=0.25)
    draw_panels(figure, runs, workers, top + line * (1 + count) + 0.75)
    save(figure, path)


def draw_panels(figure: Figure, runs: Runs, workers: list[int], top: float) -> None:
    kinds = (
        (TORCH, "torch", INK),
        (OURS, "stocached", BLUE),
        (CACHED, "stocached with size=, second epoch", BATCHES[2]),
    )
    seconds = [(label, tint, "-o", [runs[kind, count].seconds for count in workers]) for kind, label, tint in kinds]
    steps = len(runs[TORCH, 0].arrivals) * STEP
    seconds.append((f"the steps alone: {steps:g} s", GREY, ":", [steps] * len(workers)))
    first = [(label, tint, "-o", [1e3 * runs[kind, count].first for count in workers]) for kind, label, tint in kinds]
    slowest = max(max(curve[3]) for curve in seconds)
    lines(
        place(figure, 0.6, top, 4.2, 1.75), "seconds an epoch", workers, seconds, (0.9 * steps, slowest + 0.1 * steps)
    )
    lines(
        place(figure, 5.4, top, 4.2, 1.75),
        "milliseconds to the first batch",
        workers,
        first,
        (0, 1.6 * max(max(curve[3]) for curve in first)),
    )


def draw_streams(runs: Runs, items: int, path: Path) -> None:
    left, width, gap, line, high = 1.2, 2.75, 0.15, 0.25, 8.35
    figure = chart(
        "Workers within a batch of streams",
        f"Batches of {ROWS} rows, each row reads on in its file; {1e3 * ITEM:g} ms to read an item (asleep), no training step. {os.cpu_count()} cores.",
        high,
    )
    legend(
        figure,
        0.84,
        {"an item being read, in the colour of the batch that it comes in; its row is written on it": BATCHES},
    )
    heads = ("torch:\none DataLoader", "torch: a DataLoader\na share of the rows", "\nstocached.streams")
    for column, name in enumerate(heads):
        figure.text(
            (left + column * (width + gap)) / 10,
            1 - 1.42 / high,
            name,
            fontsize=11,
            fontweight="bold",
            color=BLUE if column == 2 else INK,
            va="center",
        )
    top = 1.75
    for count in SHOWN_STREAMS:
        figure.text(
            0.035,
            1 - (top + 0.05) / high,
            f"{count} worker{'s' * (count != 1)}",
            fontsize=9.8,
            fontweight="bold",
            va="center",
        )
        top += 0.2
        for column, kind in enumerate(STREAMS):
            epoch = runs[kind, count]
            middle = epoch.arrivals[len(epoch.arrivals) // 2]
            span = 2.6 * ROWS * ITEM
            axes = place(figure, left + column * (width + gap), top, width, line * (1 + count))
            tracks(axes, ["batches come", *(f"worker {k}" for k in range(count))], 1e3 * span, column == 0)
            shown = [load._replace(start=load.start - middle, end=load.end - middle) for load in epoch.loads]
            for track, process in enumerate(epoch.workers(), 1):
                own = [load for load in shown if load.process == process and load.end > 0 and load.start < span]
                bar(
                    axes,
                    track,
                    [(load.start, load.end) for load in own],
                    [colour(load.batch) for load in own],
                    edge=0.4,
                )
                for load in own:
                    if 0.3 < 500 * (load.start + load.end) < 1e3 * span - 0.3:
                        axes.text(
                            500 * (load.start + load.end),
                            track + 0.03,
                            str(load.row),
                            color="white",
                            fontsize=6.5,
                            ha="center",
                            va="center",
                        )
            for batch, arrival in enumerate(epoch.arrivals):
                if 0 <= arrival - middle <= span:
                    axes.plot(1e3 * (arrival - middle), 0, "v", color=colour(batch), markersize=6.5, clip_on=False)
            told = f"{epoch.contiguous(items):.0%} of the rows go on"
            axes.text(
                1e3 * span,
                -0.6,
                told,
                fontsize=8.8,
                color=INK if epoch.contiguous(items) == 1 else WAIT,
                ha="right",
                va="bottom",
                fontweight="bold",
            )
            axes.set_xticks([0, 5, 10, 15, 20] if count == SHOWN_STREAMS[-1] else [])
            if count == SHOWN_STREAMS[-1]:
                axes.set_xlabel("milliseconds", fontsize=9, color=GREY)
        top += line * (1 + count) + 0.17
    axes = place(figure, 1.1, top + 0.75, 4.6, 1.75)
    ideal = [count / ITEM for count in SHOWN_STREAMS]
    kinds = list(STREAMS)
    curves = [("ideal: workers / 1 ms", GREY, ":", ideal)]
    tints = (PALER, INK, BLUE)
    labels = (
        "torch, one DataLoader (contiguous with one worker only)",
        "torch, a DataLoader a share of the rows",
        "stocached.streams",
    )
    curves += [
        (labels[k], tints[k], "-o", [runs[kind, count].rate for count in SHOWN_STREAMS]) for k, kind in enumerate(kinds)
    ]
    lines(axes, "items/s", list(SHOWN_STREAMS), curves, (0, 1.05 * ideal[-1]))
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="center left", bbox_to_anchor=(1.03, 0.5))
    save(figure, path)


# ------------------------------------------------------------ all of it


def measure(
    one: Measured, kinds: Iterable[str], workers: Iterable[int], size: int, repeats: int, cost: Callable[[Epoch], float]
) -> Runs:
    """An epoch for each kind and number of workers: the cheapest of the repeats, because other
    programs only add to the cost. Kinds take turns."""
    runs: dict[tuple[str, int], list[Epoch]] = {}
    for _, count, kind in itertools.product(range(repeats), workers, kinds):
        runs.setdefault((kind, count), []).append(one(kind, count, size))
    return {key: min(found, key=cost) for key, found in runs.items()}


def table(runs: Runs, streams: Runs, items: int) -> str:
    told = ["workers  loader               epoch      first batch"]
    told += [
        f"{count:7}  {kind:17} {epoch.seconds:7.3f} s {1e3 * epoch.first:11.1f} ms"
        for (kind, count), epoch in runs.items()
    ]
    told.append("\nworkers  streams                                  items/s  rows go on")
    told += [
        f"{count:7}  {kind:40} {epoch.rate:7.0f} {epoch.contiguous(items):11.0%}"
        for (kind, count), epoch in streams.items()
    ]
    return "\n".join(told)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measures and draws docs/images/workers.png and streams-workers.png: ours and torch's."
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the two pictures (docs/images)")
    parser.add_argument(
        "--quick", action="store_true", help="two batches and no repeats: shows that it works, in seconds"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="runs of each loader, alternating, of which the quickest is drawn (5)"
    )
    arguments = parser.parse_args()
    if not arguments.out.is_dir():
        parser.error(f"--out {arguments.out}: there is no such folder; make it first")
    if arguments.repeats < 1:
        parser.error(f"--repeats {arguments.repeats}: at least 1")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*suggested max number of worker.*")  # they sleep
    workers = sorted(SHOWN) if arguments.quick else list(range(9))
    batches, items, repeats = (2, 2, 1) if arguments.quick else (10, 30, arguments.repeats)
    runs = measure(warm_epoch, (TORCH, OURS, CACHED), workers, batches, repeats, lambda epoch: epoch.seconds)
    streams = measure(stream, STREAMS, SHOWN_STREAMS, items, repeats, lambda epoch: -epoch.rate)
    print(table(runs, streams, items))
    with plt.rc_context({"font.size": 10, "text.color": INK}):
        draw_workers(runs, workers, arguments.out / "workers.png")
        draw_streams(streams, items, arguments.out / "streams-workers.png")


if __name__ == "__main__":
    main()
