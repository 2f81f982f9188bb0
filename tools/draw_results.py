"""Draws charts of the results: ours beside others, and beside what the machine can do.

    python3 tools/draw_results.py [FOLDER]

Reads tables of bench/results, measures nothing, and writes SVG files into FOLDER (docs/images). The same tables give the
same bytes, and a test compares. Needs only the standard library.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from palette import COLOURS, GREY, INK, PALE

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
OURS, OTHERS, LIMIT = COLOURS["Blue"], COLOURS["LightGrey"], COLOURS["Green"]
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}


@dataclass
class Bar:
    label: str
    value: float  # samples a second, or seconds
    colour: str


Panels = dict[str, list[Bar]]  # by their headings; all have the same rows


def rows(page: str, section: str) -> Iterator[dict[str, str]]:
    """The rows of the first table of a section, by the names of its columns. Without a section: of the page."""
    text = (RESULTS / page).read_text()
    body = text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0] if section else text
    lines = body[body.index("|") :].split("\n\n", 1)[0].splitlines()
    names, _, *found = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    for row in found:
        yield dict(zip(names, row, strict=True))


def seconds(time: str) -> float:
    number, unit = time.split()
    return float(number) * UNITS[unit]


def loaders() -> Panels:
    table = list(rows("2026-11-27-2-cores-shared-machine-others.md", "loaders of other projects, all hit"))
    others = {row["ours"]: 1 / seconds(row["time"]) for row in table[1:]}
    return ranked({"stocached": 1 / seconds(table[0]["time"])}, others, {"two memcpy threads alone": 1 / copy()})


def copy() -> float:
    """Seconds of a sample of those loaders in two threads of memcpy. They copied samples of 150,528 bytes."""
    copies = rows("2026-11-21-2-cores-shared-machine.md", "gather of a batch, 2 threads")
    (row,) = (
        row for row in copies if (row["case"], row["samples"], row["compared with"]) == ("c/gather", "image", MEMCPY)
    )
    return seconds(row["time of the other"]) * 196_608 / 150_528


MEMCPY = "memcpy loop 2 threads"


def cold_pictures() -> Panels:
    """The bare threads ran beside our loader on another day, so their ratio to ours counts here."""
    times = {
        row[""]: float(row["2 threads"])
        for row in rows("2026-11-25-pictures-runs.md", "Scaling from one thread to two")
    }
    panels = pictures("2026-11-27-pictures-quiet.md", "Cold epochs beside other loaders")
    ours = max(bar.value for bar in panels[""] if bar.colour == OURS)
    bare = Bar("the same work alone, 2 threads", ours * times["cold"] / times["cold, bare"], LIMIT)
    return {"": sorted([bare, *panels[""]], key=lambda bar: -bar.value)}


def warm_pictures() -> Panels:
    return pictures("2026-11-23-picture-epochs.md", "Warm epoch, 2 workers")


def pictures(page: str, section: str) -> Panels:
    rates = {row[""]: float(row["samples/s"].replace(",", "")) for row in rows(page, section)}
    ours = {re.sub("^ours", "stocached", name): rate for name, rate in rates.items() if name.startswith("ours")}
    limits = {name: rate for name, rate in rates.items() if "alone" in name}
    return ranked(
        ours, {name: rate for name, rate in rates.items() if not name.startswith("ours") and name not in limits}, limits
    )


def ranked(ours: dict[str, float], others: dict[str, float], limits: dict[str, float] | None = None) -> Panels:
    bars = [Bar(*bar, LIMIT) for bar in (limits or {}).items()]
    bars += [Bar(*bar, OURS) for bar in ours.items()] + [Bar(*bar, OTHERS) for bar in others.items()]
    return {"": sorted(bars, key=lambda bar: -bar.value)}


def gpu() -> Panels:
    """What two networks reach of the GPU's own speed, in percent."""
    shown = {
        "the GPU alone": ("the GPU alone", LIMIT),
        "ours, cached": ("stocached, cached", OURS),
        "ours, no cache": ("stocached, no cache", OURS),
        "ours, first epoch, which fills a cache": ("stocached, first epoch", OURS),
        "torch, decode_jpeg, uint8": ("torch, decode_jpeg", OTHERS),
        "torch, Pillow": ("torch, Pillow", OTHERS),
    }
    panels = {}
    for net in ("ResNet-50", "ResNet-18"):
        part = {
            re.sub(r" \(.*|;.*|:.*", "", row[""]): row["of the GPU's speed"] for row in rows("2026-11-27-gpu.md", net)
        }
        panels[f"{net}, % of the GPU's speed"] = [
            Bar(label, float(part[name].partition(" ")[0]), colour) for name, (label, colour) in shown.items()
        ]
    return panels


