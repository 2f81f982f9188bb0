"""Draws docs/images/streams.svg: the rows of stocached.streams and their files over the steps of an
epoch.

python tools/draw_streams.py
"""

from __future__ import annotations

from pathlib import Path

from palette import COLOURS, GREY, INK, PALE
from stocached.streams import StreamBatch, Streams

LENGTHS = (9, 14, 4, 11, 6, 17, 8, 5, 12, 7, 10, 3)
ROWS, SEED = 4, 3
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"

CELL, LINE, LEFT, TOP = 21, 34, 62, 46  # pixels
# Light enough for black letters on them. Two files that follow each other in a row have different ones.
NAMES = ("SkyBlue", "Orange", "LightGreen", "LightYellow", "Purple", "LightBlue", "Yellow")
FILES = [COLOURS[name] for name in NAMES]


def batches() -> list[StreamBatch]:
    files = [list(range(length)) for length in LENGTHS]
    return list(Streams(files, ROWS, seed=SEED))


def draw(given: list[StreamBatch]) -> str:
    width, height = LEFT + CELL * len(given) + 16, TOP + LINE * ROWS + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="18" fill="{GREY}">step</text>',
    ]
    for step in range(0, len(given), 5):
        parts.append(
            f'<text x="{LEFT + CELL * (step + 0.5)}" y="{TOP - 10}" fill="{GREY}" text-anchor="middle">{step}</text>'
        )
    for row in range(ROWS):
        y = TOP + LINE * row
        parts.append(f'<text x="{LEFT - 12}" y="{y + 20}" fill="{INK}" text-anchor="end">row {row}</text>')
        parts += bars(given, row, y)
    y = TOP + LINE * ROWS
    parts.append(
        f'<rect x="{LEFT + CELL * 7}" y="{TOP - 4}" width="{CELL}" height="{LINE * ROWS}" rx="3" fill="none" stroke="{INK}" stroke-width="1.6"/>'
    )
    parts.append(f'<text x="{LEFT + CELL * 7.5}" y="{y + 14}" fill="{INK}" text-anchor="middle">a batch</text>')
    parts.append(
        f'<text x="{LEFT + CELL * len(given)}" y="{y + 14}" fill="{GREY}" text-anchor="end">hatched: no file is left (ends="pad")</text>'
    )
    parts.append(hatching())
    return "\n".join([*parts, "</svg>", ""])


def bars(given: list[StreamBatch], row: int, y: int) -> list[str]:
    """A bar for each file that the row reads, and one for the padding."""
    parts, first = [], 0
    for step in range(1, len(given) + 1):
        if step < len(given) and given[step].files[row] == given[first].files[row]:
            continue
        file, x, width = int(given[first].files[row]), LEFT + CELL * first, CELL * (step - first)
        fill = "url(#padding)" if file < 0 else FILES[file % len(FILES)]
        parts.append(f'<rect x="{x + 1}" y="{y}" width="{width - 2}" height="{LINE - 8}" rx="4" fill="{fill}"/>')
        if file >= 0:
            label = f"file {file}" if width > 50 else str(file)
            parts.append(f'<text x="{x + width / 2}" y="{y + 17.5}" fill="{INK}" text-anchor="middle">{label}</text>')
        first = step
    return parts


def hatching() -> str:
    return (
        '<defs><pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="6" height="6" fill="{PALE}"/><line x1="0" y1="0" x2="0" y2="6" stroke="{GREY}" stroke-width="1"/></pattern></defs>'
    )


if __name__ == "__main__":
    (FOLDER / "streams.svg").write_text(draw(batches()))
