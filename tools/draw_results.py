"""Draws charts of the results: ours beside others, and beside what the machine can do.

    python3 tools/draw_results.py [FOLDER]

Reads tables of bench/results, measures nothing, and writes SVG files into FOLDER (docs/images). The same tables give the
same bytes, and a test compares. Needs only the standard library.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
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
    """The rows of the first table of a section, by the names of its columns."""
    text = (RESULTS / page).read_text()
    body = text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = body[body.index("|") :].split("\n\n", 1)[0].splitlines()
    names, _, *found = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    for row in found:
        yield dict(zip(names, row, strict=True))


def seconds(time: str) -> float:
    number, unit = time.split()
    return float(number) * UNITS[unit]


def loaders() -> Panels:
    table = list(rows("2026-11-22-2-cores-shared-machine-others.md", "loaders of other projects, all hit, 2 workers"))
    others = {row["ours"]: 1 / seconds(row["time"]) for row in table[1:]}
    return ranked({"stocached": 1 / seconds(table[0]["time"])}, others)


def cold_pictures() -> Panels:
    return pictures("Cold epoch, 2 workers")


def warm_pictures() -> Panels:
    return pictures("Warm epoch, 2 workers")


def pictures(section: str) -> Panels:
    rates = {row[""]: float(row["samples/s"].replace(",", "")) for row in rows("2026-11-23-picture-epochs.md", section)}
    ours = {re.sub("^ours", "stocached", name): rate for name, rate in rates.items() if name.startswith("ours")}
    limits = {name: rate for name, rate in rates.items() if "alone" in name}
    return ranked(
        ours, {name: rate for name, rate in rates.items() if not name.startswith("ours") and name not in limits}, limits
    )


def ranked(ours: dict[str, float], others: dict[str, float], limits: dict[str, float] | None = None) -> Panels:
    bars = [Bar(*bar, LIMIT) for bar in (limits or {}).items()]
    bars += [Bar(*bar, OURS) for bar in ours.items()] + [Bar(*bar, OTHERS) for bar in others.items()]
    return {"": sorted(bars, key=lambda bar: -bar.value)}


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


CHARTS = {
    "benchmark-loaders.svg": (
        "Everything cached: samples a second",
        "1,500 samples of 196,608 bytes, batches of 64, 2 workers, 2 cores",
        loaders,
    ),
    "benchmark-pictures-cold.svg": (
        "Pictures, nothing cached: samples a second",
        "2,000 JPEG files, random crop, flip and normalisation, 2 workers, 2 cores",
        cold_pictures,
    ),
    "benchmark-pictures-warm.svg": (
        "Pictures, everything cached: samples a second",
        "the same random crops out of a cache; green: the bare pass over pixels",
        warm_pictures,
    ),
    "benchmark-hosts.svg": (
        "Three hosts, each caches a third: an epoch",
        "the third one of 14,208 samples of 110 KiB, behind a link of 100 MB/s; steps of 20 ms",
        hosts,
    ),
}

WIDTH, LEFT, ROW, TOP = 820, 330, 26, 62


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def svg(title: str, about: str, panels: Panels) -> str:
    """Bars in panels side by side. The labels stand once, on the left."""
    bars = next(iter(panels.values()))
    many = len(panels) > 1
    top, left, room = (TOP + ROW, 200, 50) if many else (TOP, LEFT, 90)
    wide, height = (WIDTH - left) // len(panels), top + ROW * len(bars) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<title>{escape(title)}</title><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold" fill="{INK}">{escape(title)}</text>',
        f'<text x="16" y="46" font-size="12" fill="{GREY}">{escape(about)}</text>',
    ]
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


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs/images"
    for name, (title, about, panels) in CHARTS.items():
        (folder / name).write_text(svg(title, about, panels()))


if __name__ == "__main__":
    main()