def hosts() -> Panels:
    table = [row for row in rows("2026-11-25-demo-cluster.md", "Epochs") if row["epoch"] == "3"]
    figures = [
        (float(row["seconds"]), float(row["from storage"]), float(row["from the tier"]), percent(row["local hits"]))
        for row in table
    ]
    return epochs([row["setting"] for row in table], figures)


def percent(text: str) -> float:
    return float(text.removesuffix(" %")) / 100


def epochs(settings: Sequence[str], figures: Sequence[tuple[float, float, float, float]]) -> Panels:
    """Panels of an epoch of each setting, as make demo-cluster measures it. Figures: seconds, bytes from the storage and from
    the tier as parts of the dataset, local hits as a part of the reads."""
    scales = {
        "seconds": 1,
        "from storage, % of data": 100,
        "from the tier, % of data": 100,
        "local hits, % of reads": 100,
    }
    return {
        heading: [Bar(setting, row[k] * scale, OURS) for setting, row in zip(settings, figures, strict=True)]
        for k, (heading, scale) in enumerate(scales.items())
    }


@dataclass
class Line:
    label: str
    colour: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[tuple[float, float]] = ()  # the least and the greatest of each point
    dashed: bool = False


def memory() -> list[Line]:
    """Epochs of the photos, beside one without a cache, against the memory of the cache."""
    lines = []
    for policy, label, colour in (("first-come", "first-come", GREY), ("cost", "cost: the costliest stay", OURS)):
        points, spread = [(0.0, 1.0)], [(1.0, 1.0)]
        for row in rows("2026-11-23-policies.md", "Photos"):
            if row["policy"] == policy:
                middle, least, greatest = map(float, re.findall(r"[\d.]+", row["seconds"]))
                points.append((float(row["c"]) * PHOTOS_MIB, middle))
                spread.append((least, greatest))
        lines.append(Line(label, colour, points, spread))
    best = {float(row["c"]) * PHOTOS_MIB: float(row["best set"]) for row in rows("2026-11-23-policies.md", "Photos")}
    return [*lines, Line("limit: the best set of photos", LIMIT, [(0.0, 1.0), *best.items()], dashed=True)]


PHOTOS_MIB = 3000 * 224 * 224 * 3 / 2**20


def nodes() -> list[Line]:
    table = list(rows("2026-11-25-owned-reads.md", ""))
    lines = []
    for samples, colour in (("64", OURS), ("256", LIMIT)):
        of = [row for row in table if row["samples of a node in a batch"] == samples]
        hits, limits = ([(int(row["nodes"]), 100 * float(row[name])) for row in of] for name in ("hits", "limit"))
        lines += [
            Line(f"affinity, {samples} samples a node", colour, hits),
            Line("its limit", colour, limits, dashed=True),
        ]
    return [*lines, Line("without affinity: 1/n", GREY, [(n, 100 / n) for n, _ in lines[0].points])]


CHARTS = {
    "benchmark-loaders.svg": (
        "Everything cached: samples a second",
        "1,500 samples of 196,608 bytes, batches of 64, 0 or 2 workers, 2 cores; green: the bare copy",
        loaders,
    ),
    "benchmark-pictures-cold.svg": (
        "Pictures, nothing cached: samples a second",
        "1,000 JPEG files, random crop, flip and normalisation, 2 workers, 2 cores; green: bare threads",
        cold_pictures,
    ),
    "benchmark-pictures-warm.svg": (
        "Pictures, everything cached: samples a second",
        "the same random crops out of a cache; green: the bare pass over pixels",
        warm_pictures,
    ),
    "benchmark-gpu.svg": (
        "How busy loaders keep an H200",
        "9,600 JPEG files, random crop, flip and normalisation, 16 workers on 16 processors; float32, torch's decode_jpeg uint8",
        gpu,
    ),
    "benchmark-hosts.svg": (
        "Three hosts, each caches a third: an epoch",
        "the third one of 14,208 samples of 110 KiB, behind a link of 100 MB/s; steps of 20 ms",
        hosts,
    ),
}


@dataclass
class Plot:
    title: str
    about: str
    across: tuple[str, Sequence[float]]  # an axis and its marks
    up: tuple[str, Sequence[float]]
    logarithmic: bool  # across
    lines: Callable[[], list[Line]]


PLOTS = {
    "benchmark-memory.svg": Plot(
        "An epoch against the memory of the cache",
        "3,000 photos, decoded and resized to 224 x 224: 431 MiB, 2 workers; medians and range of 7 rounds",
        ("MiB of cache", (0, 50, 100, 150, 200)),
        ("time of an epoch; without a cache: 1", (0, 0.2, 0.4, 0.6, 0.8, 1)),
        False,
        memory,
    ),
    "several-nodes.svg": Plot(
        "Nodes find what they read, however many there are",
        "a million samples, first-come, the nodes hold the dataset once, epoch 3; simulated",
        ("nodes", (2, 3, 8, 64, 256, 1000)),
        ("% of reads from the own cache", (0, 20, 40, 60, 80, 100)),
        True,
        nodes,
    ),
}

