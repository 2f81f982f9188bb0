"""The picture: epoch time against cached fraction, with the ideal line, and below it the speed of two pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # no display needed
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from demo.experiment import FRACTIONS, Result

if TYPE_CHECKING:
    from demo.pipelines import Result as Pipelines

# of internal/palette/palette.go
INK, GREY, PALE, BLUE, GREEN, VERMILION = "#1c2430", "#6b7480", "#e4e8ec", "#0072b2", "#009e73", "#d55e00"


def draw(result: Result, pipelines: Pipelines | None, folder: Path) -> list[Path]:
    """Writes demo.png and demo.svg into the folder, which it makes if missing; returns their
    paths."""
    with plt.rc_context({"font.size": 11, "text.color": INK, "axes.labelcolor": INK, "svg.hashsalt": "stocached"}):
        rows, inches = ([5.6, 2.0], 7.7) if pipelines else ([1], 5.6)
        figure = plt.figure(figsize=(8.4, inches), layout="constrained")
        parts = figure.subfigures(len(rows), height_ratios=rows, squeeze=False)[:, 0]
        axes = parts[0].subplots()
        draw_lines(axes, result)
        draw_labels(axes, result)
        dress(axes, result)
        if pipelines:
            parts[1].suptitle(
                "Random crops for training: samples a second", x=0.07, ha="left", fontsize=13, fontweight="bold"
            )
            draw_bars(parts[1].subplots(), pipelines)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "demo.png", folder / "demo.svg"]
        figure.savefig(paths[0], dpi=160, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
        plt.close(figure)
    return paths


def draw_lines(axes: Axes, result: Result) -> None:
    fractions = [run.fraction for run in result.cached]
    axes.axhline(result.cold_seconds, color=GREY, linewidth=1.2, zorder=1)
    axes.plot(
        [0, 1],
        [result.cold_seconds, result.hit_seconds],
        "--",
        color=VERMILION,
        linewidth=1.8,
        label="straight line: (1 - c) × cold + c × hit",
        zorder=2,
    )
    axes.plot(
        fractions,
        [run.seconds[0] for run in result.cached],
        "o",
        markerfacecolor="white",
        markeredgecolor=GREY,
        markersize=6.5,
        label="first epoch of first-come: the cache fills",
        zorder=3,
    )
    axes.plot(
        fractions,
        [run.warm_seconds for run in result.cached],
        "o-",
        color=BLUE,
        linewidth=2.4,
        markersize=8.5,
        label="later epochs, first-come",
        zorder=4,
        clip_on=False,
    )
    ends = [result.cached[0], *result.costly, result.cached[-1]]
    axes.plot(
        [run.fraction for run in ends],
        [run.warm_seconds for run in ends],
        "o-",
        color=GREEN,
        linewidth=2.4,
        markersize=8.5,
        label="later epochs, cost: the costliest stay",
        zorder=5,
        clip_on=False,
    )


def draw_labels(axes: Axes, result: Result) -> None:
    """Puts speed-ups above the upper points and below the lower ones, and the legend below the axes."""
    for run in (*result.cached[1:], *result.costly):
        below = run.policy == "cost"
        axes.annotate(
            speed_up(result.cold_seconds / run.warm_seconds),
            (run.fraction, run.warm_seconds),
            (-6, -16) if below else (7, 8) if run.fraction < 1 else (16, 40),
            textcoords="offset points",
            ha="left" if not below and run.fraction < 1 else "right",
            color=BLUE if run.policy == "first-come" else GREEN,
            fontweight="bold",
        )
    axes.annotate(
        f"without a cache: {result.cold_seconds:.2f} s",
        (1.04, result.cold_seconds),
        (0, -14),
        textcoords="offset points",
        ha="right",
        color=GREY,
    )
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(-0.02, -0.14), ncols=2, frameon=False, labelcolor=INK
    )


def speed_up(factor: float) -> str:
    return f"{factor:.0f}× faster" if factor >= 10 else f"{factor:.1f}× faster"


def dress(axes: Axes, result: Result) -> None:
    axes.set_title("A sample in the cache is one less to load", loc="left", fontsize=15, fontweight="bold", pad=26)
    axes.text(0, 1.035, subtitle(result), transform=axes.transAxes, fontsize=10, color=GREY)
    axes.set_xlabel("cached fraction c of the dataset", labelpad=8)
    axes.set_ylabel("seconds an epoch", labelpad=8)
    axes.set_xticks(FRACTIONS)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlim(-0.04, 1.06)
    axes.set_ylim(0, max(result.cold_seconds, *(run.seconds[0] for run in result.cached)) * 1.06)
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=GREY)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GREY)


def draw_bars(axes: Axes, result: Pipelines) -> None:
    speeds, first = result.shown, result.shown[0].samples_a_second
    notes = ("without a cache", "the cache fills", "all from the cache")
    names = [f"{speed.name}:\n{note}" for speed, note in zip(speeds, notes, strict=True)]
    bars = axes.barh(names, [speed.samples_a_second for speed in speeds], 0.62, color=[GREY, BLUE, GREEN])
    labels = [f"{speed.samples_a_second:,.0f}" for speed in speeds]
    labels[1:] = [
        f"{label}: {speed_up(speed.samples_a_second / first)}"
        for label, speed in zip(labels[1:], speeds[1:], strict=True)
    ]
    axes.bar_label(bars, labels, padding=6, fontweight="bold", color=INK)
    axes.invert_yaxis()
    axes.margins(x=0.4)
    axes.tick_params(length=0, labelcolor=INK)
    axes.xaxis.set_visible(False)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def subtitle(result: Result) -> str:
    text = f"{result.samples} {result.short}, decoded and resized to 224 × 224 by {result.workers} workers"
    return text if result.loader == "multiprocessing" else f"{text} of a {result.loader}"