WIDTH, LEFT, ROW, TOP = 820, 330, 26, 62


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def head(title: str, about: str, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<title>{escape(title)}</title><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold" fill="{INK}">{escape(title)}</text>',
        f'<text x="16" y="46" font-size="12" fill="{GREY}">{escape(about)}</text>',
    ]


def svg(title: str, about: str, panels: Panels) -> str:
    """Bars in panels side by side. The labels stand once, on the left."""
    bars = next(iter(panels.values()))
    many = len(panels) > 1
    top, left, room = (TOP + ROW, 200, 50) if many else (TOP, LEFT, 90)
    wide, height = (WIDTH - left) // len(panels), top + ROW * len(bars) + 10
    parts = head(title, about, height)
    for panel, (heading, row) in enumerate(panels.items()):
        x = left + wide * panel
        full = (wide - room) / (max(bar.value for bar in row) or 1)
        if many:
            parts.append(f'<text x="{x}" y="{top - 9}" font-size="12" fill="{GREY}">{escape(heading)}</text>')
        parts.append(f'<path d="M{x} {top}V{height - 10}" stroke="{PALE}"/>')
        for k, bar in enumerate(row):
            y, length = top + ROW * k, max(bar.value * full, 1)
            bold = ' font-weight="bold"' if bar.colour == OURS and not many else ""
            if panel == 0:
                parts.append(
                    f'<text x="{left - 8}" y="{y + 17}" text-anchor="end" fill="{INK}"{bold}>{escape(bar.label)}</text>'
                )
            parts += [
                f'<rect x="{x}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" fill="{bar.colour}"/>',
                f'<text x="{x + length + 6:.1f}" y="{y + 17}" fill="{INK}"{bold}>{number(bar.value)}</text>',
            ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def plot_svg(plot: Plot) -> str:
    """Lines with marks. What each is stands below, in the order of the lines."""
    lines, (axis, across), (_, up) = plot.lines(), plot.across, plot.up
    left, right, top, bottom = 70, WIDTH - 40, TOP + 14, 330
    height = bottom + 44 + 20 * ((len(lines) + 1) // 2)
    scale = math.log if plot.logarithmic else float

    def x(value: float) -> float:
        from_, to = scale(across[0]), scale(max(across[-1], max(line.points[-1][0] for line in lines)))
        return left + (right - left) * (scale(value) - from_) / (to - from_)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - up[0]) / (up[-1] - up[0])

    parts = head(plot.title, plot.about, height)
    parts.append(f'<text x="16" y="{top - 12}" font-size="12" fill="{GREY}">{escape(plot.up[0])}</text>')
    for mark in up:
        parts += [
            f'<path d="M{left} {y(mark):.1f}H{right}" stroke="{PALE}"/>',
            f'<text x="{left - 8}" y="{y(mark) + 4:.1f}" text-anchor="end" font-size="12" fill="{GREY}">{mark:g}</text>',
        ]
    for mark in across:
        parts.append(
            f'<text x="{x(mark):.1f}" y="{bottom + 18}" text-anchor="middle" font-size="12" fill="{GREY}">{mark:g}</text>'
        )
    parts.append(
        f'<text x="{right}" y="{bottom + 34}" text-anchor="end" font-size="12" fill="{GREY}">{escape(axis)}</text>'
    )
    for k, line in enumerate(lines):
        dash = ' stroke-dasharray="6 5"' if line.dashed else ""
        stroke = f'fill="none" stroke="{line.colour}" stroke-width="2"{dash}'
        way = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in line.points)
        parts.append(f'<path d="M{way}" {stroke}/>')
        for (at, _), (least, greatest) in zip(line.points, line.spread, strict=False):
            parts.append(f'<path d="M{x(at):.1f} {y(least):.1f}V{y(greatest):.1f}" stroke="{line.colour}"/>')
        if not line.dashed:
            parts += [f'<circle cx="{x(at):.1f}" cy="{y(v):.1f}" r="4" fill="{line.colour}"/>' for at, v in line.points]
        a, b = left + 370 * (k % 2), bottom + 56 + 20 * (k // 2)
        parts += [
            f'<path d="M{a} {b}h34" {stroke}/>',
            f'<text x="{a + 44}" y="{b + 4}" fill="{INK}">{escape(line.label)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs/images"
    for name, (title, about, panels) in CHARTS.items():
        (folder / name).write_text(svg(title, about, panels()))
    for name, plot in PLOTS.items():
        (folder / name).write_text(plot_svg(plot))


if __name__ == "__main__":
    main()
